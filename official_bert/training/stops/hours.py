"""Training for a number of hours: the fraction of time that has passed is the position in the schedule.

The fraction is read before each loop of steps and holds for all of them. It is logged before they run. Such a training
is not reproducible: another run takes other steps in each minute.
"""

import tensorflow as tf

from official_bert.config import TrainingConfig
from official_bert.run_folder import LOG_FILE
from official_bert.storage.files import read_log
from official_bert.training.logs.run_log import Watcher
from official_bert.training.machines import distribution
from official_bert.training.stops import clock
from official_bert.training.trainer import Trainer

PARTS = 10**9  # of a share, which is sent and logged as a whole number of them
LOOPS = 100  # there are at least so many loops in a training, if a step is short enough
UNMEASURED = 0.02  # of the time is kept for the last checkpoint until one has been written


class Clock(clock.NoClock):
    """The clock of a training limited in hours. It counts the running time of all its processes, not the time between
    them.

    All workers use the first worker's clock: they ask it for the fraction and for the number of steps.
    """

    limited = True

    def __init__(self, trainer: Trainer, watcher: Watcher, hours: float, began: float):
        self.trainer, self.watcher, self.seconds = trainer, watcher, hours * 3600.0
        self.began = began - float(trainer.seconds.numpy())
        self.seconds_of_loop = min(clock.HOST_SECONDS, self.seconds / LOOPS)
        self.slowest_write, self.last_look = 0.0, -1.0
        self.finished = any(clock.OVER in row for row in read_log(watcher.run.file(LOG_FILE)))

    @property
    def passed(self) -> float:
        """The seconds that have passed."""
        return clock.now() - self.began

    def is_over(self, step: int) -> bool:
        """Returns whether the time left after `step` is only enough for one more loop and the last checkpoint."""
        reserve = 2.0 * self.slowest_write or UNMEASURED * self.seconds
        passed = self.passed
        last_loop = passed - self.last_look if self.last_look >= 0.0 else 0.0
        is_over = self.finished or passed + last_loop + reserve >= self.seconds
        self.finished = bool(self._of_first_worker(int(is_over)))
        return self.finished

    def begin_loop(self, step: int, count: int) -> int:
        """Logs the fraction and passes it to the steps; returns their number, the same on all workers."""
        self.last_look = passed = self.passed
        share = self._of_first_worker(min(round(passed / self.seconds * PARTS), PARTS)) / PARTS
        self.watcher.write_share(step, share)
        self.trainer.share.assign(share)
        self.trainer.seconds.assign(share * self.seconds)
        return self._of_first_worker(count)

    def wrote(self, seconds: float) -> None:
        self.slowest_write = max(self.slowest_write, seconds)

    def _of_first_worker(self, number: int) -> int:
        return distribution.of_first_worker(self.trainer.strategy, number)


def check(training: TrainingConfig, strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError for devices that must know the number of steps before the first step."""
    if training.hours and isinstance(strategy, tf.distribute.TPUStrategy) and distribution.other_hosts(strategy):
        raise ValueError(
            "config.training.hours: expected training.steps for TPUs of other machines, for which the order of the "
            f"records is written before the first step, got {training.hours:g} hours"
        )
