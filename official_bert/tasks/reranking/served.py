"""The served reranker: a score for a query and a passage."""

from typing import ClassVar

import tensorflow as tf

from official_bert.serving.served_model import ServedModel, Tensors, text_specs
from official_bert.text.packing import check_segments


class ServedReranker(ServedModel):
    """Scores how well a passage (`text_pair`) answers a query (`text`): a logit, comparable between the passages of one query."""

    outputs: ClassVar[tuple[str, ...]] = ("score", "truncated")
    text_inputs = text_specs("text", "text_pair")

    def __init__(self, *arguments):
        super().__init__(*arguments)
        check_segments(self.encoder.settings["type_vocab_size"], "a reranker")

    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `score` [B] of rows [B,S]."""
        logits = self.run(inputs, {"logits": tf.TensorSpec([None, 1])}, self._score)["logits"]
        return {"score": tf.reshape(logits, [-1])}

    def _score(self, rows: Tensors, _: tf.Tensor) -> Tensors:
        """Returns `logits` [G,1] of rows [G,S]: each is a query's only passage."""
        return self.run_model({name: value[:, None] for name, value in rows.items()})

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the same for texts, and `truncated` [B]."""
        features, truncated = self.pack(self.tokenizer.tokenize(inputs["text"]), self.tokenizer.tokenize(inputs["text_pair"]))
        return {**self.answer_rows(features), "truncated": truncated}

    @staticmethod
    def describe(row, answer):
        """Returns the score."""
        return [f"  {answer['score']:.4f}"]
