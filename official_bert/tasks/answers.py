"""Turns a model's outputs into metrics, and into answers for people."""

import csv
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from official_bert.models.interchange.classes import Classes
from official_bert.models.interchange.stored_models import Kind
from official_bert.objectives.calibration import Calibration
from official_bert.reports.comparable import ComparableAnswers
from official_bert.reports.sections import Section
from official_bert.storage.files import written_whole
from official_bert.tasks.data import DataFiles, PartOfTask, Resolved, Steps
from official_bert.training.held_out import Predictions

# of `Head`
KINDS: Mapping[str, Kind] = {"classifier": "classifier", "multi_label": "multi_label", "regression": "regression"}


@runtime_checkable
class Examined(Protocol):
    """Evaluation data whose task reports more than metrics."""

    def examine(self, predictions: Predictions) -> list[Section]:
        """Returns the sections of a report from the predictions that `HeldOut.evaluate` takes."""


@runtime_checkable
class Comparable(Protocol):
    """Evaluation data on which the answers of two models can be compared row by row."""

    def comparable(self, predictions: Predictions) -> dict[str, ComparableAnswers]:
        """Returns the answers by set of rows ("": the only one), from the predictions that `HeldOut.evaluate` takes."""


class Examination(Protocol):
    """A task's module of reports, `examination.py`, as the core calls it by name."""

    examine: Callable[..., Iterable[Section]]
    comparable: Callable[..., ComparableAnswers]
    tune: Callable[..., dict[str, float]]  # of a calibrated task


@dataclasses.dataclass(frozen=True)
class Measured:
    """The result of a training or an evaluation: its last metrics, and the (last phase's) task, data, model and
    predictions behind them.
    """

    metrics: dict[str, float]
    resolved: Resolved
    predictions: Predictions = ()  # on `resolved.held_out`

    def answers(self) -> dict[str, ComparableAnswers]:
        """Returns the answers by set of rows; {} without predictions, and for a task whose answers are not compared row
        by row.
        """
        held_out = self.resolved.held_out
        return (
            held_out.comparable(self.predictions) if len(self.predictions) and isinstance(held_out, Comparable) else {}
        )


@dataclasses.dataclass(frozen=True)
class ConstantAnswers:
    """The answers of a task without a model: the same for every row."""

    metrics: dict[str, float]  # {} if there is nothing to evaluate on
    # writes the prediction files into a folder, returns their paths; None: nothing to answer
    write: Callable[[str], list[str]] | None


class Answers(PartOfTask):
    """The answers of a task."""

    # whether an evaluation without training takes stored `tuned_options`, or tunes anew
    measures_with_tuned: ClassVar[bool] = False

    calibration = Calibration()  # of the probabilities

    @property
    def labels(self) -> Any:
        """The labels in the order of the outputs, if known; a user's own task may give this option another meaning."""
        return getattr(self.options, "labels", ())

    @property
    def classes(self) -> Classes:
        """The labels of the outputs and the kind of answer, which a checkpoint's head must match."""
        return Classes(self.labels if isinstance(self.labels, tuple) else (), KINDS.get(self.task.head, ""))

    def input_columns(self) -> dict[str, tuple[str, ...]]:
        """Returns the columns in this task's files for each input of the served model; choices have a beginning and
        endings. {}: columns have the names of the inputs.
        """
        return {}

    def best_metric(self) -> str:
        """Returns the metric or evaluation loss that selects the best checkpoint; a leading `-` means that less is
        better.
        """
        return "-loss"

    def tuned_options(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Returns the options that an evaluation tuned, such as a threshold, to be stored beside the weights; none by
        default.
        """
        return {}

    def with_tuned(self, stored: Mapping[str, Any]) -> Any:
        """Returns the task for answering, with stored `tuned_options` unless the user has set them."""
        return self.task

    def check_rows(self, steps: Steps, held_out: Any) -> None:
        """Raises ValueError if the rows to evaluate on, or a lack of them, do not allow what the options ask for."""

    def check_tuned(self, metrics: Mapping[str, float]) -> None:
        """Raises ValueError for an evaluation that could not tune what the options ask for."""

    def constant_answers(self, files: DataFiles, steps: Steps) -> ConstantAnswers | None:
        """Returns the answers of a task without a model (always the most frequent label); None for all other tasks."""
        return None


def write_answers(
    path: str, rows: Iterable[Sequence[object]], columns: Sequence[str] = (), delimiter: str = "\t"
) -> str:
    """Writes a table of answers: `index`, `prediction` and further columns; returns its path."""
    with written_whole(path) as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        writer.writerow(["index", "prediction", *columns])
        writer.writerows(rows)
    return path
