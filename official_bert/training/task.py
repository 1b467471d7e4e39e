"""The interface that a task fulfils: its data, its model, its losses and what becomes of the model's outputs.

A task is one file, `official_bert/tasks/<name>.py`, with a class `Task(TaskBase)`. `load_task` imports it by name.
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol

import keras
import tensorflow as tf

from official_bert.config import Config, build, to_dict
from official_bert.text.tokenization import FullTokenizer

Batch = Mapping[str, tf.Tensor]
Outputs = Mapping[str, tf.Tensor]
Fraction = tuple[tf.Tensor, tf.Tensor]  # (sum, weight), float32 scalars; only the loop divides, over the global batch
Head = Literal["fill_mask", "classifier", "multi_label", "regression", "choice", "span", "tagger"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataFiles:
    """Where a run's data lies; each task says in its errors which of these it needs."""

    data_dir: str = ""  # a folder in the task's published layout
    train_file: str = ""  # or single files; pre-training takes globs with commas
    eval_file: str = ""
    predict_file: str = ""
    cache_dir: str = ""  # tokenized features are kept here between runs; "" keeps nothing
    evaluates: bool = True  # whether a training run looks for evaluation data


class BatchSource(Protocol):
    """A deterministic sequence of global batches: batch `i` is a function of the seed and `i` alone.

    So a resumed run needs one integer, and adding replicas or workers changes nothing of what is learned.
    Every batch has exactly the global batch size in rows; rows that fill up an epoch's last batch
    have `example_weights` 0 (a float32 [B] key that every batch carries).
    """

    batches_per_epoch: int
    batch_size: int

    def dataset(self, start: int = 0, num_shards: int = 1, shard: int = 0) -> tf.data.Dataset:
        """Batches start, start + 1, ... as dicts of tensors; of each, block `shard` of `num_shards` of its rows."""

    def explain(self, message: str) -> str | None:
        """What in the data an error of TensorFlow's, raised while reading, is about; None where the data is not."""


class TaskBase(abc.ABC):
    """What training, evaluation, prediction and export need to know of a task.

    `config` is the resolved one: what a task finds in its data (its labels, say) it puts into `config.options`, so
    that an output folder's `config.yaml`, `vocab.txt` and checkpoint are all that prediction and export need.
    """

    Options: ClassVar[type]
    head: Head
    served_classes: ClassVar[tuple[type, ...]] = ()  # of its models, whatever its options; their outputs and how answers read

    def __init__(self, config: Config, files: DataFiles | None = None):
        self.config = config
        self.files = files or DataFiles()
        self.options: Any = build(self.Options, config.options, "config.options")

    def resolve(self, **found: Any) -> None:
        """Puts what was found in the data (`labels=[...]`) into the options and into the config that is saved."""
        self.options = dataclasses.replace(self.options, **found)
        self.config = dataclasses.replace(self.config, options=to_dict(self.options))

    @property
    def tokenizer(self) -> FullTokenizer:
        """The tokenizer of `config.tokenizer`."""
        if not hasattr(self, "_tokenizer"):
            self._tokenizer = FullTokenizer(self.config.tokenizer.vocab_file, self.config.tokenizer.do_lower_case)
        return self._tokenizer

    @abc.abstractmethod
    def build_model(self) -> keras.Model:
        """The model with its weights made: takes the batch's keys as a dict, gives a named dict."""

    @abc.abstractmethod
    def losses(self, outputs: Outputs, batch: Batch) -> dict[str, Fraction]:
        """(sum, weight) by name, pure and in float32; the training loss is the sum over names of sum / weight."""

    def batch_spec(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Names, static shapes and types of a batch at its full length, as a TPU would get it."""
        raise ValueError(f"task {self.config.task} has batches of no fixed shape")

    def counters(self, outputs: Outputs, batch: Batch) -> dict[str, Fraction]:
        """Cheap metrics computed inside the step (accuracies), as (sum, weight) by name."""
        return {}

    @abc.abstractmethod
    def train_source(self) -> BatchSource:
        """The training batches."""

    @abc.abstractmethod
    def eval_source(self) -> BatchSource | None:
        """The batches of one evaluation, in file order, or None where there is no evaluation data."""

    def predictions(self, outputs: Outputs, batch: Batch) -> dict[str, tf.Tensor]:
        """What of the outputs, row by row, the host needs for `evaluate` and `decode`; nothing by default."""
        return {}

    def evaluate(self, predictions: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Official metrics from one prediction a row of `eval_source` (filler rows removed), in its order."""
        return {}

    def best_metric(self) -> str:
        """The key of `evaluate` or of the evaluation losses by which the best checkpoint is kept; `-` in front: less is
        better."""
        return "-loss"

    def write_predictions(self, predictions: Sequence[Mapping[str, Any]], output_dir: str) -> list[str]:
        """Writes the task's prediction files for the rows of `predict_source` and returns their paths."""
        raise ValueError(f"task {self.config.task} writes no prediction files")

    def constant_predictions(self, source: BatchSource) -> list[dict[str, Any]] | None:
        """Predictions for the rows of a source that need no model (always the most frequent label), or None: the usual case."""
        return None

    def predict_source(self) -> BatchSource | None:
        """The batches to predict (a test set), in file order, or None where there is none."""
        return None

    def served(self, model: keras.Model, options: Any) -> Any:
        """The `ServedModel`, one of `served_classes`, of the task's trained model; `options` are `ServingOptions`."""
        raise ValueError(f"task {self.config.task} is not served")
