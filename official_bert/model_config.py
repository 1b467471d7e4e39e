"""The configuration of an encoder: sizes, and the parts that distinguish the relatives of BERT."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from official_bert.fields import Constraint, Count, Natural, NonNegative, Rate, check_fields, only_with
from official_bert.limits import MOST_LAYERS, MOST_SIZE, MOST_TOKENS, MOST_WEIGHTS
from official_bert.storage.files import read_json
from official_bert.typed_values import kinds_of

Activation = Literal["gelu", "gelu_erf", "relu", "silu", "tanh", "linear"]  # gelu: the tanh form, as in 2018
EmbeddingSharing = Literal["shared", "disentangled", "separate"]  # of ELECTRA's pair
TOLD_BY = ("first_position", "relative_buckets", "position_buckets", "rotary")  # fields of other kinds of positions


def check_sizes(fields: Mapping[str, Any], where: str = "") -> None:
    """Raises ValueError, beginning with `where`, for a whole number beyond the bounds of `limits` in fields of
    `ModelConfig`.
    """
    most = {"vocab_size": MOST_TOKENS, "num_hidden_layers": MOST_LAYERS, "bilstm_layers": MOST_LAYERS}
    for name, value in fields.items():
        if isinstance(value, int) and value > (bound := most.get(name, MOST_SIZE)):
            raise ValueError(f"{where}{name}: expected at most {bound:,}, got {value:,}")


class WindowFields(NamedTuple):
    """The tokens on each side that layers see, but the first of `global_every` layers; 0: all."""

    size: int
    global_every: int

    def of_layer(self, index: int) -> int:
        """Returns the tokens on each side that layer `index` sees; 0: all."""
        return self.size if index % self.global_every else 0


class SharingFields(NamedTuple):
    """The layers that share their weights (ALBERT): `groups` of `layers_in_group` layers; no groups: none shares."""

    num_layers: int
    groups: int
    layers_in_group: int

    @property
    def own_layers(self) -> int:
        """The layers with weights of their own."""
        return self.groups * self.layers_in_group or self.num_layers

    def weights_of_layer(self, index: int) -> int:
        """Returns the number of the layer whose weights layer `index` uses."""
        if not self.groups:
            return index
        use, place = divmod(index, self.layers_in_group)
        uses = self.num_layers // self.layers_in_group  # of all groups
        return int(use / (uses / self.groups)) * self.layers_in_group + place


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder's size, under the keys of 2018's `bert_config.json`; the defaults are BERT-base, uncased."""

    vocab_size: Count = 30522
    """Rows of the table of words; by default as many as the vocabulary has entries."""
    hidden_size: Count = 768
    """Width of the rows between layers."""
    num_hidden_layers: Count = 12
    """Layers."""
    num_attention_heads: Count = 12
    """Attention heads of a layer."""
    intermediate_size: Count = 3072
    """Width inside the feed-forward network."""
    hidden_act: Activation = "gelu"
    """Activation of the feed-forward network; gelu is the tanh form of 2018, gelu_erf the exact one."""
    hidden_dropout_prob: Rate = 0.1
    """Dropout of embeddings, and of what each half of a layer adds."""
    attention_probs_dropout_prob: Rate = 0.1
    """Dropout of attention weights."""
    max_position_embeddings: Count = 512
    """Rows of the table of positions."""
    type_vocab_size: Natural = 2
    """Kinds of segments; 0: the encoder does not distinguish the texts of a pair."""
    initializer_range: float = 0.02
    """Standard deviation of new weights."""
    layer_norm_epsilon: float = 1e-12
    """Added to the variance in layer norms."""
    attention: Literal["bidirectional", "left_to_right"] = "bidirectional"
    """Tokens that a token sees; left_to_right: itself and those before it."""
    bilstm_layers: int = 0
    """BiLSTMs between encoder and heads, each as wide as the encoder (paper 5.1: after left to right)."""
    # What distinguishes the relatives of BERT; docs/family.md has the values of each.
    embedding_size: Natural = 0
    """Width of the embedding tables, projected to hidden_size (ALBERT, ELECTRA); 0: hidden_size, without projection."""
    first_position: Natural = 0
    """Row of a text's first token; above 0, padding has the row before it, and the id of that number (RoBERTa)."""
    task_type_vocab_size: Natural = 0
    """Rows of a table of tasks, whose row 0 is added unless the inputs give another (ERNIE)."""
    layer_groups: Natural = 0
    """Groups of neighbouring layers with the same weights (ALBERT); 0: each layer has its own."""
    layers_in_group: Count = only_with(1, "layer_groups")
    """Layers of a group before its first layer is used again."""
    relative_buckets: Annotated[
        int, Constraint("0 or a multiple of 4", lambda value: value >= 0 and value % 4 == 0)
    ] = 0
    """Rows of a table of distances, added to the scores of attention in all layers (MPNet); 0: none."""
    position_buckets: Natural = 0
    """Distances instead of a table of positions (DeBERTa): single ones up to half this number, then ranges that grow by
    a factor up to position_span; 0: a table of positions."""
    position_span: int = 512
    """Largest distance that position_buckets distinguishes."""
    distance_projections: bool = only_with(False, "position_buckets")
    """Distances have their own projections, instead of those of queries and keys."""
    convolution: Natural = 0
    """Tokens of a convolution over the embeddings, added after the first layer (DeBERTa v2); 0: none."""
    convolution_act: Activation = "tanh"
    """Activation of the convolution."""
    row_limit: Natural = 0
    """Tokens of a row, if fewer than there are positions (BigBird has another attention for longer rows); 0: no
    such limit."""
    pooler_act: Activation = "tanh"
    """Activation of the pooler."""
    pooler_norm: bool = False
    """A layer norm follows the pooler, and heads for words, tags or answers read rows that pass through both."""
    pooling: Literal["first", "mean"] = "first"
    """Row that the pooler reads: [CLS] (left to right, the last one), or the mean."""
    masked_lm_act: Literal["", Activation] = ""
    """Activation of the head for words; empty: hidden_act."""
    norm: Literal["post", "pre", "twice"] = "post"
    """Layer norms after each half of a layer; pre: before it, and one after all layers; twice: a layer's input is added
    and normalized once more after the attention (JinaBERT for code)."""
    feed_forward: Literal["dense", "gated"] = "dense"
    """Feed-forward network; gated: half of the first product, activated, times the other half."""
    biases: bool = True
    """Biases in products and layer norms of layers, embeddings and pooler."""
    unbiased: Literal["", "gate", "products"] = ""
    """Products of a layer without biases, although norms, pooler and heads have them: the first one of a gated
    feed-forward network (GTE, JinaBERT), or all (NomicBERT)."""
    query_key_norm: bool = False
    """Layer norms of queries and of keys, over all heads together (JinaBERT for code)."""
    rotary: NonNegative = 0.0
    """Base of rotary positions, in queries and keys, instead of a table; 0: none."""
    rotary_factor: Annotated[float, Constraint("a number above 0", lambda value: value > 0)] = only_with(1.0, "rotary")
    """Divides the angles of rotary positions, for rows longer than those of training (GTE)."""
    alibi: bool = False
    """Scores of attention fall with the distance of two tokens, by another slope for each head, instead of a table
    (JinaBERT)."""
    window: Natural = 0
    """Tokens on each side that a layer sees, except the first layer and every `global_every`-th after it; 0: all."""
    global_every: Count = 3
    """Of this many layers, the first sees all tokens."""
    window_rotary: NonNegative = 0.0
    """Base of rotary positions in layers with a window; 0: as in the others."""

    def __post_init__(self) -> None:
        check_fields(self, "model.")
        check_sizes(vars(self), "model.")
        if (weights := self.estimated_weights) > MOST_WEIGHTS:
            raise ValueError(f"model: expected sizes that make at most {MOST_WEIGHTS:,} weights, got about {weights:,}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"model.hidden_size: expected a multiple of num_attention_heads "
                f"({self.num_attention_heads}), got {self.hidden_size}"
            )
        if self.bilstm_layers < 0 or (self.bilstm_layers and self.hidden_size % 2):
            raise ValueError(
                f"model.bilstm_layers: expected at least 0, and an even hidden_size (half of it for each direction), "
                f"got {self.bilstm_layers} and {self.hidden_size}"
            )
        if self.num_hidden_layers % self.layers_in_group or self.sharing.own_layers > self.num_hidden_layers:
            raise ValueError(
                f"model.layers_in_group: expected num_hidden_layers ({self.num_hidden_layers}) to be a multiple of it, "
                f"and at least layer_groups times it, got {self.layer_groups} groups of {self.layers_in_group}"
            )
        if self.pooler_norm and self.embedding_size:
            raise ValueError(
                f"model.pooler_norm: expected False beside embedding_size ({self.embedding_size}): its rows are "
                "compared with the word table"
            )
        if self.pooling == "mean" and self.bilstm_layers:
            raise ValueError(
                "model.pooling: expected first beside bilstm_layers: the pooler reads their last states, got mean"
            )
        self._check_positions()
        self._check_layers()
        self._check_seen_tokens()

    def _check_positions(self) -> None:
        """Raises ValueError for positions that are given in two ways, or that do not fit the sizes."""
        if self.longest_row < 1:
            raise ValueError(
                f"model.first_position: expected less than max_position_embeddings ({self.max_position_embeddings}), "
                f"got {self.first_position}"
            )
        if (buckets := self.position_buckets) and (buckets < 4 or buckets % 2 or self.position_span <= buckets):
            raise ValueError(
                "model.position_buckets: expected 0 or an even number from 4 to below position_span "
                f"({self.position_span}), got {buckets}"
            )
        if buckets and (self.relative_buckets or self.first_position):
            raise ValueError(
                "model.position_buckets: expected 0 beside relative_buckets or first_position: positions are told in "
                f"one way, got {buckets}"
            )
        for way, none in (("alibi", False), ("rotary", 0)):
            others = [key for key in TOLD_BY if key != way and getattr(self, key)]
            if others and getattr(self, way):
                raise ValueError(
                    f"model.{way}: expected {none} beside {others[0]}: a model encodes positions in one way, got "
                    f"{getattr(self, way)}"
                )

    def _check_layers(self) -> None:
        """Raises ValueError for norms, biases or rotary positions that do not fit the rest of the layer."""
        if self.query_key_norm and self.position_buckets:
            raise ValueError("model.query_key_norm: expected False beside position_buckets, got True")
        if self.unbiased == "gate" and self.feed_forward != "gated":
            raise ValueError("model.unbiased: expected gate beside feed_forward gated only")
        if self.rotary and (head_size := self.hidden_size // self.num_attention_heads) % 2:
            raise ValueError(
                f"model.rotary: expected heads of an even size (hidden_size / num_attention_heads), got {head_size}"
            )

    def _check_seen_tokens(self) -> None:
        """Raises ValueError for a window or a convolution that does not fit the rest of the layer."""
        biases = ("relative_buckets", "position_buckets", "alibi")
        if self.window and (others := [key for key in biases if getattr(self, key)]):
            raise ValueError(f"model.window: expected 0 beside {others[0]}, got {self.window}")
        if self.window and self.global_every == 1:
            raise ValueError("model.global_every: expected at least 2, so that some layers have the window, got 1")
        if self.window_rotary and not (self.window and self.rotary):
            raise ValueError(
                f"model.window_rotary: expected window and rotary with it, got {self.window_rotary} without"
            )
        if self.convolution and (
            self.convolution % 2 == 0
            or self.num_hidden_layers < 2
            or self.norm != "post"
            or self.attention == "left_to_right"
        ):
            raise ValueError(
                "model.convolution: expected 0, or an odd number of tokens beside at least 2 layers with norm post and "
                f"bidirectional attention, got {self.convolution}"
            )

    # What follows from the fields, for layers and the functions that make them (models/encoder_parts.py).

    @property
    def has_position_table(self) -> bool:
        """Whether the embeddings have a table of positions."""
        return not (self.position_buckets or self.rotary or self.alibi)

    @property
    def product_biases(self) -> bool:
        """Whether the products of a layer have biases."""
        return self.biases and self.unbiased != "products"

    @property
    def windows(self) -> "WindowFields":
        """Which layers see a window of tokens only."""
        return WindowFields(self.window, self.global_every)

    @property
    def sharing(self) -> "SharingFields":
        """Which layers share their weights."""
        return SharingFields(self.num_hidden_layers, self.layer_groups, self.layers_in_group)

    @property
    def longest_row(self) -> int:
        """The tokens for which there are positions."""
        longest = self.max_position_embeddings - self.first_position
        return min(self.row_limit, longest) if self.row_limit else longest

    @property
    def table_width(self) -> int:
        """The width of the embedding tables and of the rows that the head for words compares with them."""
        return self.embedding_size or self.hidden_size

    @property
    def estimated_weights(self) -> int:
        """The weights of tables and products, without biases, norms and heads."""
        rows = self.vocab_size + self.max_position_embeddings + self.type_vocab_size + self.task_type_vocab_size
        products = 4 * self.hidden_size + (3 if self.feed_forward == "gated" else 2) * self.intermediate_size
        others = 6 * self.bilstm_layers * self.hidden_size + self.convolution * self.hidden_size + self.position_buckets
        return (
            rows * self.table_width
            + self.sharing.own_layers * self.hidden_size * products
            + others * self.hidden_size
            + self.relative_buckets * self.num_attention_heads
        )


# Keys of bert_config.json.
OF_2018 = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
)
OF_RELATIVES = tuple(
    key for key in kinds_of(ModelConfig) if key not in (*OF_2018, "layer_norm_epsilon", "attention", "bilstm_layers")
)
BERT_BASE = ModelConfig()  # the default sizes of layers and models


def check_length(length: int, model: ModelConfig, where: str = "config.options.max_seq_length", least: int = 0) -> None:
    """Raises ValueError, naming `where`, for rows of more tokens than the model has positions, or of fewer than
    `least`.
    """
    most = model.longest_row
    if not least <= length <= most:
        limits = f"{least} to {most} (the model's positions" if least else f"at most the model's {most} positions ("
        key = (
            "model.row_limit"
            if model.row_limit == most
            else "model.max_position_embeddings" + (" - model.first_position" if model.first_position else "")
        )
        raise ValueError(f"{where}: expected {limits}{', ' if least else ''}{key}), got {length}")


def read_bert_config(path: str) -> dict:
    """Returns the `model:` mapping of a 2018 `bert_config.json`, without keys that are not in `ModelConfig`."""
    values = read_json(path, "bert_config.json", of_model=True)
    if not isinstance(values, dict) or "hidden_size" not in values:
        raise ValueError(f"{path}: expected a BERT configuration with hidden_size, got {str(values)[:80]}")
    values = {key: value for key, value in values.items() if key in kinds_of(ModelConfig)}
    check_sizes(values, f"{path}: ")
    return {"type_vocab_size": 16} | values  # 2018's BertConfig has 16 by default
