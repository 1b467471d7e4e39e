"""Pre-training: masked LM, or left-to-right LM, and a task about sentences over records (paper 3.1; 2018
`run_pretraining.py`).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from absl import logging
from jaxtyping import Float, Int

from official_bert.config import build, merge
from official_bert.data import provenance, records
from official_bert.data.pretraining import dynamic_masking
from official_bert.data.pretraining.dynamic_masking import DynamicMasking, of_this_schema, sample_keys
from official_bert.data.pretraining.masking import VocabularyFacts, single_token_doubts
from official_bert.data.pretraining.packing import Packing
from official_bert.data.rows import Rows, Source
from official_bert.data.sources import RecordSource, refuse_rows
from official_bert.dotted_names import by_name
from official_bert.files import find_files
from official_bert.layers.heads import LONGEST_SPAN, places_in_spans
from official_bert.model_config import ModelConfig
from official_bert.models.encoder import encoder_settings
from official_bert.models.first_weights import begin_with_neighbours
from official_bert.models.pretrainer import ObservedPretrainer, Pretrainer
from official_bert.models.replaced_tokens import ReplacedTokenPretrainer, generator_config
from official_bert.objectives import losses
from official_bert.serving.served_model import ServedModel, ServingOptions
from official_bert.tasks.pretraining.held_out import HeldOutRecords, warn_of_shared_records
from official_bert.tasks.pretraining.next_token import next_token_batch
from official_bert.tasks.pretraining.options import OF_ALL_PHASES, Options, with_defaults
from official_bert.tasks.pretraining.record_kinds import (
    PACKED,
    WITHOUT_MASKS,
    kind_of,
    other_lengths,
    packed_features,
    table_of,
)
from official_bert.tasks.pretraining.served import ServedFillMask, ServedNextToken
from official_bert.training.reporting.flops import training_flops
from official_bert.training.task import Batch, DataFiles, Fraction, Outputs, Resolved, RowValues, Steps, TaskBase

LOOKED_AT = 200  # first records that tell whether words have several tokens
Predicted = tuple[Float[Any, "*rows K"], Int[Any, "*rows"], Float[Any, "*rows"]]  # logits, labels, weights
# Records without masks, their numbers -> the features of masked records.
Masking = Callable[[dynamic_masking.Batch, tf.Tensor], dynamic_masking.Batch]


class Task(TaskBase):
    """Masked or left-to-right LM, and next-sentence or sentence-order prediction or neither, on
    `create_pretraining_data`'s records.
    """

    Options = Options
    head = "fill_mask"
    served_classes = (ServedFillMask,)

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self.config.model
        if self._is_next_token and (model.attention != "left_to_right" or model.bilstm_layers):
            raise ValueError(
                "config.options.objective: next_token: expected model.attention left_to_right and model.bilstm_layers "
                f"0 (otherwise each token sees the one that it must predict), got {model.attention} and "
                f"{model.bilstm_layers}"
            )
        if self.options.pack and (self._is_next_token or model.attention != "bidirectional" or model.bilstm_layers):
            raise ValueError(
                "config.options.pack: expected objective masked_lm, model.attention bidirectional and "
                "model.bilstm_layers 0 (packed instances are told apart by attention, and stand for themselves by "
                f"their [CLS]), got {self.options.objective}, {model.attention} and {model.bilstm_layers}"
            )
        if self._tells_replaced:
            self._check_replaced_tokens()
        if self.options.boundary_weight and self.config.training.teacher:
            raise ValueError(
                "config.options.boundary_weight: expected 0 beside training.teacher, which has no such head, got "
                f"{self.options.boundary_weight}"
            )
        for number, phase in enumerate(self.config.phases):
            for key in OF_ALL_PHASES:
                if (phase_value := phase.options.get(key, run_value := getattr(self.options, key))) != run_value:
                    raise ValueError(
                        f"config.phases[{number}].options.{key}: expected that of the run, {run_value} "
                        f"(phases train one model, with one head for sentences and one for words), got {phase_value}"
                    )

    def _check_replaced_tokens(self) -> None:
        """Raises ValueError for what does not go with objective replaced_tokens."""
        model, options, where = self.config.model, self.options, "config.options.objective: replaced_tokens: expected"
        if model.attention != "bidirectional" or model.bilstm_layers:
            raise ValueError(
                f"{where} model.attention bidirectional and model.bilstm_layers 0 (its generator guesses a word from "
                f"both sides), got {model.attention} and {model.bilstm_layers}"
            )
        if self._learns_sentences:
            raise ValueError(
                f"{where} sentence_loss false or sentence_task none (neither model has a head for sentences), got "
                f"sentence_task {self._sentence_task} and sentence_loss true"
            )
        if model.pooler_norm and round(model.hidden_size * options.generator_width) != model.table_width:
            raise ValueError(
                "config.model.pooler_norm: expected false beside options.objective replaced_tokens, whose generator is "
                f"narrower than its word table (generator_width {options.generator_width}), got true"
            )
        if options.adds_first and options.pack:
            raise ValueError(f"{where} adds_first false beside pack (a packed row has several [CLS]), got true")
        self._generator_config()

    def _generator_config(self) -> ModelConfig:
        """The generator's sizes. Raises ValueError, naming the options, for a model that there cannot be."""
        width, layers = self.options.generator_width, self.options.generator_layers
        try:
            return generator_config(self.config.model, width, layers)
        except ValueError as error:
            raise ValueError(
                f"config.options.generator_width {width} and generator_layers {layers}: no generator can be made of "
                f"this model: {error}"
            ) from None

    @classmethod
    def read_options(cls, values: Mapping[str, Any]) -> Any:
        """Reads options with the defaults of their objective."""
        return super().read_options(with_defaults(values))

    @property
    def _sentence_task(self) -> str:
        return self.options.sentence_task

    @property
    def _is_next_token(self) -> bool:
        return self.options.objective == "next_token"

    @property
    def _tells_replaced(self) -> bool:
        return self.options.objective == "replaced_tokens"

    @property
    def _learns_sentences(self) -> bool:
        return self.options.sentence_loss and self._sentence_task != "none"

    @property
    def loss_names(self) -> Sequence[str]:
        """`mlm` or `next_token`, `boundary` of spans, and the task about sentences; or `mlm` of the generator and
        `replaced`.
        """
        if self._tells_replaced:
            return ("mlm", "replaced")
        return (
            "next_token" if self._is_next_token else "mlm",
            *(("boundary",) if self.options.boundary_weight else ()),
            *((self._sentence_task,) if self._learns_sentences else ()),
        )

    @property
    def counter_names(self) -> Sequence[str]:
        """An accuracy for each loss; also the shares of tokens called replaced that are, and of those replaced that are
        called so.
        """
        return (
            *(f"{name}_accuracy" for name in self.loss_names),
            *(("replaced_precision", "replaced_recall") if self._tells_replaced else ()),
        )

    def build_model(self) -> keras.Model:
        """Builds the encoder with the heads that the losses need, and its generator if it has one."""
        if self._tells_replaced:
            return ReplacedTokenPretrainer.make(
                self.config.model,
                {
                    "generator": encoder_settings(self._generator_config()),
                    "embedding_sharing": self.options.embedding_sharing,
                    "adds_first": self.options.adds_first,
                },
                recompute=self.config.training.recompute,
            )
        kind = ObservedPretrainer if self.config.training.distillation.observes else Pretrainer
        return kind.make(
            self.config.model,
            {"next_sentence": self._learns_sentences, "boundary": self.options.boundary_weight > 0},
            recompute=self.config.training.recompute,
        )

    def reads_pooler(self, model: keras.Model) -> bool:
        """With `pooler_norm` the head for words does, else that for sentences alone."""
        return self.config.model.pooler_norm or model.next_sentence is not None

    def draw_first_weights(self, model: keras.Model) -> None:
        """Random weights or, where that is asked for, heads that look at their neighbours."""
        super().draw_first_weights(model)
        if self.options.first_weights == "neighbours":
            begin_with_neighbours(model, self.config.seed)

    def losses(self, outputs: Outputs, batch: Batch) -> dict[str, Fraction]:
        """Loss of words over the weighted predictions, the sentences' loss over the examples, that of replaced tokens
        over all real ones, times its weight.
        """
        fractions = {name: losses.cross_entropy(*part) for name, part in self.predicted(outputs, batch).items()}
        return {name: (loss * self._factor(name), weight) for name, (loss, weight) in fractions.items()}

    def _factor(self, name: str) -> float:
        """What a loss is multiplied by."""
        return {"replaced": self.options.replaced_weight, "boundary": self.options.boundary_weight}.get(name, 1.0)

    def loss_weights(self, batch: Batch) -> dict[str, Float[Any, ""]]:
        """The number of predictions, of those near enough to the beginning of their span, and of examples or real
        tokens.
        """
        weights = {
            "replaced": losses.token_weights,
            "boundary": _boundary_weights,
            self._sentence_task: _sentence_weights,
        }
        return {name: tf.reduce_sum(weights.get(name, losses.prediction_weights)(batch)) for name in self.loss_names}

    def counters(self, outputs: Outputs, batch: Batch) -> dict[str, Fraction]:
        """Accuracies of words, sentences and replaced tokens, and precision and recall of these."""
        measured = {f"{name}_accuracy": losses.accuracy(*part) for name, part in self.predicted(outputs, batch).items()}
        if self._tells_replaced:
            called = tf.cast(outputs["replaced_logits"] > 0, tf.float32) * losses.token_weights(batch)
            replaced = tf.cast(outputs["replaced"], tf.float32) * losses.token_weights(batch)
            both = tf.reduce_sum(called * replaced)
            measured |= {
                "replaced_precision": (both, tf.reduce_sum(called)),
                "replaced_recall": (both, tf.reduce_sum(replaced)),
            }
        return measured

    def flops(self, batch: Batch) -> Float[Any, ""]:
        """Those of the encoder and its heads, and of the generator."""
        if not self._tells_replaced:  # the head of spans is not counted
            return super().flops(batch)
        rows = {"input_ids": batch["input_ids"]}
        return training_flops(self.config.model, rows) + training_flops(self._generator_config(), batch)

    def predictions(self, outputs: Outputs, batch: Batch) -> RowValues:
        """`sums`, for intervals: of each row and loss, the loss, the right answers and their weight, float32
        [B,losses,3].
        """
        rows = []
        for name, (logits, labels, weights) in self.predicted(outputs, batch).items():
            each = losses.negative_log_likelihoods(tf.cast(logits, tf.float32), labels) * self._factor(name)
            right = tf.reshape(losses.largest_places(losses.as_rows(logits)), tf.shape(labels)) == labels
            parts = tf.stack([each * weights, tf.where(right, weights, 0.0), weights], axis=-1)
            rows.append(tf.reduce_sum(tf.reshape(parts, (tf.shape(parts)[0], -1, 3)), axis=1))
        return {"sums": tf.stack(rows, axis=1)}

    def predicted(self, outputs: Outputs, batch: Batch) -> dict[str, Predicted]:
        """Logits, labels and weights of each loss."""
        predicted = [(outputs["mlm_logits"], batch["masked_lm_ids"], losses.prediction_weights(batch))]
        if "boundary" in self.loss_names:
            predicted.append((outputs["boundary_logits"], batch["masked_lm_ids"], _boundary_weights(batch)))
        if self._tells_replaced:  # as two classes: their softmax is the logistic function of the one logit
            logits = outputs["replaced_logits"]
            predicted.append(
                (tf.stack([tf.zeros_like(logits), logits], axis=-1), outputs["replaced"], losses.token_weights(batch))
            )
        if "nsp_logits" in outputs:
            labels = batch["next_sentence_labels"]
            predicted.append(
                (
                    outputs["nsp_logits"],
                    labels if "instance_weights" in batch else labels[:, 0],
                    _sentence_weights(batch),
                )
            )
        return dict(zip(self.loss_names, predicted))

    def data(self, files: DataFiles) -> dict[str, list[Source]]:
        """Nothing: records are named by patterns and may be too large to be read whole."""
        return {}

    def read(self, files: DataFiles, steps: Steps, model: keras.Model | None) -> Resolved:
        """Opens the records of `--input_file`, shuffled, and those of `--eval_input_file`, in their order."""
        training = self.config.training
        if steps.train and training.steps and training.epochs:
            raise ValueError(
                f"config.training: expected steps or epochs, got {training.steps} steps and {training.epochs:g} epochs "
                "(0 leaves out one of them)"
            )
        train = self._source(files, files.train_file, training.batch_size, shuffle=True) if steps.train else None
        held_out = None
        if steps.evaluate and files.eval_file:
            held_out = HeldOutRecords(
                self._source(files, files.eval_file, training.eval_batch_size, shuffle=False), tuple(self.loss_names)
            )
            warn_of_shared_records(train.paths if train else [], held_out.source.paths)
        return Resolved(task=self, model=model or self.build_model(), train=train, held_out=held_out)

    def served(self, model: keras.Model, options: ServingOptions) -> ServedModel:
        if self._is_next_token:
            return ServedNextToken.make(self, model, options)
        if options.passes is not None or options.beams is not None:
            return by_name("official_bert.generation.served:make_together")(self, model, options)
        return ServedFillMask.make(self, model, options)

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """The features of masked records, or of packed rows; with `next_token`, a prediction for each place but the
        last.
        """
        length = self.options.max_seq_length
        table = records.pretraining_features(
            length, length - 1 if self._is_next_token else self.options.max_predictions_per_seq
        )
        if self.options.pack:
            table = packed_features(self.options)
        keys = {"sample_keys": tf.TensorSpec((batch_size, 2), tf.int32)} if self._tells_replaced else {}
        return (
            keys
            | {
                feature.name: tf.TensorSpec((batch_size, feature.length), tf.float32 if feature.is_float else tf.int32)
                for feature in table
            }
            | {"example_weights": tf.TensorSpec((batch_size,), tf.float32)}
        )

    def _source(self, data: DataFiles, patterns: Source, batch_size: int, shuffle: bool) -> RecordSource:
        """Opens the files whose records have this run's (or phase's) lengths."""
        lengths = self._feature_lengths(patterns)
        paths = list(lengths)
        self._check_origins(paths, data.allow_changed_data, shuffle)
        kinds = sorted({kind_of(lengths[path]) for path in paths})
        if len(kinds) > 1:
            expected = (
                "with masks or without them, got both"
                if PACKED not in kinds
                else f"of one kind, got {' and '.join(kinds)}"
            )
            raise ValueError(f"{patterns}: expected records {expected}")
        (kind,), table = kinds, table_of(self.options, lengths[paths[0]])
        if shuffle:
            self._warn_of_unread_masking(() if kind == WITHOUT_MASKS else paths)
        if (
            shuffle
            and kind == WITHOUT_MASKS
            and not self._is_next_token
            and (doubts := self._doubts_of_words(paths[0]))
        ):
            logging.warning("%s: %s", paths[0], doubts[0])
        masking = self.make_masking() if kind == WITHOUT_MASKS else None
        packer = None
        if self.options.pack and kind != PACKED:
            packer = Packing(
                table,
                self.options.max_seq_length,
                self.options.max_predictions_per_seq,
                self.options.max_instances_per_row,
                masking.budgets if isinstance(masking, DynamicMasking) else None,
            )
        return RecordSource(
            paths,
            batch_size,
            lambda *rows: self._parse(table, masking, *rows),
            self.config.seed,
            shuffle,
            data.cache_dir,
            packer,
        )

    def _feature_lengths(self, patterns: Source) -> dict[str, dict[str, int]]:
        """Returns the lengths of the records' features by file, of files of this run's (or phase's) lengths; warns of
        files without any.
        """
        if isinstance(patterns, Rows):
            raise ValueError(
                f"{patterns}: expected files of records, which tools/create_pretraining_data.py writes, got rows"
            )
        files = find_files(patterns)
        for doubt in provenance.doubts(files):
            logging.warning(doubt)
        lengths = {path: records.feature_lengths(path) for path in files if records.holds_records(path)}
        if not lengths:
            raise ValueError(f"{patterns}: expected records, the file holds none")
        if empty := [path for path in files if path not in lengths]:
            logging.warning(
                "%s: no record in %d of %d files, the first is %s", patterns, len(empty), len(files), empty[0]
            )
        if fitting := {path: held for path, held in lengths.items() if self._fits(path, held)}:
            return fitting
        raise ValueError(
            f"{patterns}: one of config.phases needs records of {self.options.max_seq_length} tokens and "
            f"{self.options.max_predictions_per_seq} predictions, but none of the files has them"
        )

    def _check_origins(self, paths: Sequence[str], allow_changed_data: bool, shuffle: bool) -> None:
        """Raises ValueError for records that were made for another task about sentences, or with another vocabulary or
        casing.
        """
        knows_words = self.config.tokenizer.vocab_file and not allow_changed_data
        digest = VocabularyFacts.of(self.tokenizer).digest if knows_words else ""
        for path in paths:
            origin = provenance.read_origin(path)
            # Labels that nothing measures do not matter.
            if (shuffle or self._learns_sentences) and (
                task := origin.get("sentence_task", self._sentence_task)
            ) != self._sentence_task:
                raise ValueError(
                    f"{path}: its records were made with --sentence_task={task}, but config.options.sentence_task is "
                    f"{self._sentence_task}"
                )
            if knows_words:
                provenance.check_vocabulary(path, origin, digest)
                provenance.check_casing(path, origin, self.tokenizer.do_lower_case)

    def _doubts_of_words(self, path: str) -> list[str]:
        """Says, by the first records, that masking whole words would mask single tokens."""
        if self.options.masking.strategy != "whole_word":
            return []
        first = [
            tf.train.Example.FromString(record).features.feature
            for record in itertools.islice(records.read_records(path), LOOKED_AT)
        ]
        starts, real = (sum(sum(row[name].int64_list.value) for row in first) for name in ("word_starts", "input_mask"))
        marks = (
            [self.tokenizer.special_id(token) for token in ("[CLS]", "[SEP]")]
            if self.config.tokenizer.vocab_file
            else []
        )
        special = sum(list(row["input_ids"].int64_list.value).count(mark) for row in first for mark in marks)
        return single_token_doubts("whole_word", 1.0 - starts / max(1, real - special))

    def _fits(self, path: str, lengths: dict[str, int]) -> bool:
        """Whether records with these feature lengths are this phase's. Raises ValueError if they are no phase's."""
        phases = [
            build(Options, with_defaults(merge(self.config.options, phase.options))) for phase in self.config.phases
        ]
        if not (wrong := other_lengths(self.options, lengths)):
            return True
        if not all(other_lengths(options, lengths) for options in phases):
            return False
        key, held = wrong[0]
        raise ValueError(f"{path}: config.options.{key} is {getattr(self.options, key)}, but its records hold {held}")

    def _warn_of_unread_masking(self, paths: Sequence[str]) -> None:
        """Warns of `options.masking` that is not read: with `next_token`, of spans or n-grams with another strategy, or
        if it asks for other masks than those that the records at `paths` hold, or than is known of them (no paths:
        records without masks); and of a rate for which a row has too few predictions.
        """
        values, strategy = self.config.options.get("masking", {}), self.options.masking.strategy
        unread_keys = [
            key for key in values for unit in ("span", "ngram") if key.startswith(f"{unit}_") and strategy != unit
        ]
        if self._is_next_token and values:
            logging.warning(
                "config.options.masking (%s) is not read: objective next_token masks nothing", ", ".join(values)
            )
        elif unread_keys and not paths:
            logging.warning(
                "config.options.masking (%s) is not read: its strategy is %s, not %s",
                ", ".join(unread_keys),
                strategy,
                unread_keys[0].partition("_")[0],
            )
        for doubt in (
            ()
            if self._is_next_token or paths
            else self.options.masking.doubts(self.options.max_seq_length, self.options.max_predictions_per_seq)
        ):
            logging.warning("config.options.masking: %s", doubt)
        for path in () if self._is_next_token else paths:
            record_values = provenance.read_origin(path).get("masking") or {}
            if unread := [key for key, value in values.items() if record_values.get(key) != value]:
                logging.warning(
                    "%s: its records have masks already, so config.options.masking (%s) is not read; records made with "
                    "--masking=dynamic are masked by it",
                    path,
                    ", ".join(unread),
                )
                return

    def make_masking(self) -> Masking:
        if self._is_next_token:
            return lambda batch, _: next_token_batch(of_this_schema(batch))
        if not self.config.tokenizer.vocab_file:
            raise ValueError("records without masks need the vocabulary: give --vocab_file")
        return DynamicMasking(
            self.options.masking,
            VocabularyFacts.of(self.tokenizer),
            self.options.max_seq_length,
            self.options.max_predictions_per_seq,
            self.config.seed,
        )

    def _parse(
        self, table: tuple[records.Feature, ...], masking: Masking | None, serialized: tf.Tensor, indices: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        batch = records.parse_examples(serialized, table)
        if masking:
            batch = masking(batch, indices)
        if self._tells_replaced:
            batch |= {"sample_keys": sample_keys(indices, self.config.seed)}
        words, positions = self.config.model.vocab_size, batch["masked_lm_positions"]
        are_ids = [
            tf.reduce_all((ids >= 0) & (ids < words), axis=1) for ids in (batch["input_ids"], batch["masked_lm_ids"])
        ]
        segments, weights = batch["segment_ids"], batch["masked_lm_weights"]
        checks = {
            f"token id beyond the vocabulary of {words} (model.vocab_size)": ~(are_ids[0] & are_ids[1]),
            f"segment id beyond {self.config.model.type_vocab_size} (model.type_vocab_size)": tf.reduce_any(
                (segments < 0) | (segments >= (self.config.model.type_vocab_size or 2)), axis=1
            ),
            "no token at all (input_mask is 0)": tf.reduce_all(tf.equal(batch["input_mask"], 0), axis=1),
            "masked position outside the sequence": tf.reduce_any(
                (positions < 0) | (positions >= self.options.max_seq_length), axis=1
            ),
            "weight of a prediction (masked_lm_weights) that is negative or no number": ~tf.reduce_all(
                tf.math.is_finite(weights) & (weights >= 0), axis=1
            ),
            "next-sentence label neither 0 nor 1": tf.reduce_any(batch["next_sentence_labels"] // 2 != 0, axis=1),
        }
        return refuse_rows(next_token_batch(batch) if self._is_next_token and not masking else batch, checks)


def _boundary_weights(batch: Batch) -> Float[Any, "B P"]:
    """1 for each prediction of a real row that is among the first tokens of its span, else 0: [B,P]."""
    _, _, places = places_in_spans(batch["masked_lm_positions"], batch["masked_lm_weights"])
    return losses.prediction_weights(batch) * tf.cast(places < LONGEST_SPAN, tf.float32)


def _sentence_weights(batch: Batch) -> Float[Any, "B ..."]:
    """1 for each sentence pair of a real row, else 0: [B], or [B,K] of packed rows."""
    weights = batch["example_weights"]
    return batch["instance_weights"] * weights[:, None] if "instance_weights" in batch else weights
