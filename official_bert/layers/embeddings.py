"""The summed embeddings of words, segments and positions (paper 3, figure 2; 2018 `embedding_postprocessor`)."""

import keras
from keras import ops

from official_bert.layers.attention import truncated_normal
from official_bert.layers.fused import Dropout
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.model_config import BERT_BASE


@keras.saving.register_keras_serializable("official_bert")
class Embeddings(keras.layers.Layer):
    """Word + segment + position embeddings, layer norm, dropout. B batch, S sequence, D hidden size, V words.

    With `embedding_size`, the tables are so wide, and a product with bias brings their sum to D after the layer norm. Positions count
    from `first_position`; if that is not 0, tokens of the id before it are padding, which is not counted and has that row (RoBERTa).
    Without positions, the attention knows of distances (DeBERTa), or queries and keys of positions (ModernBERT).
    """

    def __init__(self, vocab_size=BERT_BASE.vocab_size, hidden_size=BERT_BASE.hidden_size,
                 max_position_embeddings=BERT_BASE.max_position_embeddings, type_vocab_size=BERT_BASE.type_vocab_size,
                 dropout=BERT_BASE.hidden_dropout_prob, initializer_range=BERT_BASE.initializer_range,
                 layer_norm_epsilon=BERT_BASE.layer_norm_epsilon, embedding_size=0, first_position=0, task_type_vocab_size=0,
                 has_positions=True, biases=True, **kwargs):
        super().__init__(**kwargs)
        self.settings = {"vocab_size": vocab_size, "hidden_size": hidden_size,
                         "max_position_embeddings": max_position_embeddings, "type_vocab_size": type_vocab_size,
                         "dropout": dropout, "initializer_range": initializer_range,
                         "layer_norm_epsilon": layer_norm_epsilon, "embedding_size": embedding_size,
                         "first_position": first_position, "task_type_vocab_size": task_type_vocab_size,
                         "has_positions": has_positions, "biases": biases}
        self.layer_norm = LayerNormalization(epsilon=layer_norm_epsilon, center=biases, name="LayerNorm", dtype=self.dtype_policy)
        self.dropout = Dropout(dropout, dtype=self.dtype_policy)
        self.projection = keras.layers.Dense(hidden_size, use_bias=biases, kernel_initializer=truncated_normal(initializer_range),
                                             name="projection", dtype=self.dtype_policy) if embedding_size else None
        self.tables = {name: rows for name, rows in (
            ("word_embeddings", vocab_size), ("token_type_embeddings", type_vocab_size),
            ("position_embeddings", max_position_embeddings * has_positions), ("task_type_embeddings", task_type_vocab_size)) if rows}
        for name in self.tables:  # an initializer each: tables that share one begin with the same rows
            setattr(self, f"{name}_initializer", truncated_normal(initializer_range))

    def build(self, *_):
        """Makes the tables."""
        width = self.settings["embedding_size"] or self.settings["hidden_size"]
        for name, rows in self.tables.items():
            setattr(self, name, self.add_weight(shape=(rows, width), initializer=getattr(self, f"{name}_initializer"), name=name,
                                                autocast=False))  # rows are cast, not tables
        self.layer_norm.build((None, None, width))
        if self.projection is not None:
            self.projection.build((None, None, width))
        self.built = True

    def call(self, input_ids, segment_ids, position_ids=None, task_type_ids=None, training=None):
        """input_ids, segment_ids, position_ids, task_type_ids [B,S] (positions None: 0 to S-1; tasks None: 0) -> [B,S,D].

        Raises ValueError for a sequence longer than the position table.
        """
        words = ops.take(self.word_embeddings, input_ids, axis=0)                     # [B,S,D]
        parts = [words]
        if self.settings["type_vocab_size"]:
            parts.append(ops.take(self.token_type_embeddings, segment_ids, axis=0))   # [B,S,D]
        if self.settings["task_type_vocab_size"]:
            tasks = self.task_type_embeddings[:1][None]                               # [1,1,D]
            parts.append(tasks if task_type_ids is None else ops.take(self.task_type_embeddings, task_type_ids, axis=0))
        self._check_length(input_ids.shape[1], position_ids)
        if self.settings["has_positions"]:
            parts.append(self._positions(input_ids, position_ids))
        # Rows are added in float32 under every precision policy; the tables of an export may be of bfloat16.
        summed, *others = (ops.cast(rows, "float32") for rows in parts)
        for rows in others:
            summed = summed + rows
        rows = self.layer_norm(ops.cast(summed, self.compute_dtype))
        rows = self.dropout(rows, training=training)
        return rows if self.projection is None else self.projection(rows)

    def _check_length(self, length, position_ids):
        first = self.settings["first_position"]
        longest = self.settings["max_position_embeddings"] - first
        if position_ids is None and length is not None and length > longest:
            raise ValueError(f"sequence of {length} tokens is longer than the model's {longest} positions (max_position_embeddings"
                             f"{' - first_position' if first else ''})")

    def _positions(self, input_ids, position_ids):
        """The rows [1 or B,S,D] of positions."""
        first = self.settings["first_position"]
        if position_ids is None and not first:
            return self.position_embeddings[:ops.shape(input_ids)[1]][None]           # [1,S,D]
        if position_ids is None:
            real = ops.cast(input_ids != first - 1, "int32")
            position_ids = ops.cumsum(real, axis=1) * real - 1                        # [B,S]; padding: -1
        return ops.take(self.position_embeddings, position_ids + first, axis=0)       # [B,S,D]

    def compute_output_shape(self, input_ids_shape, *_):
        """[B,S,D]."""
        return (*input_ids_shape, self.settings["hidden_size"])

    def get_config(self):
        return super().get_config() | self.settings
