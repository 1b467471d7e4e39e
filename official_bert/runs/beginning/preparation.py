"""The only place that prepares a training's data, model and teacher, so that no caller forgets the teacher."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from official_bert.dotted_names import by_name
from official_bert.objectives.objective import is_own
from official_bert.tasks.data import DataFiles, Resolved, Steps
from official_bert.tasks.task import TaskBase, own_parts

if TYPE_CHECKING:
    from official_bert.objectives.distilled import Distilled


class Student(Protocol):
    """How a task learns from a teacher."""

    objective: Callable[["Distilled | None"], "Distilled"]  # with the teacher, loaded unless it is given
    add_answers: Callable[[Resolved, "Distilled", DataFiles, Steps], Resolved]


def student_of(task: TaskBase) -> Student:
    """Returns how a task learns from its teacher; imports distillation only when called."""
    students: Callable[[TaskBase], Student] = by_name("official_bert.runs.distillation.students:student_of")
    return students(task)


def prepare(task: TaskBase, files: DataFiles, steps: Steps, first: Resolved | None = None) -> Resolved:
    """Resolves a task, for `steps.train` with the teacher that `training.teacher` names.

    Call it within the strategy's scope. `first` is the run's first phase, whose model and teacher are those of all.
    """
    resolved = task.data.resolve(files, steps, first.model if first else None)
    distilled = distilled_of(resolved.task, first.distilled if first else None) if steps.train else None
    if distilled:
        resolved = student_of(resolved.task).add_answers(resolved, distilled, files, steps)
    if resolved.train and is_own(resolved.recipe.objective):
        own_parts().check_objective(resolved.recipe.objective, resolved.model, next(iter(resolved.train.dataset())))
    return resolved


def distilled_of(task: TaskBase, before: "Distilled | None" = None) -> "Distilled | None":
    """Returns the objective of a task with its teacher, loaded unless `before` has it; None without one."""
    return student_of(task).objective(before) if task.config.training.teacher else None
