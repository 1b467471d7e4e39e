"""Question answering over a passage: SQuAD 1.1 and 2.0 (paper 4.2 and 4.3; 2018 `run_squad.py`)."""

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.config import check_length
from official_bert.data.cache import cached, file_digest
from official_bert.data.sources import ExampleSource
from official_bert.data.text_features import TextFeatures
from official_bert.files import written_whole
from official_bert.models.span_predictor import make_span_predictor
from official_bert.tasks.squad import metrics
from official_bert.tasks.squad.decoding import Decoded, DecodingRules, Logits, decode_all
from official_bert.tasks.squad.features import FeatureMaker, SquadFeature, as_arrays
from official_bert.tasks.squad.reading import SquadFile, read_squad
from official_bert.tasks.squad.served import ServedSpans
from official_bert.training import losses
from official_bert.training.task import TaskBase

LAYOUT = 1  # of the arrays that are cached
FILES = {"1.1": ("train-v1.1.json", "dev-v1.1.json"), "2.0": ("train-v2.0.json", "dev-v2.0.json")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The flags of 2018's `run_squad.py`."""

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64
    max_answer_length: int = 30
    n_best_size: int = 20
    version_2_with_negative: bool = False
    null_score_diff_threshold: float = 0.0
    buckets: tuple[int, ...] = ()  # lengths that batches are padded to; none: to the longest of each batch


class Task(TaskBase):
    """Start and end of the answer in a window of the passage; [CLS] where it is not in the window."""

    Options = Options
    head = "span"
    served_classes = (ServedSpans,)

    def __init__(self, config, files=None):
        super().__init__(config, files)
        self.rules = DecodingRules(**{key: getattr(self.options, key) for key in (
            "n_best_size", "max_answer_length", "version_2_with_negative", "null_score_diff_threshold")})
        self.decoded: dict[str, Decoded] = {}  # of the last evaluation or prediction
        self._files: dict[str, SquadFile] = {}
        self._held_out: dict[str, tuple[SquadFile, list[SquadFeature], ExampleSource]] = {}

    def build_model(self):
        """Encoder with a start and an end vector."""
        check_length(self.options.max_seq_length, self.config.model)
        return make_span_predictor(self.config.model, recompute=self.config.training.recompute)

    def losses(self, outputs, batch):
        """The mean of the losses of start and end, over the real tokens of a row; none of windows to be answered."""
        if "start_positions" not in batch:
            return {}
        found = {}
        for name in ("start", "end"):
            # Padding is no answer, whatever its logits: so a loss does not depend on the batch's other rows.
            logits = tf.where(tf.cast(batch["input_mask"], tf.bool), outputs[f"{name}_logits"], tf.float32.min)
            total, weight = losses.cross_entropy(logits, batch[f"{name}_positions"], batch["example_weights"])
            found[name] = (0.5 * total, weight)
        return found

    def batch_spec(self, batch_size):
        """Rows of the full length with their answers."""
        rows = {name: tf.TensorSpec((batch_size, self.options.max_seq_length), tf.int32)
                for name in ("input_ids", "input_mask", "segment_ids")}
        answers = {name: tf.TensorSpec((batch_size,), tf.int32) for name in ("start_positions", "end_positions")}
        return rows | answers | {"example_weights": tf.TensorSpec((batch_size,), tf.float32)}

    def train_source(self):
        """The questions of the training file whose answers stand in their contexts."""
        path = self._path("train_file", 0)
        if not path:
            where = f"--data_dir={self.files.data_dir}: no {self._published(0)} there" if self.files.data_dir else "got neither"
            raise ValueError(f"task squad: expected --train_file or a --data_dir with {self._published(0)}; {where}")
        file = read_squad(path, training=True, version_2=self.options.version_2_with_negative)
        if file.unfound:
            logging.warning("%s", file.warning())
        self._warn_of_overlap(file)
        depends_on = {"layout": LAYOUT, "data": file_digest(path), "vocab": file_digest(self.config.tokenizer.vocab_file),
                      "do_lower_case": self.config.tokenizer.do_lower_case} | {
            key: getattr(self.options, key) for key in ("max_seq_length", "doc_stride", "max_query_length",
                                                        "version_2_with_negative")}
        arrays = cached(self.files.cache_dir, depends_on, lambda: as_arrays(self._features(file, training=True)))
        answers = {name: arrays[name] for name in ("start_positions", "end_positions")}
        return ExampleSource(TextFeatures(arrays, answers), self.config.training.batch_size, self.config.seed,
                             buckets=self.options.buckets)

    def eval_source(self):
        """The windows of the questions to evaluate on, or None where there is no such file."""
        path = self._path("eval_file", 1)
        return self._source_of(path) if path and metrics.has_gold_answers(self._read(path).articles) else None

    def predict_source(self):
        """The windows of the questions to answer: those of `predict_file`, else those of evaluation."""
        path = self.files.predict_file or self._path("eval_file", 1)
        return self._source_of(path) if path else None

    def predictions(self, outputs, batch):
        """The logits; those of padding are left out by `evaluate`."""
        return {name: outputs[name] for name in ("start_logits", "end_logits")}

    def evaluate(self, predictions):
        """Exact match and F1 by the official evaluator; with version 2 also the best threshold for no answer."""
        path = self._path("eval_file", 1)
        file = self._decode(path, predictions)
        asked = [self._only(article, self.decoded) for article in file.articles]
        return metrics.evaluate(asked, self.decoded, self.options.version_2_with_negative)

    def best_metric(self):
        """F1."""
        return "f1"

    def write_predictions(self, predictions, output_dir):
        """Writes `predictions.json`, `nbest_predictions.json` and, with version 2, `null_odds.json`, as 2018 does."""
        self._decode(self.files.predict_file or self._path("eval_file", 1), predictions)
        return write_answers(self.decoded, output_dir, self.options.version_2_with_negative)

    def served(self, model, options):
        """Answers by the rules of evaluation."""
        asked = self.options
        return ServedSpans.make(self, model, options, doc_stride=asked.doc_stride, max_query_length=asked.max_query_length,
                                max_answer_length=asked.max_answer_length, n_best_size=asked.n_best_size,
                                no_answer=asked.version_2_with_negative, null_score_diff_threshold=asked.null_score_diff_threshold)

    def check_same_rows(self, other: TaskBase, where: str) -> None:
        """Raises ValueError where another run's model cannot answer the rows that this task makes."""
        check_length(self.options.max_seq_length, other.config.model, f"{where}: max_seq_length")
        if self.tokenizer.vocab != other.tokenizer.vocab or self.tokenizer.do_lower_case != other.tokenizer.do_lower_case:
            raise ValueError(f"{where}: its vocabulary is not that of {self.config.tokenizer.vocab_file}: the logits of other "
                             "tokens cannot be averaged")

    def _path(self, which: str, index: int) -> str:
        """A file given by itself, or the published one in `data_dir`; "" where there is neither."""
        if path := getattr(self.files, which):
            return path
        published = os.path.join(self.files.data_dir, self._published(index)) if self.files.data_dir else ""
        return published if os.path.exists(published) else ""

    def _published(self, index: int) -> str:
        return FILES["2.0" if self.options.version_2_with_negative else "1.1"][index]

    def _maker(self) -> FeatureMaker:
        return FeatureMaker(self.tokenizer, self.options.max_seq_length, self.options.doc_stride, self.options.max_query_length)

    def _features(self, file: SquadFile, training: bool) -> list[SquadFeature]:
        maker = self._maker()
        features = maker.make(file.examples, training)
        if maker.cut_questions:
            logging.warning("%s: %d questions are longer than max_query_length = %d tokens and were cut", file.path,
                            maker.cut_questions, self.options.max_query_length)
        return features

    def _read(self, path: str) -> SquadFile:
        if path not in self._files:
            self._files[path] = read_squad(path)
        return self._files[path]

    def _source_of(self, path: str) -> ExampleSource:
        if path not in self._held_out:
            file = self._read(path)
            features = self._features(file, training=False)
            source = ExampleSource(TextFeatures(as_arrays(features)), self.config.training.eval_batch_size,
                                   shuffle=False, by_length=True, buckets=self.options.buckets)
            self._held_out[path] = (file, features, source)
        return self._held_out[path][2]

    def _decode(self, path: str, predictions) -> SquadFile:
        """Fills `decoded` with the answers to those questions all of whose windows have been seen."""
        self._source_of(path)
        file, features, source = self._held_out[path]
        found = source.in_order(predictions)
        missing = {feature.example_index for feature, row in zip(features, found) if row is None}
        kept = [(feature, row) for feature, row in zip(features, found) if feature.example_index not in missing]
        logits = [_logits(row, len(feature.input_ids)) for feature, row in kept]
        self.decoded = decode_all(file.examples, [feature for feature, _ in kept], logits, self.rules,
                                  self.config.tokenizer.do_lower_case)
        return file

    @staticmethod
    def _only(article: dict, answered) -> dict:
        """An article with those of its questions that were answered: an evaluation may stop early."""
        return {"paragraphs": [{"qas": [row for row in paragraph["qas"] if row["id"] in answered]}
                               for paragraph in article["paragraphs"]]}

    def _warn_of_overlap(self, file: SquadFile) -> None:
        """Says so where questions are both trained on and evaluated on."""
        path = self.files.predict_file or self._path("eval_file", 1)
        if not path:
            return
        known = {example.qas_id for example in self._read(path).examples}
        if shared := [example.qas_id for example in file.examples if example.qas_id in known]:
            logging.warning("%s: %d of its %d questions stand in %s too (%s ...): what is measured there says nothing about other "
                            "questions", file.path, len(shared), len(file.examples), path, shared[0])


def _logits(row, length: int) -> Logits:
    """A prediction's logits without those of padding."""
    return Logits(*(np.asarray(row[name][:length], np.float64) for name in ("start_logits", "end_logits")))


def average_logits(found: Sequence[Sequence[Mapping[str, np.ndarray]]]) -> list[dict[str, np.ndarray]]:
    """The means, row by row, of what several models predicted of the same rows in the same order."""
    return [{name: np.mean([row[name] for row in rows], axis=0) for name in rows[0]} for rows in zip(*found, strict=True)]


def write_answers(decoded: dict[str, Decoded], output_dir: str, version_2: bool) -> list[str]:
    """Writes the prediction files of 2018 and returns their paths."""
    files: dict[str, dict] = {
        "predictions.json": {key: value.prediction for key, value in decoded.items()},
        "nbest_predictions.json": {key: [dataclasses.asdict(answer) for answer in value.nbest]
                                   for key, value in decoded.items()}}
    if version_2:
        files["null_odds.json"] = {key: value.null_odds for key, value in decoded.items()}
    for name, values in files.items():
        with written_whole(os.path.join(output_dir, name)) as file:
            json.dump(values, file, indent=4)
            file.write("\n")
    return [os.path.join(output_dir, name) for name in files]
