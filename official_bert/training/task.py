"""The interface of a task: its data, its model, its objective and its use of the model's outputs.

A task is a module with a class `Task(TaskBase)` and its `Options`; `tasks/loading.py` imports it by name.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, runtime_checkable

import keras
import numpy as np
import tensorflow as tf
from jaxtyping import Float

from official_bert.config import Config, build, check_length, to_dict
from official_bert.data.batches.sources import BatchSource, ExampleSource
from official_bert.data.cache import text_digest
from official_bert.data.rows import Rows, Source, digest
from official_bert.fields import OptionsNeededError
from official_bert.models import parameter_groups
from official_bert.models.adaptation import adapters
from official_bert.models.encoder import INPUTS
from official_bert.models.first_weights import draw_first_weights
from official_bert.models.interchange.classes import Classes
from official_bert.models.interchange.stored_models import Kind
from official_bert.objectives.objective import Batch, Objective
from official_bert.reports.comparable import ComparableAnswers
from official_bert.reports.sections import Section
from official_bert.storage.files import exists, is_file
from official_bert.text import loading
from official_bert.text.packing import check_segments
from official_bert.text.tokenizer import Tokenizer
from official_bert.training.data_files import DataFiles as DataFiles
from official_bert.training.distribution import check_batch
from official_bert.training.optimization import Update, update
from official_bert.training.recipe import Recipe
from official_bert.training.reporting.flops import training_flops

if TYPE_CHECKING:
    from official_bert.objectives.distilled import Distilled

Predictions = Sequence[Mapping[str, Any]]  # one a row, as NumPy values
# of `Head`
KINDS: Mapping[str, Kind] = {"classifier": "classifier", "multi_label": "multi_label", "regression": "regression"}
Head = Literal["fill_mask", "classifier", "multi_label", "regression", "choice", "span", "tagger", "embeddings"]
# What tasks had before they had an `objective`: an override that nothing calls would be wrong in silence.
OF_OBJECTIVES: Mapping[str, str] = {
    "losses": "losses",
    "loss_names": "names",
    "loss_weights": "weights",
    "counters": "counters",
    "counter_names": "counter_names",
    "predictions": "predictions",
    "predicted": "predicted",
}
OF_SERVING = {"served", "served_classes"}  # the same, before a task named a `serving`


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of a fine-tuning that are done."""

    train: bool = True
    evaluate: bool = True
    predict: bool = False
    compared: bool = False  # with other runs: then training needs evaluation data too

    def __post_init__(self) -> None:
        if not (self.train or self.evaluate or self.predict):
            raise ValueError("expected at least one of --do_train, --do_eval and --do_predict")


TRAIN_AND_EVALUATE = Steps()


