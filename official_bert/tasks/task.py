"""The interface of a task: its model and objective, its data, and its answers.

A task is a module with a class `Task(TaskBase)` and its `Options`; `tasks/loading.py` imports it by name.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Protocol, Self

import keras

from official_bert.config import Config, build, check_length, to_dict
from official_bert.dotted_names import by_name
from official_bert.models.first_weights import draw_first_weights
from official_bert.objectives.objective import Batch, Objective
from official_bert.tasks.answers import Answers
from official_bert.tasks.data import Data
from official_bert.text import loading
from official_bert.text.tokenizer import Tokenizer
from official_bert.training.flops import training_flops
from official_bert.training.optimization import Update, update
from official_bert.training.recipe import Recipe

Head = Literal["fill_mask", "classifier", "multi_label", "regression", "choice", "span", "tagger", "embeddings"]


class OwnParts(Protocol):
    """Checks of a user's own tasks and objectives."""

    refuse_uncalled: Callable[[type["TaskBase"]], None]
    check_objective: Callable[[Objective, keras.Model, Batch], None]


def own_parts() -> OwnParts:
    """Returns the module of checks; imports it only when called."""
    return by_name("official_bert.tasks.own_parts")


@dataclasses.dataclass(frozen=True, eq=False)
class TaskBase(abc.ABC):
    """A task for training, evaluation, prediction and export: immutable, and a function of its configuration.

    Only its `data` reads files.
    """

    config: Config
    Options: ClassVar[type]
    refused: ClassVar[Mapping[str, str]] = {}  # options of other tasks, and why this one lacks them
    update: ClassVar[Update] = staticmethod(update)  # of a weight: the optimizer
    serving: ClassVar[str] = ""  # a `Serving` by its dotted name; "": models are not served
    answers = property(Answers)  # what is made of the outputs

    def __init_subclass__(cls) -> None:
        if not cls.__module__.startswith("official_bert."):
            own_parts().refuse_uncalled(cls)

    def __post_init__(self) -> None:
        for length in self.data.buckets:  # refuses wrong options at once
            check_length(length, self.config.model, "config.options.buckets", least=1)

    @functools.cached_property
    def options(self) -> Any:
        """The task's own options, an `Options`."""
        return self.read_options(self.config.options)

    @classmethod
    def read_options(cls, values: Mapping[str, Any]) -> Any:
        """Returns `Options` with these values. Raises ValueError for unknown or wrong ones."""
        if wrong := next((name for name in cls.refused if name in values), None):
            raise ValueError(f"config.options.{wrong}: expected none for this task: {cls.refused[wrong]}")
        return build(cls.Options, values, "config.options")

    @property
    @abc.abstractmethod
    def head(self) -> Head:
        """The kind of model."""

    @property
    @abc.abstractmethod
    def objective(self) -> Objective:
        """The objective that is learned and measured, without a teacher."""

    @property
    @abc.abstractmethod
    def data(self) -> Data:
        """The task's data: `data = property(MyData)`."""

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of `config.tokenizer`."""
        return loading.load(self.config.tokenizer.vocab_file, self.config.tokenizer.do_lower_case)

    def with_options(self, **values: Any) -> Self:
        """Returns the task with values found in the data (`labels=[...]`) in its options, and so the saved config."""
        options = to_dict(dataclasses.replace(self.options, **values))
        return dataclasses.replace(self, config=dataclasses.replace(self.config, options=options))

    def reads_pooler(self, model: keras.Model) -> bool:
        """Returns whether a head of the task's model reads the pooler: tags, spans and embeddings do not; with
        `pooler_norm`, only embeddings do not.
        """
        return (
            self.head != "embeddings"
            if self.config.model.pooler_norm
            else self.head not in ("tagger", "span", "embeddings")
        )

    def draw_first_weights(self, model: keras.Model) -> None:
        """Gives a built model its first weights, the same under every strategy."""
        draw_first_weights(model, self.config.seed)

    @abc.abstractmethod
    def build_model(self) -> keras.Model:
        """Builds the model with all its weights: from the dict of a batch to a named dict of outputs."""

    def recipe(self, model: keras.Model, objective: Objective | None = None) -> Recipe:
        """Returns the recipe of a training step, by default for the task's own objective."""
        return Recipe(
            objective=objective or self.objective,
            model=model,
            sizes=self.config.model,
            training=self.config.training,
            optimizer=self.config.optimizer,
            seed=self.config.seed,
            update=self.update,
            flops=functools.partial(training_flops, self.config.model),
            reads_pooler=self.reads_pooler(model),
        )
