"""Training from the first step to the last: phases, logs, evaluations, checkpoints, stops, resume."""

import bisect
import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.config import Config
from official_bert.copies import WorkingFolder, original_paths
from official_bert.data.sources import ExampleSource
from official_bert.files import absolute
from official_bert.models import checkpoints, parts
from official_bert.models.run_folder import RunFolder, step_of, write_tuned
from official_bert.training import checkpointing, distribution, guards, origins
from official_bert.training.checkpointing import BestCheckpoint, CheckpointFolder
from official_bert.training.distribution import Placement
from official_bert.training.reporting.announcement import announce, best_checkpoint, cut_lines, unknown_lines, unmeasured
from official_bert.training.reporting.run_log import Profile, Watcher
from official_bert.training.schedules.learning_rate import check_lengths
from official_bert.training.schedules.phases import Phase, evaluation_steps, plan, resolved_config
from official_bert.training.spikes import MOST_REWINDS, Spikes
from official_bert.training.task import TRAIN_AND_EVALUATE, DataFiles, Predictions, Resolved, Steps, TaskBase
from official_bert.training.trainer import Trainer

STOPPED = 75  # exit status after SIGTERM: saved, run the same command again to go on (EX_TEMPFAIL)
HOST_SECONDS = 10.0  # the host regains control at least this often


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of a training: the metrics and predictions of its last evaluation, and its (last phase's) task, data and model."""

    metrics: dict[str, float]
    resolved: Resolved
    predictions: Predictions = ()  # on `resolved.held_out`


def train(task: TaskBase, files: DataFiles, output_dir: str, placement: Placement, init_checkpoint: str = "",
          profile_steps: str = "", steps: Steps = TRAIN_AND_EVALUATE, report: Callable[[str], None] = print) -> Trained:
    """Trains a task into a folder, or continues a run there.

    First reports whether the run is fresh, initialised or resumed. `profile_steps` is `first:last`. Opens the data of all
    `steps` before the first one. Raises ValueError, before the first step, if configuration, data or folder do not fit;
    SystemExit with status 75 after SIGTERM, KeyboardInterrupt after SIGINT, once the run is saved.
    """
    work = WorkingFolder(output_dir)
    run = RunFolder(work.folder)
    profile = Profile.parse(profile_steps, run)
    guards.check_vocabulary(task.config, run, init_checkpoint)
    strategy = distribution.make_strategy(placement)
    chief = distribution.is_chief(strategy)
    with (run.locked() if chief else contextlib.nullcontext(),
          distribution.lost_workers_told(strategy, lambda: "before the first step")):
        distribution.check_same(strategy, "configuration", origins.same_everywhere(task.config, init_checkpoint))
        digests = task.data_digests(files, steps)
        if not files.allow_changed_data:
            origins.check_unchanged(digests | ({origins.START: init_checkpoint} if init_checkpoint else {}), run)
        distribution.set_precision(task.config.training.precision, task.config.training.tf32)
        keras.utils.set_random_seed(task.config.seed)
        with strategy.scope():
            phases = plan(task, files, steps)
            guards.check_patience(phases)
            profile.check(phases[-1].last)
            check_lengths(task.config.optimizer, phases[-1].last)
            task.draw_first_weights(phases[0].resolved.model)
            frozen = parts.freeze(phases[0].resolved.model, task.config.training.freeze)
        config = resolved_config(task, phases)
        origin = origins.origin_of(config, digests, phases)
        distribution.check_same(strategy, "data and vocabulary", origin)
        if not files.allow_changed_data:
            origins.check_unchanged(origin, run)
        tell = (lambda line: report(original_paths(line))) if chief else lambda _: None
        try:
            for line in frozen:
                tell(line)
            return _train(phases, config, origin, run, work.push, strategy, init_checkpoint, profile, tell)
        finally:
            if chief:
                work.push()


def _train(phases: list[Phase], config: Config, origin: Mapping[str, Any], run: RunFolder, publish: Callable[[], None],
           strategy: tf.distribute.Strategy, init_checkpoint: str, profile: Profile, report: Callable[[str], None]) -> Trained:
    other_data, other_order = origins.changes(origin, run), origins.other_order(origin, run)
    changed = checkpointing.check_same_run(config, run, options=phases[0].resolved.task.Options)
    first = phases[0].resolved
    trainer = Trainer(first.task, first.model, strategy, phases[-1].last)
    folder = CheckpointFolder(trainer.checkpoint, run, config.training.keep_checkpoints, config.training.keep_every)
    restored = trainer.restore_newest(folder)
    if trainer.steps_done > phases[-1].last:
        raise ValueError(f"--output_dir={run.path}: expected at least the {trainer.steps_done} steps that the run has done, "
                         f"got a training of {phases[-1].last}")
    if restored:
        report(f"resumed: {restored} at step {trainer.steps_done} of {phases[-1].last}; weights, optimizer, schedule, position in "
               "the data" + "".join(f"; {one.describe()}" for one in changed))
    elif init_checkpoint:
        anew = parts.first_values(trainer.model, config.training.reinitialize_layers, config.training.freeze)
        found = checkpoints.initialize_from(trainer.model, init_checkpoint, first.task.classes)
        parts.put_back(trainer.model, anew)
        origin = {**origin, origins.START: absolute(init_checkpoint), "init_checkpoint": found.origin}
        report(f"initialised (weights only): {found.describe()}")
        if anew:
            report(f"made anew (seed {config.seed}): the last {config.training.reinitialize_layers} layers and the pooler")
    else:
        guards.check_reinitialized(config, init_checkpoint)
        report(f"fresh: weights are random (seed {config.seed})")
    for line in (*first.notes, *announce(trainer, config), *unmeasured(first), *cut_lines(first, config), *unknown_lines(first)):
        report(line)
    chief = distribution.is_chief(strategy)
    if chief:
        if not restored or origins.evaluates_otherwise(origin, run):
            BestCheckpoint(run, first.task.best_metric()).forget()
        run.write_config(config)
        origins.write(origin, run, bool(restored))
    with contextlib.closing(Watcher(run, phases[-1].last, chief)) as watcher:
        for name, told in {"changed_data": "; ".join(other_data), "changed_order": restored and other_order,
                           "best_checkpoint": best_checkpoint(phases)}.items():
            if told:
                watcher.note(trainer.steps_done, name, told)
        training = Run(trainer, folder, watcher, phases, profile, publish)
        return Trained(training.go(), phases[-1].resolved, training.predictions)


class Run:
    """One training run, from its trainer's step to the last one."""

    def __init__(self, trainer: Trainer, folder: CheckpointFolder, watcher: Watcher, phases: list[Phase], profile: Profile,
                 publish: Callable[[], None]):
        self.trainer, self.folder, self.watcher, self.phases, self.profile = trainer, folder, watcher, phases, profile
        self.settings = phases[0].resolved.task.config.training
        self.total = phases[-1].last
        self.best = BestCheckpoint(folder.run, phases[0].resolved.task.best_metric())
        self.due = [step for phase in phases for step in evaluation_steps(phase)]
        self.evaluated = {step for step in folder.run.logged_steps("eval") if step <= trainer.steps_done}
        self.measured: dict[int, dict[str, float]] = {}  # the metrics of the last evaluation, by its step
        self.predictions: Predictions = ()  # of the last evaluation
        self.saved_at = -1  # the step of the checkpoint that this process wrote last
        self.spikes = Spikes(folder.run, self.settings.rewind_on_spike, trainer.steps_done, watcher.enabled)
        self.skipped_in_a_row = 0
        self.publish = publish  # called when there is something new in the run's folder
        self.terminated, self.stopped_by, self.save_wanted = False, "SIGTERM", False
        self.pending: list[np.ndarray] = []
        self.logged, self.logged_at = 0, 0.0

    def go(self) -> dict[str, float]:
        """Trains to the last step, with logs, evaluations and checkpoints; returns the last evaluation's metrics."""
        previous = {number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)}
        try:
            with distribution.lost_workers_told(self.trainer.strategy, lambda: f"step {self.trainer.steps_done}"):
                self._make_up_evaluation()
                if self.settings.rewind_on_spike and not self.folder.newest():
                    self.save()  # so that there is always somewhere to go back to
                for phase in self.phases:
                    if self.trainer.steps_done < phase.last or phase is self.phases[-1]:
                        self._enter(phase)
                        self._steps(phase)
                metrics = self._measure_answers()
                self.folder.wait()
                return metrics
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
            self.profile.stop()
            with contextlib.suppress(OSError):  # raised above, unless there is another error
                self.folder.wait()

    def _on_signal(self, number: int, _) -> None:
        """SIGUSR1 asks for a checkpoint, SIGTERM and SIGINT for a checkpoint and the end; a second SIGINT ends the run at once."""
        if number == signal.SIGUSR1:
            self.save_wanted = True
        elif number == signal.SIGINT and self.terminated:
            raise KeyboardInterrupt
        else:
            self.terminated, self.stopped_by = True, signal.Signals(number).name

    def _enter(self, phase: Phase) -> None:
        if phase.number:
            self.trainer.enter(phase.resolved.task)
        if len(self.phases) > 1:
            self.watcher.say(f"phase {phase.number + 1} of {len(self.phases)}: steps {phase.first} to {phase.last}, "
                             f"{phase.resolved.task.config.options}")

    def _steps(self, phase: Phase) -> None:
        step = self.trainer.steps_done
        if step >= phase.last:
            return
        iterator = self._batches(phase, step)
        seconds_a_step, self.logged, self.logged_at = 0.0, step, time.monotonic()
        while step < phase.last and not self._out_of_patience(step):
            self.profile.at(step)
            count = self._steps_until_next_event(step, phase.last, seconds_a_step)
            began = time.monotonic()
            rows = self._run(phase, iterator, step, count)
            self.folder.wait(only_if_done=True)
            seconds_a_step = (time.monotonic() - began) / len(rows)
            if (bad := self._first_bad(phase, step, rows)) is not None:
                step = self._go_back(phase, step + bad, float(rows[bad, 0]))
                iterator = self._batches(phase, step)
                continue
            self.pending.append(rows)
            step += len(rows)
            self._events(phase, step)
            if step in self.spikes.edges:
                iterator = self._batches(phase, step)

    def _batches(self, phase: Phase, step: int):
        if self.trainer.step.compiles_every_length and isinstance(phase.source, ExampleSource):
            phase.source.round_lengths()
        return iter(distribution.distribute(phase.source, self.trainer.strategy, self._batch_number(phase, step)))

    def _batch_number(self, phase: Phase, step: int) -> int:
        return phase.batch_number(step) + self.spikes.skipped(step, 0 if phase.first_batch else phase.first)

    def _events(self, phase: Phase, step: int) -> None:
        """Logs, saves, stops or evaluates if that is due after `step` steps."""
        stopping = bool(self.trainer.stop_agreed.numpy()) if self.trainer.several_workers else self.terminated
        if step % self.settings.log_every == 0 or step == phase.last or stopping:
            self._log(phase, step)
        kept = self.settings.keep_every and step % self.settings.keep_every == 0
        if step % self.settings.save_every == 0 or kept or step == phase.last or stopping or self.save_wanted:
            self.save_wanted = False
            self.save()
        if stopping:
            self.folder.wait()
            self.watcher.say(f"{self.stopped_by}: saved at step {step}; the same command continues from there")
            if self.stopped_by == "SIGINT":
                raise KeyboardInterrupt
            raise SystemExit(STOPPED)
        if self._evaluation_due(step):
            began = time.monotonic()
            self._evaluate(phase, step)
            self.logged_at += time.monotonic() - began

    def _evaluation_due(self, step: int) -> bool:
        """Whether weights are measured after `step` steps; those after the last step always are, at the end."""
        return step < self.total and self.due[bisect.bisect_left(self.due, step)] == step

    def _out_of_patience(self, step: int) -> bool:
        """Whether so many evaluations up to `step` have not been better that training ends; saves the weights then."""
        patience = self.settings.patience
        if not patience or not self._evaluation_due(step) or not self.trainer.any_worker(
                self.watcher.enabled and self.best.evaluations_without_better(self.evaluated, step) >= patience):
            return False
        if step_of(self.folder.newest()) != step:
            self.save()
        self.watcher.note(step, "stopped_early", f"at step {step} of {self.total}: {patience} evaluations without a better "
                          f"{self.best.metric} (training.patience)")
        return True

    def _measure_answers(self) -> dict[str, float]:
        """Returns the metrics of the weights that the run answers with, restored if they are the best ones."""
        phase, step = self.phases[-1], self.trainer.steps_done
        metrics = self.measured.get(step) or self._evaluate(phase, step)
        if self.settings.answer_with == "last" or not self.trainer.any_worker(self.watcher.enabled and bool(self.best.record)):
            return metrics
        best = BestCheckpoint(self.folder.run, self.phases[0].resolved.task.best_metric())  # as the chief has written it
        self.watcher.say(f"the best checkpoint answers: {best.describe()}")
        if best.record["step"] == step or phase.resolved.held_out is None:
            return metrics
        best.restore(self.trainer.checkpoint)
        return self._measure(phase)

    def _measure(self, phase: Phase) -> dict[str, float]:
        """Returns the metrics of the weights on the held-out data."""
        held_out = phase.resolved.held_out
        assert held_out is not None
        metrics, self.predictions = self.trainer.evaluate(held_out.source, self.settings.eval_steps)
        return metrics | held_out.evaluate(self.predictions)

    def _make_up_evaluation(self) -> None:
        """Measures the restored weights if that was due when the run was stopped, and is not in its log."""
        step = self.trainer.steps_done
        for phase in self.phases:
            if phase.first < step <= phase.last and self._evaluation_due(step) and self.trainer.any_worker(step not in self.evaluated):
                self.trainer.enter(phase.resolved.task)
                self._evaluate(phase, step)

    def _steps_until_next_event(self, step: int, last: int, seconds_a_step: float) -> int:
        events = [self.settings.log_every, self.settings.save_every, self.settings.keep_every]
        left = [every - step % every for every in events if every] + [last - step, self.settings.steps_per_loop]
        left += [edge - step for edge in (*self.profile.edges, *self.spikes.edges) if edge > step]
        left += [self.due[bisect.bisect_right(self.due, step)] - step]
        # Each worker measures its own seconds, but all of them must see a spike after the same step, before another one begins.
        at_once = self.trainer.several_workers and self.settings.rewind_on_spike
        bound = int(HOST_SECONDS / seconds_a_step) if seconds_a_step and not at_once else 1
        return max(1, min(*left, bound))

    def _run(self, phase: Phase, iterator, step: int, count: int) -> np.ndarray:
        self.trainer.stop_wanted.assign(float(self.terminated))
        try:
            return self.trainer.run_steps(iterator, tf.constant(count)).numpy()
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(phase.source.explain(error.message) or f"step {step}: {error.message}") from None

    def _first_bad(self, phase: Phase, step: int, rows: np.ndarray) -> int | None:
        """The index of the first of the rows after `step` steps because of which the run goes back to a checkpoint, None if none.

        Raises DivergedError if the run must stop: a step has failed and there is nowhere to go back to, or too many were skipped.
        """
        names = self.trainer.step.names
        for index, skipped in enumerate(rows[:, names.index("skipped")] > 0, step + 1):
            self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
            if self.skipped_in_a_row == self.settings.max_skipped_in_a_row > 0:
                raise guards.DivergedError(f"step {index}: {self.skipped_in_a_row} steps were skipped one after the other "
                                 f"(training.max_skipped_in_a_row); the checkpoints before them are intact")
        failed = rows[:, names.index("failed")] > 0
        bad = self.spikes.first(rows[:, 0].tolist(), failed.tolist())
        if bad is not None and (last := step_of(self.trainer.newest(self.folder))) >= phase.first and self.spikes.may_go_back_to(last):
            return bad
        if failed.any():
            raise guards.DivergedError(self._explain_infinite(phase, step + int(np.argmax(failed))))
        if bad is not None:
            raise guards.DivergedError(f"step {step + bad + 1}: the loss jumps to {rows[bad, 0]:.4g} (training.rewind_on_spike); the run "
                             f"has gone back to the checkpoint before it {MOST_REWINDS} times")
        return None

    def _go_back(self, phase: Phase, bad: int, loss: float) -> int:
        """Restores the last checkpoint because of the step numbered `bad` (from 0) and skips the data up to it; returns its step."""
        prefix = self.trainer.restore_newest(self.folder)
        step = self.trainer.steps_done
        if step < phase.first:
            raise ValueError(f"step {bad + 1}: the loss is {loss:.4g}, and no checkpoint of this phase can be read")
        self.spikes.go_back(step, bad + 1 - step)
        self.skipped_in_a_row = 0
        self.pending, self.logged, self.logged_at = [], step, time.monotonic()
        self.watcher.rewind(step, {"from_step": bad + 1, "loss": loss, "skipped_batches": bad + 1 - step}, str(prefix))
        return step

    def _explain_infinite(self, phase: Phase, step: int) -> str:
        """Says which tensor of the step numbered `step` (from 0) was the first one that is not finite."""
        batch = next(iter(phase.source.dataset(self._batch_number(phase, step))))
        weights = [tf.convert_to_tensor(weight) for weight in self.trainer.weights]
        parts = self.trainer.strategy.num_replicas_in_sync * phase.resolved.task.config.training.accumulation_steps
        found = guards.first_bad_tensor(self.trainer.step, weights, batch, step, parts)
        return f"step {step + 1}: {found} is not finite; the checkpoints before it are intact"

    def _log(self, phase: Phase, step: int) -> None:
        rows, names = np.concatenate(self.pending), self.trainer.step.names
        self.pending = []
        steps_per_second = (step - self.logged) / (time.monotonic() - self.logged_at)
        self.logged, self.logged_at = step, time.monotonic()
        metrics = dict(zip(names, rows.mean(axis=0).tolist()))
        metrics["learning_rate"] = float(rows[-1, names.index("learning_rate")])
        metrics["skipped"] = float(rows[:, names.index("skipped")].sum())
        metrics |= {"sequences_per_second": steps_per_second * phase.resolved.task.config.training.batch_size,
                    "tokens_per_second": steps_per_second * metrics.pop("tokens"),
                    "model_flops_per_second": steps_per_second * metrics.pop("flops")}
        metrics.pop("failed")
        self.watcher.training(step, metrics, steps_per_second)

    def _evaluate(self, phase: Phase, step: int) -> dict[str, float]:
        """Measures on the held-out data, if there are any; keeps the best checkpoint so far."""
        if phase.resolved.held_out is None:
            return {}
        metrics = self._measure(phase)
        self.folder.wait()
        # In this order: an evaluation in the log is a finished one, which a resumed run does not make up.
        saved = self.folder.run.checkpoint(step) if self.saved_at == step else ""
        tuned = phase.resolved.task.tuned_options(metrics)
        better = self.watcher.enabled and self.best.keep_if_better(self.trainer.checkpoint, step, metrics,
                                                                   self._first_measured_like(phase), self.settings.eval_steps, saved, tuned)
        if self.watcher.enabled:
            write_tuned(tuned, self.folder.run.checkpoint(step))
        self.watcher.evaluation(step, metrics)
        self.evaluated.add(step)
        self.measured = {step: metrics}
        if better:
            self.watcher.say(f"best so far: {self.best.describe()}")
        self._publish()
        return metrics

    def _first_measured_like(self, phase: Phase) -> int:
        """The number of the first phase that is measured on the same data with the same options."""
        def measure(resolved: Resolved):
            return resolved.held_out and resolved.held_out.source.content, resolved.task.options
        return next(one.number for one in self.phases if one is phase or measure(one.resolved) == measure(phase.resolved))

    def save(self) -> None:
        """Begins to write a checkpoint, on the chief only; the next steps do not wait for it."""
        self.folder.wait()  # files that change while it copies the folder to a store would confuse it
        self.spikes.saving(self.trainer.steps_done)
        if self.watcher.enabled:
            self.saved_at = self.trainer.steps_done
            self.folder.save_in_background(self.trainer.snapshot(), self.trainer.steps_done, self._saved)

    def _saved(self, name: str) -> None:
        self._publish()
        self.watcher.say(f"saved {name}")

    def _publish(self) -> None:
        if self.watcher.enabled:
            self.publish()
