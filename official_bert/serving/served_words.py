"""The base of served models whose masked-LM head predicts words at some positions of a row.

B rows, S tokens, M places, V words.
"""

from collections.abc import Mapping
from typing import ClassVar

import keras
import tensorflow as tf

from official_bert.serving.bounds import Claim, in_range
from official_bert.serving.served_model import ID_INPUTS, ServedModel, Tensors
from official_bert.text.graph_loading import AnyGraphTokenizer


class ServedWords(ServedModel):
    """Returns logits of words at up to `max_positions` positions of a row."""

    padded_ids: ClassVar[Mapping[str, str]] = {"logits": "masked_lm_positions"}
    ids_inputs = {**ID_INPUTS, "masked_lm_positions": tf.TensorSpec([None, None], tf.int32, "masked_lm_positions")}

    def __init__(self, model: keras.Model, tokenizer: AnyGraphTokenizer, max_seq_length: int, max_positions: int):
        super().__init__(model, tokenizer, max_seq_length)
        self.max_positions = self.longest["masked_lm_positions"] = max_positions
        self.words = tf.constant(tokenizer.tokens)

    def claims(self, inputs: Tensors) -> list[Claim]:
        """Returns the conditions for rows, and for the number and range of positions."""
        positions = inputs["masked_lm_positions"]
        length = tf.shape(inputs["input_ids"])[1]
        return [
            *super().claims(inputs),
            in_range(
                "masked_lm_positions: expected", tf.shape(positions)[1], 0, self.max_positions, "positions in a row"
            ),
            in_range("masked_lm_positions: expected places in the row,", positions, 0, length - 1),
        ]

    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `logits` [B,M,V] at `masked_lm_positions` [B,M]."""
        places, rows = inputs["masked_lm_positions"], {name: inputs[name] for name in ID_INPUTS}
        return self.run(
            rows,
            {"logits": tf.TensorSpec([None, None, self.encoder.config.vocab_size])},
            lambda part, chosen: {
                "logits": self.run_model(part, masked_lm_positions=tf.gather(places, chosen))["logits"]
            },
            places,
        )

    def logits_of(self, features: Tensors, ids: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        """Returns the logits [B,M,V] at `places` of rows whose ids are replaced by `ids` [B,S]."""
        return self.answer_rows({**features, "input_ids": ids, "masked_lm_positions": places})["logits"]

    def call_model(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `logits` [G,M,V]."""
        return {"logits": super().call_model(inputs)["mlm_logits"]}
