"""Trains a task into a folder, or continues a run there."""

import contextlib
from collections.abc import Callable

from official_bert.run_folder import RunFolder
from official_bert.runs.beginning import beginning
from official_bert.runs.checks import guards
from official_bert.runs.configuration import run_config
from official_bert.storage.temporaries import original_paths
from official_bert.tasks.answers import Measured
from official_bert.tasks.data import TRAIN_AND_EVALUATE, DataFiles, Steps
from official_bert.tasks.task import TaskBase
from official_bert.training.logs.run_log import Profile, Watcher
from official_bert.training.loop import Run
from official_bert.training.machines import distribution
from official_bert.training.machines.cluster import Placement
from official_bert.training.stops import clock


def train(
    task: TaskBase,
    files: DataFiles,
    output_dir: str,
    placement: Placement,
    init_checkpoint: str = "",
    profile_steps: str = "",
    steps: Steps = TRAIN_AND_EVALUATE,
    report: Callable[[str], None] = print,
) -> Measured:
    """Trains a task into a folder, or continues a run there.

    First reports whether the run is new, initialised or resumed. `profile_steps` is `first:last`. Opens the data of all
    `steps` before the first one. Raises ValueError, before the first step, if configuration, data and folder do not
    match; SystemExit with status 75 after SIGTERM, KeyboardInterrupt after SIGINT, once the run is saved.
    """
    began = clock.now()
    init_checkpoint = run_config.initial_checkpoint_of(task.config.training, init_checkpoint)
    run, work = RunFolder.working(output_dir)
    profile = Profile.parse(profile_steps, run)
    guards.check_vocabulary(task.config, run, init_checkpoint)
    strategy = distribution.make_strategy(placement)
    clock.check(task.config.training, strategy)
    chief = distribution.is_chief(strategy)
    tell = (lambda line: report(original_paths(line))) if chief else lambda _: None
    publish = work.push if chief else lambda: None
    with (
        run.locked() if chief else contextlib.nullcontext(),
        distribution.reporting_lost_workers(strategy, lambda: "before the first step"),
    ):
        plan = beginning.open_data(task, files, run, strategy, init_checkpoint, steps)
        profile.check(plan.last)
        try:
            for line in plan.frozen:
                tell(line)
            trainer, folder, notes = beginning.begin(plan, run, strategy, init_checkpoint, tell)
            total = 0 if task.config.training.hours else plan.last
            with contextlib.closing(Watcher(run, total, chief, done=trainer.steps_done)) as watcher:
                for name, text in notes.items():
                    watcher.note(trainer.steps_done, name, text)
                training = Run(
                    trainer, folder, watcher, plan.phases, profile, publish, clock.make_clock(trainer, watcher, began)
                )
                return Measured(training.go(), plan.resolved[-1], training.evaluations.predictions)
        finally:
            publish()
