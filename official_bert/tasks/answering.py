"""Loads a model's weights, and computes its outputs for the rows of a source."""

from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from official_bert.data.batches.sources import BatchSource
from official_bert.models import checkpoints
from official_bert.objectives.objective import Batch, Outputs
from official_bert.tasks.task import TaskBase
from official_bert.text import loading
from official_bert.training.machines import distribution
from official_bert.training.trainer import EXACT_SHAPES, real_rows


def take_all(
    task: TaskBase, model: keras.Model, path: str, report: Callable[[str], None] = print
) -> checkpoints.Initialization:
    """Loads all weights of a model from a checkpoint of any format; reports the assumptions made about it.

    Raises ValueError if one is missing, if the checkpoint's classes are not the task's, or if words of the vocabulary
    have no embedding.
    """
    if vocab_file := task.config.tokenizer.vocab_file:
        loading.check_rows(vocab_file, task.config.model.vocab_size)
    result = checkpoints.initialize_from(model, path, task.answers.classes)
    unneeded = () if task.reads_pooler(model) else "pooler/"  # which Hugging Face's files then lack
    if [name for name in result.new if not name.startswith(unneeded)]:
        raise ValueError(
            f"--init_checkpoint={result.describe()}: expected a fine-tuned checkpoint, with every weight of the model"
        )
    if result.unused:
        report(f"{result.origin}: not used: {', '.join(result.unused[:6])}{' ...' if len(result.unused) > 6 else ''}")
    if result.notes:
        report(f"{result.origin}: {'; '.join(result.notes)}")
    return result


def predict(task: TaskBase, model: keras.Model, source: BatchSource) -> list[dict[str, Any]]:
    """Returns the task's predictions for each real row of a source, in its order, as NumPy values; the model's devices
    share each batch.
    """
    return list(outputs_of(task.objective.predictions, model, source))


def outputs_of(
    choose: Callable[[Outputs, Batch], dict[str, tf.Tensor]], model: keras.Model, source: BatchSource
) -> Iterator[dict[str, Any]]:
    """Yields the outputs that `choose` selects, for each real row of a source, in order, as NumPy values."""
    strategy = distribution.answering_strategy(model)

    def answer(local: Batch) -> dict[str, tf.Tensor]:
        return choose(model(dict(local), training=False), local) | {"example_weights": local["example_weights"]}

    @tf.function(reduce_retracing=True, autograph=False)
    def run(batch: Batch) -> dict[str, tf.Tensor]:
        return distribution.gather_replicas(strategy, strategy.run(answer, args=(batch,), options=EXACT_SHAPES))

    for answers in distribution.over_batches(run, source, strategy):
        yield from real_rows(answers)
