"""The configuration of an encoder: sizes, and the parts that distinguish the relatives of BERT."""

import dataclasses
from typing import Literal, NamedTuple

Activation = Literal["gelu", "gelu_erf", "relu", "tanh", "linear"]  # gelu: the tanh form, as in 2018


def check_rate(rate: float, where: str) -> None:
    """Raises ValueError, naming `where`, for a rate of dropout that is not from 0 to below 1."""
    if not 0 <= rate < 1:
        raise ValueError(f"{where}: expected a rate from 0 to below 1, got {rate}")


class PositionFields(NamedTuple):
    """How an encoder knows positions, as `ModelConfig.positions`: at most one of the numbers is not 0; all 0 is a table, as in BERT."""

    relative_buckets: int
    position_buckets: int
    rotary: float
    window_rotary: float  # of layers with a window

    @property
    def have_table(self) -> bool:
        """Whether the embeddings have a table of positions."""
        return not (self.position_buckets or self.rotary)


class MaskedLMFields(NamedTuple):
    """The head for masked words, as `ModelConfig.masked_lm`."""

    act: str
    transforms: bool  # False: its rows come from a pooler with a layer norm


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder's size, under the keys of 2018's `bert_config.json`; the defaults are BERT-base, uncased."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2  # 0: the encoder does not tell the texts of a pair apart
    initializer_range: float = 0.02
    layer_norm_epsilon: float = 1e-12
    attention: Literal["bidirectional", "left_to_right"] = "bidirectional"  # left_to_right: a token sees itself and the tokens before it
    bilstm_layers: int = 0  # BiLSTMs between the encoder and the heads, each as wide as the encoder (paper 5.1: on top of left-to-right)
    # What distinguishes the relatives of BERT; docs/family.md has the values of each.
    embedding_size: int = 0  # width of the tables, if a product brings it to hidden_size (ALBERT, ELECTRA); 0: no such product
    first_position: int = 0  # row of a text's first token; above 0, the row before it, and the id of that number, is padding's (RoBERTa)
    task_type_vocab_size: int = 0  # rows of a table of tasks, of which row 0 is taken unless the inputs say another (ERNIE)
    layer_groups: int = 0  # so many groups of neighbouring layers share their weights (ALBERT); 0: each layer has its own
    layers_in_group: int = 1  # layers of a group before the first is used again
    relative_buckets: int = 0  # rows of a table of distances, added to the scores of attention in all layers (MPNet); 0: none
    # Distances instead of a table of positions (DeBERTa): single ones up to B/2, then ranges that grow by a factor up to the span.
    position_buckets: int = 0  # B; 0: a table of positions
    position_span: int = 512
    distance_projections: bool = False  # distances have products of their own, instead of those of queries and keys
    convolution: int = 0  # tokens of a convolution over the embeddings, whose result is added after the first layer (DeBERTa v2); 0: none
    convolution_act: Activation = "tanh"
    row_limit: int = 0  # tokens of a row, if fewer than there are positions (BigBird, whose attention is another for more); 0: all
    pooler_act: Activation = "tanh"
    pooler_norm: bool = False  # a layer norm follows, and rows pass the pooler before a head for words, tags or answers, too
    pooling: Literal["first", "mean"] = "first"  # what the pooler reads: [CLS] (left to right, the last row), or the rows' mean
    masked_lm_act: Literal["", Activation] = ""  # of the head for words; "": hidden_act
    norm: Literal["post", "pre"] = "post"  # pre: layer norms before attention and feed-forward network, and one after all layers
    feed_forward: Literal["dense", "gated"] = "dense"  # gated: half of the first product, activated, times the other half
    biases: bool = True  # of the products and layer norms of layers, embeddings and pooler
    rotary: float = 0.0  # base of rotary positions, in queries and keys, instead of a table; 0: none
    window: int = 0  # tokens on each side that a layer sees, but the first and every `global_every`-th from there; 0: all see all
    global_every: int = 3
    window_rotary: float = 0.0  # base in layers with a window; 0: as in the others

    def __post_init__(self):
        for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                    "max_position_embeddings", "layers_in_group"):
            if getattr(self, key) < 1:
                raise ValueError(f"model.{key}: expected at least 1, got {getattr(self, key)}")
        for key in ("type_vocab_size", "embedding_size", "first_position", "task_type_vocab_size", "layer_groups", "relative_buckets",
                    "position_buckets", "rotary", "window", "window_rotary", "convolution", "row_limit"):
            if getattr(self, key) < 0:
                raise ValueError(f"model.{key}: expected at least 0, got {getattr(self, key)}")
        for key in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
            check_rate(getattr(self, key), f"model.{key}")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"model.hidden_size: expected a multiple of num_attention_heads "
                             f"({self.num_attention_heads}), got {self.hidden_size}")
        if self.bilstm_layers < 0 or (self.bilstm_layers and self.hidden_size % 2):
            raise ValueError(f"model.bilstm_layers: expected at least 0, and an even hidden_size (half of it for each direction), "
                             f"got {self.bilstm_layers} and {self.hidden_size}")
        if self.longest_row < 1:
            raise ValueError(f"model.first_position: expected less than max_position_embeddings ({self.max_position_embeddings}), "
                             f"got {self.first_position}")
        if self.layers_in_group > 1 and not self.layer_groups:
            raise ValueError(f"model.layers_in_group: expected 1 without layer_groups, got {self.layers_in_group}")
        if self.num_hidden_layers % self.layers_in_group or self.own_layers > self.num_hidden_layers:
            raise ValueError(f"model.layers_in_group: expected num_hidden_layers ({self.num_hidden_layers}) to be a multiple of it, and at "
                             f"least layer_groups times it, got {self.layer_groups} groups of {self.layers_in_group}")
        if (buckets := self.position_buckets) and (buckets < 4 or buckets % 2 or self.position_span <= buckets):
            raise ValueError(f"model.position_buckets: expected 0 or an even number from 4 to below position_span ({self.position_span}), "
                             f"got {self.position_buckets}")
        if self.position_buckets and (self.relative_buckets or self.first_position):
            raise ValueError("model.position_buckets: expected 0 beside relative_buckets or first_position: positions are told in one way, "
                             f"got {self.position_buckets}")
        self._check_rotary_and_window()
        if self.relative_buckets and (self.relative_buckets < 4 or self.relative_buckets % 4):
            raise ValueError(f"model.relative_buckets: expected 0 or a multiple of 4, got {self.relative_buckets}")

    def _check_rotary_and_window(self) -> None:
        position_fields = [key for key in ("first_position", "relative_buckets", "position_buckets") if getattr(self, key)]
        if self.rotary and position_fields:
            raise ValueError(f"model.rotary: expected 0 beside {position_fields[0]}: positions are told in one way, got {self.rotary}")
        if self.rotary and self.hidden_size // self.num_attention_heads % 2:
            raise ValueError(f"model.rotary: expected heads of an even size (hidden_size / num_attention_heads), got "
                             f"{self.hidden_size // self.num_attention_heads}")
        if self.window and (self.relative_buckets or self.position_buckets):
            raise ValueError(f"model.window: expected 0 beside {position_fields[-1]}, got {self.window}")
        if self.global_every < (2 if self.window else 1):
            raise ValueError(f"model.global_every: expected at least 2, so that some layers have the window, got {self.global_every}")
        if self.window_rotary and not (self.window and self.rotary):
            raise ValueError(f"model.window_rotary: expected window and rotary beside it, got {self.window_rotary} without")
        if self.convolution and (self.convolution % 2 == 0 or self.num_hidden_layers < 2 or self.norm == "pre"
                                 or self.attention == "left_to_right"):
            raise ValueError("model.convolution: expected 0, or an odd number of tokens beside at least 2 layers with norm post and "
                             f"bidirectional attention, got {self.convolution}")
        if self.distance_projections and not self.position_buckets:
            raise ValueError("model.distance_projections: expected position_buckets beside it, got True without")
        if self.pooler_norm and self.embedding_size:
            raise ValueError(f"model.pooler_norm: expected False beside embedding_size ({self.embedding_size}): its rows are compared with "
                             "the word table")
        if self.pooling == "mean" and self.bilstm_layers:
            raise ValueError("model.pooling: expected first beside bilstm_layers: the pooler reads their last states, got mean")

    # Groups of the fields, for the functions that make the parts of an encoder.

    @property
    def positions(self) -> "PositionFields":
        """How the encoder knows positions."""
        return PositionFields(self.relative_buckets, self.position_buckets, self.rotary, self.window_rotary or self.rotary)

    @property
    def masked_lm(self) -> "MaskedLMFields":
        """The head for masked words."""
        return MaskedLMFields(self.masked_lm_act or self.hidden_act, not self.pooler_norm)

    def window_of_layer(self, index: int) -> int:
        """Returns the tokens on each side that layer `index` sees; 0: all."""
        return self.window if index % self.global_every else 0

    @property
    def longest_row(self) -> int:
        """The tokens for which there are positions."""
        longest = self.max_position_embeddings - self.first_position
        return min(self.row_limit, longest) if self.row_limit else longest

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The fields whose difference, or value, `longest_row` is."""
        if self.row_limit and self.row_limit == self.longest_row:
            return ("row_limit",)
        return ("max_position_embeddings", *(("first_position",) if self.first_position else ()))

    @property
    def table_width(self) -> int:
        """The width of the embedding tables and of the rows that the head for words compares with them."""
        return self.embedding_size or self.hidden_size

    @property
    def own_layers(self) -> int:
        """The layers with weights of their own."""
        return self.layer_groups * self.layers_in_group or self.num_hidden_layers

    def weights_of_layer(self, index: int) -> int:
        """Returns the number of the layer whose weights layer `index` uses."""
        if not self.layer_groups:
            return index
        use, place = divmod(index, self.layers_in_group)
        uses = self.num_hidden_layers // self.layers_in_group  # of all groups
        return int(use / (uses / self.layer_groups)) * self.layers_in_group + place


OF_2018 = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act",
           "hidden_dropout_prob", "attention_probs_dropout_prob", "max_position_embeddings", "type_vocab_size",
           "initializer_range")  # keys of bert_config.json
OF_RELATIVES = ("embedding_size", "first_position", "task_type_vocab_size", "layer_groups", "layers_in_group", "relative_buckets",
                "position_buckets", "position_span", "pooler_act", "masked_lm_act", "pooler_norm", "pooling", "norm", "feed_forward",
                "biases", "rotary", "window", "global_every", "window_rotary", "distance_projections", "convolution", "convolution_act",
                "row_limit")
BERT_BASE = ModelConfig()  # the default sizes of layers and models


def check_length(length: int, model: ModelConfig, where: str = "config.options.max_seq_length", least: int = 0) -> None:
    """Raises ValueError, naming `where`, for rows of more tokens than the model has positions, or of fewer than `least`."""
    most = model.longest_row
    if not least <= length <= most:
        limits = f"{least} to {most} (the model's positions" if least else f"at most the model's {most} positions ("
        key = " - ".join(f"model.{name}" for name in model.limited_by)
        raise ValueError(f"{where}: expected {limits}{', ' if least else ''}{key}), got {length}")
