"""The encoder: embeddings, a stack of layers, the pooler (paper 3; 2018 `BertModel`)."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import keras
from keras import ops

from official_bert.layers.attention import make_attention_mask, truncated_normal
from official_bert.layers.bilstm import last_states, make_bilstm, run_bilstm
from official_bert.layers.convolution import Convolution
from official_bert.layers.embeddings import Embeddings
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.pooler import NormalizedPooler
from official_bert.layers.real_tokens import tokens_of
from official_bert.layers.recomputation import recomputed
from official_bert.layers.relative_positions import DistanceEmbeddings, RelativePositions, Rotary
from official_bert.layers.transformer import TransformerLayer, get_activation
from official_bert.layers.visibility import LONG, Visibility
from official_bert.model_config import ModelConfig

INPUTS = ("input_ids", "input_mask", "segment_ids")
ENCODER_PREFIXES = ("embeddings/", "layer_", "bilstm_", "pooler/", "relative_positions/", "final_LayerNorm/", "convolution/")


def last_real_places(input_mask):
    """Returns the place of the last real token of each row: input_mask [B,S] -> [B,1], 0 for a row without any."""
    places = ops.arange(ops.shape(input_mask)[1], dtype="int32")
    return ops.max(ops.cast(input_mask, "int32") * places, axis=1, keepdims=True)


@keras.saving.register_keras_serializable("official_bert")
class BertEncoder(keras.Model):
    """The encoder of BERT and its relatives. B batch, S sequence, P wanted rows, D hidden size, L layers.

    `settings` are the fields of `ModelConfig`, which say what is computed; `embeddings` replace those that they say.

    Inputs, a dict: `input_ids`, `input_mask`, `segment_ids` [B,S]; optionally `position_ids` [B,S] (from 0), `task_type_ids` [B,S],
    `instance_ids` [B,S] (packed rows: tokens attend within their instance only), `cls_positions` [B,K] (the rows to pool: of packed
    instances) and `output_positions` [B,P] (only these rows are returned; the last layer computes only them and the pooled ones).
    Outputs, a dict: `sequence_output` [B,S or P,D], `pooled_output` [B,D], or [B,K,D] for `cls_positions`, `embedding_output` [B,S,D]
    and, with `return_layers`, `layer_outputs`: L times [B,S,D]; the last is `sequence_output`.

    Without `cls_positions`, the pooler reads row 0, [CLS]; with `attention="left_to_right"` the last real row, which alone has seen the
    others; with `pooling="mean"` the mean of the text's rows. With `bilstm_layers`, `sequence_output` is that of the last BiLSTM,
    `layer_outputs` are those of the transformer, and the pooler reads the last state of each direction.

    Raises ValueError for a sequence longer than the position table or `row_limit`, and for packed rows under a BiLSTM.
    """

    def __init__(self, return_layers=False, recompute=False, embeddings=None, **settings):
        fields = ModelConfig.__dataclass_fields__
        super().__init__(**{key: value for key, value in settings.items() if key not in fields})
        config = ModelConfig(**{key: value for key, value in settings.items() if key in fields})
        self.config = config
        self.settings = encoder_settings(config) | {"return_layers": return_layers, "recompute": recompute}
        policy = self.dtype_policy
        self.embeddings = Embeddings(**embedding_settings(config), name="embeddings", dtype=policy) if embeddings is None else embeddings
        self.relative_positions = None
        if config.relative_buckets:
            self.relative_positions = RelativePositions(config.relative_buckets, config.num_attention_heads, config.longest_row,
                                                        config.initializer_range, name="relative_positions", dtype=policy)
        elif config.position_buckets:
            self.relative_positions = DistanceEmbeddings(
                config.position_buckets, config.position_span, config.hidden_size, config.longest_row, config.initializer_range,
                config.layer_norm_epsilon, name="relative_positions", dtype=policy)
        self.transformer_layers = [
            TransformerLayer(config.num_attention_heads, config.hidden_size, config.intermediate_size, config.hidden_act,
                             config.hidden_dropout_prob, config.attention_probs_dropout_prob, config.initializer_range,
                             config.layer_norm_epsilon, recompute == "attention", 3 if config.position_buckets else 1, config.norm,
                             config.feed_forward, config.biases, config.norm == "pre" and index == 0 and not config.layer_groups,
                             config.distance_projections, name=f"layer_{index}", dtype=policy) for index in range(config.own_layers)]
        self.final_layer_norm = LayerNormalization(epsilon=config.layer_norm_epsilon, center=config.biases, name="final_LayerNorm",
                                                   dtype=policy) if config.norm == "pre" else None
        self.convolution = Convolution(
            config.convolution, config.hidden_size, config.convolution_act, config.hidden_dropout_prob, config.initializer_range,
            config.layer_norm_epsilon, config.biases, name="convolution", dtype=policy) if config.convolution else None
        self.bilstms = [make_bilstm(config.hidden_size, f"bilstm_{index}", policy) for index in range(config.bilstm_layers)]
        pooler = {"units": config.hidden_size, "activation": get_activation(config.pooler_act), "use_bias": config.biases,
                  "kernel_initializer": truncated_normal(config.initializer_range), "name": "pooler", "dtype": policy}
        self.pooler = NormalizedPooler(epsilon=config.layer_norm_epsilon, **pooler) if config.pooler_norm else keras.layers.Dense(**pooler)
        self.built = False

    def build(self, *_):
        width = self.settings["hidden_size"]
        self.embeddings.build(None)
        if self.relative_positions is not None:
            self.relative_positions.build()
        for layer in (*self.transformer_layers, *self.bilstms, self.convolution, self.final_layer_norm):
            if layer is not None:
                layer.build((None, None, width))
        self.pooler.build((None, width))
        self.built = True

    def call(self, inputs, training=None):
        if (most := self.config.row_limit) and (length := inputs["input_ids"].shape[1] or 0) > most:
            raise ValueError(f"sequence of {length} tokens is longer than the model's {most} (row_limit)")
        knows_places = self.config.window or self.config.rotary or self.config.longest_row > LONG
        mask = (Visibility if knows_places else make_attention_mask)(
            inputs["input_mask"], inputs.get("instance_ids"), self.settings["attention"] == "left_to_right")
        positions, cls_positions = inputs.get("output_positions"), inputs.get("cls_positions")
        pooled_places = self.pooled_places(inputs["input_mask"]) if cls_positions is None else ops.cast(cls_positions, "int32")
        if self.bilstms and ("instance_ids" in inputs or cls_positions is not None):
            raise ValueError("instance_ids: expected none, because a BiLSTM (model.bilstm_layers) reads across packed instances")
        x = embedded = self.embeddings(inputs["input_ids"], inputs["segment_ids"], inputs.get("position_ids"),
                                       inputs.get("task_type_ids"), training=training)  # [B,S,D]
        count, mean = self.config.num_hidden_layers, self.config.pooling == "mean"
        layer_outputs, prunes = [], positions is not None and not self.bilstms and not mean
        layers = [self.transformer_layers[self.config.weights_of_layer(index)] for index in range(count)]
        distances, rotaries = self._distances(x), self._rotaries(x, inputs.get("position_ids"))
        tokens = tokens_of(inputs["input_mask"], training)
        x = tokens.take(x)                                                            # [B,S,D], or [1,T,D] of real tokens alone
        for index, layer in enumerate(layers):
            if knows_places:
                window = self.config.window_of_layer(index)
                mask = mask.of_layer(window, rotaries[window > 0])
            if prunes and index == count - 1:
                wanted = ops.concatenate([pooled_places, ops.cast(positions, "int32")], axis=1)
                x = self._last_rows(layer, x, mask, wanted, tokens, training)
            else:
                x = self._run(layer, x, mask, distances, tokens, training)
            if index == 0 and self.convolution is not None:
                x = tokens.take(self.convolution(tokens.put(x), embedded, inputs["input_mask"], inputs.get("instance_ids"),
                                                 training=training))
            if index == count - 1 and self.final_layer_norm is not None:
                x = self.final_layer_norm(x)
            layer_outputs.append(x)
        if not prunes:
            x = layer_outputs[-1] = tokens.put(x)                                     # [B,S,D]
        if self.bilstms:
            x, pooled = self._run_bilstms(x, inputs["input_mask"], positions, training)
        elif prunes:
            count = 1 if cls_positions is None else ops.shape(pooled_places)[1]
            pooled, x = x[:, :count], x[:, count:]                                    # [B,1 or K,D], [B,P,D]
        elif mean:
            pooled = self._means(x, inputs, pooled_places)                            # [B,1 or K,D]
            x = x if positions is None else self.gather_rows(x, positions)
        else:
            first = cls_positions is None and self.settings["attention"] == "bidirectional"
            pooled = x[:, :1] if first else self.gather_rows(x, pooled_places)        # [B,1 or K,D]
        if cls_positions is None and not self.bilstms:
            pooled = pooled[:, 0]                                                     # [B,D]
        outputs = {"sequence_output": x, "pooled_output": self.pooler(pooled), "embedding_output": embedded}
        if self.settings["return_layers"]:
            outputs["layer_outputs"] = [*map(tokens.put, layer_outputs[:-1]), layer_outputs[-1] if self.bilstms else x]
        return outputs

    @staticmethod
    def gather_rows(x, positions):
        """Gathers the rows `positions` [B,P] of x [B,S,D] -> [B,P,D]; exported graphs do it by another operation."""
        return ops.take_along_axis(x, ops.expand_dims(ops.cast(positions, "int32"), 2), axis=1)

    def pooled_places(self, input_mask):
        """Returns the places [B,1] of the rows that stand for whole texts: that of [CLS] or, left to right, of the last real token."""
        if self.settings["attention"] == "bidirectional":
            return ops.zeros_like(input_mask[:, :1], dtype="int32")
        return last_real_places(input_mask)

    def read_rows(self, rows):
        """What heads for words, tags and answers read of rows [...,D]: with `pooler_norm`, the pooler's product of each."""
        return self.pooler(rows) if self.config.pooler_norm else rows

    @staticmethod
    def _means(x, inputs, places):
        """The means [B,K,D] of the rows of the texts that stand at `places` [B,K]."""
        counted = ops.cast(ops.expand_dims(inputs["input_mask"], 1), x.dtype)         # [B,1,S]
        if "instance_ids" in inputs:
            own = ops.take_along_axis(inputs["instance_ids"], places, axis=1)
            counted = counted * ops.cast(ops.expand_dims(own, 2) == ops.expand_dims(inputs["instance_ids"], 1), x.dtype)
        return ops.matmul(counted, x) / ops.maximum(ops.sum(counted, axis=2, keepdims=True), 1)

    def _run_bilstms(self, x, input_mask, positions, training):
        """Runs the BiLSTMs over the real rows of x [B,S,D]; returns the wanted rows, or all, and the last states [B,D]."""
        for bilstm in self.bilstms:
            x = run_bilstm(bilstm, x, ops.cast(input_mask, "bool"), training)         # [B,S,D]
        return x if positions is None else self.gather_rows(x, positions), last_states(x, last_real_places(input_mask))

    def _distances(self, x, places=None):
        """What layers are told of the distances of rows of x [B,S,D] from queries at `places` [B,Q], or from all, as their arguments."""
        if self.relative_positions is None:
            return {}
        keys = ops.arange(ops.shape(x)[1], dtype="int32")
        found = self.relative_positions(ops.expand_dims(keys, 0) if places is None else places, keys)
        return {"bias": found} if self.config.relative_buckets else {"distances": found[0], "distance_rows": found[1]}

    def _rotaries(self, x, position_ids):
        """What turns queries and keys in layers that see all rows of x [B,S,D], and in those with a window."""
        config = self.config
        if not config.rotary:
            return None, None
        places = ops.expand_dims(ops.arange(ops.shape(x)[1], dtype="int32"), 0) if position_ids is None else position_ids
        everywhere = Rotary(places, config.rotary, config.hidden_size // config.num_attention_heads)
        if config.window_rotary in (0.0, config.rotary):
            return everywhere, everywhere
        return everywhere, Rotary(places, config.window_rotary, config.hidden_size // config.num_attention_heads)

    def _run(self, layer, x, mask, distances, tokens, training):
        """Runs a whole layer; with `recompute=True`, the backward pass computes its activations again."""
        if self.settings["recompute"] is True and training:
            sites = [variable for variable in layer.variables if variable.name == "seed_generator_state"]
            learned = [name for name in distances if name in ("bias", "distances")]  # gradients flow to arguments alone
            constants = {name: value for name, value in distances.items() if name not in learned}
            return recomputed(
                lambda rows, *more: layer(rows, attention_mask=mask, tokens=tokens, training=True, **constants, **dict(zip(learned, more))),
                layer.weights, sites, x, *(distances[name] for name in learned))
        return layer(x, attention_mask=mask, tokens=tokens, training=training, **distances)

    def _last_rows(self, layer, x, mask, positions, tokens, training):
        """Runs the last layer for the rows at `positions` [B,1+P] only -> [B,1+P,D]; keys and values come from all rows."""
        rows = tokens.put(x)                                                          # [B,S,D]
        if isinstance(mask, Visibility):
            mask = mask.of_layer(mask.window, mask.rotary, positions)
        elif mask.shape[2] != 1:
            mask = ops.take_along_axis(mask, ops.expand_dims(positions, (1, 3)), axis=2)  # [B,1,1+P,S]
        return layer(x, attention_mask=mask, queries=self.gather_rows(rows, positions), tokens=tokens, training=training,
                     **self._distances(rows, positions))

    def get_config(self):
        return super().get_config() | self.settings


class EncoderWithHeads(keras.Model):
    """The base of models of an encoder and heads: a subclass makes its heads in `__init__` and names them in `heads`."""

    heads: tuple[str, ...] = ()  # attributes: layers on rows [..., hidden size]
    encoder_options: ClassVar[dict] = {}  # of encoders that `make` builds

    def __init__(self, encoder: BertEncoder, **kwargs):
        super().__init__(**kwargs)
        self.encoder = encoder
        self.settings: dict = {}

    @classmethod
    def make(cls, config: ModelConfig, settings: Mapping[str, Any] | None = None, **options) -> Self:
        """Makes the model of a configuration with all its weights; `settings` are the class's own, `options` the encoder's."""
        model = cls(make_encoder(config, **cls.encoder_options, **options), **(settings or {}))
        model.build()
        return model

    def build(self, *_):
        """Makes the weights of the encoder and the heads."""
        if not self.encoder.built:
            self.encoder.build()
        for head in self.heads:
            getattr(self, head).build((None, None, self.encoder.settings["hidden_size"]))
        self.built = True

    def get_config(self):
        return super().get_config() | self.settings | {"encoder": keras.saving.serialize_keras_object(self.encoder)}

    @classmethod
    def from_config(cls, config):
        return cls(**{**config, "encoder": keras.saving.deserialize_keras_object(config["encoder"])})


def encoder_within(model: keras.Model) -> Any:
    """Returns the encoder of a model with heads; any other model is its own."""
    return getattr(model, "encoder", model)


def weights_by_name(model: keras.Model) -> dict[str, keras.Variable]:
    """The weights of an encoder, or of a model with heads, by their paths without the names of encoder and model.

    So a weight has one name, whatever the models are called and in whatever order they were built.
    """
    encoder = encoder_within(model)
    weights: dict[str, keras.Variable] = {}
    for variable in model.weights:
        name = variable.path.removeprefix(f"{model.name}/").removeprefix(f"{encoder.name}/")
        assert name not in weights, f"two weights named {name}"
        weights[name] = variable
    return weights


def embedding_settings(config: ModelConfig) -> dict:
    """The arguments of `Embeddings` for a ModelConfig."""
    return {"vocab_size": config.vocab_size, "hidden_size": config.hidden_size, "max_position_embeddings": config.max_position_embeddings,
            "type_vocab_size": config.type_vocab_size, "dropout": config.hidden_dropout_prob,
            "initializer_range": config.initializer_range, "layer_norm_epsilon": config.layer_norm_epsilon,
            "embedding_size": config.embedding_size, "first_position": config.first_position,
            "task_type_vocab_size": config.task_type_vocab_size, "has_positions": not (config.position_buckets or config.rotary),
            "biases": config.biases}


def encoder_settings(config: ModelConfig) -> dict:
    """The arguments of `BertEncoder` for a ModelConfig."""
    return {name: getattr(config, name) for name in ModelConfig.__dataclass_fields__}


def make_encoder(config: ModelConfig, **options) -> BertEncoder:
    """Makes the encoder of a configuration with its weights; `options` are further arguments of `BertEncoder`."""
    encoder = BertEncoder(**encoder_settings(config), **{"name": "bert", **options})
    encoder.build()
    return encoder
