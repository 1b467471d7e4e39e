"""Embeddings that read the tables of another model: generator and discriminator share them (ELECTRA, DeBERTa v3)."""

from typing import Any

import keras
from jaxtyping import Float
from keras import ops

from official_bert.layers.configured import truncated_normal
from official_bert.layers.dense import Dense
from official_bert.layers.embeddings import Embeddings
from official_bert.layers.speed.fused import Dropout
from official_bert.model_config import BERT_BASE, ModelConfig


class DisentangledEmbeddings(Embeddings):
    """Embeddings whose tables are the sum of a `lender`'s tables and a difference of their own (DeBERTa v3, 3.3).

    Gradients reach only the differences, which begin at 0, so that the two models do not pull the lender's tables in
    two directions.
    """

    suffix = "_difference"

    def __init__(self, lender: Embeddings, config: ModelConfig = BERT_BASE, **fields: Any) -> None:
        super().__init__(config, **fields)
        self.lender = lambda: lender  # not an attribute, so that the lender's weights do not count as this layer's
        for name in self.tables:
            setattr(self, f"{name}_initializer", keras.initializers.Zeros())

    def read(self, name: str, places: Any) -> Float[Any, "..."]:
        return ops.stop_gradient(self.lender().read(name, places)) + super().read(name, places)


class SharedEmbeddings(keras.layers.Layer):
    """Embeddings with the tables and the layer norm of a `lender`, and with their own dropout and projection to another
    width (ELECTRA).
    """

    def __init__(self, lender: Embeddings, hidden_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        config = lender.config
        self.lender, self.width = (lambda: lender), config.table_width
        self.dropout = Dropout(config.hidden_dropout_prob, dtype=self.dtype_policy)
        self.projection = (
            None
            if hidden_size == self.width
            else Dense(
                hidden_size,
                use_bias=config.biases,
                kernel_initializer=truncated_normal(config.initializer_range),
                name="projection",
                dtype=self.dtype_policy,
            )
        )

    @property
    def word_embeddings(self) -> keras.Variable:
        """The word table [V,E], which a head for words reads."""
        return self.lender().word_embeddings

    def build(self, *_: Any) -> None:
        """Makes the product."""
        if self.projection is not None:
            self.projection.build((None, None, self.width))
        self.built = True

    def call(
        self,
        input_ids: Any,
        segment_ids: Any,
        position_ids: Any = None,
        task_type_ids: Any = None,
        training: bool | None = None,
    ) -> Float[Any, "B S D"]:
        """Returns the embeddings [B,S,D], D the width of this layer; the arguments are those of `Embeddings`."""
        rows = self.lender().normalized(input_ids, segment_ids, position_ids, task_type_ids)
        rows = self.dropout(rows, training=training)
        return rows if self.projection is None else self.projection(rows)