class HeldOut(Protocol):
    """Data to evaluate on."""

    @property
    def source(self) -> BatchSource:
        """The batches of one evaluation."""

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Computes the official metrics from one prediction a row of `source` (without filler rows), in its order."""


@runtime_checkable
class Examined(Protocol):
    """Data to evaluate on whose task can tell more than its metrics."""

    def examine(self, predictions: Predictions) -> list[Section]:
        """Returns the sections of a report from the predictions that `HeldOut.evaluate` takes."""


@runtime_checkable
class Comparable(Protocol):
    """Data to evaluate on whose answers by two models can be compared row by row."""

    def comparable(self, predictions: Predictions) -> dict[str, ComparableAnswers]:
        """Returns the answers by set of rows ("": the only one), from the predictions that `HeldOut.evaluate` takes."""


class ToAnswer(Protocol):
    """Data to predict: a test set."""

    @property
    def source(self) -> BatchSource:
        """The batches to predict."""

    def write(self, predictions: Predictions, output_dir: str) -> list[str]:
        """Writes the task's prediction files from one prediction a row of `source`, and returns their paths."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved:
    """A task with its data: labels, model, batches."""

    task: "TaskBase"  # its config has the labels found in the files: prediction and export need only the output folder
    model: keras.Model
    train: BatchSource | None = None
    held_out: HeldOut | None = None
    tests: ToAnswer | None = None
    training_rows: str = ""  # a line about the rows to train on: their number, and that of the rows of each label
    notes: tuple[str, ...] = ()  # lines for the user about the data: how rows are divided and weighted
    distilled: "Distilled | None" = None  # the objective of a training with a teacher

    @functools.cached_property
    def recipe(self) -> Recipe:
        """All that a training step knows."""
        return recipe_of(self.task, self.model, self.distilled)


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a training or an evaluation gave: its last metrics, and the (last phase's) task, data, model and predictions
    behind them.
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


@dataclasses.dataclass(frozen=True, eq=False)
class TaskBase(abc.ABC):
    """A task as training, evaluation, prediction and export see it: a function of its configuration, never changed.

    Only `resolve` reads data.
    """

    config: Config
    Options: ClassVar[type]
    # whether an evaluation without training takes stored `tuned_options`, or tunes anew
    measures_with_tuned: ClassVar[bool] = False
    refused: ClassVar[Mapping[str, str]] = {}  # options of other tasks, and why this one lacks them
    update: ClassVar[Update] = staticmethod(update)  # of a weight: the optimizer
    inspector: ClassVar[str] = ""  # the tool that shows what is read of this task's files
    serving: ClassVar[str] = ""  # a `Serving` by its dotted name; "": models are not served

    def __init_subclass__(cls) -> None:
        for name in OF_OBJECTIVES.keys() & cls.__dict__.keys():
            raise ValueError(
                f"{cls.__module__}: class {cls.__qualname__}: expected no {name}, which nothing calls: give a class "
                f"like those in official_bert/objectives its own {OF_OBJECTIVES[name]}, and return it from "
                "`objective`, with others in a Sum (docs/make_it_your_own.md)"
            )
        for name in OF_SERVING & cls.__dict__.keys():
            raise ValueError(
                f"{cls.__module__}: class {cls.__qualname__}: expected no {name}, which nothing calls: make a Serving "
                "of your classes of served models and of what makes one, and name it in `serving` "
                "(docs/make_it_your_own.md)"
            )

    def __post_init__(self) -> None:
        for length in self.buckets:  # refuses wrong options at once
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

    def option(self, name: str, default: Any) -> Any:
        """The value of an option that not every task has."""
        return getattr(self.options, name, default)

    @property
    def buckets(self) -> Sequence[int]:
        """The lengths to which batches are padded; none: to the longest row of each batch."""
        return self.option("buckets", ())

    @property
    def labels(self) -> Any:
        """The labels in the order of the outputs, as far as known; of a task of its own, whatever it calls so."""
        return self.option("labels", ())

    @property
    @abc.abstractmethod
    def head(self) -> Head:
        """The kind of model."""

    @property
    def classes(self) -> Classes:
        """The labels of the outputs and the kind of answer: a checkpoint's head must mean the same."""
        return Classes(self.labels if isinstance(self.labels, tuple) else (), KINDS.get(self.head, ""))

    @property
    @abc.abstractmethod
    def objective(self) -> Objective:
        """What is learned and measured, without a teacher."""

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of `config.tokenizer`."""
        return loading.load(self.config.tokenizer.vocab_file, self.config.tokenizer.do_lower_case)

    def with_options(self, **values: Any) -> Self:
        """Returns the task with values found in the data (`labels=[...]`) in its options, and so the saved config."""
        options = to_dict(dataclasses.replace(self.options, **values))
        return dataclasses.replace(self, config=dataclasses.replace(self.config, options=options))

    @property
    def frozen(self) -> str | Sequence[str]:
        """The parts of the model that do not learn, as `training.freeze` has them."""
        return self.config.training.freeze

    def reads_pooler(self, model: keras.Model) -> bool:
        """Whether a head of the task's model reads it: tags, spans, embeddings do not; with `pooler_norm`, embeddings
        alone do not.
        """
        return (
            self.head != "embeddings"
            if self.config.model.pooler_norm
            else self.head not in ("tagger", "span", "embeddings")
        )

    def draw_first_weights(self, model: keras.Model) -> None:
        """Gives a built model its first weights, the same under every strategy."""
        draw_first_weights(model, self.config.seed)

    def check(self, steps: Steps) -> None:
        """Refuses lengths and batches that `steps` cannot use; it needs neither files nor a model, but the strategy's
        scope.

        Raises ValueError for more tokens than the model has positions, for a batch that replicas and micro-batches
        cannot share, and for parts to freeze or to make anew that the model lacks.
        """
        settings, strategy = self.config.training, tf.distribute.get_strategy()
        check_length(self.options.max_seq_length, self.config.model)
        if steps.train:
            check_batch("batch_size", settings.batch_size, strategy, settings.accumulation_steps)
            parameter_groups.check_parts(
                self.frozen,
                settings.reinitialize_layers,
                self.config.optimizer.layer_decay,
                self.config.model.sharing.own_layers,
            )
            if settings.adapters and self.frozen:
                raise ValueError(
                    "config.training.adapters: expected none beside options.features, which are computed "
                    "before training"
                )
            if settings.adapters:
                adapters().targets(self.config.model, settings.adapters.target_modules)
        check_batch("eval_batch_size", settings.eval_batch_size, strategy)

    def resolve(self, files: DataFiles, steps: Steps, model: keras.Model | None = None) -> Resolved:
        """Opens and checks the files of all `steps`, finds the labels, builds the model unless it is given, makes the
        batches.

        In this order; call it within the strategy's scope. Raises ValueError if a step lacks its data, but training may
        lack evaluation data unless it is `compared`.
        """
        self.check(steps)
        try:
            resolved = self.read(files, steps, model)
        except OptionsNeededError:
            raise
        except ValueError as error:
            if pointer := _pointer(self, str(error), files):
                raise ValueError(f"{error}{pointer}") from None
            raise
        if _has_pairs(resolved):
            check_segments(self.config.model.type_vocab_size, f"task {self.config.task}")
        if steps.evaluate and (steps.compared or not steps.train) and resolved.held_out is None:
            raise ValueError(f"task {self.config.task}: no evaluation data given")
        if steps.predict and resolved.tests is None:
            raise ValueError(f"task {self.config.task}: no data to predict given")
        return resolved

    def data(self, files: DataFiles) -> dict[str, list[Source]]:
        """The files that `train` and `eval` read: a run is another one on other data. By default those given one by
        one.
        """
        return {"train": [files.train_file], "eval": [files.eval_file]}

    def input_columns(self) -> dict[str, tuple[str, ...]]:
        """The columns of each input of the served model in this task's files; choices have a beginning and endings. {}:
        as the inputs.
        """
        return {}

    @abc.abstractmethod
    def read(self, files: DataFiles, steps: Steps, model: keras.Model | None) -> Resolved:
        """Does the work of `resolve`; leaves None for a step without data, except training."""

    def constant_answers(self, files: DataFiles, steps: Steps) -> ConstantAnswers | None:
        """The answers of a task without a model (always the most frequent label); None for all others."""
        return None

    @abc.abstractmethod
    def build_model(self) -> keras.Model:
        """Builds the model with all its weights: from the dict of a batch to a named dict of outputs."""

    def flops(self, batch: Batch) -> Float[Any, ""]:
        """The operations of a training step on a batch, as `training_flops` counts them."""
        return training_flops(self.config.model, batch)

    def make_batches(
        self, examples: Sequence[Mapping[str, np.ndarray]], training: bool = False, **more: Any
    ) -> ExampleSource:
        """Batches examples in memory; evaluation puts rows of similar length together, unless it evaluates only the
        first few.

        `more` are arguments of `ExampleSource`.
        """
        settings = self.config.training
        return ExampleSource(
            examples,
            settings.batch_size if training else settings.eval_batch_size,
            self.config.seed,
            training,
            self.buckets,
            by_length=not settings.eval_steps,
            **more,
        )

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Names, static shapes and types of a batch at its full length, as a TPU gets it."""
        raise ValueError(f"task {self.config.task} has batches of no fixed shape")

    def best_metric(self) -> str:
        """The metric or evaluation loss by which the best checkpoint is chosen; `-` in front: less is better."""
        return "-loss"

    def tuned_options(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """The options that an evaluation tuned, such as a threshold: they are stored beside the weights; none by
        default.
        """
        return {}

    def with_tuned(self, stored: Mapping[str, Any]) -> Self:
        """Returns the task with stored `tuned_options`, as far as the user has chosen nothing else, for answers."""
        return self


def recipe_of(task: TaskBase, model: keras.Model, objective: Objective | None = None) -> Recipe:
    """Returns all that a training step of a task knows; by default its own objective."""
    return Recipe(
        objective=objective or task.objective,
        model=model,
        sizes=task.config.model,
        training=task.config.training,
        optimizer=task.config.optimizer,
        seed=task.config.seed,
        update=task.update,
        flops=task.flops,
        reads_pooler=task.reads_pooler(model),
    )


def data_digests(task: TaskBase, files: DataFiles, steps: Steps = TRAIN_AND_EVALUATE) -> dict[str, str]:
    """The SHA-256 of the data that a task reads to `train` and `eval`, if these steps are done and the files exist."""
    done = {"train": steps.train, "eval": steps.evaluate}
    digests = {
        use: [digest(source) for source in sources if source and (isinstance(source, Rows) or exists(source))]
        for use, sources in task.data(files).items()
        if done[use]
    }
    return {use: text_digest(parts) for use, parts in digests.items() if parts}


def row_spec(batch_size: int, *shape: int) -> dict[str, tf.TensorSpec]:
    """The inputs of a batch at full length, int32 [B,...,S], and `example_weights`; `shape` is all but B."""
    return {name: tf.TensorSpec((batch_size, *shape), tf.int32) for name in INPUTS} | {
        "example_weights": tf.TensorSpec((batch_size,), tf.float32)
    }


def _pointer(task: TaskBase, message: str, files: DataFiles) -> str:
    """Points to the tool that shows what is read of a file that an error names; "" for other errors."""
    known = (source for sources in (*task.data(files).values(), [files.predict_file]) for source in sources)
    path = next((path for path in known if isinstance(path, str) and path and message.startswith(path)), "")
    if not (path and task.inspector and is_file(path)) or task.inspector in message:
        return ""
    return f"; python {task.inspector} {path} --task={task.option('dataset', task.config.task)} shows what is read"


def _has_pairs(resolved: Resolved) -> bool:
    """Whether a row of the examples in memory has two texts; the records of pre-training are checked while they are
    read.
    """
    sources = (resolved.train, resolved.held_out and resolved.held_out.source, resolved.tests and resolved.tests.source)
    return any(np.any(row.get("segment_ids", 0)) for source in sources if source for row in source.made_of)
