"""Named entities, or other chunks of words, from CoNLL columns (paper 5.3): fine-tuned, with a CRF, or on frozen
features.
"""

import collections
import dataclasses
import itertools
import operator
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.data.batches.sources import ExampleSource, incomplete
from official_bert.data.labelled import splits
from official_bert.data.labelled.label_weights import class_weights, describe
from official_bert.data.labelled.labelled_texts import SAME_SHARE, described_counts
from official_bert.data.rows import Source
from official_bert.data.tagged import chunk_tags
from official_bert.data.tagged.chunk_tags import NOT_LABELLED, OUTSIDE, Scheme
from official_bert.dotted_names import by_name
from official_bert.layers.relatives import crf
from official_bert.models.classifier import Tagger
from official_bert.models.encoder import EncoderWithHeads
from official_bert.objectives.objective import Objective
from official_bert.objectives.tag_chains import ChainOfTags, chain_scores
from official_bert.objectives.tags import Tags
from official_bert.reports.sections import Section
from official_bert.tasks.answers import Examination
from official_bert.tasks.calibration import CalibratedAnswers
from official_bert.tasks.data import DataFiles, Steps, row_spec
from official_bert.tasks.file_data import FileData, TaskRows, Use
from official_bert.tasks.tagging import conll
from official_bert.tasks.tagging.conll import Sentence, SentenceFile
from official_bert.tasks.tagging.features import TaggingFeature, TaggingFeatureMaker, by_text, gather_words, whole_text
from official_bert.tasks.tagging.frozen_features import WordFeatures, WordRow, batches_by_length
from official_bert.tasks.tagging.options import Options
from official_bert.tasks.tagging.word_tagger import CRFTagger, FeatureTagger
from official_bert.tasks.task import TaskBase
from official_bert.text.accents import casing_warnings
from official_bert.training.held_out import HeldOut, Predictions

# Of a --data_dir.
FILES = {
    "train": ("train.txt", "train.conll", "eng.train", "wnut17train.conll"),
    "dev": ("dev.txt", "valid.txt", "dev.conll", "eng.testa", "emerging.dev.conll"),
    "test": ("test.txt", "test.conll", "eng.testb", "emerging.test.annotated"),
}
TOKENS_AT_ONCE = 1 << 17  # in decoding, with padding


