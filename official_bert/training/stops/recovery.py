"""Checks the metrics of steps: numbers that are not finite, or too many skipped steps in a row, end a run."""

import numpy as np
import tensorflow as tf

from official_bert.run_folder import REWINDS_FILE, RunFolder
from official_bert.storage.files import read_mapping
from official_bert.training.phase import PhasePlan
from official_bert.training.stops.divergence import DivergedError, first_bad_tensor
from official_bert.training.trainer import Trainer


class Recovery:
    """Ends a run while its checkpoints are intact, and names the tensor that was not finite.

    Raises ValueError for a run of version 0.1 that has skipped data because of its loss (`rewinds.json`): its next
    batches would be others.
    """

    def __init__(self, trainer: Trainer, run: RunFolder):
        self.trainer, self.skipped_in_a_row = trainer, 0
        if read_mapping(path := run.file(REWINDS_FILE), missing={}).get("rewinds"):
            raise ValueError(
                f"{path}: the run has skipped data because of its loss, which is done no more; begin another run with "
                "an earlier checkpoint as --init_checkpoint and another seed"
            )

    def check(self, phase: PhasePlan, step: int, rows: np.ndarray) -> None:
        """Raises DivergedError if a step in `rows`, the metrics of the steps after `step`, failed, or if too many were
        skipped.
        """
        names = self.trainer.step.names
        self._count_skipped(step, rows[:, names.index("skipped")] > 0)
        failed = rows[:, names.index("failed")] > 0
        if failed.any():
            raise DivergedError(self._explain_infinite(phase, step + int(np.argmax(failed))))

    def _count_skipped(self, step: int, skipped: np.ndarray) -> None:
        for number, was_skipped in enumerate(skipped, step + 1):
            self.skipped_in_a_row = self.skipped_in_a_row + 1 if was_skipped else 0
            if self.skipped_in_a_row == self.trainer.step.recipe.training.max_skipped_in_a_row > 0:
                raise DivergedError(
                    f"step {number}: {self.skipped_in_a_row} steps were skipped one after the other "
                    "(training.max_skipped_in_a_row); the checkpoints before them are intact"
                )

    def _explain_infinite(self, phase: PhasePlan, step: int) -> str:
        """Says which tensor of the step numbered `step` (from 0) was the first one that is not finite."""
        batch = next(iter(phase.source.dataset(phase.batch_number(step))))
        weights = [tf.convert_to_tensor(weight) for weight in self.trainer.weights]
        micro_batches = self.trainer.strategy.num_replicas_in_sync * phase.recipe.training.accumulation_steps
        name = first_bad_tensor(self.trainer.step, weights, batch, step, micro_batches)
        return f"step {step + 1}: {name} is not finite; the checkpoints before it are intact"
