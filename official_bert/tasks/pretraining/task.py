"""Pre-training: masked LM, or left-to-right LM, and a task about sentences over records (paper 3.1; 2018 `run_pretraining.py`)."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.config import build, merge
from official_bert.data import file_sets, record_origins, records
from official_bert.data.pretraining.dynamic_masking import Batch, DynamicMasking, of_this_schema
from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts, single_token_doubts
from official_bert.data.pretraining.packing import Packing, predictions_per_row
from official_bert.data.sources import RecordSource, refuse_rows
from official_bert.data.tables import Rows, Source
from official_bert.files import find_files, open_bytes, size_of
from official_bert.models.first_weights import begin_with_neighbours
from official_bert.models.pretrainer import Pretrainer
from official_bert.reports.comparison import ComparableAnswers
from official_bert.tasks.pretraining.next_token import next_token_batch
from official_bert.tasks.pretraining.served import ServedFillMask, ServedNextToken
from official_bert.training import losses
from official_bert.training.task import DataFiles, Predictions, Resolved, TaskBase

LOOKED_AT = 200  # first records that tell whether words have several tokens
COMPARED = 1 << 16  # first bytes of two files of the same size that tell whether they are copies
MASKED, WITHOUT_MASKS, PACKED = "masked", "without masks", "packed"  # kinds of records
Masking = Callable[[Batch, tf.Tensor], Batch]  # records without masks, their numbers -> the features of masked records


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The lengths of the records, the task of their second segments, what is learned, and how records without masks are masked."""

    max_seq_length: int = 128
    max_predictions_per_seq: int = 20
    # As --sentence_task of the records: nsp (BERT), sop (ALBERT: order) or none (RoBERTa: words alone, no head for sentences).
    sentence_task: Literal["nsp", "sop", "none"] = "nsp"
    sentence_loss: bool = True  # False: the second segments stay, but no head learns their task (the paper's "No NSP")
    # next_token: every token is predicted from those before it (paper 5.1), with model.attention left_to_right.
    objective: Literal["masked_lm", "next_token"] = "masked_lm"
    masking: MaskingConfig = dataclasses.field(default_factory=MaskingConfig)  # of records made with --masking=dynamic
    # Several instances share a row of max_seq_length tokens (data/pretraining/packing), so batch_size counts fuller rows.
    pack: bool = False
    max_instances_per_row: int = 8  # with pack
    # neighbours: heads of the first layer begin by looking at the tokens beside (models/first_weights), all else at random.
    first_weights: Literal["random", "neighbours"] = "random"

    def __post_init__(self):
        if self.max_instances_per_row < 1:
            raise ValueError(f"max_instances_per_row: expected at least 1, got {self.max_instances_per_row}")
        if self.max_predictions_per_seq < 1 and self.objective == "masked_lm":
            raise ValueError(f"max_predictions_per_seq: expected at least 1, got {self.max_predictions_per_seq}")


@dataclasses.dataclass(frozen=True)
class HeldOutRecords:
    """Records to evaluate on, by losses and accuracies alone; `loss_names` are those of the task."""

    source: RecordSource
    loss_names: tuple[str, ...]

    def evaluate(self, _):
        """Returns {}: losses and accuracies are measured anyway."""
        return {}

    def comparable(self, predictions: Predictions) -> dict[str, ComparableAnswers]:
        """Returns the records by number, measured by what `Task.predictions` gives of each."""
        sums = np.stack([row["sums"] for row in predictions])  # [N,losses,3]
        numbers = [str(number) for number in range(len(sums))]

        def measure(rows: np.ndarray) -> dict[str, float]:
            loss, right, weight = sums[rows].sum(axis=0, dtype=np.float64).T
            found = {f"{name}_loss": loss[k] / max(weight[k], 1e-9) for k, name in enumerate(self.loss_names)}
            return {"loss": sum(found.values())} | found | {
                f"{name}_accuracy": right[k] / max(weight[k], 1e-9) for k, name in enumerate(self.loss_names)}
        return {"": ComparableAnswers(questions=numbers, gold=numbers, answers=numbers, measure=measure)}


