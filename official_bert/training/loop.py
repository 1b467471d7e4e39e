"""Training from the first step to the last: phases, logs, evaluations, checkpoints, stops."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.data.batches.sources import ExampleSource, Progress
from official_bert.run_folder import step_of
from official_bert.training.checkpointing import CheckpointFolder
from official_bert.training.evaluations import Evaluations
from official_bert.training.logs import continued_log
from official_bert.training.logs.run_log import Profile, StepLog, Watcher
from official_bert.training.machines import distribution
from official_bert.training.phase import PhasePlan
from official_bert.training.stops import clock
from official_bert.training.stops.clock import NoClock
from official_bert.training.stops.recovery import Recovery
from official_bert.training.stops.signals import Signals
from official_bert.training.trainer import Trainer

STOPPED = 75  # exit status after SIGTERM: saved, run the same command again to go on (EX_TEMPFAIL)


class Run:
    """One training run, from the trainer's current step to the last one."""

    def __init__(
        self,
        trainer: Trainer,
        folder: CheckpointFolder,
        watcher: Watcher,
        phases: Sequence[PhasePlan],
        profile: Profile,
        publish: Callable[[], None],
        timer: NoClock,
    ):
        self.trainer, self.folder, self.watcher, self.phases, self.profile = trainer, folder, watcher, phases, profile
        self.clock = timer
        self.publish = publish  # called when there is something new in the run's folder
        self.settings = phases[0].recipe.training
        self.evaluations = Evaluations(trainer, folder, watcher, phases, publish)
        self.recovery = Recovery(trainer, folder.run)
        self.signals, self.log = Signals(), StepLog(watcher)

    def go(self) -> dict[str, float]:
        """Trains to the last step, with logs, evaluations and checkpoints; returns the last evaluation's metrics."""
        with (
            self.signals.handled(self.watcher.say),
            self._ended(),
            distribution.reporting_lost_workers(self.trainer.strategy, lambda: f"step {self.trainer.steps_done}"),
        ):
            self.evaluations.make_up()
            if self.clock.limited and not self.folder.newest():
                self.save()  # so that it is known how long it takes
                self.folder.wait()
            for phase in self.phases:
                if self.trainer.steps_done < phase.last or phase is self.phases[-1]:
                    self.enter(phase)
                    self.train(phase)
            metrics = self.evaluations.measure_answers()
            self.folder.wait()
            return metrics

    @contextlib.contextmanager
    def _ended(self) -> Iterator[None]:
        """Ends the profile and the checkpoint that is being written, whatever happens."""
        try:
            yield
        finally:
            self.profile.stop()
            with contextlib.suppress(OSError):  # raised by `go`, unless there is another error
                self.folder.wait()

    def enter(self, phase: PhasePlan) -> None:
        """Prepares the trainer for a phase."""
        if phase.number:
            self.trainer.enter(phase.recipe)
        if len(self.phases) > 1:
            self.watcher.say(
                f"phase {phase.number + 1} of {len(self.phases)}: steps {phase.first} to {phase.last}, {phase.about}"
            )

    def train(self, phase: PhasePlan) -> None:
        """Takes the remaining steps of a phase, or fewer if patience or time runs out."""
        step = self.trainer.steps_done
        if step >= phase.last:
            return
        batches, seconds_a_step = self._batches(phase, step), 0.0
        self.log.begin(step)
        self.log.rows += continued_log.kept(step, len(self.trainer.step.names), self.watcher.run)
        while step < phase.last and not self._ends_early(step) and not self.clock.is_over(step):
            self.profile.at(step)
            count = self.clock.begin_loop(step, self.steps_until_next_event(step, phase.last, seconds_a_step))
            began = time.monotonic()
            rows = self.take_steps(phase, batches, step, count)
            self.folder.wait(only_if_done=True)
            seconds_a_step = (time.monotonic() - began) / len(rows)
            self.recovery.check(phase, step, rows)
            step += len(rows)
            self.log.rows.append(rows)
            self.after_step(phase, step)
        if self.clock.limited:
            self._end_of_time(phase, step)

    def _end_of_time(self, phase: PhasePlan, step: int) -> None:
        """Logs and saves the last step of a training that ends with its time."""
        if self.log.rows:
            self._write_log(phase, step)
        self._save_unless_saved(step)
        self.folder.wait()
        self.watcher.note(step, clock.OVER, f"after {self.settings.hours:g} hours, at step {step}")

    def _batches(self, phase: PhasePlan, step: int) -> Any:
        if self.trainer.step.compiles_every_length and isinstance(phase.source, ExampleSource):
            phase.source.round_lengths()
        if phase.source.progress.total:
            phase.source.progress = Progress(self.phases[-1].last, phase.first - phase.first_batch)
        first, end = (phase.batch_number(at) for at in (step, phase.last))
        return iter(distribution.distribute(phase.source, self.trainer.strategy, first, end))

    def steps_until_next_event(self, step: int, last: int, seconds_a_step: float) -> int:
        """Returns how many steps follow `step` before the host must act, or checks for signals and time."""
        events = [self.settings.log_every, self.settings.save_every, self.settings.keep_every]
        steps_left = [every - step % every for every in events if every] + [last - step, self.settings.steps_per_loop]
        steps_left += [edge - step for edge in self.profile.edges if edge > step]
        steps_left += [self.evaluations.next_due(step) - step]
        bound = int(self.clock.seconds_of_loop / seconds_a_step) if seconds_a_step else 1
        return max(1, min(*steps_left, bound))

    def take_steps(self, phase: PhasePlan, batches: Any, step: int, count: int) -> np.ndarray:
        """Takes `count` steps after `step`, fewer if one fails; returns their metrics [steps, names]."""
        self.trainer.stop_wanted.assign(float(self.signals.terminated))
        try:
            with distribution.reporting_bad_rows(self.trainer.strategy, phase.source):
                return self.trainer.run_steps(batches, tf.constant(count)).numpy()
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(phase.source.explain(error.message) or f"step {step}: {error.message}") from None

    def after_step(self, phase: PhasePlan, step: int) -> None:
        """Logs, saves, stops or evaluates if that is due after `step`."""
        stopping = bool(self.trainer.stop_agreed.numpy()) if self.trainer.several_workers else self.signals.terminated
        if step % self.settings.log_every == 0 or step == phase.last or stopping:
            self._write_log(phase, step)
        is_kept = bool(self.settings.keep_every) and step % self.settings.keep_every == 0
        # which may take longer than the time that is left
        is_kept |= self.clock.limited and self.evaluations.is_due(step)
        if (
            step % self.settings.save_every == 0
            or is_kept
            or step == phase.last
            or stopping
            or self.signals.save_wanted
        ):
            self.signals.save_wanted = False
            self.save()
        if stopping:
            self._stop(step)
        if self.evaluations.is_due(step):
            with self.log.paused():
                self.evaluations.evaluate(phase, step)

    def save(self) -> None:
        """Starts to write a checkpoint, on the chief only; the next steps do not wait for it."""
        self.folder.wait()  # files that change while it copies the folder to a store would confuse it
        if self.watcher.enabled:
            began = clock.now()
            continued_log.keep(self.log.rows, self.trainer.steps_done, self.watcher.run)
            self.folder.save_in_background(
                self.trainer.snapshot(), self.trainer.steps_done, lambda name: self._saved(name, began)
            )

    def _save_unless_saved(self, step: int) -> None:
        if step_of(self.folder.newest()) != step:
            self.save()

    def _write_log(self, phase: PhasePlan, step: int) -> None:
        self.log.write(step, self.trainer.step.names, phase.recipe.training.batch_size)

    def _saved(self, name: str, began: float) -> None:
        self.publish()
        self.clock.wrote(clock.now() - began)
        if not self.evaluations.follow(step_of(name)):  # their line names the checkpoint
            self.watcher.say(f"saved {name}")

    def _stop(self, step: int) -> None:
        """Ends the process as the signal asks, once the checkpoint is written."""
        self.folder.wait()
        self.watcher.say(f"{self.signals.stopped_by}: saved at step {step}; the same command continues from there")
        if self.signals.stopped_by == "SIGINT":
            raise KeyboardInterrupt
        raise SystemExit(STOPPED)

    def _ends_early(self, step: int) -> bool:
        """Whether training ends after `step` because evaluations are no longer better; saves the weights then."""
        if not self.evaluations.are_out_of_patience(step):
            return False
        self._save_unless_saved(step)
        self.watcher.note(
            step,
            "stopped_early",
            f"at step {step} of {self.phases[-1].last}: {self.settings.patience} evaluations without "
            f"a better {self.evaluations.best.metric} (training.patience)",
        )
        return True
