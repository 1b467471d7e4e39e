"""Steps whose loss jumps up: finds them, and remembers which data a run has skipped because of them."""

import dataclasses
import json
import math
import os
from collections.abc import Sequence

from official_bert.files import read_json, written_whole

REWINDS_FILE = "rewinds.json"
DECAY = 0.98  # of the mean, a step
FEWEST_STEPS = 20  # a mean of fewer steps tells nothing
MOST_REWINDS = 5  # to one checkpoint; then the data is not at fault
MEANS_KEPT = 100  # of the last checkpoints


@dataclasses.dataclass(frozen=True)
class Rewind:
    """A return to the checkpoint of `step`; the run goes on with later data, `batches` after those that came next."""

    step: int
    batches: int


class Spikes:
    """The mean loss of a run that decides what a spike is, and its rewinds; both are in `rewinds.json` of its folder.

    A step spikes if its loss is more than `threshold` times the mean of the steps before it. A run that is resumed from the
    checkpoint of `step` goes on with the mean that it had there. Threshold 0 finds and writes nothing.
    """

    def __init__(self, folder: str, threshold: float, step: int, writes: bool = True):
        self.path, self.threshold, self.writes = os.path.join(folder, REWINDS_FILE), threshold, writes
        stored = read_json(self.path) if os.path.exists(self.path) else {}
        self.rewinds = [Rewind(**values) for values in stored.get("rewinds", ())]
        self.means: dict[int, tuple[float, int]] = {int(key): (mean, count) for key, (mean, count) in stored.get("means", {}).items()}
        self.mean, self.count = self.means.get(step, (0.0, 0))

    def skipped(self, step: int) -> int:
        """The number of batches that were skipped before the one of the step after `step` steps."""
        return sum(rewind.batches for rewind in self.rewinds if rewind.step <= step)

    @property
    def edges(self) -> list[int]:
        """The steps after which batches were skipped."""
        return [rewind.step for rewind in self.rewinds]

    def first(self, losses: Sequence[float], failed: Sequence[bool]) -> int | None:
        """The index of the first of these steps that spikes or has failed; None if none has. The mean then includes them."""
        if not self.threshold:
            return None
        for index, (loss, bad) in enumerate(zip(losses, failed)):
            if bad or (self.count >= FEWEST_STEPS and loss > self.threshold * self.mean):
                return index
            if math.isfinite(loss):  # an overflow of float16 is none of the data
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
        """Whether the run has not yet gone back to the checkpoint of `step` too often."""
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
