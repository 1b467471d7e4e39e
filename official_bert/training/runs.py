"""One fine-tuning from its configuration to its answers: train, evaluate, predict. What the fine-tuning commands share."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from official_bert.config import FINE_TUNING, Config, load_config, merge
from official_bert.files import written_whole
from official_bert.models import checkpoints
from official_bert.models.interchange import formats
from official_bert.training import evaluation, loop
from official_bert.training.checkpointing import BEST_FOLDER, CONFIG_FILE, METRIC_FILE, VOCAB_FILE
from official_bert.training.distribution import Placement, is_first_worker, set_precision
from official_bert.training.task import TaskBase

RESULTS_FILE = "eval_results.txt"
DEFAULTS: Mapping[str, Any] = merge(FINE_TUNING, {"training": {"keep_checkpoints": 1}})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
    """What is done of a fine-tuning."""

    train: bool = True
    evaluate: bool = True
    predict: bool = False

    def __post_init__(self):
        if not (self.train or self.evaluate or self.predict):
            raise ValueError("expected at least one of --do_train, --do_eval and --do_predict")


def defaults_from(init_checkpoint: str) -> dict[str, Any]:
    """The parts of a configuration that a checkpoint's files tell: the model, the vocabulary beside it, whether that is uncased.

    Raises ValueError where there is no checkpoint.
    """
    if not init_checkpoint:
        return {}
    try:
        stored = formats.read(init_checkpoint)
    except ValueError as error:
        raise ValueError(f"--init_checkpoint={error}") from None
    found: dict[str, Any] = {}
    if stored.config is not None:
        found["model"] = dataclasses.asdict(stored.config)
    tokenizer: dict[str, Any] = {} if stored.do_lower_case is None else {"do_lower_case": stored.do_lower_case}
    folder = init_checkpoint if os.path.isdir(init_checkpoint) else os.path.dirname(init_checkpoint)
    for place in (folder, os.path.dirname(os.path.normpath(folder))):
        if os.path.isfile(path := os.path.join(place, VOCAB_FILE)):
            return found | {"tokenizer": {"vocab_file": path, **tokenizer}}
        if os.path.basename(os.path.normpath(folder)) != BEST_FOLDER:
            break
    return found | {"tokenizer": tokenizer}


def stored_config(output_dir: str, overrides: list[str]) -> Config | None:
    """The configuration of a run's folder, for evaluation and prediction alone; None where there is none."""
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


def run(task: TaskBase, output_dir: str, placement: Placement, init_checkpoint: str = "", steps: Steps | None = None,
        best: bool = False, report: Callable[[str], None] = print) -> dict[str, float]:
    """Trains, evaluates and predicts as `steps` say, and returns the metrics; `best`: predicts with the best checkpoint.

    Without training, the folder's newest checkpoint counts, or `init_checkpoint` where the folder has none. Of several
    workers all train and evaluate, and the first one alone predicts and writes.
    """
    steps = steps or Steps()
    require_vocabulary(task.config)
    first = is_first_worker(placement)
    if first and (answered := _without_model(task, output_dir, steps, report)) is not None:
        return answered
    metrics: dict[str, float] = {}
    if steps.train:
        metrics = loop.train(task, output_dir, placement, init_checkpoint, report=report)
    elif steps.evaluate:
        metrics = _evaluate(task, output_dir, placement, init_checkpoint)
    if first and steps.evaluate and metrics:
        write_results(metrics, output_dir)
    if first and steps.predict:
        predictions = predict(task, trained_folder(output_dir, init_checkpoint, best))
        os.makedirs(output_dir, exist_ok=True)
        report(f"wrote {', '.join(task.write_predictions(predictions, output_dir))}")
    return metrics


def _without_model(task: TaskBase, output_dir: str, steps: Steps, report: Callable[[str], None]) -> dict[str, float] | None:
    """The metrics of answers that need no model, and their files; None for a task that needs one."""
    if type(task).constant_predictions is TaskBase.constant_predictions:
        return None  # and no data is read yet: labels may have to be found in the training data first
    held_out = task.eval_source() if steps.evaluate else None
    tests = task.predict_source() if steps.predict else None
    source = held_out or tests
    if source is None or (predictions := task.constant_predictions(source)) is None:
        return None
    os.makedirs(output_dir, exist_ok=True)
    report("no model is trained: every row gets the same answer")
    metrics = task.evaluate(predictions) if held_out else {}
    if metrics:
        write_results(metrics, output_dir)
    if tests and (answers := task.constant_predictions(tests)):
        report(f"wrote {', '.join(task.write_predictions(answers, output_dir))}")
    return metrics


def _evaluate(task: TaskBase, output_dir: str, placement: Placement, init_checkpoint: str) -> dict[str, float]:
    folder = trained_folder(output_dir, init_checkpoint)
    if os.path.exists(os.path.join(folder, CONFIG_FILE)):
        return evaluation.evaluate(task, folder, placement)
    model = _model_of(task, folder)
    if (source := task.eval_source()) is None:
        raise ValueError(f"task {task.config.task}: no evaluation data given")
    return task.evaluate(evaluation.predict(task, model, source))


def trained_folder(output_dir: str, init_checkpoint: str, best: bool = False) -> str:
    """Where the weights to evaluate or answer with lie."""
    if best and os.path.exists(os.path.join(output_dir, BEST_FOLDER, METRIC_FILE)):
        return os.path.join(output_dir, BEST_FOLDER)
    if os.path.isdir(output_dir) and checkpoints.newest_checkpoint(output_dir):
        return output_dir
    if not init_checkpoint:
        raise ValueError(f"--output_dir={output_dir}: no checkpoint found there, and no --init_checkpoint given")
    return init_checkpoint


def _model_of(task: TaskBase, path: str):
    """The task's model with the weights at a path, none of them new. ValueError where some are missing."""
    set_precision(task.config.training.precision)
    model = task.build_model()
    said = checkpoints.initialize_from(model, path)
    if "; new: " in said:
        raise ValueError(f"--init_checkpoint={said}: expected a fine-tuned checkpoint, with every weight of the model")
    return model


def predict(task: TaskBase, folder: str) -> list[dict[str, Any]]:
    """What the weights in a folder say about each row of the task's test data."""
    if (source := task.predict_source()) is None:
        raise ValueError(f"task {task.config.task}: no data to predict given")
    return evaluation.predict(task, _model_of(task, folder), source)


def write_results(metrics: Mapping[str, float], output_dir: str) -> None:
    """`eval_results.txt`, sorted by name as in 2018."""
    with written_whole(os.path.join(output_dir, RESULTS_FILE)) as file:
        file.writelines(f"{name} = {value}\n" for name, value in sorted(metrics.items()))