class TaggedData(FileData):
    """Sentences of words with a tag each."""

    file_names = FILES

    @property
    def frozen(self) -> str | Sequence[str]:
        """With features also the whole encoder."""
        return "encoder" if self.options.features else self.config.training.freeze

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Rows at their full length; frozen features have no fixed shape."""
        if self.options.features:
            return super().batch_spec(batch_size)
        spec = row_spec(batch_size, self.options.max_seq_length)
        names = ["tag_mask", "tags", *["sentence_starts"] * self._several_chains]
        spec |= dict.fromkeys(names, spec["input_ids"])
        if self.options.class_weights:
            spec["loss_weights"] = tf.TensorSpec(spec["input_ids"].shape, tf.float32)
        return spec

    @property
    def _several_chains(self) -> bool:
        """Whether a row has a chain for each sentence of its document."""
        return self.options.crf and self.options.document_context

    def read_file(self, path: Source, use: Use) -> SentenceFile:
        """Reads sentences: with their tags, or, of a file to tag, with those that it has."""
        if use == "test":
            return conll.read_to_tag(path, self.options, logging.warning)
        return conll.read_sentences(path, self.options)

    def check_rows(self, rows: TaskRows, files: DataFiles, steps: Steps) -> TaskRows:
        """Also raises ValueError for a file without documents, if they are asked for; describes training and evaluation
        files.
        """
        read_files = [file for file in (rows.train, rows.held_out, rows.tests) if file]
        for file in read_files:
            if self.options.document_context and not any(sentence.document for sentence in file.sentences):
                raise ValueError(
                    f"{file.source}: expected lines {conll.DOCUMENT_START} between the documents for "
                    "options.document_context, got none; without this option each sentence is a row; a file that is "
                    "one document begins with such a line"
                )
        if rows.train and rows.held_out:
            self._check_held_out(rows, files)
        notes = [note for file in read_files for note in file.notes]
        if rows.train:
            notes += casing_warnings(self.tokenizer, (" ".join(sentence.words) for sentence in rows.train.sentences))
        return dataclasses.replace(
            rows, notes=(*notes, *(self.summary(file) for file in (rows.train, rows.held_out) if file))
        )

    @staticmethod
    def _check_held_out(rows: TaskRows, files: DataFiles) -> None:
        """Refuses evaluation sentences nearly all of which are training sentences; warns if more than half are."""
        known = {sentence.words for sentence in rows.train.sentences}
        count = len(rows.held_out.sentences)
        shared = sum(sentence.words in known for sentence in rows.held_out.sentences)
        message = f"{rows.held_out.source}: {shared} of its {count} sentences are in {rows.train.source} too"
        if shared >= SAME_SHARE * count:
            files.refuse_same(f"{message}: expected data that the model is not trained on")
        elif shared > count / 2:
            logging.warning("%s: the results say little about other texts", message)

    def divide(self, train: SentenceFile, hold_out: bool) -> splits.Parts:
        """Divides the sentences by documents, if there are several, else by themselves; their types of entities are the
        strata.
        """
        documents = len({sentence.document for sentence in train.sentences}) >= max(splits.FEW, self.options.folds)
        units = [sentence.document if documents else sentence.words for sentence in train.sentences]
        types = [() if documents else tuple(sorted({tag[2:] for tag in sentence.tags})) for sentence in train.sentences]
        return splits.divide(
            self.options, units, types, hold_out, str(train.source), "sentences", "documents" if documents else ""
        )

    def make_train(
        self, train: SentenceFile, files: DataFiles, model: keras.Model
    ) -> tuple[ExampleSource, Sequence[str]]:
        file = self._tagged_file(train, files, model, training=True)
        return file.source, [] if file.weights is None else [
            f"weights of the tags: {describe(file.weights, self.options.labels)}"
        ]

    def make_held_out(self, held_out: SentenceFile, files: DataFiles, model: keras.Model) -> HeldOut:
        return self._tagged_file(held_out, files, model)

    def make_tests(self, tests: SentenceFile, files: DataFiles, model: keras.Model) -> HeldOut:
        """The tags of sentences need not be known."""
        return self._tagged_file(tests, files, model, gold=False)

    def summary(self, file: SentenceFile) -> str:
        """Returns a line about a file's sentences: their number, and the scheme and number of its entities by type."""
        tags = [sentence.tags for sentence in file.sentences]
        if self.options.scheme == "plain":
            counts = collections.Counter(tag for row in tags for tag in row if tag != NOT_LABELLED)
            content = f"{len(counts)} different tags: {described_counts(dict(sorted(counts.items())))}"
        else:
            content = chunk_tags.describe_scheme(tags)
        return f"{file.source}: {len(tags)} sentences, {content}"

    def with_labels_of(self, train: SentenceFile) -> Self:
        """Returns the data with the labels of the training data's types in the options, unless labels are given.

        Raises ValueError if no word is labelled as anything but O.
        """
        if self.options.labels:
            return self
        tags = {tag for sentence in train.sentences for tag in sentence.tags} - {NOT_LABELLED}
        if tags <= {OUTSIDE}:
            raise ValueError(
                f"{train.source}: expected at least two different tags, got {sorted(tags)} in {len(train.sentences)} "
                "sentences"
            )
        types = (
            tags
            if self.options.scheme == "plain"
            else {chunk.kind for sentence in train.sentences for chunk in chunk_tags.read_chunks(sentence.tags)}
        )
        return self.with_options(labels=tuple(chunk_tags.label_list(types, self.options.scheme)))

    def _tagged_file(
        self, file: SentenceFile, files: DataFiles, model: keras.Model, training: bool = False, gold: bool = True
    ) -> "TaggedFile":
        """Makes the rows and batches of a file's sentences; without `gold`, their tags need not be known."""
        options = self.options
        sentences = [
            dataclasses.replace(sentence, tags=tuple(chunk_tags.convert_tags(sentence.tags, self.task.scheme)))
            for sentence in file.sentences
        ]
        unit = operator.attrgetter("document" if options.document_context else "line")  # no two sentences have one line
        texts = [list(text) for _, text in itertools.groupby(sentences, unit)]
        words = [[word for sentence in text for word in sentence.words] for text in texts]
        labels = [self._word_labels(file.source, text, gold) for text in texts]
        features = TaggingFeatureMaker(self.tokenizer, options.max_seq_length, options.doc_stride).make(words)
        rows: list = [feature.row(*labels[feature.text]) for feature in features]
        made_of: list = []
        if options.features:
            stored = WordFeatures(features, list(map(len, words)), model, files.cache_dir)
            # A run asks what its data are before it takes the weights from the checkpoint.
            made_of, rows = rows, [WordRow(stored, number, *parts) for number, parts in enumerate(labels)]
            features = [whole_text(number, len(text)) for number, text in enumerate(words)]
        weights = None
        if training and options.class_weights:
            tags = np.concatenate([part for part, _ in labels])
            counts = np.bincount(tags[tags >= 0], minlength=len(options.labels))
            weights = class_weights(options.class_weights, options.labels, counts, "config.options.class_weights")
            for row in rows:
                row["loss_weights"] = weights[row["tags"]]
        source = self.make_batches(rows, training, length_key="tags", sequence_keys=tuple(rows[0]), made_of=made_of)
        return TaggedFile(self.task, texts, features, source, weights)

    def _word_labels(
        self, source: Source, text: Sequence[Sentence], gold: bool
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns the labels of a text's words, int32 [words], and if a row has several chains, 1 for their first
        words; without `gold`, all labels are 0.
        """
        sizes = [len(sentence.words) for sentence in text]
        tags = np.zeros(sum(sizes), np.int32)
        if gold:
            tags = np.concatenate([self.tag_numbers(source, sentence) for sentence in text])
        starts = np.concatenate([np.arange(size) == 0 for size in sizes]).astype(np.int32)
        return tags, starts if self._several_chains else None

    def tag_numbers(self, path: Source, sentence: Sentence) -> np.ndarray:
        """Returns the labels of a sentence's tags, which are in the model's scheme, int32 [words]: 0 without tags, -1
        for a word that is not labelled.

        Raises ValueError for another type.
        """
        labels, numbers = self.options.labels, np.zeros(len(sentence.words), np.int32)
        for number, tag in enumerate(sentence.tags):
            if tag not in (*labels, NOT_LABELLED):
                raise ValueError(
                    f"{conll.tag_place(path, sentence, number)}: expected a tag of one of {list(labels)}, got {tag!r}"
                )
            numbers[number] = labels.index(tag) if tag else -1
        return numbers


class TagAnswers(CalibratedAnswers):
    """Tags of words, decoded over whole sentences."""

    def best_metric(self) -> str:
        return "tag_accuracy" if self.options.scheme == "plain" else "f1"

    def scores(self, outputs: Mapping[str, Any]) -> crf.Scores | None:
        """Returns the scores for decoding, from a model's outputs (or a row of `predictions`); None: each word gets its
        likeliest tag.
        """
        if not (self.options.crf or self.options.constrain):
            return None
        chain = crf.Scores(*(tf.convert_to_tensor(part, tf.float32) for part in chain_scores(outputs)))
        if not self.options.constrain:
            return chain
        return crf.constrain(chain, chunk_tags.legal_transitions(self.options.labels, self.task.scheme))

    def decode_tags(self, logits: Sequence[np.ndarray], outputs: Mapping[str, Any]) -> list[np.ndarray]:
        """Decodes tags of each sentence's words from logits [words,T]: the best path over a whole sentence; pure."""
        scores = self.scores(outputs)
        if scores is None:
            return [part.argmax(-1) for part in logits]
        best_paths: list[np.ndarray] = [np.zeros(0, int)] * len(logits)
        for part in batches_by_length(list(map(len, logits)), TOKENS_AT_ONCE):
            sentences = [logits[number] for number in part]
            emissions, real = by_text(np.concatenate(sentences), list(map(len, sentences)))
            for number, path in zip(part, np.asarray(crf.best_path(emissions, real, scores))):
                best_paths[number] = path[: len(logits[number])]
        return best_paths


class Task(TaskBase):
    """Tags each word at its first piece."""

    Options = Options
    head = "tagger"
    serving = "official_bert.tasks.tagging.served:TAGS"
    refused = {
        "header": "columns of words and tags are numbers (options.word_column, tag_column), and rows name their keys"
    }
    data = property(TaggedData)
    answers = property(TagAnswers)

    @property
    def scheme(self) -> Scheme:
        """The scheme of the model: of its labels, if they are known."""
        return chunk_tags.scheme_of(self.options.labels, self.options.scheme)

    def build_model(self) -> keras.Model:
        """Builds encoder and classifier, with or without a CRF, or frozen encoder, BiLSTM and classifier."""
        options, model = self.options, self.config.model
        if not options.labels:
            raise ValueError("config.options.labels: expected the tags; there is no training data to find them in")
        kind: type[EncoderWithHeads] = CRFTagger if options.crf else Tagger
        names = ["dropout"]
        if options.crf or options.features:
            names += ["boundary_scores", "crf_rate"]
        if options.features:
            kind, names = FeatureTagger, [*names, "features", "feature_layers", "lstm_size", "lstm_layers", "crf"]
        settings = {"num_tags": len(options.labels)} | {name: getattr(options, name) for name in names}
        return kind.make(model, settings, recompute=not options.features and self.config.training.recompute)

    @property
    def objective(self) -> Objective:
        return ChainOfTags() if self.options.crf else Tags(self.options.label_smoothing)


def _examination() -> Examination:
    return by_name("official_bert.tasks.tagging.examination")


@dataclasses.dataclass(frozen=True)
class TaggedFile:
    """A file's texts (single sentences or documents), and the use of their logits."""

    task: Task
    texts: list[list[Sentence]]  # with tags in the model's scheme
    features: list[TaggingFeature]
    source: ExampleSource
    weights: np.ndarray | None = None  # of the tags in the loss

    @property
    def sentences(self) -> list[Sentence]:
        """The sentences of all texts."""
        return list(itertools.chain.from_iterable(self.texts))

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes precision, recall and F1 of whole entities, as conlleval does."""
        _, gold, predicted = zip(*self._labelled(predictions))
        scores = (chunk_tags.plain_scores if self.task.scheme == "plain" else chunk_tags.chunk_scores)(gold, predicted)
        if (answers := self.task.answers).asked:
            scores |= _examination().tune(self.task.options, answers.tunes, *self._words(predictions))
        return scores

    def examine(self, predictions: Predictions) -> list[Section]:
        """Scores of each type, confusions, and the worst sentences, among those that were evaluated."""
        answers, words = self.task.answers, ()
        if answers.asked:
            tuned = answers.with_tuned(answers.tuned_options(self.evaluate(predictions))).answers
            words = (*self._words(predictions), *tuned.calibration)
        return list(_examination().examine(self._labelled(predictions), self.task.scheme == "plain", *words))

    def _words(self, predictions: Predictions) -> tuple[np.ndarray, np.ndarray]:
        """Returns the right tags [W], as numbers, and the logits [W,T] of all labelled words that were evaluated."""
        logits, evaluated, _ = self._logits(predictions)
        sentences = itertools.compress(self.sentences, evaluated)
        gold = np.concatenate([self.task.data.tag_numbers("", sentence) for sentence in sentences])
        return gold[gold >= 0], np.concatenate(list(itertools.compress(logits, evaluated)))[gold >= 0]

    def _labelled(self, predictions: Predictions) -> Iterator[tuple[list[str], ...]]:
        """Yields words, gold tags and found tags, in the model's scheme, of the labelled words of each sentence that
        was evaluated.
        """
        for sentence, answered in zip(self.sentences, self.tags(predictions)):
            if answered is not None:
                labelled = [tag != NOT_LABELLED for tag in sentence.tags]
                columns = (sentence.words, sentence.tags, answered)
                yield tuple(list(itertools.compress(column, labelled)) for column in columns)

    def write(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes `predictions.conll`: words, gold tags if the file has them, and predicted tags, all in the model's
        scheme.
        """
        path = os.path.join(output_dir, "predictions.conll")
        predicted = [
            tags or [OUTSIDE] * len(sentence.words) for sentence, tags in zip(self.sentences, self.tags(predictions))
        ]
        conll.write_columns(path, self.sentences, predicted, self.task.options.separator)
        return [path]

    def tags(self, predictions: Predictions) -> list[list[str] | None]:
        """Decodes the tags of each sentence; None for texts that were not evaluated whole."""
        logits, evaluated, outputs = self._logits(predictions)
        labels, plain = self.task.options.labels, self.task.scheme == "plain"
        nothing = () if plain else chunk_tags.meaningless(labels)
        names = [OUTSIDE if label in nothing else label for label in labels]
        tags = [[names[number] for number in numbers] for numbers in self.task.answers.decode_tags(logits, outputs)]
        if not plain and any(map(chunk_tags.has_prefix, labels)):
            tags = [[tag or OUTSIDE for tag in chunk_tags.with_types(spelled)] for spelled in tags]
        return [sentence if known else None for known, sentence in zip(evaluated, tags)]

    def _logits(self, predictions: Predictions) -> tuple[list[np.ndarray], list[bool], Mapping[str, Any]]:
        """Returns the logits [words,T] of each sentence, whether its text was evaluated whole, and the outputs of a
        row.
        """
        rows = self.source.in_order(predictions)
        missing = incomplete(rows, [feature.text for feature in self.features])
        features, values = zip(
            *((feature, row["logits"]) for feature, row in zip(self.features, rows) if row is not None)
        )
        lengths = [[len(sentence.words) for sentence in text] for text in self.texts]
        logits = np.concatenate(gather_words(features, values, list(map(sum, lengths))))
        by_sentence = np.split(logits, np.cumsum(list(itertools.chain.from_iterable(lengths)))[:-1])
        evaluated = [number not in missing for number, text in enumerate(self.texts) for _ in text]
        return by_sentence, evaluated, next(row for row in rows if row is not None)
