"""Recovery from loss spikes and numbers that are not finite: a run goes back to a checkpoint behind their data, or
ends.
"""

import numpy as np
import tensorflow as tf

from official_bert.models.run_folder import step_of
from official_bert.training import guards
from official_bert.training.checkpointing import CheckpointFolder
from official_bert.training.guards import DivergedError
from official_bert.training.reporting.run_log import Watcher
from official_bert.training.schedules.phases import Phase
from official_bert.training.spikes import MOST_REWINDS, Spikes
from official_bert.training.trainer import Trainer


class Recovery:
    """Judges the metrics of steps, and takes the run back to its last checkpoint if they ask for it."""

    def __init__(self, trainer: Trainer, folder: CheckpointFolder, watcher: Watcher):
        self.trainer, self.folder, self.watcher = trainer, folder, watcher
        self.settings = trainer.step.recipe.training
        self.spikes = Spikes(folder.run, self.settings.rewind_on_spike, trainer.steps_done, watcher.enabled)
        self.skipped_in_a_row = 0

    def batch_number(self, phase: Phase, step: int) -> int:
        """Returns the number of the batch for the step that follows `step` steps, behind the data that were skipped."""
        return phase.batch_number(step) + self.spikes.skipped(step, 0 if phase.first_batch else phase.first)

    def first_bad(self, phase: Phase, step: int, rows: np.ndarray) -> int | None:
        """Returns the index of the first of the steps after `step`, metrics `rows`, for which the run goes back; None
        if there is none.

        Raises DivergedError if the run must stop: a step has failed and there is nowhere to go back to, or too many
        were skipped.
        """
        names = self.trainer.step.names
        self._count_skipped(step, rows[:, names.index("skipped")] > 0)
        failed = rows[:, names.index("failed")] > 0
        bad = self.spikes.first(rows[:, 0].tolist(), failed.tolist())
        if (
            bad is not None
            and (last := step_of(self.trainer.newest(self.folder))) >= phase.first
            and self.spikes.may_go_back_to(last)
        ):
            return bad
        if failed.any():
            raise DivergedError(self._explain_infinite(phase, step + int(np.argmax(failed))))
        if bad is not None:
            raise DivergedError(
                f"step {step + bad + 1}: the loss jumps to {rows[bad, 0]:.4g} (training.rewind_on_spike); the run "
                f"has gone back to the checkpoint before it {MOST_REWINDS} times"
            )
        return None

    def _count_skipped(self, step: int, skipped: np.ndarray) -> None:
        for number, was_skipped in enumerate(skipped, step + 1):
            self.skipped_in_a_row = self.skipped_in_a_row + 1 if was_skipped else 0
            if self.skipped_in_a_row == self.settings.max_skipped_in_a_row > 0:
                raise DivergedError(
                    f"step {number}: {self.skipped_in_a_row} steps were skipped one after the other "
                    "(training.max_skipped_in_a_row); the checkpoints before them are intact"
                )

    def go_back(self, phase: Phase, bad: int, loss: float) -> int:
        """Restores the last checkpoint because of the step numbered `bad` (from 0) and skips the data up to it; returns
        its step.
        """
        prefix = self.trainer.restore_newest(self.folder)
        step = self.trainer.steps_done
        if step < phase.first:
            raise ValueError(f"step {bad + 1}: the loss is {loss:.4g}, and no checkpoint of this phase can be read")
        self.spikes.go_back(step, bad + 1 - step)
        self.skipped_in_a_row = 0
        self.watcher.rewind(step, {"from_step": bad + 1, "loss": loss, "skipped_batches": bad + 1 - step}, str(prefix))
        return step

    def _explain_infinite(self, phase: Phase, step: int) -> str:
        """Says which tensor of the step numbered `step` (from 0) was the first one that is not finite."""
        batch = next(iter(phase.source.dataset(self.batch_number(phase, step))))
        weights = [tf.convert_to_tensor(weight) for weight in self.trainer.weights]
        micro_batches = self.trainer.strategy.num_replicas_in_sync * phase.recipe.training.accumulation_steps
        name = guards.first_bad_tensor(self.trainer.step, weights, batch, step, micro_batches)
        return f"step {step + 1}: {name} is not finite; the checkpoints before it are intact"
