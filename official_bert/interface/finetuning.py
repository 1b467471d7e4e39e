"""Fine-tuning from Python: `fine_tune` takes files, or tables in memory, and gives the metrics, a predictor and the
wrong answers.

`run_finetuning` is the same on the command line.
"""

import dataclasses
import functools
import html
import os
from collections.abc import Callable, Mapping
from typing import Any

from official_bert.config import (
    ConfigSources,
    ModelConfig,
    OptimizerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from official_bert.data.rows import Rows, Source
from official_bert.data.tabular.frames import as_source
from official_bert.flags_of_2018 import FLAG_KEYS
from official_bert.interface.keyword_errors import keyword_errors
from official_bert.interface.predictor import Predictor, evaluate
from official_bert.reports import metric_text
from official_bert.reports.page import PAGE_FILE
from official_bert.run_folder import RunFolder
from official_bert.runs import fine_tuning
from official_bert.runs.configuration.task_config import make_config
from official_bert.storage.files import exists, read_text
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.loading import dataset_name, load_task, task_class
from official_bert.training.machines.cluster import Placement
from official_bert.training.machines.distribution import check_backend, own_precision
from official_bert.typed_values import did_you_mean, removed_keys

# of `fine_tune`
ARGUMENTS = ("train", "eval", "predict", "data_dir", "init_checkpoint", "config", "cache_dir", "output_dir", "report")
HEIGHT = 700  # of a report in a notebook, pixels
SECTIONS = {
    "model": ModelConfig,
    "tokenizer": TokenizerConfig,
    "optimizer": OptimizerConfig,
    "training": TrainingConfig,
}


@dataclasses.dataclass(frozen=True)
class FineTuned:
    """A fine-tuned run: the metrics of its evaluation, and its folder. In a notebook it shows its report."""

    metrics: Mapping[str, float]
    output_dir: str
    # of its training; None: not known
    files: DataFiles | None = dataclasses.field(default=None, repr=False, compare=False)

    @functools.cached_property
    def predictor(self) -> Predictor:
        """A predictor of the trained model, loaded on first use."""
        return Predictor(self.output_dir)

    def evaluate(self, data: Any, **options: Any) -> dict[str, float]:
        """Measures the answers to other labelled data, in any form that `fine_tune` takes for `eval`; writes nothing.

        `options` say how the data are read, if otherwise than in training: `encoding="cp1252"`, `text_column="body"`.
        """
        return evaluate(self.output_dir, data, options).metrics

    def mistakes(self, data: Any = None, **options: Any) -> Any:
        """Returns a pandas frame of the rows that are answered wrongly, the most confident first: `text`, `label` (the
        right one), `answer`, and `probability:NAME` for each label.

        The rows are those of `data`, read with `options` as in `evaluate` (by default of the run's own evaluation), and
        the index has their numbers from 0. Raises ValueError if no data are known (a run that was loaded), and for
        scores, tags and search, whose answers are more or less right.
        """
        import pandas

        if data is None and self.files is None:
            raise ValueError(
                f"{self.output_dir}: expected data, as in mistakes(rows): a loaded run does not have its evaluation "
                "data"
            )
        evaluated = evaluate(self.output_dir, self.files if data is None else data, options)
        task, answers = evaluated.resolved.task, evaluated.answers()
        rows = []
        for name, answered in answers.items():
            if answered.right is None:
                raise ValueError(
                    f"task {task.config.task}: expected right and wrong answers, got scores; the report shows the "
                    "largest errors"
                )
            for number in (~answered.right).nonzero()[0]:
                shares = answered.probabilities[number] if answered.probabilities else {}
                rows.append(
                    {
                        "row": int(number),
                        **({"set": name.strip("_")} if len(answers) > 1 else {}),
                        "text": answered.questions[number],
                        "label": answered.gold[number],
                        "answer": answered.answers[number],
                        **{f"probability:{label}": share for label, share in shares.items()},
                    }
                )
        if not answers:
            raise ValueError(
                f"task {task.config.task}: expected labels or choices for texts, or answers to questions; the report "
                "shows the mistakes of this task"
            )
        rows.sort(
            key=lambda row: -max((share for key, share in row.items() if key.startswith("probability:")), default=0.0)
        )
        return pandas.DataFrame(rows, columns=None if rows else ["row", "text", "label", "answer"]).set_index("row")

    def _repr_html_(self) -> str:
        run = RunFolder(self.output_dir)
        if exists(path := run.file(PAGE_FILE)):
            return (
                f'<iframe srcdoc="{html.escape(read_text(path))}" sandbox width="100%" height="{HEIGHT}" '
                f'style="border:0" title="{html.escape(run.path)}"></iframe>'
            )
        rows = "".join(
            f"<tr><td>{html.escape(name)}</td><td>{metric_text.shown(name, value)}</td></tr>"
            for name, value in self.metrics.items()
        )
        return f"<p>{html.escape(run.path)}</p><table>{rows}</table>"


def load_run(path: str | os.PathLike) -> FineTuned:
    """Loads a finished fine-tuning from its folder, or the best one of a search: metrics, predictor, `evaluate`,
    `mistakes(rows)`.

    Raises ValueError if there is no run.
    """
    folder = os.fspath(path)
    run = RunFolder(folder).best_of_search or RunFolder.require(folder)
    return FineTuned(run.results, run.path)


@keyword_errors()
def fine_tune(
    task: str,
    *,
    output_dir: str | os.PathLike,
    train: Any = None,
    eval: Any = None,
    predict: Any = None,
    data_dir: str | os.PathLike = "",
    init_checkpoint: str | os.PathLike = "",
    config: str | os.PathLike = "",
    cache_dir: str | os.PathLike = "",
    allow_same_data: bool = False,
    report: Callable[[str], None] = print,
    **options: Any,
) -> FineTuned:
    """Fine-tunes on a task, evaluates on `eval` and, if `predict` is given, writes answers into `output_dir`.

    Data are paths, or rows in memory: lists of dicts, pandas frames, splits of the `datasets` library; `data_dir` is a
    folder in the task's published layout. `init_checkpoint` has any format and gives the model's size, vocabulary and
    casing. `options` are the
    configuration's keys: those of the task (`max_seq_length=128`, `text_column="review"`), of training (`epochs=3`,
    `batch_size=16`), optimizer (`learning_rate=3e-5`), model and tokenizer, and `seed`; if two sections have a name,
    the dotted one says which: `**{"optimizer.name": "lamb"}`. They override the YAML `config`. The same call continues
    a stopped run.

    With `eval`, every epoch is measured, the best checkpoint answers (`answer_with="last"`: the last), `patience=3`
    stops early, and the folder gets a report.

    Raises ValueError, naming file and line or `train[row 3]` (rows count from 0), before training begins.
    """
    check_backend()
    files = DataFiles(
        train_file=as_source(train, "train"),
        eval_file=as_source(eval, "eval"),
        predict_file=as_source(predict, "predict"),
        data_dir=os.fspath(data_dir),
        cache_dir=os.path.expanduser(cache_dir),
        allow_same_data=allow_same_data,
    )
    run, init_checkpoint = RunFolder(os.fspath(output_dir)), os.fspath(init_checkpoint)
    flags = {_dotted(task, key): value for key, value in options.items()}
    resolved = make_config(
        task, ConfigSources(os.fspath(config), flags=flags), init_checkpoint, run.path, report=report
    )
    call = _call(
        task,
        {
            "train": files.train_file,
            "eval": files.eval_file,
            "predict": files.predict_file,
            "data_dir": files.data_dir,
            "init_checkpoint": init_checkpoint,
            "config": os.fspath(config),
            "output_dir": run.path,
        },
        options | ({"allow_same_data": True} if allow_same_data else {}),
    )
    tuning = fine_tuning.FineTuning(
        load_task(resolved),
        files,
        run,
        Placement(),
        init_checkpoint,
        Steps(predict=predict is not None),
        report=report,
        asked_keys=flags,
        command=call,
    )
    with own_precision():
        return FineTuned(tuning.carry_out(), run.path, files)


def _call(task: str, arguments: Mapping[str, Source], options: Mapping[str, Any]) -> str:
    """The call of `fine_tune` as it is typed; of a table in memory the number of its rows."""
    given = {name: value for name, value in arguments.items() if value}
    values = {
        name: f"<{len(value.values):,} rows>" if isinstance(value, Rows) else f"{value!r:.300}"
        for name, value in {**given, **options}.items()
    }
    dotted = ", ".join(f"{name!r}: {value}" for name, value in values.items() if not name.isidentifier())
    keywords = [f"{name}={value}" for name, value in values.items() if name.isidentifier()]
    return f"fine_tune({', '.join([repr(task), *keywords, *([f'**{{{dotted}}}'] if dotted else [])])})"


def _dotted(task: str, key: str) -> str:
    """Returns the configuration key for a keyword; raises ValueError if there is none, or if there are several."""
    if "." in key or key == "seed":
        return key
    options = task_class("glue" if dataset_name(task) else task, "task").Options
    fields = {
        section: {field.name for field in dataclasses.fields(kind)}
        for section, kind in {**SECTIONS, "options": options}.items()
    }
    had = {section: removed_keys(kind) for section, kind in {**SECTIONS, "options": options}.items()}
    keys = [f"{section}.{key}" for section, names in fields.items() if key in names or key in had[section]]
    if len(keys) > 1:
        raise ValueError(f"{key}: expected the section with it, as in **{{{' or '.join(map(repr, keys))}: ...}}")
    if not keys:
        known = ["seed", *sorted(set().union(*fields.values()))]
        # 2018's names, which others have taken over
        own = FLAG_KEYS[key].rpartition(".")[2] if key in FLAG_KEYS else key
        near = did_you_mean(own, [*known, *ARGUMENTS])
        raise ValueError(f"{key}: {f'no such keyword; {near}' if near else 'expected one of ' + ', '.join(known)}")
    return keys[0]
