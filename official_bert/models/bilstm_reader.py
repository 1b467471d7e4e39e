"""The reader of an encoder with BiLSTMs on top. B batch, S sequence, D hidden size."""

from collections.abc import Sequence
from typing import Any

import keras
from jaxtyping import Float
from keras import ops

from official_bert.layers.relatives.bilstm import last_states, run_bilstm
from official_bert.layers.relatives.bilstm import make_bilstm as make_bilstm
from official_bert.models.reader import AllRowsReader, Inputs, Reader, Rows, last_positions


class BiLSTMReader(AllRowsReader):
    """Runs BiLSTMs over the rows and pools the last state of each direction (paper 5.1, with a BiLSTM)."""

    def __init__(self, texts: Reader, bilstms: Sequence[keras.layers.Layer]) -> None:
        super().__init__(texts)
        self.bilstms = bilstms

    def read(self, x: Float[Any, "B S D"], inputs: Inputs, training: bool | None = None) -> Rows:
        for bilstm in self.bilstms:
            x = run_bilstm(bilstm, x, ops.cast(inputs["input_mask"], "bool"), training)  # [B,S,D]
        return self.output_rows(x, inputs), last_states(x, last_positions(inputs["input_mask"]))

    def check(self, inputs: Inputs) -> None:
        if "instance_ids" in inputs or "cls_positions" in inputs:
            raise ValueError(
                "instance_ids: expected none, because a BiLSTM (model.bilstm_layers) reads across packed instances"
            )
