"""Low-rank adapters (Hu et al. 2021): small trained products beside fixed ones."""

from typing import Any

import keras
from jaxtyping import Float
from keras import ops

from official_bert.layers.dense import Dense
from official_bert.layers.speed import fused


@keras.saving.register_keras_serializable("official_bert")
class LowRankAdapter(keras.layers.Layer):
    """Computes scale * dropout(x) A B, which is added to a fixed product. K input width, N output width, R rank.

    A [K,R] is initialized uniformly within 1 / sqrt(K) and B [R,N] with zeros, as in PEFT, so that training starts at
    the base's outputs. Dropout applies to the input of A only.
    """

    def __init__(self, units: int, rank: int = 8, scale: float = 2.0, dropout: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.rank, self.scale = units, rank, scale
        self.dropout = fused.Dropout(dropout, dtype=self.dtype_policy)

    def build(self, input_shape: Any) -> None:
        """Makes A and B for rows of the width `input_shape[-1]`."""
        width, rank = input_shape[-1], self.rank
        self.lora_A_initializer = keras.initializers.RandomUniform(-(width**-0.5), width**-0.5)
        self.lora_A = self.add_weight(shape=(width, rank), initializer=self.lora_A_initializer, name="lora_A")
        self.lora_B = self.add_weight(shape=(rank, self.units), initializer="zeros", name="lora_B")
        self.built = True

    def call(self, rows: Float[Any, "*M K"], training: bool | None = None) -> Float[Any, "*M N"]:
        """Returns the scaled low-rank product of rows [...,K] -> [...,N]."""
        narrow = ops.matmul(self.dropout(rows, training=training), self.lora_A) * self.scale  # [...,R]
        return ops.matmul(narrow, self.lora_B)

    def compute_output_shape(self, input_shape: Any) -> tuple:
        """Returns the shape [...,N]."""
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "units": self.units,
            "rank": self.rank,
            "scale": self.scale,
            "dropout": self.dropout.rate,
        }


def attach(dense: Dense, **settings: Any) -> LowRankAdapter:
    """Adds an adapter to a built dense layer and returns it; `settings` are arguments of `LowRankAdapter`.

    The names of the adapter's weights begin with the name of the dense layer.
    """
    dense._tracker.unlock()  # Keras locks what is built; its own `enable_lora` does the same
    dense.adapter = adapter = LowRankAdapter(dense.units, name="adapter", dtype=dense.dtype_policy, **settings)
    width = dense.kernel.shape.num_elements() // dense.units
    with dense._open_name_scope():
        adapter.build((None, width))
    dense._tracker.lock()
    return adapter
