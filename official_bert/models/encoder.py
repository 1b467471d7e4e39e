"""The encoder: embeddings, a stack of layers, the pooler (paper 3; 2018 `BertModel`)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import keras
from jaxtyping import Float

from official_bert.layers.attention import SelfAttention
from official_bert.layers.embeddings import Embeddings
from official_bert.layers.pooler import make_pooler
from official_bert.layers.speed.extension_points import extension_point
from official_bert.model_config import ModelConfig
from official_bert.models import encoder_parts
from official_bert.models.reader import Inputs, Outputs

INPUTS = ("input_ids", "input_mask", "segment_ids")
ENCODER_PREFIXES = (
    "embeddings/",
    "layer_",
    "bilstm_",
    "pooler/",
    "relative_positions/",
    "final_LayerNorm/",
    "convolution/",
)
GENERATOR = "generator"  # the beginning of its weights' names, and its folder beside a discriminator's files


@keras.saving.register_keras_serializable("official_bert")
class BertEncoder(keras.Model):
    """The encoder of BERT and its relatives. B batch, S sequence, P output rows, D hidden size, L layers.

    `settings` are fields of `ModelConfig`; `encoder_parts` makes the parts from them. `embeddings`, if given, replace
    the standard ones.

    Inputs, a dict: `input_ids`, `input_mask`, `segment_ids` [B,S]; optionally `position_ids` [B,S] (from 0),
    `task_type_ids` [B,S], `instance_ids` [B,S] (packed rows: tokens attend within their instance only), `cls_positions`
    [B,K] (the rows to pool in packed rows) and `output_positions` [B,P] (the rows to return; the last layer computes
    only them and the pooled ones).
    Outputs, a dict: `sequence_output` [B,S or P,D], `pooled_output` [B,D], or [B,K,D] for `cls_positions`,
    `embedding_output` [B,S,D] and, with `return_layers`, `layer_outputs`: L times [B,S,D]; the last is
    `sequence_output`.

    Without `cls_positions`, the pooler reads row 0, [CLS]; with `attention="left_to_right"` the last real row, the only
    one that has seen the others; with `pooling="mean"` the mean of the text's rows. With `bilstm_layers`,
    `sequence_output` comes from the last BiLSTM and `layer_outputs` from the transformer, and the pooler reads the last
    state of each direction.

    Raises ValueError for a sequence longer than the position table or `row_limit`, and for packed rows under a BiLSTM.
    """

    attention: ClassVar[type[SelfAttention] | None] = None  # a subclass may choose the attention of every layer

    def __init__(
        self,
        return_layers: bool = False,
        recompute: bool | str = False,
        embeddings: keras.layers.Layer | None = None,
        **settings: Any,
    ) -> None:
        fields = ModelConfig.__dataclass_fields__
        super().__init__(**{key: value for key, value in settings.items() if key not in fields})
        self.config = config = ModelConfig(**{key: value for key, value in settings.items() if key in fields})
        self.return_layers = return_layers
        self.settings = encoder_settings(config) | {"return_layers": return_layers, "recompute": recompute}
        policy = self.dtype_policy
        self.embeddings = Embeddings(config, name="embeddings", dtype=policy) if embeddings is None else embeddings
        self.relative_positions = encoder_parts.make_relative_positions(config, policy)
        self.transformer_layers = encoder_parts.make_layers(config, recompute, policy, self.attention)
        self.final_layer_norm = encoder_parts.make_final_norm(config, policy)
        self.convolution = encoder_parts.make_convolution(config, policy)
        self.bilstms = encoder_parts.make_bilstms(config, policy)
        self.pooler = make_pooler(config, policy)
        self.stack = encoder_parts.make_stack(self, recompute)
        self.reader = encoder_parts.make_reader(config, self.bilstms)
        self.built = False

    def build(self, *_: Any) -> None:
        """Makes the weights of every part."""
        width = self.config.hidden_size
        self.embeddings.build((None, None))
        if self.relative_positions is not None:
            self.relative_positions.build()
        for layer in (*self.transformer_layers, *self.bilstms, self.convolution, self.final_layer_norm):
            if layer is not None:
                layer.build((None, None, width))
        self.pooler.build((None, width))
        self.built = True

    @extension_point
    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        """Returns the outputs of the class for its `inputs`."""
        self.check(inputs)
        others = [inputs.get(name) for name in ("position_ids", "task_type_ids")]
        embedded = self.embeddings(inputs["input_ids"], inputs["segment_ids"], *others, training=training)  # [B,S,D]
        layout = encoder_parts.make_layout(self, inputs, embedded, training)
        x, layer_outputs, query_positions = layout.unpad(embedded), [], self.reader.query_positions(inputs)
        for layer in self.stack.steps[:-1]:  # paper 3: L layers
            x = layer(x, layout=layout, training=training)
            layer_outputs.append(x)
        if query_positions is None:
            x = layout.pad(self.stack.steps[-1](x, layout=layout, training=training))  # [B,S,D]
        else:  # only the rows that are read
            queries = self.reader.gather_rows(layout.pad(x), query_positions)
            x = self.stack.steps[-1](x, layout=layout.at(query_positions), queries=queries, training=training)
        sequence, pooled = self.reader.read(x, inputs, training)  # [B,S or P,D], [B,D]
        outputs = {"sequence_output": sequence, "pooled_output": self.pooler(pooled), "embedding_output": embedded}
        if self.return_layers:
            outputs["layer_outputs"] = [*map(layout.pad, layer_outputs), x if self.bilstms else sequence]
        return outputs

    def check(self, inputs: Inputs) -> None:
        """Raises ValueError for rows longer than `row_limit`, and for packed rows under a BiLSTM."""
        length, limit = inputs["input_ids"].shape[1], self.config.row_limit
        if limit and (length or 0) > limit:
            raise ValueError(f"sequence of {length} tokens is longer than the model's {limit} (row_limit)")
        self.reader.check(inputs)

    def read_rows(self, rows: Float[Any, "*M D"]) -> Float[Any, "*M D"]:
        """Returns the rows [...,D] that heads for words, tags and answers read.

        With `pooler_norm`, these rows have passed through the pooler.
        """
        return self.pooler(rows) if self.config.pooler_norm else rows

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self.settings


class EncoderWithHeads(keras.Model):
    """Base class of models with an encoder and heads: a subclass makes its heads in `__init__` and names them in
    `heads`.
    """

    heads: tuple[str, ...] = ()  # attributes: layers on rows [..., hidden size]
    encoder_options: ClassVar[dict] = {}  # of encoders that `make` builds

    def __init__(self, encoder: BertEncoder, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.encoder = encoder
        self.settings: dict = {}

    @classmethod
    def make(cls, config: ModelConfig, settings: Mapping[str, Any] | None = None, **options: Any) -> Self:
        """Returns the model of a configuration with all its weights.

        `settings` are arguments of the class, `options` those of the encoder.
        """
        model = cls(make_encoder(config, **cls.encoder_options, **options), **(settings or {}))
        model.build()
        return model

    def build(self, *_: Any) -> None:
        """Makes the weights of the encoder and the heads."""
        if not self.encoder.built:
            self.encoder.build()
        for head in self.heads:
            getattr(self, head).build((None, None, self.encoder.config.hidden_size))
        self.built = True

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | self.settings | {"encoder": keras.saving.serialize_keras_object(self.encoder)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**{**config, "encoder": keras.saving.deserialize_keras_object(config["encoder"])})


def encoder_within(model: keras.Model) -> Any:
    """Returns the encoder of a model with heads, or the model itself if it has none."""
    return getattr(model, "encoder", model)


def weights_by_name(model: keras.Model) -> dict[str, keras.Variable]:
    """Returns the weights of an encoder, or of a model with heads, by their paths without the names of encoder and
    model.

    A weight has the same name in every model, in whatever order the models were built.
    """
    encoder = encoder_within(model)
    weights: dict[str, keras.Variable] = {}
    for variable in model.weights:
        name = variable.path.removeprefix(f"{model.name}/").removeprefix(f"{encoder.name}/")
        assert name not in weights, f"two weights named {name}"
        weights[name] = variable
    return weights


def encoder_settings(config: ModelConfig) -> dict:
    """Returns the arguments of `BertEncoder` for a ModelConfig."""
    return {name: getattr(config, name) for name in ModelConfig.__dataclass_fields__}


def make_encoder(config: ModelConfig, **options: Any) -> BertEncoder:
    """Returns the encoder of a configuration with its weights; `options` are further arguments of `BertEncoder`."""
    encoder = BertEncoder(**encoder_settings(config), **{"name": "bert", **options})
    encoder.build()
    return encoder
