"""The losses of a student on its teacher's outputs, by kind of task (Hinton et al. 2015).

In a batch, the teacher's outputs have the names of the outputs with the prefix `teacher_`, whether they were stored or
are computed in the step.
"""

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

import tensorflow as tf

from official_bert.objectives import ranking_losses
from official_bert.objectives.distillation_losses import binary_divergence, divergence
from official_bert.objectives.distilled import COLUMN, TeacherTargets, times
from official_bert.objectives.losses import ABSENT, Fraction, squared_error
from official_bert.objectives.objective import Batch, Fractions, Outputs, Weights
from official_bert.objectives.tags import word_weights
from official_bert.objectives.vectors import IN_GROUPS, NearVectors


class SoftAnswers(TeacherTargets):
    """The loss on the teacher's probabilities for one label; subclasses are for other tasks. `outputs` are the compared
    outputs.
    """

    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    by_token: ClassVar[bool] = False  # whether they have a value for each token, in the last axis of a column

    def columns(self, outputs: Outputs) -> dict[str, tf.Tensor]:
        """Returns a teacher's outputs as columns of a batch, float32, without gradient."""
        return {COLUMN + name: tf.stop_gradient(tf.cast(outputs[name], tf.float32)) for name in self.outputs}

    def add_teacher_outputs(self, batch: Batch) -> Batch:
        """Returns the batch with its teacher's outputs, which it computes unless the batch has them."""
        if self.teacher is None or any(name.startswith(COLUMN) for name in batch):
            return batch
        return dict(batch) | self.columns(self.teacher.model(dict(batch), training=False))

    def losses(self, outputs: Outputs, batch: Batch) -> Fractions:
        return {"answers": times(self.answers, self.compare(outputs, batch))}

    def compare(self, outputs: Outputs, batch: Batch) -> Fraction:
        """Returns the loss (sum, weight) of a student's outputs on the teacher's columns of a batch."""
        return divergence(outputs["logits"], batch["teacher_logits"], batch["example_weights"], self.temperature)


class SeveralLabelsOf(SoftAnswers):
    """The loss on the teacher's probability of each of several labels."""

    def compare(self, outputs: Outputs, batch: Batch) -> Fraction:
        return binary_divergence(outputs["logits"], batch["teacher_logits"], batch["example_weights"], self.temperature)


class ScoresOf(SoftAnswers):
    """The squared error from the teacher's score, or for rows of texts [B,C,S] the divergence of the softmax of their
    scores.
    """

    def compare(self, outputs: Outputs, batch: Batch) -> Fraction:
        logits, teacher = outputs["logits"], batch["teacher_logits"]
        if len(batch["input_ids"].shape) == 2:
            return squared_error(logits[:, 0], teacher[:, 0], batch["example_weights"])
        return divergence(logits, teacher, batch["example_weights"], self.temperature, _texts(batch["input_mask"]))


class TagsOf(SoftAnswers):
    """The loss on the teacher's tag probabilities of each word, at its first piece; a column is [B,T,S]."""

    by_token = True

    def columns(self, outputs: Outputs) -> dict[str, tf.Tensor]:
        return {name: tf.transpose(value, (0, 2, 1)) for name, value in super().columns(outputs).items()}

    def compare(self, outputs: Outputs, batch: Batch) -> Fraction:
        teacher = tf.transpose(batch["teacher_logits"], (0, 2, 1))
        return divergence(outputs["logits"], teacher, word_weights(batch), self.temperature)

    def weights(self, batch: Batch) -> Weights:
        """Returns the number of words."""
        return {"answers": tf.reduce_sum(word_weights(batch))}


class SpansOf(SoftAnswers):
    """The mean of the losses on the teacher's start and end probabilities."""

    outputs = ("start_logits", "end_logits")
    by_token = True

    def compare(self, outputs: Outputs, batch: Batch) -> Fraction:
        real = tf.cast(batch["input_mask"], tf.bool)
        both = [
            divergence(outputs[name], batch[COLUMN + name], batch["example_weights"], self.temperature, real)
            for name in self.outputs
        ]
        return 0.5 * (both[0][0] + both[1][0]), both[0][1]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorsOf(SoftAnswers):
    """The loss on how near the teacher finds texts to each other; vectors of student and teacher may differ in width.

    It compares the probabilities of a group's texts as answers to the first text, for rows compared within groups. For
    rows with negatives it compares the probabilities of their own texts, and for scored pairs the cosines, by squared
    error.
    """

    own: NearVectors
    outputs = ("embedding",)

    def compare(self, outputs: Outputs, batch: Batch) -> Fraction:
        vectors = outputs["embedding"], batch["teacher_embedding"]
        own, weights = self.own, batch["example_weights"]
        if own.loss in IN_GROUPS:
            ours, theirs = (
                ranking_losses.group_logits(each, batch["text_numbers"], weights, own.group_size, own.temperature)[0]
                for each in vectors
            )
            return divergence(ours, theirs, weights, self.temperature, theirs > ABSENT / 2)
        ours, theirs = (tf.einsum("btd,bd->bt", each[:, 1:], each[:, 0]) for each in vectors)
        if "scores" in batch:
            return squared_error(ours[:, 0], theirs[:, 0], weights)
        return divergence(
            ours / own.temperature,
            theirs / own.temperature,
            weights,
            self.temperature,
            _texts(batch["input_mask"][:, 1:]),
        )


KINDS: Mapping[str, type[SoftAnswers]] = {
    "classifier": SoftAnswers,
    "multi_label": SeveralLabelsOf,
    "regression": ScoresOf,
    "choice": ScoresOf,
    "tagger": TagsOf,
    "span": SpansOf,
    "embeddings": VectorsOf,
}  # by `head` of the task


def _texts(input_mask: tf.Tensor) -> tf.Tensor:
    """Which texts of a row are there: [B,C,S] -> bool [B,C]."""
    return tf.reduce_max(input_mask, axis=-1) > 0
