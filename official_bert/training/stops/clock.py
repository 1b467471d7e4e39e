"""The length of a training: in steps, or in hours (`hours`)."""

import time
from collections.abc import Callable
from typing import Protocol

import tensorflow as tf

from official_bert.config import TrainingConfig
from official_bert.dotted_names import by_name
from official_bert.training.logs.run_log import Watcher
from official_bert.training.trainer import Trainer

OVER = "time_over"  # a key of the log
HOST_SECONDS = 10.0  # the host regains control at least this often
now = time.monotonic


class NoClock:
    """The clock of a training that is measured in steps."""

    limited = False
    seconds_of_loop = HOST_SECONDS

    def is_over(self, step: int) -> bool:
        """Returns whether the time is over after `step`: never."""
        return False

    def begin_loop(self, step: int, count: int) -> int:
        """Notes that up to `count` steps follow `step`, and returns their number."""
        return count

    def wrote(self, seconds: float) -> None:
        """Notes the seconds that writing a checkpoint took."""


class Hours(Protocol):
    """The functions of `hours.py` that the core calls."""

    Clock: Callable[[Trainer, Watcher, float, float], NoClock]

    check: Callable[[TrainingConfig, tf.distribute.Strategy], None]


def _hours() -> Hours:
    return by_name("official_bert.training.stops.hours")


def check(training: TrainingConfig, strategy: tf.distribute.Strategy) -> None:
    """Raises ValueError for `hours` on devices that must know the number of steps before the first step."""
    if training.hours:
        _hours().check(training, strategy)


def make_clock(trainer: Trainer, watcher: Watcher, began: float) -> NoClock:
    """Returns the clock of a run that began at `began`."""
    training = trainer.step.recipe.training
    if not training.hours:
        return NoClock()
    return _hours().Clock(trainer, watcher, training.hours, began)
