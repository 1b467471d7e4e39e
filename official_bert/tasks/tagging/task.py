"""Named entities, or any chunks of words, from CoNLL columns (paper 5.3): fine-tuned, with a CRF, or on frozen features."""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.config import check_length
from official_bert.data.sources import ExampleSource
from official_bert.layers import crf
from official_bert.models.tagger import make_tagger
from official_bert.tasks.tagging import conll
from official_bert.tasks.tagging.conll import Columns, Scheme, Sentence
from official_bert.tasks.tagging.features import TaggingFeature, TaggingFeatureMaker, gather_words
from official_bert.tasks.tagging.frozen_features import WordFeatures
from official_bert.tasks.tagging.served import ServedFeatureTagger, ServedTagger, decoder
from official_bert.tasks.tagging.word_tagger import CHAIN, chain_scores, make_crf_tagger, make_feature_tagger
from official_bert.training import losses
from official_bert.training.task import TaskBase

FILES = {"train": ("train.txt", "train.conll", "eng.train", "wnut17train.conll"),
         "dev": ("dev.txt", "valid.txt", "dev.conll", "eng.testa", "emerging.dev.conll"),
         "test": ("test.txt", "test.conll", "eng.testb", "emerging.test.annotated")}  # of a --data_dir
TEXTS_AT_ONCE = 256  # in decoding


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the files look like and what tags the words."""

    max_seq_length: int = 128
    doc_stride: int = 64  # from one window to the next, where a text is longer
    buckets: tuple[int, ...] = ()  # lengths that batches are padded to; none: to the longest of each batch
    word_column: int = 0  # -1 is the last
    tag_column: int = -1
    separator: str = ""  # between columns; "": any run of spaces and tabs
    scheme: Scheme = "iob2"  # that the model learns; files may have any
    labels: tuple[str, ...] = ()  # in the order of the logits; none: those of the types in the training data
    document_context: bool = False  # rows are documents (between -DOCSTART- lines) instead of sentences
    dropout: float = 0.1  # before the classifier
    crf: bool = False
    boundary_scores: bool = True  # of the CRF: scores for the first and the last tag
    crf_rate: float = 100.0  # how many times faster than the encoder its scores learn
    constrain: bool = False  # give legal sequences of tags only, with a CRF or without
    features: Literal["", "embeddings", "last", "second_to_last", "weighted_sum", "sum", "concat"] = ""  # "": fine-tune
    feature_layers: int = 4  # the last so many are summed or concatenated; 0: all
    lstm_size: int = 768  # on frozen features, both directions together
    lstm_layers: int = 2


@dataclasses.dataclass(frozen=True)
class Part:
    """A file: its sentences, the texts that they make up (each themselves, or documents), rows and batches."""

    path: str
    sentences: list[Sentence]
    texts: list[list[str]]  # words
    sizes: list[list[int]]  # words of each sentence of a text
    features: list[TaggingFeature]
    source: ExampleSource


class Task(TaskBase):
    """A tag for each word, at its first piece."""

    Options = Options
    head = "tagger"
    served_classes = (ServedTagger,)

    def __init__(self, config, files=None):
        super().__init__(config, files)
        self._parts: dict[tuple, Part] = {}
        self._model = None

    def build_model(self):
        """Encoder and classifier; with a CRF; or a frozen encoder, BiLSTM and classifier."""
        options, model = self.options, self.config.model
        if not options.labels:
            raise ValueError("config.options.labels: expected the tags; there is no training data to find them in")
        check_length(options.max_seq_length, model)
        crf_settings = {"boundary_scores": options.boundary_scores, "crf_rate": options.crf_rate}
        if options.features:
            self._model = make_feature_tagger(
                model, len(options.labels), options.features, feature_layers=options.feature_layers, lstm_size=options.lstm_size,
                lstm_layers=options.lstm_layers, dropout=options.dropout, crf=options.crf, **crf_settings)
        elif options.crf:
            self._model = make_crf_tagger(model, len(options.labels), options.dropout, **crf_settings,
                                          recompute=self.config.training.recompute)
        else:
            self._model = make_tagger(model, len(options.labels), options.dropout, recompute=self.config.training.recompute)
        return self._model

    def losses(self, outputs, batch):
        """Negative log-likelihood by word: of each tag, or of the chain that a CRF makes of a row's words."""
        words = tf.cast(batch["tag_mask"], tf.float32) * batch["example_weights"][:, None]
        if not self.options.crf:
            return {"loss": losses.cross_entropy(outputs["logits"], batch["tags"], words)}
        likelihood = crf.log_likelihood(outputs["logits"], batch["tags"], batch["tag_mask"], chain_scores(outputs))
        return {"loss": (-tf.reduce_sum(likelihood * batch["example_weights"]), tf.reduce_sum(words))}

    def counters(self, outputs, batch):
        """Accuracy of the likeliest tags by themselves."""
        words = tf.cast(batch["tag_mask"], tf.float32) * batch["example_weights"][:, None]
        return {"tag_accuracy": losses.accuracy(outputs["logits"], batch["tags"], words)}

    def predictions(self, outputs, batch):
        """Logits, and the CRF's scores, the same for every row."""
        rows = tf.shape(outputs["logits"])[0]
        chain = {name: tf.repeat(outputs[name][None], rows, axis=0) for name in CHAIN if name in outputs}
        return {"logits": tf.cast(outputs["logits"], tf.float32)} | chain

    def batch_spec(self, batch_size):
        """Rows at their full length; those of frozen features have none."""
        if self.options.features:
            return super().batch_spec(batch_size)
        return {name: tf.TensorSpec((batch_size, self.options.max_seq_length), tf.int32) for name in (
            "input_ids", "input_mask", "segment_ids", "tag_mask", "tags")} | {
            "example_weights": tf.TensorSpec((batch_size,), tf.float32)}

    def train_source(self):
        """The training file's texts; the types found there give the labels, where none are given."""
        path = self._path("train", self.files.train_file)
        if not path:
            raise ValueError(f"expected training data: --train_file, or one of {', '.join(FILES['train'])} in --data_dir "
                             f"({self.files.data_dir or 'not given'})")
        sentences = conll.read_sentences(path, self._columns)
        if not self.options.labels:
            kinds = {chunk.kind for sentence in sentences for chunk in conll.read_chunks(sentence.tags)}
            self.resolve(labels=tuple(conll.label_list(kinds, self.options.scheme)))
        return self._part(path, sentences, shuffle=True).source

    def eval_source(self):
        """The texts held out, or None; ValueError where all of them are training texts."""
        path = self._path("dev", self.files.eval_file)
        if not path or not self.files.evaluates:
            return None
        sentences = conll.read_sentences(path, self._columns)
        self._check_held_out(path, sentences)
        return self._part(path, sentences).source

    def predict_source(self):
        """The texts to tag; gold tags may stand in the file or not."""
        path = self._path("test", self.files.predict_file)
        if not path:
            return None
        return self._part(path, conll.read_sentences(path, self._columns, conll.has_tags(path, self._columns))).source

    def best_metric(self):
        """F1 of whole entities."""
        return "f1"

    def evaluate(self, predictions):
        """Precision, recall and F1 of whole entities as conlleval counts them."""
        part = self._parts[self._path("dev", self.files.eval_file), False]
        found = self._tag(part, predictions)
        return conll.chunk_scores(*zip(*((sentence.tags, tags) for sentence, tags in zip(part.sentences, found) if tags is not None)))

    def write_predictions(self, predictions, output_dir):
        """`predictions.conll`: words, gold tags where the file has them, and predicted ones, both in the model's scheme."""
        part = self._parts[self._path("test", self.files.predict_file), False]
        sentences = [dataclasses.replace(sentence, tags=tuple(conll.convert_tags(sentence.tags, self.options.scheme)))
                     for sentence in part.sentences]
        path = os.path.join(output_dir, "predictions.conll")
        found = [tags or [conll.OUTSIDE] * len(sentence.words) for sentence, tags in zip(sentences, self._tag(part, predictions))]
        conll.write_columns(path, sentences, found, self.options.separator)
        return [path]

    def served(self, model, options):
        """Entities by the tags of evaluation."""
        kind = ServedFeatureTagger if self.options.features else ServedTagger
        return kind.make(self, model, options, labels=self.options.labels, decode=decoder(self, model),
                         doc_stride=self.options.doc_stride)

    def scores(self, outputs: Mapping[str, Any]) -> crf.Scores | None:
        """What decoding adds to logits, from a model's outputs (or a row of `predictions`); None: each word's likeliest tag."""
        if not (self.options.crf or self.options.constrain):
            return None
        chain = crf.Scores(*(tf.convert_to_tensor(part, tf.float32) for part in chain_scores(outputs)))
        if not self.options.constrain:
            return chain
        return crf.constrain(chain, conll.legal_transitions(self.options.labels, self.options.scheme))

    def decode_tags(self, logits: Sequence[np.ndarray], outputs: Mapping[str, Any]) -> list[np.ndarray]:
        """The tags of each text's words from logits [words,T]: the best path of the whole text, whatever windows it had; pure."""
        scores = self.scores(outputs)
        if scores is None:
            return [part.argmax(-1) for part in logits]
        found: list[np.ndarray] = [np.zeros(0, int)] * len(logits)
        order = sorted(range(len(logits)), key=lambda text: len(logits[text]))
        for start in range(0, len(order), TEXTS_AT_ONCE):
            part = order[start:start + TEXTS_AT_ONCE]
            longest = max(1, max(len(logits[text]) for text in part))
            emissions = np.stack([np.pad(logits[text], [(0, longest - len(logits[text])), (0, 0)]) for text in part])
            mask = np.arange(longest) < np.array([[len(logits[text])] for text in part])
            paths = np.asarray(crf.best_path(emissions, mask, scores)[0])
            for text, path in zip(part, paths):
                found[text] = path[:len(logits[text])]
        return found

    @property
    def _columns(self) -> Columns:
        return Columns(self.options.word_column, self.options.tag_column, self.options.separator)

    def _path(self, which: str, given: str) -> str:
        """A file given by itself, or the first of the usual names that is in `data_dir`; "" where there is neither."""
        if given or not self.files.data_dir:
            return given
        paths = (os.path.join(self.files.data_dir, name) for name in FILES[which])
        return next(filter(os.path.isfile, paths), "")

    def _maker(self) -> TaggingFeatureMaker:
        return TaggingFeatureMaker(self.tokenizer, self.options.max_seq_length, self.options.doc_stride)

    def _part(self, path: str, sentences: list[Sentence], shuffle: bool = False) -> Part:
        """A file's rows and batches, made once."""
        if (path, shuffle) not in self._parts:
            groups = _documents(sentences) if self.options.document_context else [[sentence] for sentence in sentences]
            texts = [[word for sentence in group for word in sentence.words] for group in groups]
            tags = [np.array([number for sentence in group for number in self._tag_numbers(path, sentence)], np.int32)
                    for group in groups]
            features = self._maker().make(texts)
            training = self.config.training
            rows, keys = self._rows(features, tags, texts)
            source = ExampleSource(rows, training.batch_size if shuffle else training.eval_batch_size, self.config.seed, shuffle,
                                   self.options.buckets, "tags", keys, by_length=not training.eval_steps)
            sizes = [[len(sentence.words) for sentence in group] for group in groups]
            self._parts[path, shuffle] = Part(path, sentences, texts, sizes, features, source)
        return self._parts[path, shuffle]

    def _rows(self, features: list[TaggingFeature], tags: list[np.ndarray], texts: list[list[str]]):
        """Rows of windows or, on frozen features, of whole texts; and the keys of what is as long as a row."""
        if not self.options.features:
            rows = [feature.row(tags[feature.text]) for feature in features]
            return rows, tuple(rows[0])
        stored = WordFeatures(features, [len(words) for words in texts], self._built_model, self.files.cache_dir)
        texts_of_words = [WordRow(stored, number, part) for number, part in enumerate(tags)]
        return texts_of_words, tuple(texts_of_words[0])

    def _built_model(self):
        assert self._model is not None, "features are computed by the model, which has not been built"
        return self._model

    def _tag_numbers(self, path: str, sentence: Sentence) -> Iterator[int]:
        """The labels of a sentence's tags in the model's scheme, 0 where it has none; ValueError naming the line of another type."""
        if not sentence.tags:
            yield from [0] * len(sentence.words)
        for number, tag in enumerate(conll.convert_tags(sentence.tags, self.options.scheme)):
            if tag not in self.options.labels:
                raise ValueError(f"{path}:{sentence.line + number}: expected a tag of one of {list(self.options.labels)}, got {tag!r}")
            yield self.options.labels.index(tag)

    def _check_held_out(self, path: str, sentences: list[Sentence]) -> None:
        """ValueError where all sentences of an evaluation are training sentences; a warning where more than half are."""
        training = [part for (_, shuffle), part in self._parts.items() if shuffle]
        if not training:
            return
        known = {sentence.words for sentence in training[0].sentences}
        shared = sum(sentence.words in known for sentence in sentences)
        message = f"{path}: {shared} of its {len(sentences)} sentences stand in {training[0].path} too"
        if shared == len(sentences):
            raise ValueError(f"{message}: expected data that the model is not trained on")
        if shared > len(sentences) / 2:
            logging.warning("%s: what is measured there says little about other texts", message)

    def _tag(self, part: Part, predictions) -> list[list[str] | None]:
        """The tags of each sentence; None where an evaluation that stops early did not get to all of its text."""
        rows = part.source.in_order(predictions)
        lengths = [len(words) for words in part.texts]
        owners = range(len(rows)) if self.options.features else [feature.text for feature in part.features]
        missing = {text for text, row in zip(owners, rows) if row is None}
        if self.options.features:
            logits = [np.zeros((0, 1)) if row is None else row["logits"][:length] for row, length in zip(rows, lengths)]
        else:
            kept = [(feature, row["logits"]) for feature, row in zip(part.features, rows) if row is not None]
            logits = gather_words([feature for feature, _ in kept], [row for _, row in kept], lengths)
        tags = self.decode_tags(logits, next(row for row in rows if row is not None))
        found: list[list[str] | None] = []
        for text, (numbers, sizes) in enumerate(zip(tags, part.sizes)):
            ends = np.cumsum(sizes)
            found += [None if text in missing else [self.options.labels[tag] for tag in numbers[end - size:end]]
                      for size, end in zip(sizes, ends)]
        return found


class WordRow(Mapping):
    """A text as a row of word features, which are computed when they are first asked for."""

    def __init__(self, stored: WordFeatures, number: int, tags: np.ndarray):
        self.stored, self.number = stored, number
        self.values_by_key = {"tags": tags, "input_mask": np.ones_like(tags), "tag_mask": np.ones_like(tags)}

    def __getitem__(self, key):
        return self.stored[self.number] if key == "word_features" else self.values_by_key[key]

    def __iter__(self):
        return iter([*self.values_by_key, "word_features"])

    def __len__(self):
        return 4


def _documents(sentences: Sequence[Sentence]) -> list[list[Sentence]]:
    """Sentences of one document together, in order."""
    groups: dict[int, list[Sentence]] = {}
    for sentence in sentences:
        groups.setdefault(sentence.document, []).append(sentence)
    return list(groups.values())
