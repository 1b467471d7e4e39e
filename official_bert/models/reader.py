"""Readers: they choose the rows of the last layer that an encoder returns, and the row that it pools.

B batch, S sequence, P output rows, K pooled rows, D hidden size.
"""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float, Int
from keras import ops

from official_bert.layers.speed.extension_points import extension_point

Inputs = Mapping[str, Any]  # tensors by their names
Outputs = dict[str, Any]
Rows = tuple[Any, Any]  # returned [B,S or P,D], pooled [B,D] or [B,K,D]


class Reader:
    """BERT's reader: it pools [CLS], the first row (paper 3.1, task 2), or the [CLS] of each packed instance."""

    def pooled_positions(self, input_mask: Int[Any, "B S"]) -> Int[Any, "B 1"]:
        """Returns the positions [B,1] of the rows that represent whole texts."""
        return ops.zeros_like(input_mask[:, :1], dtype="int32")

    def query_positions(self, inputs: Inputs) -> Int[Any, "B Q"] | None:
        """Returns the positions [B,Q] that the last layer must compute, pooled rows before output rows, or None for
        all.
        """
        if "output_positions" not in inputs:
            return None
        return ops.concatenate([self._pooled(inputs), ops.cast(inputs["output_positions"], "int32")], axis=1)

    def read(self, x: Float[Any, "B _ D"], inputs: Inputs, training: bool | None = None) -> Rows:
        """Returns the output rows and the pooled row of the last layer.

        x has all rows, or only those at `query_positions`.
        """
        packed = "cls_positions" in inputs
        if "output_positions" in inputs:
            count = ops.shape(inputs["cls_positions"])[1] if packed else 1
            pooled, x = x[:, :count], x[:, count:]  # [B,1 or K,D], [B,P,D]
        else:
            pooled = self.gather_rows(x, self._pooled(inputs)) if packed else self.text_rows(x, inputs)
        return x, pooled if packed else pooled[:, 0]

    def text_rows(self, x: Float[Any, "B S D"], inputs: Inputs) -> Float[Any, "B 1 D"]:
        """Returns the row [B,1,D] that represents the whole text."""
        return x[:, :1]

    @extension_point
    def gather_rows(self, x: Float[Any, "B S D"], positions: Int[Any, "B P"]) -> Float[Any, "B P D"]:
        """Returns the rows [B,P,D] at `positions`."""
        return ops.take_along_axis(x, ops.expand_dims(ops.cast(positions, "int32"), 2), axis=1)

    def _pooled(self, inputs: Inputs) -> Any:
        if "cls_positions" in inputs:
            return ops.cast(inputs["cls_positions"], "int32")
        return self.pooled_positions(inputs["input_mask"])

    def check(self, inputs: Inputs) -> None:
        """Raises ValueError for inputs that this reader cannot read."""


class LastRowReader(Reader):
    """Pools the last real row: in a left-to-right model, only this row has seen all others."""

    def pooled_positions(self, input_mask: Int[Any, "B S"]) -> Int[Any, "B 1"]:
        return last_positions(input_mask)

    def text_rows(self, x: Float[Any, "B S D"], inputs: Inputs) -> Float[Any, "B 1 D"]:
        return self.gather_rows(x, self.pooled_positions(inputs["input_mask"]))


class AllRowsReader(Reader):
    """Base class of readers for which the last layer computes all rows; `texts` is the reader of a single row."""

    def __init__(self, texts: Reader) -> None:
        self.texts = texts

    def pooled_positions(self, input_mask: Int[Any, "B S"]) -> Int[Any, "B 1"]:
        return self.texts.pooled_positions(input_mask)

    def query_positions(self, inputs: Inputs) -> None:
        return None

    def output_rows(self, x: Float[Any, "B S D"], inputs: Inputs) -> Float[Any, "B _ D"]:
        """Returns the rows at `output_positions`, or all rows."""
        return self.gather_rows(x, inputs["output_positions"]) if "output_positions" in inputs else x


class MeanReader(AllRowsReader):
    """Pools the mean of a text's rows."""

    def read(self, x: Float[Any, "B S D"], inputs: Inputs, training: bool | None = None) -> Rows:
        pooled = self._means(x, inputs)  # [B,1 or K,D]
        return self.output_rows(x, inputs), pooled if "cls_positions" in inputs else pooled[:, 0]

    def _means(self, x: Any, inputs: Inputs) -> Any:
        """Returns the means [B,K,D] of the rows of the texts that the pooled rows belong to."""
        counted = ops.cast(ops.expand_dims(inputs["input_mask"], 1), x.dtype)  # [B,1,S]
        if "instance_ids" in inputs:
            own = ops.take_along_axis(inputs["instance_ids"], self._pooled(inputs), axis=1)
            counted = counted * ops.cast(ops.expand_dims(own, 2) == ops.expand_dims(inputs["instance_ids"], 1), x.dtype)
        return ops.matmul(counted, x) / ops.maximum(ops.sum(counted, axis=2, keepdims=True), 1)


def last_positions(input_mask: Int[Any, "B S"]) -> Int[Any, "B 1"]:
    """Returns the position of the last real token of each row, 0 for a row without any."""
    positions = ops.arange(ops.shape(input_mask)[1], dtype="int32")
    return ops.max(ops.cast(input_mask, "int32") * positions, axis=1, keepdims=True)
