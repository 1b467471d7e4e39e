"""The summed embeddings of words, segments and positions (paper 3, figure 2; 2018 `embedding_postprocessor`)."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import keras
from jaxtyping import Float, Int
from keras import ops

from official_bert.layers.configured import Configured
from official_bert.layers.dense import Dense
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.speed.extension_points import extension_point
from official_bert.layers.speed.fused import Dropout
from official_bert.model_config import BERT_BASE, ModelConfig


@keras.saving.register_keras_serializable("official_bert")
class Embeddings(Configured):
    """Sums word, segment and position embeddings, then applies layer norm and dropout. B batch, S sequence, D hidden
    size, V words, E width of the tables.

    Fields: `vocab_size`, `hidden_size`, `max_position_embeddings`, `type_vocab_size` (segments),
    `hidden_dropout_prob` (or `dropout`), `initializer_range`, `layer_norm_epsilon`. Fields for relatives of BERT:
    `embedding_size` (E; a product after the layer norm maps the sum to D), `first_position` (RoBERTa: positions count
    from it and skip padding, which has the row before it), `task_type_vocab_size` (ERNIE), `position_buckets`, `rotary`
    and `alibi` (no table of positions, because the attention adds them), `biases`.
    """

    FIELDS: ClassVar[Sequence[str]] = (
        "vocab_size",
        "hidden_size",
        "max_position_embeddings",
        "type_vocab_size",
        "hidden_dropout_prob",
        "initializer_range",
        "layer_norm_epsilon",
        "embedding_size",
        "first_position",
        "task_type_vocab_size",
        "position_buckets",
        "rotary",
        "alibi",
        "biases",
    )
    suffix = ""  # of the tables' names

    def __init__(self, config: ModelConfig = BERT_BASE, **fields: Any) -> None:
        if not fields.pop("has_positions", True):  # of files of earlier versions
            fields["alibi"] = True
        super().__init__(config, **fields)
        config, policy = self.config, self.dtype_policy
        self.layer_norm = LayerNormalization(
            epsilon=config.layer_norm_epsilon, center=config.biases, name="LayerNorm", dtype=policy
        )
        self.dropout = Dropout(config.hidden_dropout_prob, dtype=policy)
        self.projection = (
            Dense(
                config.hidden_size,
                use_bias=config.biases,
                kernel_initializer=self.initializer(),
                name="projection",
                dtype=policy,
            )
            if config.embedding_size
            else None
        )
        self.tables = {
            name: rows
            for name, rows in (
                ("word_embeddings", config.vocab_size),
                ("token_type_embeddings", config.type_vocab_size),
                ("position_embeddings", config.max_position_embeddings * config.has_position_table),
                ("task_type_embeddings", config.task_type_vocab_size),
            )
            if rows
        }
        for name in self.tables:  # an initializer each: tables that share one begin with the same rows
            setattr(self, f"{name}_initializer", self.initializer())

    def build(self, input_ids_shape: Any = (None, None), *_: Any) -> None:
        """Makes the embedding tables and the layer norm."""
        width = self.config.table_width
        for name, rows in self.tables.items():
            setattr(
                self,
                name,
                self.add_weight(
                    shape=(rows, width),
                    initializer=getattr(self, f"{name}_initializer"),
                    # rows are cast, not tables
                    name=f"{name}{self.suffix}",
                    autocast=False,
                ),
            )
        self.layer_norm.build((None, None, width))
        if self.projection is not None:
            self.projection.build((None, None, width))
        self.built = True

    @extension_point
    def call(
        self,
        input_ids: Int[Any, "B S"],
        segment_ids: Int[Any, "B S"],
        position_ids: Any = None,
        task_type_ids: Any = None,
        training: bool | None = None,
    ) -> Float[Any, "B S D"]:
        """Returns the embeddings [B,S,D] of input_ids and segment_ids [B,S].

        `position_ids` [B,S] default to 0, ..., S-1 and `task_type_ids` [B,S] to 0. Raises ValueError for a sequence
        longer than the position table.
        """
        rows = self.dropout(self.normalized(input_ids, segment_ids, position_ids, task_type_ids), training=training)
        return rows if self.projection is None else self.projection(rows)

    def normalized(
        self,
        input_ids: Int[Any, "B S"],
        segment_ids: Int[Any, "B S"],
        position_ids: Any = None,
        task_type_ids: Any = None,
    ) -> Float[Any, "B S E"]:
        """Returns LayerNorm(word + segment + position embedding), before dropout and product: [B,S,E]."""
        self._check_length(input_ids.shape[1], position_ids)
        # Rows are added in float32 under every precision policy; the tables of an export may be of bfloat16.
        summed, *others = (
            ops.cast(rows, "float32") for rows in self._summands(input_ids, segment_ids, position_ids, task_type_ids)
        )
        for rows in others:
            summed = summed + rows
        return self.layer_norm(ops.cast(summed, self.compute_dtype))

    def _summands(self, input_ids: Any, segment_ids: Any, position_ids: Any, task_type_ids: Any) -> Iterator[Any]:
        """Gives the rows of each table, [B,S,E] or [1,S,E] or [1,1,E]."""
        yield self.read("word_embeddings", input_ids)
        if "token_type_embeddings" in self.tables:
            yield self.read("token_type_embeddings", segment_ids)
        if "task_type_embeddings" in self.tables:
            yield (
                self.read("task_type_embeddings", slice(1))[None]
                if task_type_ids is None
                else self.read("task_type_embeddings", task_type_ids)
            )
        if "position_embeddings" in self.tables:
            yield self._positions(input_ids, position_ids)

    @extension_point
    def read(self, name: str, places: Any) -> Float[Any, "..."]:
        """Returns the rows of a table at `places`: [rows,E] for a slice, [...,E] for indices [...]."""
        table = getattr(self, name)
        return table[places] if isinstance(places, slice) else ops.take(table, places, axis=0)

    def _check_length(self, length: int | None, position_ids: Any) -> None:
        first = self.config.first_position
        longest = self.config.max_position_embeddings - first
        if position_ids is None and length is not None and length > longest:
            raise ValueError(
                f"sequence of {length} tokens is longer than the model's {longest} positions (max_position_embeddings"
                f"{' - first_position' if first else ''})"
            )

    def _positions(self, input_ids: Any, position_ids: Any) -> Any:
        """Returns the rows [1 or B,S,E] of positions."""
        first = self.config.first_position
        if position_ids is None and not first:
            return self.read("position_embeddings", slice(ops.shape(input_ids)[1]))[None]  # [1,S,E]
        if position_ids is None:
            real = ops.cast(input_ids != first - 1, "int32")
            position_ids = ops.cumsum(real, axis=1) * real - 1  # [B,S]; padding: -1
        return self.read("position_embeddings", position_ids + first)  # [B,S,E]

    def compute_output_shape(self, input_ids_shape: Any, *_: Any) -> tuple:
        """Returns the shape [B,S,D]."""
        return (*input_ids_shape, self.config.hidden_size)
