"""The reader of an encoder with BiLSTMs on top. B batch, S sequence, D hidden size."""

from collections.abc import Sequence
from typing import Any

import keras
from jaxtyping import Float, Int
from keras import ops

from official_bert.layers.relatives.bilstm import last_states, run_bilstm
from official_bert.layers.relatives.bilstm import make_bilstm as make_bilstm
from official_bert.models.reader import Inputs, Reader, Rows, last_positions


class BiLSTMReader(Reader):
    """Runs BiLSTMs over the rows and pools the last state of each direction (paper 5.1, with a BiLSTM)."""

    def __init__(self, texts: Reader, bilstms: Sequence[keras.layers.Layer]) -> None:
        self.texts, self.bilstms = texts, bilstms

    def pooled_positions(self, input_mask: Int[Any, "B S"]) -> Int[Any, "B 1"]:
        return self.texts.pooled_positions(input_mask)

    def query_positions(self, inputs: Inputs) -> None:
        return None

    def read(self, x: Float[Any, "B S D"], inputs: Inputs, training: bool | None = None) -> Rows:
        for bilstm in self.bilstms:
            x = run_bilstm(bilstm, x, ops.cast(inputs["input_mask"], "bool"), training)  # [B,S,D]
        rows = self.gather_rows(x, inputs["output_positions"]) if "output_positions" in inputs else x
        return rows, last_states(x, last_positions(inputs["input_mask"]))

    def check(self, inputs: Inputs) -> None:
        if "instance_ids" in inputs or "cls_positions" in inputs:
            raise ValueError(
                "instance_ids: expected none, because a BiLSTM (model.bilstm_layers) reads across packed instances"
            )
