"""What a trained model is worth on labelled data, in Python: metrics, the wrong answers, the report in a notebook."""

import dataclasses
import html
from collections.abc import Mapping
from typing import Any

from official_bert.config import Config
from official_bert.data.tabular.frames import as_source
from official_bert.files import exists, read_text
from official_bert.interface.keyword_errors import keyword_errors
from official_bert.interface.portable_models import portable_folder
from official_bert.models.checkpoints import trained_weights
from official_bert.models.run_folder import RunFolder
from official_bert.reports import metric_text
from official_bert.reports.page import PAGE_FILE
from official_bert.serving.loading import exported_folder
from official_bert.tasks.loading import load_task, restore_model
from official_bert.training import evaluation
from official_bert.training.running.cluster import Placement
from official_bert.training.task import DataFiles, Measured, TaskBase

# Options of tasks that say how data are read, and change nothing in a trained model.
READING_OPTIONS = (
    "file_format", "delimiter", "header", "encoding", "text_column", "text_pair_column", "begin_column", "choice_columns",
    "choices_column", "label_column", "label_columns", "label_separator", "keys_column", "answer_as", "first_choice",
    "negative_columns", "score_column", "word_column", "tag_column", "separator", "places", "overlaps", "empty_text",
    "missing_label", "unknown_ids")
HEIGHT = 700  # of a report in a notebook, pixels


@keyword_errors(eval_file="data")
def evaluate(path: str, data: Any, options: Mapping[str, Any], config: Config | None = None) -> Measured:
    """Measures a run with the weights that answer, or a checkpoint, on labelled data; writes nothing.

    `data` have any form that `fine_tune` takes for `eval`, or are all files of a run. `options` replace those of the
    task that say how files are read; `config` is that of the model, if it is known. Raises ValueError for an exported
    model, for data that the task cannot read, and for other options.
    """
    files = data if isinstance(data, DataFiles) else DataFiles(eval_file=as_source(data, "data"))
    if exported_folder(path) or portable_folder(path):
        raise ValueError(f"{path}: an exported model has no task to measure it by; evaluate the run that it was exported from")
    folder = RunFolder(path)
    run = folder.best_of_search or folder
    task = load_task(config or restore_model(path)[0], run.path if run.has_begun else "")
    if options:
        task = _with_reading_options(task, options)
    weights = trained_weights(run, best=task.config.training.answer_with == "best") if run.has_begun else path
    return evaluation.measure(task, files, "", Placement(), weights, lambda _: None)


def _with_reading_options(task: TaskBase, options: Mapping[str, Any]) -> TaskBase:
    """Returns a task that reads files with other options. Raises ValueError for options that are not for reading."""
    known = [name for name in READING_OPTIONS if hasattr(task.options, name)]
    if unknown := sorted({*options} - {*known}):
        raise ValueError(f"{unknown[0]}: expected an option for reading data ({', '.join(known)})")
    return task.with_config(dataclasses.replace(task.config, options={**task.config.options, **options}))


def mistakes(evaluated: Measured) -> Any:
    """Returns a pandas frame of the wrong answers, as `FineTuned.mistakes` describes it."""
    import pandas
    task, answers = evaluated.resolved.task, evaluated.answers()
    rows = []
    for name, answered in answers.items():
        if answered.right is None:
            raise ValueError(f"task {task.config.task}: expected right and wrong answers, got scores; the report shows the largest errors")
        for number in (~answered.right).nonzero()[0]:
            shares = answered.probabilities[number] if answered.probabilities else {}
            rows.append({"row": int(number), **({"set": name.strip("_")} if len(answers) > 1 else {}), "text": answered.questions[number],
                         "label": answered.gold[number], "answer": answered.answers[number],
                         **{f"probability:{label}": share for label, share in shares.items()}})
    if not answers:
        raise ValueError(f"task {task.config.task}: expected labels or choices for texts, or answers to questions; the report shows what "
                         "this task gets wrong")
    rows.sort(key=lambda row: -max((share for key, share in row.items() if key.startswith("probability:")), default=0.0))
    columns = [] if rows else ["row", "text", "label", "answer"]
    return pandas.DataFrame(rows, columns=columns or None).set_index("row")


def report_html(run: RunFolder, metrics: Mapping[str, float]) -> str:
    """Returns the report of a run for a notebook, or a table of its metrics if it has none."""
    if exists(path := run.file(PAGE_FILE)):
        return (f'<iframe srcdoc="{html.escape(read_text(path))}" sandbox width="100%" height="{HEIGHT}" style="border:0" '
                f'title="{html.escape(run.path)}"></iframe>')
    rows = "".join(f"<tr><td>{html.escape(name)}</td><td>{metric_text.shown(name, value)}</td></tr>" for name, value in metrics.items())
    return f"<p>{html.escape(run.path)}</p><table>{rows}</table>"