class Task(TaskBase):
    """Masked or left-to-right LM, and next-sentence or sentence-order prediction or neither, on `create_pretraining_data`'s records."""

    Options = Options
    head = "fill_mask"
    served_classes = (ServedFillMask,)

    def __post_init__(self):
        super().__post_init__()
        model = self.config.model
        if self._is_next_token and (model.attention != "left_to_right" or model.bilstm_layers):
            raise ValueError("config.options.objective: next_token: expected model.attention left_to_right and model.bilstm_layers 0 "
                             "(otherwise each token sees the one that it must predict), "
                             f"got {model.attention} and {model.bilstm_layers}")
        if self.options.pack and (self._is_next_token or model.attention != "bidirectional" or model.bilstm_layers):
            raise ValueError("config.options.pack: expected objective masked_lm, model.attention bidirectional and model.bilstm_layers 0 "
                             "(packed instances are told apart by attention, and stand for themselves by their [CLS]), got "
                             f"{self.options.objective}, {model.attention} and {model.bilstm_layers}")
        for number, phase in enumerate(self.config.phases):
            for key in ("sentence_task", "sentence_loss", "objective", "first_weights"):
                if (other := phase.options.get(key, wanted := getattr(self.options, key))) != wanted:
                    raise ValueError(f"config.phases[{number}].options.{key}: expected that of the run, {wanted} "
                                     f"(phases train one model, with one head for sentences and one for words), got {other}")

    @property
    def _sentence_task(self) -> str:
        return self.options.sentence_task

    @property
    def _is_next_token(self) -> bool:
        return self.options.objective == "next_token"

    @property
    def _learns_sentences(self) -> bool:
        return self.options.sentence_loss and self._sentence_task != "none"

    @property
    def loss_names(self):
        """`mlm` or `next_token`, and the task about sentences."""
        words = "next_token" if self._is_next_token else "mlm"
        return (words, self._sentence_task) if self._learns_sentences else (words,)

    @property
    def counter_names(self):
        """An accuracy for each loss."""
        return tuple(f"{name}_accuracy" for name in self.loss_names)

    def build_model(self):
        """Builds the encoder with the heads that the losses need."""
        return Pretrainer.make(self.config.model, {"next_sentence": self._learns_sentences},
                               recompute=self.config.training.recompute)

    def draw_first_weights(self, model):
        """Random weights or, where that is asked for, heads that look at their neighbours."""
        super().draw_first_weights(model)
        if self.options.first_weights == "neighbours":
            begin_with_neighbours(model, self.config.seed)

    def losses(self, outputs, batch):
        """Loss of words over the weighted predictions, the sentences' loss over the examples."""
        return {name: losses.cross_entropy(*part) for name, part in self._predicted(outputs, batch).items()}

    def loss_weights(self, batch):
        """The number of predictions and of examples."""
        return dict(zip(self.loss_names, (tf.reduce_sum(_mlm_weights(batch)), tf.reduce_sum(_sentence_weights(batch)))))

    def counters(self, outputs, batch):
        """Accuracies of words and sentences."""
        return {f"{name}_accuracy": losses.accuracy(*part) for name, part in self._predicted(outputs, batch).items()}

    def predictions(self, outputs, batch):
        """`sums`, for intervals: of each row and loss, the loss, the right answers and their weight, float32 [B,losses,3]."""
        rows = []
        for logits, labels, weights in self._predicted(outputs, batch).values():
            each = losses.negative_log_likelihoods(tf.cast(logits, tf.float32), labels)
            right = tf.reshape(losses.largest_places(losses.as_rows(logits)), tf.shape(labels)) == labels
            parts = tf.stack([each * weights, tf.where(right, weights, 0.0), weights], axis=-1)
            rows.append(tf.reduce_sum(tf.reshape(parts, (tf.shape(parts)[0], -1, 3)), axis=1))
        return {"sums": tf.stack(rows, axis=1)}

    def _predicted(self, outputs, batch):
        """Logits, labels and weights of each loss."""
        predicted = [(outputs["mlm_logits"], batch["masked_lm_ids"], _mlm_weights(batch))]
        if "nsp_logits" in outputs:
            labels = batch["next_sentence_labels"]
            predicted.append((outputs["nsp_logits"], labels if "instance_weights" in batch else labels[:, 0], _sentence_weights(batch)))
        return dict(zip(self.loss_names, predicted))

    def data(self, files):
        """Nothing: records are named by patterns and may be too large to be read whole."""
        return {}

    def read(self, files, steps, model):
        """Opens the records of `--input_file`, shuffled, and those of `--eval_input_file`, in their order."""
        training = self.config.training
        if steps.train and training.steps and training.epochs:
            raise ValueError(f"config.training: expected steps or epochs, got {training.steps} steps and {training.epochs:g} epochs "
                             "(0 leaves out one of them)")
        train = self._source(files, files.train_file, training.batch_size, shuffle=True) if steps.train else None
        held_out = None
        if steps.evaluate and files.eval_file:
            held_out = HeldOutRecords(self._source(files, files.eval_file, training.eval_batch_size, shuffle=False), self.loss_names)
            _warn_of_shared_records(train.paths if train else [], held_out.source.paths)
        return Resolved(task=self, model=model or self.build_model(), train=train, held_out=held_out)

    def served(self, model, options):
        return (ServedNextToken if self._is_next_token else ServedFillMask).make(self, model, options)

    def batch_spec(self, batch_size):
        """The features of masked records, or of packed rows; with `next_token`, a prediction for each place but the last."""
        length = self.options.max_seq_length
        table = records.pretraining_features(length, length - 1 if self._is_next_token else self.options.max_predictions_per_seq)
        if self.options.pack:
            table = _packed_features(self.options)
        return {feature.name: tf.TensorSpec((batch_size, feature.length), tf.float32 if feature.is_float else tf.int32)
                for feature in table} | {"example_weights": tf.TensorSpec((batch_size,), tf.float32)}

    def _source(self, given: DataFiles, patterns: Source, batch_size: int, shuffle: bool) -> RecordSource:
        """Opens the files whose records have this run's (or phase's) lengths."""
        if isinstance(patterns, Rows):
            raise ValueError(f"{patterns}: expected files of records, which tools/create_pretraining_data.py writes, got rows")
        files = find_files(patterns)
        for doubt in file_sets.doubts(files):
            logging.warning(doubt)
        features = {path: records.feature_lengths(path) for path in files if records.holds_records(path)}
        if not features:
            raise ValueError(f"{patterns}: expected records, the file holds none")
        if empty := [path for path in files if path not in features]:
            logging.warning("%s: no record in %d of %d files, the first is %s", patterns, len(empty), len(files), empty[0])
        paths = [path for path, found in features.items() if self._is_wanted(path, found)]
        if not paths:
            raise ValueError(f"{patterns}: one of config.phases wants records of {self.options.max_seq_length} tokens and "
                             f"{self.options.max_predictions_per_seq} predictions, and none of the files holds such")
        knows_words = self.config.tokenizer.vocab_file and not given.allow_changed_data
        digest = VocabularyFacts.of_tokenizer(self.tokenizer).digest if knows_words else ""
        for path in paths:
            origin = record_origins.read_origin(path)
            # Labels that nothing measures do not matter.
            if (shuffle or self._learns_sentences) and (task := origin.get("sentence_task", self._sentence_task)) != self._sentence_task:
                raise ValueError(f"{path}: its records were made with --sentence_task={task}, but config.options.sentence_task is "
                                 f"{self._sentence_task}")
            if knows_words:
                record_origins.check_vocabulary(path, origin, digest)
                record_origins.check_casing(path, origin, self.tokenizer.do_lower_case)
        kinds = sorted({_kind(features[path]) for path in paths})
        if len(kinds) > 1:
            wanted = "with masks or without them, got both" if PACKED not in kinds else f"of one kind, got {' and '.join(kinds)}"
            raise ValueError(f"{patterns}: expected records {wanted}")
        (kind,), table = kinds, _table(self.options, features[paths[0]])
        if shuffle:
            self._warn_of_unread_masking(() if kind == WITHOUT_MASKS else paths)
        if shuffle and kind == WITHOUT_MASKS and not self._is_next_token and (doubts := self._doubts_of_words(paths[0])):
            logging.warning("%s: %s", paths[0], doubts[0])
        masking = self._make_masking() if kind == WITHOUT_MASKS else None
        packer = None
        if self.options.pack and kind != PACKED:
            packer = Packing(table, self.options.max_seq_length, self.options.max_predictions_per_seq, self.options.max_instances_per_row,
                             masking.budgets if isinstance(masking, DynamicMasking) else None)
        return RecordSource(paths, batch_size, lambda *rows: self._parse(table, masking, *rows), self.config.seed, shuffle,
                            given.cache_dir, packer)

    def _doubts_of_words(self, path: str) -> list[str]:
        """Says, by the first records, that masking whole words would mask single tokens."""
        if self.options.masking.strategy != "whole_word":
            return []
        first = [tf.train.Example.FromString(record).features.feature for record in itertools.islice(records.read_records(path), LOOKED_AT)]
        starts, real = (sum(sum(row[name].int64_list.value) for row in first) for name in ("word_starts", "input_mask"))
        marks = [self.tokenizer.special_id(token) for token in ("[CLS]", "[SEP]")] if self.config.tokenizer.vocab_file else []
        special = sum(list(row["input_ids"].int64_list.value).count(mark) for row in first for mark in marks)
        return single_token_doubts("whole_word", 1.0 - starts / max(1, real - special))

    def _is_wanted(self, path: str, lengths: dict[str, int]) -> bool:
        """Whether records with these feature lengths are this phase's. Raises ValueError if they are no phase's."""
        phases = [build(Options, merge(self.config.options, phase.options)) for phase in self.config.phases]
        if not (wrong := _other_lengths(self.options, lengths)):
            return True
        if not all(_other_lengths(options, lengths) for options in phases):
            return False
        key, held = wrong[0]
        raise ValueError(f"{path}: config.options.{key} is {getattr(self.options, key)}, but its records hold {held}")

    def _warn_of_unread_masking(self, paths: Sequence[str]) -> None:
        """Warns of `options.masking` that is not read: with `next_token`, of spans with another strategy, or if it asks for other masks
        than those that the records at `paths` hold, or than is known of them (no paths: records without masks); and of a rate for
        which a row has too few predictions.
        """
        asked, strategy = self.config.options.get("masking", {}), self.options.masking.strategy
        of_spans = [key for key in asked if key.startswith("span_") and strategy != "span"]
        if self._is_next_token and asked:
            logging.warning("config.options.masking (%s) is not read: objective next_token masks nothing", ", ".join(asked))
        elif of_spans and not paths:
            logging.warning("config.options.masking (%s) is not read: its strategy is %s, not span", ", ".join(of_spans), strategy)
        for doubt in () if self._is_next_token or paths else self.options.masking.doubts(
                self.options.max_seq_length, self.options.max_predictions_per_seq):
            logging.warning("config.options.masking: %s", doubt)
        for path in () if self._is_next_token else paths:
            made = record_origins.read_origin(path).get("masking") or {}
            if unread := [key for key, value in asked.items() if made.get(key) != value]:
                logging.warning("%s: its records have masks already, so config.options.masking (%s) is not read; records made with "
                                "--masking=dynamic are masked by it", path, ", ".join(unread))
                return

    def _make_masking(self) -> Masking:
        if self._is_next_token:
            return lambda batch, _: next_token_batch(of_this_schema(batch))
        if not self.config.tokenizer.vocab_file:
            raise ValueError("records without masks need the vocabulary: give --vocab_file")
        return DynamicMasking(self.options.masking, VocabularyFacts.of_tokenizer(self.tokenizer), self.options.max_seq_length,
                              self.options.max_predictions_per_seq, self.config.seed)

    def _parse(self, table: tuple[records.Feature, ...], masking: Masking | None, serialized: tf.Tensor,
               indices: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = records.parse_examples(serialized, table)
        if masking:
            batch = masking(batch, indices)
        words, positions = self.config.model.vocab_size, batch["masked_lm_positions"]
        known = [tf.reduce_all((ids >= 0) & (ids < words), axis=1) for ids in (batch["input_ids"], batch["masked_lm_ids"])]
        segments, weights = batch["segment_ids"], batch["masked_lm_weights"]
        checks = {
            f"token id beyond the vocabulary of {words} (model.vocab_size)": ~(known[0] & known[1]),
            f"segment id beyond {self.config.model.type_vocab_size} (model.type_vocab_size)":
                tf.reduce_any((segments < 0) | (segments >= (self.config.model.type_vocab_size or 2)), axis=1),
            "no token at all (input_mask is 0)": tf.reduce_all(tf.equal(batch["input_mask"], 0), axis=1),
            "masked position outside the sequence":
                tf.reduce_any((positions < 0) | (positions >= self.options.max_seq_length), axis=1),
            "weight of a prediction (masked_lm_weights) that is negative or no number":
                ~tf.reduce_all(tf.math.is_finite(weights) & (weights >= 0), axis=1),
            "next-sentence label neither 0 nor 1": tf.reduce_any(batch["next_sentence_labels"] // 2 != 0, axis=1)}
        return refuse_rows(next_token_batch(batch) if self._is_next_token and not masking else batch, checks)


def _warn_of_shared_records(train: Sequence[str], held_out: Sequence[str]) -> None:
    """Warns of files to evaluate on that are training files or copies of them: 2018's script evaluated so by default."""
    sizes = {path: size_of(path) for path in {*train, *held_out}} if train else {}
    shared = [path for path in held_out if any(path == other or (sizes[path] == sizes[other] and _begin_alike(path, other))
                                               for other in train)]
    if shared:
        logging.warning("%d of %d files of evaluation records are training records, the first is %s: what is measured there says nothing "
                        "about other text", len(shared), len(held_out), shared[0])


def _begin_alike(path: str, other: str) -> bool:
    with open_bytes(path) as one, open_bytes(other) as two:
        return one.read(COMPARED) == two.read(COMPARED)


def _mlm_weights(batch) -> tf.Tensor:
    """1 for each prediction of a real row, else 0: [B,P]."""
    return batch["masked_lm_weights"] * batch["example_weights"][:, None]


def _sentence_weights(batch) -> tf.Tensor:
    """1 for each sentence pair of a real row, else 0: [B], or [B,K] of packed rows."""
    weights = batch["example_weights"]
    return batch["instance_weights"] * weights[:, None] if "instance_weights" in batch else weights


def _kind(lengths: Mapping[str, int]) -> str:
    """What records with these features are."""
    return PACKED if "instance_ids" in lengths else WITHOUT_MASKS if "word_starts" in lengths else MASKED


def _table(options: Options, lengths: Mapping[str, int]) -> tuple[records.Feature, ...]:
    """The features that records of this kind have under the options."""
    length, predictions = options.max_seq_length, options.max_predictions_per_seq
    if _kind(lengths) == WITHOUT_MASKS:
        return records.unmasked_features(length)
    if _kind(lengths) == MASKED:
        return records.pretraining_features(length, predictions)
    return _packed_features(options)


def _packed_features(options: Options) -> tuple[records.Feature, ...]:
    """The features of packed rows under the options."""
    most = options.max_instances_per_row
    return records.packed_features(options.max_seq_length, predictions_per_row(options.max_predictions_per_seq, most), most)


def _other_lengths(options: Options, lengths: Mapping[str, int]) -> list[tuple[str, int | str]]:
    """Lists (option, what the records hold) of lengths in which records differ from the options, and whether rows are packed."""
    held, predictions = {"max_seq_length": lengths.get("input_ids", 0)}, lengths.get("masked_lm_ids", 0)
    if _kind(lengths) == PACKED:
        if not options.pack:
            return [("pack", "packed rows, several instances in each")]
        held["max_instances_per_row"] = lengths.get("cls_positions", 0)
        predictions -= predictions_per_row(0, lengths.get("cls_positions", 0))
    if _kind(lengths) != WITHOUT_MASKS:
        held["max_predictions_per_seq"] = predictions
    return [(key, length) for key, length in held.items() if getattr(options, key) != length]
