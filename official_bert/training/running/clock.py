"""Training for a number of hours: the share of the time that has passed is the place in the schedule.

The share is looked at before each loop of steps, and holds for all of them. It is written to the log before they are
taken. So a training can be repeated exactly from its log, which it cannot from its clock: the next time, other steps
fall into each minute.
"""

import time
from collections.abc import Mapping

import tensorflow as tf

from official_bert.config import TrainingConfig
from official_bert.files import exists, read_log
from official_bert.models.run_folder import LOG_FILE
from official_bert.training import distribution
from official_bert.training.reporting.run_log import Watcher
from official_bert.training.trainer import Trainer

PARTS = 10**9  # of a share, which is sent and logged as a whole number of them
SHARE, OVER = "share", "time_over"  # keys of the log
HOST_SECONDS = 10.0  # the host regains control at least this often
LOOPS = 100  # there are at least so many loops in a training, if a step is short enough
UNMEASURED = 0.02  # of the time is kept for the last checkpoint until one has been written
now = time.monotonic


class NoClock:
    """The clock of a training that is measured in steps."""

    limited = False
    seconds_of_loop = HOST_SECONDS

    def is_over(self, step: int) -> bool:
        """Whether the time is over after `step` steps: never."""
        return False

    def begin_loop(self, step: int, count: int) -> int:
        """Notes that up to `count` steps follow `step`; returns how many."""
        return count

    def wrote(self, seconds: float) -> None:
        """Notes how long it took to write a checkpoint."""


class TimedClock(NoClock):
    """A clock that gives the steps of a training their share of its time."""

    limited = True

    def __init__(self, trainer: Trainer, watcher: Watcher, hours: float):
        self.trainer, self.watcher, self.seconds = trainer, watcher, hours * 3600.0

    def show(self, step: int, share: float) -> None:
        """Writes the share to the log, and gives it to the steps that follow `step`."""
        self.watcher.write_share(step, share)
        self.trainer.share.assign(share)
        self.trainer.seconds.assign(share * self.seconds)


class Clock(TimedClock):
    """The clock of a training of some hours. Those of all its processes count, from when each began, but not the time
    between them.

    The clock of the first worker is that of all: the others ask it for the share and for the number of steps.
    """

    def __init__(self, trainer: Trainer, watcher: Watcher, hours: float, began: float):
        super().__init__(trainer, watcher, hours)
        self.began = began - float(trainer.seconds.numpy())
        self.seconds_of_loop = min(HOST_SECONDS, self.seconds / LOOPS)
        self.slowest_write, self.last_look = 0.0, -1.0
        self.finished = any(OVER in row for row in read_log(watcher.run.file(LOG_FILE)))

    @property
    def passed(self) -> float:
        """The seconds that have passed."""
        return now() - self.began

    def is_over(self, step: int) -> bool:
        """Whether the time that is left after `step` steps is that for one more loop and the last checkpoint."""
        reserve = 2.0 * self.slowest_write or UNMEASURED * self.seconds
        passed = self.passed
        last_loop = passed - self.last_look if self.last_look >= 0.0 else 0.0
        is_over = self.finished or passed + last_loop + reserve >= self.seconds
        self.finished = bool(self._of_first_worker(int(is_over)))
        return self.finished

    def begin_loop(self, step: int, count: int) -> int:
        """Writes the share to the log and gives it to the steps; returns their number, the same on all workers."""
        self.last_look = passed = self.passed
        self.show(step, self._of_first_worker(min(round(passed / self.seconds * PARTS), PARTS)) / PARTS)
        return self._of_first_worker(count)

    def wrote(self, seconds: float) -> None:
        self.slowest_write = max(self.slowest_write, seconds)

    def _of_first_worker(self, number: int) -> int:
        return distribution.of_first_worker(self.trainer.strategy, number)


class Replay(TimedClock):
    """A clock that shows the shares of another run's log, at the same steps, and ends with it."""

    def __init__(self, trainer: Trainer, watcher: Watcher, hours: float, path: str):
        super().__init__(trainer, watcher, hours)
        self.shares = read_shares(path)
        self.steps = sorted(self.shares)

    def is_over(self, step: int) -> bool:
        return step >= self.steps[-1]

    def begin_loop(self, step: int, count: int) -> int:
        """Gives the share of the loop of the log in which `step` lies; it ends at the latest where that one did."""
        begun = max(start for start in self.steps if start <= step)
        self.show(step, self.shares[begun])
        return min(count, next(start for start in self.steps if start > step) - step)


def read_shares(path: str) -> Mapping[int, float]:
    """Returns the shares of a run's log by the steps after which they were looked at; the last step is that after which
    it ended.

    What a run went on from after a kill replaces what came after that step. Raises ValueError for a log without shares,
    or of a run that went back because of its loss.
    """
    if not exists(path):
        raise ValueError(f"config.training.replay: expected the log of a run, got no file {path}")
    shares: dict[int, float] = {}
    for row in read_log(path):
        if "rewind/loss" in row:
            raise ValueError(
                f"config.training.replay: {path}: expected a run that never went back because of its loss, which this "
                f"one did at step {row['step']}"
            )
        if SHARE in row or OVER in row:
            shares = {step: share for step, share in shares.items() if step < row["step"]} | {
                row["step"]: row.get(SHARE, 1.0)
            }
    if len(shares) < 2:
        raise ValueError(
            f"config.training.replay: {path}: expected the log of a run with training.hours, got one without shares "
            f"of time"
        )
    return shares


def check(training: TrainingConfig, strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError for a log that cannot be replayed, and for devices that must know the number of steps before
    the first.
    """
    if training.replay and not training.hours:
        raise ValueError(
            "config.training.replay: expected training.hours with it, those of the run that is repeated, got "
            f"{training.replay} without"
        )
    if training.replay:
        read_shares(training.replay)
    if training.hours and isinstance(strategy, tf.distribute.TPUStrategy) and distribution.other_hosts(strategy):
        raise ValueError(
            "config.training.hours: expected training.steps for TPUs of other machines, for which the order of the "
            f"records is written before the first step, got {training.hours:g} hours"
        )


def make_clock(trainer: Trainer, watcher: Watcher, began: float) -> NoClock:
    """Returns the clock of a run that began at `began`."""
    training = trainer.step.config.training
    if not training.hours:
        return NoClock()
    if training.replay:
        return Replay(trainer, watcher, training.hours, training.replay)
    return Clock(trainer, watcher, training.hours, began)
