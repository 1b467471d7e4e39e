"""Evaluation records: their metrics, and a check that they are not training records."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from absl import logging

from official_bert.data.batches.sources import RecordSource
from official_bert.reports.comparable import ComparableAnswers
from official_bert.storage.files import open_bytes, size_of
from official_bert.training.held_out import Predictions

COMPARED = 1 << 16  # first bytes of two files of the same size that tell whether they are copies


@dataclasses.dataclass(frozen=True)
class HeldOutRecords:
    """Records to evaluate on, by losses and accuracies alone; `loss_names` are those with `sums`."""

    source: RecordSource
    loss_names: tuple[str, ...]
    compared: ClassVar[str] = "sums"  # the predictions of a row that `measure` takes

    def evaluate(self, _: Predictions) -> dict[str, float]:
        """Returns {}: losses and accuracies are measured anyway."""
        return {}

    def comparable(self, predictions: Predictions) -> dict[str, ComparableAnswers]:
        """Returns the records by number."""
        values = np.stack([row[self.compared] for row in predictions])
        numbers = [str(number) for number in range(len(values))]
        return {
            "": ComparableAnswers(
                questions=numbers, gold=numbers, answers=numbers, measure=lambda rows: self.measure(values[rows])
            )
        }

    def measure(self, sums: np.ndarray) -> dict[str, float]:
        """Measures records by the values of `CrossEntropy.predictions`, [N,losses,3]."""
        loss, right, weight = sums.sum(axis=0, dtype=np.float64).T
        by_name = {f"{name}_loss": loss[k] / max(weight[k], 1e-9) for k, name in enumerate(self.loss_names)}
        return (
            {"loss": sum(by_name.values())}
            | by_name
            | {f"{name}_accuracy": right[k] / max(weight[k], 1e-9) for k, name in enumerate(self.loss_names)}
        )


def warn_of_shared_records(train: Sequence[str], held_out: Sequence[str]) -> None:
    """Warns of files to evaluate on that are training files or copies of them: 2018's script did so by default."""
    sizes = {path: size_of(path) for path in {*train, *held_out}} if train else {}
    shared = [
        path
        for path in held_out
        if any(
            path == train_path or (sizes[path] == sizes[train_path] and _begin_alike(path, train_path))
            for train_path in train
        )
    ]
    if shared:
        logging.warning(
            "%d of %d files of evaluation records are training records, the first is %s: the results say nothing "
            "about other text",
            len(shared),
            len(held_out),
            shared[0],
        )


def _begin_alike(path: str, second_path: str) -> bool:
    with open_bytes(path) as first, open_bytes(second_path) as second:
        return first.read(COMPARED) == second.read(COMPARED)
