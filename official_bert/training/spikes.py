"""Loss spikes: finds them, and remembers the data that a run has skipped because of them."""

import dataclasses
import json
import math
from collections.abc import Sequence

from official_bert.files import read_json, written_whole
from official_bert.models.run_folder import REWINDS_FILE, RunFolder

DECAY = 0.98  # of the mean, per step
FEWEST_STEPS = 20  # a mean of fewer steps is not reliable
MOST_REWINDS = 5  # to one checkpoint; after that, the data is not the cause
MEANS_KEPT = 100  # of the last checkpoints


@dataclasses.dataclass(frozen=True)
class Rewind:
    """A return to the checkpoint of `step`; the run continues with later data and skips `batches` batches."""

    step: int
    batches: int


class Spikes:
    """The mean loss of a run, which defines a spike, and the run's rewinds; both are stored in `rewinds.json` in its
    folder.

    A step spikes if its loss is more than `threshold` times the mean of the steps before it. A run that is resumed from
    the checkpoint of `step` continues with the mean of that step. Threshold 0 finds and writes nothing.
    """

    def __init__(self, run: RunFolder, threshold: float, step: int, writes: bool = True):
        self.path, self.threshold, self.writes = run.file(REWINDS_FILE), threshold, writes
        stored = read_json(self.path, missing={})
        self.rewinds = [Rewind(**values) for values in stored.get("rewinds", ())]
        self.means: dict[int, tuple[float, int]] = {
            int(key): (mean, count) for key, (mean, count) in stored.get("means", {}).items()
        }
        self.mean, self.count = self.means.get(step, (0.0, 0))

    def skipped(self, step: int, since: int = 0) -> int:
        """Returns the number of batches skipped before the batch of the step that follows `step` steps, in the data
        begun at `since`.
        """
        return sum(rewind.batches for rewind in self.rewinds if since <= rewind.step <= step)

    @property
    def edges(self) -> list[int]:
        """Returns the steps after which batches were skipped."""
        return [rewind.step for rewind in self.rewinds]

    def first(self, losses: Sequence[float], failed: Sequence[bool]) -> int | None:
        """Returns the index of the first step that spikes or has failed, None if none has; the mean includes the steps
        before it.
        """
        if not self.threshold:
            return None
        for index, (loss, bad) in enumerate(zip(losses, failed)):
            if bad or (self.count >= FEWEST_STEPS and loss > self.threshold * self.mean):
                return index
            if math.isfinite(loss):  # an overflow of float16 is not caused by the data
                self.count += 1
                weight = max(1.0 - DECAY, 1.0 / self.count)
                self.mean += weight * (loss - self.mean)
        return None

    def saving(self, step: int) -> None:
        """Notes the mean for the checkpoint of `step`, before it is written."""
        if self.threshold:
            self.means[step] = (self.mean, self.count)
            self._write()

    def may_go_back_to(self, step: int) -> bool:
        """Tells whether another rewind to the checkpoint of `step` is allowed."""
        return sum(rewind.step == step for rewind in self.rewinds) < MOST_REWINDS

    def go_back(self, step: int, batches: int) -> None:
        """Notes a rewind to the checkpoint of `step` that skips `batches` more batches."""
        self.rewinds.append(Rewind(step, batches))
        self.mean, self.count = self.means.get(step, (0.0, 0))
        self._write()

    def _write(self) -> None:
        if self.writes:
            means = dict(sorted(self.means.items())[-MEANS_KEPT:])
            with written_whole(self.path) as file:
                json.dump({"rewinds": [dataclasses.asdict(rewind) for rewind in self.rewinds], "means": means}, file)
