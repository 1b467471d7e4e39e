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

    suffix = ""  # of the tables' names

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
            setattr(self, name, self.add_weight(shape=(rows, width), initializer=getattr(self, f"{name}_initializer"),
                                                name=f"{name}{self.suffix}", autocast=False))  # rows are cast, not tables
        self.layer_norm.build((None, None, width))
        if self.projection is not None:
            self.projection.build((None, None, width))
        self.built = True

    def call(self, input_ids, segment_ids, position_ids=None, task_type_ids=None, training=None):
        """input_ids, segment_ids, position_ids, task_type_ids [B,S] (positions None: 0 to S-1; tasks None: 0) -> [B,S,D].

        Raises ValueError for a sequence longer than the position table.
        """
        rows = self.dropout(self.normalized(input_ids, segment_ids, position_ids, task_type_ids), training=training)
        return rows if self.projection is None else self.projection(rows)

    def normalized(self, input_ids, segment_ids, position_ids=None, task_type_ids=None):
        """The sums of the rows after the layer norm, before dropout and product: [B,S,E], E the width of the tables."""
        parts = [self.read("word_embeddings", input_ids)]                             # [B,S,E]
        if self.settings["type_vocab_size"]:
            parts.append(self.read("token_type_embeddings", segment_ids))             # [B,S,E]
        if self.settings["task_type_vocab_size"]:
            tasks = slice(1) if task_type_ids is None else task_type_ids
            rows = self.read("task_type_embeddings", tasks)                           # [1,E] or [B,S,E]
            parts.append(rows[None] if task_type_ids is None else rows)
        self._check_length(input_ids.shape[1], position_ids)
        if self.settings["has_positions"]:
            parts.append(self._positions(input_ids, position_ids))
        # Rows are added in float32 under every precision policy; the tables of an export may be of bfloat16.
        summed, *others = (ops.cast(rows, "float32") for rows in parts)
        for rows in others:
            summed = summed + rows
        return self.layer_norm(ops.cast(summed, self.compute_dtype))

    def read(self, name, places):
        """The rows of a table at `places`, a slice or numbers [...]: [rows,E] or [...,E]."""
        table = getattr(self, name)
        return table[places] if isinstance(places, slice) else ops.take(table, places, axis=0)

    def _check_length(self, length, position_ids):
        first = self.settings["first_position"]
        longest = self.settings["max_position_embeddings"] - first
        if position_ids is None and length is not None and length > longest:
            raise ValueError(f"sequence of {length} tokens is longer than the model's {longest} positions (max_position_embeddings"
                             f"{' - first_position' if first else ''})")

    def _positions(self, input_ids, position_ids):
        """The rows [1 or B,S,E] of positions."""
        first = self.settings["first_position"]
        if position_ids is None and not first:
            return self.read("position_embeddings", slice(ops.shape(input_ids)[1]))[None]  # [1,S,E]
        if position_ids is None:
            real = ops.cast(input_ids != first - 1, "int32")
            position_ids = ops.cumsum(real, axis=1) * real - 1                        # [B,S]; padding: -1
        return self.read("position_embeddings", position_ids + first)                 # [B,S,E]

    def compute_output_shape(self, input_ids_shape, *_):
        """[B,S,D]."""
        return (*input_ids_shape, self.settings["hidden_size"])

    def get_config(self):
        return super().get_config() | self.settings


class DisentangledEmbeddings(Embeddings):
    """Embeddings whose tables are those of a `lender` and a difference of their own (DeBERTa v3, 3.3).

    Gradients reach the differences alone, which begin at 0: the two models that read the lender's tables do not pull them two ways.
    """

    suffix = "_difference"

    def __init__(self, lender: Embeddings, **settings):
        super().__init__(**settings)
        self.lender = lambda: lender  # not an attribute, so that the lender's weights do not count as this layer's
        for name in self.tables:
            setattr(self, f"{name}_initializer", keras.initializers.Zeros())

    def read(self, name, places):
        return ops.stop_gradient(self.lender().read(name, places)) + super().read(name, places)


class SharedEmbeddings(keras.layers.Layer):
    """The tables and the layer norm of a `lender`, with a dropout, and a product to another width, of this layer's own (ELECTRA)."""

    def __init__(self, lender: Embeddings, hidden_size, **kwargs):
        super().__init__(**kwargs)
        settings = lender.settings
        self.lender, self.width = (lambda: lender), settings["embedding_size"] or settings["hidden_size"]
        self.dropout = Dropout(settings["dropout"], dtype=self.dtype_policy)
        self.projection = None if hidden_size == self.width else keras.layers.Dense(
            hidden_size, use_bias=settings["biases"], kernel_initializer=truncated_normal(settings["initializer_range"]),
            name="projection", dtype=self.dtype_policy)

    @property
    def word_embeddings(self):
        """The table of words [V,E], which a head for words reads."""
        return self.lender().word_embeddings

    def build(self, *_):
        """Makes the product."""
        if self.projection is not None:
            self.projection.build((None, None, self.width))
        self.built = True

    def call(self, input_ids, segment_ids, position_ids=None, task_type_ids=None, training=None):
        """The arguments of `Embeddings` -> [B,S,D], D the width of this layer."""
        rows = self.lender().normalized(input_ids, segment_ids, position_ids, task_type_ids)
        rows = self.dropout(rows, training=training)
        return rows if self.projection is None else self.projection(rows)
