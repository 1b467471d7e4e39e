"""The model of tagging: a tag for every token (paper 5.3 and 4; named entities)."""

from collections.abc import Mapping
from typing import Any

import keras

from official_bert.layers.heads import OutputLayer
from official_bert.models.encoder import BertEncoder, EncoderWithHeads


@keras.saving.register_keras_serializable("official_bert")
class Tagger(EncoderWithHeads):
    """An encoder with a linear layer on each row. B batch, S sequence, P wanted rows, T tags.

    Inputs: the encoder's; with `output_positions` [B,P] (first pieces of words, say) only these rows are tagged.
    Outputs: `logits` [B,S or P,T], float32.
    """

    heads: tuple[str, ...] = ("tagger",)

    def __init__(self, encoder: BertEncoder, num_tags: int = 9, dropout: float = 0.1, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.settings = {"num_tags": num_tags, "dropout": dropout}
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.tagger = OutputLayer(num_tags, encoder.settings["initializer_range"], name="tagger", dtype=self.dtype_policy)

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> dict[str, Any]:
        rows = self.encoder.read_rows(self.encoder(inputs, training=training)["sequence_output"])  # [B,S or P,D]
        return {"logits": self.tagger(self.dropout(rows, training=training))}
