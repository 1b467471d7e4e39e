"""One fine-tuning: training, evaluation and prediction, shared by the fine-tuning commands."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from official_bert.config import FINE_TUNING, CheckpointValues, Config, load_config, merge
from official_bert.files import written_whole
from official_bert.models import checkpoints
from official_bert.models.interchange import formats
from official_bert.models.interchange.stored import is_lower_case
from official_bert.training import evaluation, loop
from official_bert.training.checkpointing import BEST_FOLDER, CONFIG_FILE, METRIC_FILE, VOCAB_FILE
from official_bert.training.distribution import Placement, is_first_worker, set_precision
from official_bert.training.task import (
    TRAIN_AND_EVALUATE,
    BatchSource,
    ConstantAnswers,
    DataFiles,
    Resolved,
    Steps,
    TaskBase,
)

RESULTS_FILE = "eval_results.txt"
DEFAULTS: Mapping[str, Any] = merge(FINE_TUNING, {"training": {"keep_checkpoints": 1}})


def checkpoint_values(init_checkpoint: str, output_dir: str = "") -> CheckpointValues:
    """Returns the configuration values in a checkpoint's files: the model, the vocabulary beside it, whether it is uncased.

    If `output_dir` has a run, they come from its configuration, because the checkpoint may be gone. Raises ValueError if there is no
    checkpoint.
    """
    if not init_checkpoint:
        return CheckpointValues({})
    if output_dir and (begun := stored_config(output_dir, [])):
        values = {"model": dataclasses.asdict(begun.model), "tokenizer": dataclasses.asdict(begun.tokenizer)}
        return CheckpointValues(values, f"--output_dir={output_dir}")
    try:
        stored = formats.read(init_checkpoint)
    except ValueError as error:
        raise ValueError(f"--init_checkpoint={error}") from None
    model = {} if stored.config is None else {"model": dataclasses.asdict(stored.config)}
    lower_case = False if stored.do_lower_case is None and is_lower_case(stored) is False else stored.do_lower_case
    tokenizer = {"vocab_file": formats.vocab_file_of(init_checkpoint, stored), "do_lower_case": lower_case}
    known = {key: value for key, value in tokenizer.items() if value not in ("", None)}
    return CheckpointValues(model | {"tokenizer": known}, f"--init_checkpoint={stored.origin}")


def stored_config(output_dir: str, overrides: list[str]) -> Config | None:
    """The configuration of a run's folder, for evaluation and prediction alone; None if there is none."""
    path = os.path.join(output_dir, CONFIG_FILE)
    if not os.path.exists(path):
        return None
    vocab = os.path.join(output_dir, VOCAB_FILE)
    own = [f"tokenizer.vocab_file={vocab}"] if os.path.exists(vocab) else []
    return load_config(path, overrides=[*own, *overrides])


def require_vocabulary(config: Config) -> None:
    """Raises ValueError if no vocabulary is given."""
    if not config.tokenizer.vocab_file:
        raise ValueError(f"--vocab_file: expected the vocabulary of the checkpoint (there is no {VOCAB_FILE} beside it)")


def run(task: TaskBase, files: DataFiles, output_dir: str, placement: Placement, init_checkpoint: str = "",
        steps: Steps = TRAIN_AND_EVALUATE, best: bool = False, report: Callable[[str], None] = print) -> dict[str, float]:
    """Trains, evaluates and predicts as `steps` say, and returns the metrics; `best`: predicts with the best checkpoint.

    Without training, the folder's newest checkpoint counts, or `init_checkpoint` if the folder has none. Of several
    workers all train and evaluate, and the first one alone predicts and writes.
    """
    require_vocabulary(task.config)
    first = is_first_worker(placement)
    if first and (constant := task.constant_answers(files, steps)):
        return _write_constant(constant, output_dir, report)
    metrics: dict[str, float] = {}
    resolved = None
    if steps.train:
        opened = dataclasses.replace(steps, predict=steps.predict and first)
        trained = loop.train(task, files, output_dir, placement, init_checkpoint, steps=opened, report=report)
        metrics, resolved = trained.metrics, trained.resolved
    elif steps.evaluate:
        metrics = _evaluate(task, files, output_dir, placement, init_checkpoint)
    if first and steps.evaluate and metrics:
        write_results(metrics, output_dir)
    if first and steps.predict:
        resolved = resolved or resolve_answers(task, files)
        assert resolved.tests is not None
        predictions = predict(resolved, resolved.tests.source, trained_folder(output_dir, init_checkpoint, best))
        os.makedirs(output_dir, exist_ok=True)
        report(f"wrote {', '.join(resolved.tests.write(predictions, output_dir))}")
    return metrics


def _write_constant(constant: ConstantAnswers, output_dir: str, report: Callable[[str], None]) -> dict[str, float]:
    os.makedirs(output_dir, exist_ok=True)
    report("no model is trained: every row gets the same answer")
    if constant.metrics:
        write_results(constant.metrics, output_dir)
    if constant.write:
        report(f"wrote {', '.join(constant.write(output_dir))}")
    return constant.metrics


def _evaluate(task: TaskBase, files: DataFiles, output_dir: str, placement: Placement, init_checkpoint: str) -> dict[str, float]:
    folder = trained_folder(output_dir, init_checkpoint)
    if os.path.exists(os.path.join(folder, CONFIG_FILE)):
        return evaluation.evaluate(task, files, folder, placement)
    set_precision(task.config.training.precision)
    resolved = task.resolve(files, Steps(train=False))
    assert resolved.held_out is not None
    return resolved.held_out.evaluate(predict(resolved, resolved.held_out.source, folder))


def trained_folder(output_dir: str, init_checkpoint: str, best: bool = False) -> str:
    """The folder of the weights for evaluation and prediction."""
    if best and os.path.exists(os.path.join(output_dir, BEST_FOLDER, METRIC_FILE)):
        return os.path.join(output_dir, BEST_FOLDER)
    if os.path.isdir(output_dir) and checkpoints.newest_checkpoint(output_dir):
        return output_dir
    if not init_checkpoint:
        raise ValueError(f"--output_dir={output_dir}: no checkpoint found there, and no --init_checkpoint given")
    return init_checkpoint


def resolve_answers(task: TaskBase, files: DataFiles) -> Resolved:
    """Resolves the task with the data to answer. Raises ValueError if there are none."""
    set_precision(task.config.training.precision)
    return task.resolve(files, Steps(train=False, evaluate=False, predict=True))


def predict(resolved: Resolved, source: BatchSource, path: str) -> list[dict[str, Any]]:
    """Predicts each row of a source, with the weights at a path.

    Raises ValueError unless the path has weights for all variables of the model.
    """
    found = checkpoints.initialize_from(resolved.model, path)
    if found.new:
        raise ValueError(f"--init_checkpoint={found.describe()}: expected a fine-tuned checkpoint, with every weight of the model")
    return evaluation.predict(resolved.task, resolved.model, source)


def write_results(metrics: Mapping[str, float], output_dir: str) -> None:
    """Writes `eval_results.txt`, sorted by name as in 2018."""
    with written_whole(os.path.join(output_dir, RESULTS_FILE)) as file:
        file.writelines(f"{name} = {value}\n" for name, value in sorted(metrics.items()))
