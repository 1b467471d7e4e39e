"""Soft labels: for each kind of task, the teacher's outputs that a student is compared with, and the loss.

In a batch the teacher's outputs stand beside the labels, under the output's name with `teacher_` before it, whether
they were kept or are computed in the step.
"""

from collections.abc import Mapping
from typing import ClassVar

import tensorflow as tf

from official_bert.objectives import losses as task_losses
from official_bert.objectives import ranking_losses
from official_bert.objectives.distillation_losses import binary_divergence, divergence
from official_bert.training.task import Batch, Fraction, Outputs, TaskBase

COLUMN = "teacher_"


class SoftAnswers:
    """The soft answers of a kind of task; `outputs` are those of the models that are compared."""

    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    by_token: ClassVar[bool] = False  # whether they have a value for each token, in the last axis of a column

    def __init__(self, task: TaskBase):
        self.task, self.temperature = task, task.config.training.distillation.temperature

    def columns(self, outputs: Outputs) -> dict[str, tf.Tensor]:
        """Returns a teacher's outputs as they stand in a batch, float32, without gradient."""
        return {COLUMN + name: tf.stop_gradient(tf.cast(outputs[name], tf.float32)) for name in self.outputs}

    def loss(self, outputs: Outputs, batch: Batch) -> Fraction:
        """The loss of a student's outputs on the columns of a batch."""
        return self.compare(outputs["logits"], batch["teacher_logits"], batch)

    def compare(self, logits: tf.Tensor, teacher: tf.Tensor, batch: Batch) -> Fraction:
        """`loss` of the one output of most kinds."""
        return divergence(logits, teacher, batch["example_weights"], self.temperature)

    def weight(self, batch: Batch) -> tf.Tensor:
        """The weight of the loss, from the batch alone: the number of real rows."""
        return tf.reduce_sum(batch["example_weights"])


class OneLabel(SoftAnswers):
    """The probabilities of the labels, of which a text has one."""


class SeveralLabels(SoftAnswers):
    """The probability of each label, of which a text may have several."""

    def compare(self, logits: tf.Tensor, teacher: tf.Tensor, batch: Batch) -> Fraction:
        return binary_divergence(logits, teacher, batch["example_weights"], self.temperature)


class Scores(SoftAnswers):
    """A score, by squared error; of rows [B,C,S], the probabilities of their texts, the softmax of the scores."""

    def compare(self, logits: tf.Tensor, teacher: tf.Tensor, batch: Batch) -> Fraction:
        if len(batch["input_ids"].shape) == 2:
            return task_losses.squared_error(logits[:, 0], teacher[:, 0], batch["example_weights"])
        return divergence(logits, teacher, batch["example_weights"], self.temperature, _texts(batch["input_mask"]))


class Tags(SoftAnswers):
    """The probabilities of each word's tags, at its first piece; a column is [B,T,S]."""

    by_token = True

    def columns(self, outputs: Outputs) -> dict[str, tf.Tensor]:
        return {name: tf.transpose(value, (0, 2, 1)) for name, value in super().columns(outputs).items()}

    def compare(self, logits: tf.Tensor, teacher: tf.Tensor, batch: Batch) -> Fraction:
        return divergence(logits, tf.transpose(teacher, (0, 2, 1)), self._weights(batch), self.temperature)

    def weight(self, batch: Batch) -> tf.Tensor:
        """The number of words."""
        return tf.reduce_sum(self._weights(batch))

    @staticmethod
    def _weights(batch: Batch) -> tf.Tensor:
        return tf.cast(batch["tag_mask"], tf.float32) * batch["example_weights"][:, None]


class Spans(SoftAnswers):
    """The probabilities of the tokens to begin and to end the answer, the mean of both losses."""

    outputs = ("start_logits", "end_logits")
    by_token = True

    def loss(self, outputs: Outputs, batch: Batch) -> Fraction:
        real = tf.cast(batch["input_mask"], tf.bool)
        both = [
            divergence(outputs[name], batch[COLUMN + name], batch["example_weights"], self.temperature, real)
            for name in self.outputs
        ]
        return 0.5 * (both[0][0] + both[1][0]), both[0][1]


class Vectors(SoftAnswers):
    """How near texts are to each other: the vectors themselves may have other widths.

    Of rows that are compared with their group, the probabilities of all its texts to answer the first one; of rows with
    negatives, those of their own texts; of pairs with scores, the cosines, by squared error.
    """

    outputs = ("embedding",)

    def loss(self, outputs: Outputs, batch: Batch) -> Fraction:
        vectors = outputs["embedding"], batch["teacher_embedding"]
        options, weights = self.task.options, batch["example_weights"]
        if options.loss_name in ("contrastive", "contrastive_both"):
            ours, theirs = (
                ranking_losses.group_logits(
                    each, batch["text_numbers"], weights, options.group_size, options.temperature
                )[0]
                for each in vectors
            )
            return divergence(ours, theirs, weights, self.temperature, theirs > task_losses.ABSENT / 2)
        ours, theirs = (tf.einsum("btd,bd->bt", each[:, 1:], each[:, 0]) for each in vectors)
        if "scores" in batch:
            return task_losses.squared_error(ours[:, 0], theirs[:, 0], weights)
        return divergence(
            ours / options.temperature,
            theirs / options.temperature,
            weights,
            self.temperature,
            _texts(batch["input_mask"][:, 1:]),
        )


KINDS: Mapping[str, type[SoftAnswers]] = {
    "classifier": OneLabel,
    "multi_label": SeveralLabels,
    "regression": Scores,
    "choice": Scores,
    "tagger": Tags,
    "span": Spans,
    "embeddings": Vectors,
}  # by `head` of the task
# Options of tasks whose models give no such outputs, or have a teacher already, and why.
REFUSED = {
    "crf": "a CRF answers with whole chains of tags, and its teacher's single tags say little about them",
    "features": "frozen features have no teacher's words",
    "teacher_columns": "the file has a teacher's scores already",
    "matryoshka": "a teacher's vectors are compared as a whole",
}


def soft_answers(task: TaskBase) -> SoftAnswers:
    """Returns what a task learns of a teacher's answers. Raises ValueError if it cannot learn from a teacher."""
    for name, reason in REFUSED.items():
        if value := getattr(task.options, name, None):
            raise ValueError(f"config.options.{name}: expected none beside training.teacher: {reason}, got {value}")
    if task.head not in KINDS or task.config.task == "splade":
        raise ValueError(f"config.training.teacher: task {task.config.task} has no answers that a student could learn")
    return KINDS[task.head](task)


def _texts(input_mask: tf.Tensor) -> tf.Tensor:
    """Which texts of a row are there: [B,C,S] -> bool [B,C]."""
    return tf.reduce_max(input_mask, axis=-1) > 0
