"""The model of question answering: start and end of an answer in its context (paper 4.2 and 4.3; 2018 `run_squad.py`)."""

from collections.abc import Mapping
from typing import Any

import keras

from official_bert.layers.heads import OutputLayer
from official_bert.models.encoder import BertEncoder, EncoderWithHeads


@keras.saving.register_keras_serializable("official_bert")
class SpanPredictor(EncoderWithHeads):
    """An encoder with a start and an end vector. B batch, S sequence.

    Inputs: the encoder's. Outputs: `start_logits`, `end_logits` [B,S], float32.
    """

    heads = ("span",)

    def __init__(self, encoder: BertEncoder, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.span = OutputLayer(2, encoder.settings["initializer_range"], name="span", dtype=self.dtype_policy)

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> dict[str, Any]:
        rows = self.encoder.read_rows(self.encoder(inputs, training=training)["sequence_output"])  # [B,S,D]
        logits = self.span(rows)                                                      # [B,S,2]
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
