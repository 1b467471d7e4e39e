"""Rows of a source and its answer, and the batches of masked diffusion made of them.

A row is `[CLS] source [SEP] answer`: the answer has the same number W of places in every row, filled up with [SEP],
which are real tokens and are learned too. So the model learns where an answer ends.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.data.batches.sources import ExampleSource
from official_bert.data.batches.text_features import tokenize_all
from official_bert.objectives.masked_diffusion import LEAST_RATE
from official_bert.text.tokenizer import Tokenizer


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
        """Returns the ids of an answer [W], truncated or padded with [SEP]."""
        ids = self.answers[index][: self.width]
        return np.concatenate([ids, np.full(self.width - len(ids), self.template.sep_id)]).astype(np.int32)


class DiffusedSource(ExampleSource):
    """Batches of `AnswerRows` whose answers are masked at a rate that is drawn for each row and epoch.

    All numbers are functions of (seed, epoch, row): a run that is resumed sees the same masks. In evaluation the
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
        draws = np.stack([np.random.default_rng((self.seed, epoch, row)).random(1 + self.width) for row in numbers])
        rates = LEAST_RATE + (1 - LEAST_RATE) * (draws[:, 0] if self.shuffle else self._spread(draws[:, 0], numbers))
        return masked(batch, draws[:, 1:] < rates[:, None], rates, self.mask_id)

    def _spread(self, draws: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Spreads numbers in [0, 1) of held-out rows evenly over all rows, whose order is drawn from the seed."""
        order = np.random.default_rng(self.seed).permutation(len(self.examples))
        return (order[numbers] + draws) / len(self.examples)


def masked(
    batch: Mapping[str, np.ndarray], hidden: np.ndarray, rates: np.ndarray, mask_id: int
) -> dict[str, np.ndarray]:
    """Returns a batch whose answers are masked where `hidden` [B,W], with the inputs of masked diffusion: the W places,
    their words, which are hidden, that all are maskable, and the rates.
    """
    ids, width = batch["input_ids"].copy(), hidden.shape[1]
    places = batch["input_mask"].sum(axis=1)[:, None] - width + np.arange(width)  # [B,W]
    answers = np.take_along_axis(ids, places, axis=1)
    np.put_along_axis(ids, places, np.where(hidden, mask_id, answers), axis=1)
    return {
        **batch,
        "input_ids": ids,
        "masked_lm_positions": places.astype(np.int32),
        "masked_lm_ids": answers,
        "masked_lm_weights": hidden.astype(np.float32),
        "maskable": np.ones_like(hidden, np.float32),
        "masking_rates": rates.astype(np.float32),
    }


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
