"""Makes the configuration of a fine-tuning, and checks the settings of a search."""

from collections.abc import Callable, Iterable

from official_bert.config import FIXED_BY_CHECKPOINT, Config, ConfigSources, load_config
from official_bert.run_folder import RunFolder
from official_bert.runs import search
from official_bert.runs.checks import guards
from official_bert.runs.configuration import run_config
from official_bert.runs.configuration.recorded_config import config_of_run
from official_bert.tasks.data import TRAIN_AND_EVALUATE, Steps
from official_bert.tasks.loading import dataset_name, load_task
from official_bert.training.machines.cluster import Placement
from official_bert.training.machines.distribution import make_strategy


def make_config(
    task: str,
    sources: ConfigSources,
    init_checkpoint: str,
    output_dir: str,
    train: bool = True,
    report: Callable[[str], None] = print,
) -> Config:
    """Returns the configuration of a fine-tuning; `task` may also be the name of a GLUE data set.

    Without training, it is that of the run in `output_dir`, or at `init_checkpoint`, with overrides and flags applied.
    """
    sources = sources.over(*named(task))
    if not train and (stored := config_of_run(output_dir, init_checkpoint, sources, report)):
        return stored
    config = run_config.of_training(sources, init_checkpoint, RunFolder(output_dir), report=report)
    if not train:
        return run_config.with_classes_of(config, init_checkpoint)
    run_config.refuse_overridden(config, sources.keys())
    return config


def check_settings(
    config: Config,
    settings: Iterable[search.Setting],
    asked_keys: Iterable[str],
    placement: Placement,
    init_checkpoint: str = "",
    steps: Steps = TRAIN_AND_EVALUATE,
) -> None:
    """Raises ValueError, before a search trains anything, for a setting that is wrong whatever the data: it contradicts
    the initial checkpoint, makes one of its own values or of the `asked_keys` ineffective, or does not fit the model or
    the devices.
    """
    with make_strategy(placement).scope():  # its replicas share a batch
        for setting in settings:
            if fixed := {key: value for key, value in setting.items() if key in FIXED_BY_CHECKPOINT}:
                load_config(
                    flags=fixed,
                    checkpoint=run_config.checkpoint_values(init_checkpoint, vocab_file=config.tokenizer.vocab_file),
                )
            varied = search.with_setting(config, setting)
            run_config.refuse_overridden(varied, {*asked_keys, *setting})
            guards.check_counted(varied.training)
            guards.check_reinitialized(varied, init_checkpoint)
            load_task(varied).data.check(steps)


def named(task: str) -> list[str]:
    """Returns the overrides that a task's name stands for."""
    if dataset := dataset_name(task):
        return ["task=glue", f"options.dataset={dataset}"]
    return [f"task={task}"] if task else []
