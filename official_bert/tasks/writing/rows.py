"""Rows of a source and its answer, and the batches of masked diffusion made of them.

A row is `[CLS] source [SEP] answer`: the answer has the same number W of places in every row, filled up with [SEP],
which are real tokens and are learned too. So the model learns where an answer ends.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.data.sources import ExampleSource
from official_bert.data.text_features import tokenize_all
from official_bert.objectives.masked_diffusion import LEAST_RATE
from official_bert.text.tokenizer import Tokenizer

RATE, PLACE, STRATUM = range(3)  # kinds of draws


class AnswerRows(Sequence):
    """`rows[i]` is the dict of row i: `input_ids`, `input_mask`, `segment_ids` int32 [S], with its answer in the last
    `width` places. `cut_sources` and `cut_answers` are how many were longer than there is room for.
    """

    def __init__(
        self, sources: Sequence[str], answers: Sequence[str], tokenizer: Tokenizer, width: int, max_seq_length: int
    ):
        self.template, self.width = tokenizer.template, width
        self.room = max_seq_length - width - 1 - self.template.separators
        self.sources, self.answers = (tokenize_all(tokenizer, texts) for texts in (sources, answers))
        self.cut_sources = sum(len(ids) > self.room for ids in self.sources)
        self.cut_answers = sum(len(ids) > width for ids in self.answers)

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        first = [self.template.cls_id, *self.sources[index][: self.room], *[self.template.sep_id] * self.separators]
        answer = self.answer(index)
        row = np.concatenate([np.array(first, np.int32), answer])
        segments = np.zeros(len(row), np.int32)
        segments[len(first) :] = self.template.second_segment
        return {"input_ids": row, "input_mask": np.ones(len(row), np.int32), "segment_ids": segments}

    @property
    def separators(self) -> int:
        """The separators between a source and its answer."""
        return self.template.separators

    def answer(self, index: int) -> np.ndarray:
        """The ids of an answer [W], cut or filled up with [SEP]."""
        ids = self.answers[index][: self.width]
        return np.concatenate([ids, np.full(self.width - len(ids), self.template.sep_id)]).astype(np.int32)


class DiffusedSource(ExampleSource):
    """Batches of `AnswerRows` whose answers are masked at a rate that is drawn for each row and epoch.

    All numbers are hashes of (seed, epoch, row), so that a run that is resumed sees the same masks. In evaluation the
    rates of all rows are spread evenly over (0, 1], and the same each time.
    """

    def __init__(self, rows: AnswerRows, *arguments: Any, mask_id: int, **options: Any):
        super().__init__(rows, *arguments, **options)
        self.mask_id, self.width = mask_id, rows.width

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """Makes batch `number`, counted over all epochs."""
        batch = super().batch(number)
        epoch, index = divmod(number, self.batches_per_epoch)
        numbers = self.plan(epoch)[index]
        numbers = np.concatenate([numbers, np.repeat(numbers[:1], len(batch["input_ids"]) - len(numbers))])
        return masked(batch, numbers + epoch * len(self.examples), self._rates(numbers, epoch), self)

    def _rates(self, numbers: np.ndarray, epoch: int) -> np.ndarray:
        """The rate of each row, float64 [B]."""
        keys = row_keys(numbers + epoch * len(self.examples), self.seed)
        drawn = uniform(keys, RATE, np.zeros(1, np.int64))[:, 0]
        if not self.shuffle:
            order = np.random.default_rng((self.seed, STRATUM)).permutation(len(self.examples))
            drawn = (order[numbers] + drawn) / len(self.examples)
        return LEAST_RATE + (1 - LEAST_RATE) * drawn


def masked(
    batch: Mapping[str, np.ndarray], keys: np.ndarray, rates: np.ndarray, source: DiffusedSource
) -> dict[str, np.ndarray]:
    """Returns a batch whose answers are masked, with what masked diffusion reads: the W places, their words, which are
    hidden, all of which are maskable, and the rates.
    """
    ids, width = batch["input_ids"].copy(), source.width
    places = batch["input_mask"].sum(axis=1)[:, None] - width + np.arange(width)  # [B,W]
    answers = np.take_along_axis(ids, places, axis=1)
    hidden = uniform(row_keys(keys, source.seed), PLACE, np.arange(width)) < rates[:, None]
    np.put_along_axis(ids, places, np.where(hidden, source.mask_id, answers), axis=1)
    return {
        **batch,
        "input_ids": ids,
        "masked_lm_positions": places.astype(np.int32),
        "masked_lm_ids": answers,
        "masked_lm_weights": hidden.astype(np.float32),
        "maskable": np.ones_like(hidden, np.float32),
        "masking_rates": rates.astype(np.float32),
    }


def row_keys(numbers: np.ndarray, seed: int) -> np.ndarray:
    """The hash of each row, of which all its draws are hashes: int [B] -> uint64 [B]."""
    return _mix(numbers.astype(np.uint64) ^ _mix(np.array([seed % 2**64], np.uint64)))


def uniform(keys: np.ndarray, what: int, numbers: np.ndarray) -> np.ndarray:
    """Draws float64 numbers in [0, 1) for each row [B] and each number [N]: [B,N]."""
    salt = _mix(numbers.astype(np.uint64) * np.uint64(8) + np.uint64(what))
    return (_mix(keys[:, None] ^ salt) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(bits: np.ndarray) -> np.ndarray:
    """A hash of uint64: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        bits = bits + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return bits ^ (bits >> np.uint64(31))


@dataclasses.dataclass(frozen=True)
class Blanks:
    """The inputs of a model for rows whose answers are to be written: all W places are [MASK]."""

    rows: AnswerRows
    mask_id: int

    def batch(self, numbers: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns `input_ids`, `input_mask`, `segment_ids` [B,S] of rows with these numbers."""
        parts = [self.rows[number] for number in numbers]
        shape = len(parts), max(len(part["input_ids"]) for part in parts)
        batch = {name: np.zeros(shape, np.int32) for name in parts[0]}
        batch["input_ids"][:] = self.rows.template.pad_id
        for row, part in enumerate(parts):
            length = len(part["input_ids"])
            for name, values in part.items():
                batch[name][row, :length] = values
            batch["input_ids"][row, length - self.rows.width : length] = self.mask_id
        return batch
