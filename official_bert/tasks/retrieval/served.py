"""The served model of sparse vectors: the words of a text with the largest weights.

B texts, K words.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from official_bert.serving.served_embeddings import ServedEmbeddings, vector_settings
from official_bert.serving.served_model import ID_INPUTS, ServedModel, Tensors
from official_bert.serving.task_serving import Serving
from official_bert.text.graph_loading import AnyGraphTokenizer


class ServedSparse(ServedModel):
    """Gives the `top_k` words of a text with the largest weights, as vocabulary ids, and the weights; fewer words are
    padded with 0.

    Each of `prompts` is prepended to texts of the signature of its name.
    """

    outputs: ClassVar[tuple[str, ...]] = ("ids", "weights", "truncated")
    reads: ClassVar[tuple[str, ...]] = ("top_k",)
    tokens_at_once = 4096

    def __init__(
        self,
        model: keras.Model,
        tokenizer: AnyGraphTokenizer,
        max_seq_length: int,
        top_k: int = 256,
        prompts: Mapping[str, str] | None = None,
    ):
        super().__init__(model, tokenizer, max_seq_length)
        self.prompts = prompts or {}
        self.top_k = min(top_k, self.encoder.config.vocab_size)

    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `ids` and `weights` [B,K], heaviest first."""
        rows = {name: inputs[name] for name in ID_INPUTS}
        return self.run(
            rows, {"ids": tf.TensorSpec([None, self.top_k], tf.int32), "weights": tf.TensorSpec([None, self.top_k])}
        )

    def call_model(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `ids` and `weights` [G,K]."""
        return self._heaviest(self.model.word_weights(dict(inputs), training=False))

    def call_dense(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns the same; the logits [G,S,V] of all words are in memory at once."""
        return self._heaviest(self.model.word_weights(dict(inputs), training=False, in_parts=False))

    def _heaviest(self, every: tf.Tensor) -> dict[str, tf.Tensor]:
        weights, ids = tf.math.top_k(every, self.top_k)
        return {"ids": tf.where(weights > 0.0, ids, 0), "weights": weights}

    @staticmethod
    def unpadded(answer: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the words whose weight is not 0."""
        count = sum(weight > 0.0 for weight in answer["weights"])
        return {**answer, "ids": answer["ids"][:count], "weights": answer["weights"][:count]}

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the ids with their weights."""
        kept = ServedSparse.unpadded(answer)
        return ["  " + " ".join(f"{number}:{weight:.3f}" for number, weight in zip(kept["ids"], kept["weights"]))]


WORDS = Serving(
    (ServedSparse,),
    lambda task, model, options: ServedSparse.make(task, model, options, prompts=task.options.prompts),
)
VECTORS = Serving(
    (ServedEmbeddings,),
    lambda task, model, options: ServedEmbeddings.make(task, model, options, **vector_settings(task)),
)
