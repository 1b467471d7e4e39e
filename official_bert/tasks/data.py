"""The data of a task: its files, the rows to train on, to evaluate on and to answer, and batches of them."""

import abc
import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.config import Config, check_length
from official_bert.data.batches.sources import BatchSource, ExampleSource, Progress
from official_bert.data.cache import text_digest
from official_bert.data.rows import Rows, Source, digest
from official_bert.fields import OptionsNeededError
from official_bert.models import parameter_groups
from official_bert.models.adaptation import adapters
from official_bert.models.encoder import INPUTS
from official_bert.storage.files import exists, folder_of, is_file, real
from official_bert.text.packing import check_segments
from official_bert.text.tokenizer import Tokenizer
from official_bert.training.held_out import HeldOut, Predictions
from official_bert.training.machines.distribution import check_batch
from official_bert.training.recipe import Recipe

if TYPE_CHECKING:
    from official_bert.objectives.distilled import Distilled

BEGINNING_OF_ANSWERS = "predictions."  # of the names of the files that tasks write


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFiles:
    """The files of a run, or rows in memory in their place; each task's errors name those that it needs."""

    data_dir: str = ""  # a folder in the task's published layout
    train_file: Source = ""  # or single files; pre-training takes globs with commas
    eval_file: Source = ""
    predict_file: Source = ""
    allow_same_data: bool = False  # only warn of evaluation data that are training data
    cache_dir: str = ""  # tokenized features and plain copies of records are kept here between runs; "" keeps nothing
    # whether a run goes on although its data or vocabulary are others than at its beginning
    allow_changed_data: bool = False

    def refuse_same(self, message: str) -> None:
        """Raises ValueError with a message about evaluation data that are training data; only warns if this is
        allowed.
        """
        if not self.allow_same_data:
            raise ValueError(f"{message} (--allow_same_data allows it)")
        logging.warning("%s: the results say nothing about other data", message)

    def check_not_answers(self, output_dir: str) -> None:
        """Raises ValueError for a file in `output_dir` with the name of a prediction file, because answers would
        overwrite it.
        """
        for name in ("train_file", "eval_file", "predict_file"):
            source = getattr(self, name)
            path = real(source) if isinstance(source, str) else ""
            if os.path.basename(path).startswith(BEGINNING_OF_ANSWERS) and folder_of(path) == real(output_dir):
                raise ValueError(
                    f"--{name}={source}: the answers would overwrite this file, because they have the same name in "
                    "--output_dir; rename it or give another folder"
                )

    def path(self, source: Source, names: Sequence[str]) -> Source:
        """Returns `source`, or the first of `names` that is in `data_dir`; "" if there is neither."""
        if source or not self.data_dir:
            return source
        return next(filter(is_file, (os.path.join(self.data_dir, name) for name in names)), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Steps:
    """The steps of a fine-tuning to carry out."""

    train: bool = True
    evaluate: bool = True
    predict: bool = False
    compared: bool = False  # with other runs: then training needs evaluation data too

    def __post_init__(self) -> None:
        if not (self.train or self.evaluate or self.predict):
            raise ValueError("expected at least one of --do_train, --do_eval and --do_predict")


TRAIN_AND_EVALUATE = Steps()


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

    # a TaskBase; its config has the labels found in the files: prediction and export need only the output folder
    task: Any
    model: keras.Model
    train: BatchSource | None = None
    held_out: HeldOut | None = None
    tests: ToAnswer | None = None
    training_rows: str = ""  # a line about the rows to train on: their number, and that of the rows of each label
    notes: tuple[str, ...] = ()  # lines for the user about the data: how rows are divided and weighted
    distilled: "Distilled | None" = None  # the objective of a training with a teacher

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The recipe of a training step."""
        return self.task.recipe(self.model, self.distilled)


@dataclasses.dataclass(frozen=True, eq=False)
class PartOfTask(abc.ABC):
    """Data or answers of a task, a `TaskBase`: a function of its configuration."""

    task: Any

    @property
    def config(self) -> Config:
        """The task's."""
        return self.task.config

    @property
    def options(self) -> Any:
        """The task's."""
        return self.task.options


class Data(PartOfTask):
    """The data of a task; only `read` reads files."""

    inspector: ClassVar[str] = ""  # the tool that shows what is read of this task's files
    reads_progress: ClassVar[bool] = False  # whether batches have `progress`, from 0 to 1; it is 1 in evaluation

    @property
    def tokenizer(self) -> Tokenizer:
        """The task's."""
        return self.task.tokenizer

    def with_options(self, **values: Any) -> Self:
        """Returns the data of the task with values found in them (`labels=[...]`) in its options."""
        return dataclasses.replace(self, task=self.task.with_options(**values))

    @property
    def buckets(self) -> Sequence[int]:
        """The lengths to which batches are padded; none: to the longest row of each batch."""
        return getattr(self.options, "buckets", ())

    @property
    def frozen(self) -> str | Sequence[str]:
        """The frozen parts of the model, in the form of `training.freeze`."""
        return self.config.training.freeze

    def check(self, steps: Steps) -> None:
        """Checks lengths and batch sizes for `steps`, within the strategy's scope; needs neither files nor a model.

        Raises ValueError for more tokens than the model has positions, for a batch that replicas and micro-batches
        cannot divide, and for parts to freeze or re-initialise that the model lacks.
        """
        settings, strategy = self.config.training, tf.distribute.get_strategy()
        check_length(self.options.max_seq_length, self.config.model)
        if steps.train and settings.hours and self.reads_progress:
            raise ValueError(
                f"config.training.hours: expected steps or epochs for task {self.config.task}, which reads "
                f'batch["progress"], a function of the step, got {settings.hours:g} hours'
            )
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
        """Opens and checks the files of all `steps`, finds the labels, builds the model unless it is given, and makes
        the batches.

        It works in this order; call it within the strategy's scope. Raises ValueError if a step lacks its data;
        training may lack evaluation data unless it is `compared`.
        """
        self.check(steps)
        try:
            resolved = self.read(files, steps, model)
        except OptionsNeededError:
            raise
        except ValueError as error:
            if pointer := self._pointer(str(error), files):
                raise ValueError(f"{error}{pointer}") from None
            raise
        for source in _sources(resolved) if self.reads_progress else ():
            # of the first step; `loop.Run` knows the training's length
            source.progress = Progress(total=1, before=int(source is not resolved.train))
        if _has_pairs(resolved):
            check_segments(self.config.model.type_vocab_size, f"task {self.config.task}")
        if steps.evaluate and (steps.compared or not steps.train) and resolved.held_out is None:
            raise ValueError(f"task {self.config.task}: no evaluation data given")
        if steps.predict and resolved.tests is None:
            raise ValueError(f"task {self.config.task}: no data to predict given")
        return resolved

    def sources(self, files: DataFiles) -> dict[str, list[Source]]:
        """Returns the files that `train` and `eval` read, which identify a run's data; by default those given one by
        one.
        """
        return {"train": [files.train_file], "eval": [files.eval_file]}

    @abc.abstractmethod
    def read(self, files: DataFiles, steps: Steps, model: keras.Model | None) -> Resolved:
        """Does the work of `resolve`; a step without data, except training, stays None."""

    def make_batches(
        self,
        examples: Sequence[Mapping[str, np.ndarray]],
        training: bool = False,
        kind: Callable[..., ExampleSource] = ExampleSource,
        **more: Any,
    ) -> ExampleSource:
        """Batches examples in memory; evaluation puts rows of similar length together, unless it evaluates only the
        first few.

        `kind` makes the source; `more` are its further arguments.
        """
        settings = self.config.training
        return kind(
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

    def digests(self, files: DataFiles, steps: Steps = TRAIN_AND_EVALUATE) -> dict[str, str]:
        """Returns the SHA-256 of the data of `train` and `eval`, if these steps are carried out and the files exist."""
        done = {"train": steps.train, "eval": steps.evaluate}
        by_use = {
            use: [digest(source) for source in sources if source and (isinstance(source, Rows) or exists(source))]
            for use, sources in self.sources(files).items()
            if done[use]
        }
        return {use: text_digest(parts) for use, parts in by_use.items() if parts}

    def _pointer(self, message: str, files: DataFiles) -> str:
        """Points to the tool that shows what is read of a file that an error names; "" for other errors."""
        known = (source for sources in (*self.sources(files).values(), [files.predict_file]) for source in sources)
        path = next((path for path in known if isinstance(path, str) and path and message.startswith(path)), "")
        if not (path and self.inspector and is_file(path)) or self.inspector in message:
            return ""
        name = getattr(self.options, "dataset", self.config.task)
        return f"; python {self.inspector} {path} --task={name} shows what is read"


def row_spec(batch_size: int, *shape: int) -> dict[str, tf.TensorSpec]:
    """Returns the inputs of a batch at full length, int32 [B,...,S], and `example_weights`; `shape` is all but B."""
    return {name: tf.TensorSpec((batch_size, *shape), tf.int32) for name in INPUTS} | {
        "example_weights": tf.TensorSpec((batch_size,), tf.float32)
    }


def _has_pairs(resolved: Resolved) -> bool:
    """Whether a row of the examples in memory has two texts; the records of pre-training are checked while they are
    read.
    """
    return any(np.any(row.get("segment_ids", 0)) for source in _sources(resolved) for row in source.made_of)


def _sources(resolved: Resolved) -> list[BatchSource]:
    parts = (resolved.train, resolved.held_out and resolved.held_out.source, resolved.tests and resolved.tests.source)
    return [source for source in parts if source]
