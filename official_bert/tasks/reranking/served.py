"""The served reranker: a score for a query and a passage."""

from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from official_bert.serving.served_model import ID_INPUTS, ServedModel, Tensors, text_specs
from official_bert.serving.task_serving import Serving
from official_bert.text.packing import check_segments


class ServedReranker(ServedModel):
    """Scores how well a passage (`text_pair`) answers a query (`text`): a logit, comparable between the passages of one
    query.
    """

    outputs: ClassVar[tuple[str, ...]] = ("score", "truncated")
    text_inputs = text_specs("text", "text_pair")

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        check_segments(self.encoder.config.type_vocab_size, "a reranker", self.template.second_segment)

    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `score` [B] of rows [B,S]."""
        return self.run(inputs, {"score": tf.TensorSpec([None])})

    def call_model(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `score` [G] of rows [G,S]: each is a query's only passage."""
        logits = self.model({name: tf.expand_dims(inputs[name], 1) for name in ID_INPUTS}, training=False)["logits"]
        return {"score": tf.reshape(logits, [-1])}

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the score."""
        return [f"  {answer['score']:.4f}"]


SCORES = Serving((ServedReranker,), ServedReranker.make)
