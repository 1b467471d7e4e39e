"""The model of embeddings: one encoder gives each text a vector by itself (Reimers and Gurevych 2019).

B batch, T texts of an example, S sequence, D hidden size.
"""

from typing import Literal

import keras
from keras import ops

from official_bert.models.encoder import INPUTS, BertEncoder, EncoderWithHeads

Pooling = Literal["cls", "mean"]


def text_vectors(encoder, inputs, pooling: Pooling = "mean", training=None):
    """Returns a vector for each text, float32 [B,D]: the mean of the real tokens' rows, or the row of [CLS] (left to right, of
    the last token). Inputs are the encoder's.
    """
    if pooling == "cls":
        place = encoder.pooled_places(inputs["input_mask"])
        return ops.cast(encoder({**inputs, "output_positions": place}, training=training)["sequence_output"][:, 0], "float32")
    rows = ops.cast(encoder(inputs, training=training)["sequence_output"], "float32")     # [B,S,D]
    weights = ops.cast(inputs["input_mask"], "float32")[:, :, None]
    return ops.sum(rows * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1.0)


@keras.saving.register_keras_serializable("official_bert")
class BiEncoder(EncoderWithHeads):
    """An encoder for T texts of an example, each a row of its own.

    Inputs: `input_ids`, `input_mask`, `segment_ids` [B,T,S]. Outputs: `embedding` [B,T,D], float32, of length 1.
    """

    def __init__(self, encoder: BertEncoder, pooling: Pooling = "mean", **kwargs):
        super().__init__(encoder, **kwargs)
        self.settings = {"pooling": pooling}

    def call(self, inputs, training=None):
        _, texts, length = ops.shape(inputs["input_ids"])
        rows = {name: ops.reshape(inputs[name], (-1, length)) for name in INPUTS}          # [B*T,S]
        vectors = text_vectors(self.encoder, rows, self.settings["pooling"], training)
        vectors = ops.reshape(vectors, (-1, texts, self.encoder.settings["hidden_size"]))  # [B,T,D]
        return {"embedding": ops.normalize(vectors, axis=-1, order=2, epsilon=1e-12)}
