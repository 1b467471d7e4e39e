"""Opens and checks the records of a pre-training, and makes batches of them."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence

import tensorflow as tf
from absl import logging

from official_bert.config import Config, build, merge
from official_bert.data.batches.sources import RecordSource, refuse_rows
from official_bert.data.pretraining.dynamic_masking import DynamicMasking
from official_bert.data.pretraining.masking import VocabularyFacts, single_token_doubts
from official_bert.data.pretraining.packing import Packing
from official_bert.data.record_files import records
from official_bert.data.rows import Rows, Source
from official_bert.long_work import provenance
from official_bert.storage.files import find_files
from official_bert.tasks.data import DataFiles
from official_bert.tasks.pretraining.masked_words import HeldOutSize, MaskedWords, Masking
from official_bert.tasks.pretraining.options import Options, with_defaults
from official_bert.tasks.pretraining.record_kinds import PACKED, WITHOUT_MASKS, kind_of, other_lengths, table_of
from official_bert.tasks.task import TaskBase

LOOKED_AT = 200  # first records that tell whether words have several tokens


@dataclasses.dataclass(frozen=True, eq=False)
class RecordReader:
    """The reader of the records of a task (or of one of its phases)."""

    task: TaskBase
    kind: MaskedWords
    make_masking: Callable[[HeldOutSize], Masking]

    @property
    def config(self) -> Config:
        """The task's."""
        return self.task.config

    @property
    def options(self) -> Options:
        """The task's."""
        return self.task.options

    def source(self, data: DataFiles, patterns: Source, batch_size: int, shuffle: bool) -> RecordSource:
        """Opens the files that match `patterns`, whose records must have this run's (or phase's) lengths."""
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
        if shuffle and kind == WITHOUT_MASKS and self.kind.masks and (doubts := self._doubts_of_words(paths[0])):
            logging.warning("%s: %s", paths[0], doubts[0])
        masking = self.make_masking(None if shuffle else lambda: source.size) if kind == WITHOUT_MASKS else None
        packer = None
        if self.options.pack and kind != PACKED:
            packer = Packing(
                table,
                self.options.max_seq_length,
                self.options.max_predictions_per_seq,
                self.options.max_instances_per_row,
                masking.budgets if isinstance(masking, DynamicMasking) else None,
            )
        source = RecordSource(
            paths,
            batch_size,
            functools.partial(self._parse, table, masking),
            self.config.seed,
            shuffle,
            data.cache_dir,
            packer,
        )
        return source

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
        digest = VocabularyFacts.of(self.task.tokenizer).digest if knows_words else ""
        for path in paths:
            origin = provenance.read_origin(path)
            # Labels that nothing measures do not matter.
            if (shuffle or self.options.learns_sentences) and (
                task := origin.get("sentence_task", self.options.sentence_task)
            ) != self.options.sentence_task:
                raise ValueError(
                    f"{path}: its records were made with --sentence_task={task}, but config.options.sentence_task is "
                    f"{self.options.sentence_task}"
                )
            if knows_words:
                provenance.check_vocabulary(path, origin, digest)
                provenance.check_casing(path, origin, self.task.tokenizer.do_lower_case)

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
            [self.task.tokenizer.special_id(token) for token in ("[CLS]", "[SEP]")]
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
        if not self.kind.masks and values:
            logging.warning(
                "config.options.masking (%s) is not read: objective %s %s",
                ", ".join(values),
                self.options.objective,
                self.kind.why_unread,
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
            if not self.kind.masks or paths
            else self.options.masking.doubts(self.options.max_seq_length, self.options.max_predictions_per_seq)
        ):
            logging.warning("config.options.masking: %s", doubt)
        for path in () if not self.kind.masks else paths:
            record_values = provenance.read_origin(path).get("masking") or {}
            if unread := [key for key, value in values.items() if record_values.get(key) != value]:
                logging.warning(
                    "%s: its records have masks already, so config.options.masking (%s) is not read; records made with "
                    "--masking=dynamic are masked by it",
                    path,
                    ", ".join(unread),
                )
                return

    def _parse(
        self,
        table: tuple[records.Feature, ...],
        masking: Masking | None,
        serialized: tf.Tensor,
        indices: tf.Tensor,
        **progress: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        batch = records.parse_examples(serialized, table) | progress
        if masking:
            batch = masking(batch, indices)
        batch |= self.kind.more_inputs(indices)
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
        return refuse_rows(batch if masking else self.kind.of_masked(batch), checks)
