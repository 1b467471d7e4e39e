"""Makes the parts of an encoder from its configuration, and chooses the parts that relatives of BERT replace.

Smaller variants, such as gated units and missing biases, are fields of the layers. A new part is an object with the
interface of an existing one, and a line here.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import keras
from keras import ops

from official_bert.dotted_names import by_name
from official_bert.layers.attention import SelfAttention
from official_bert.layers.attention_mask import TokenInputs
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.positions import EMBEDDED, Positions
from official_bert.layers.speed.real_tokens import tokens_of
from official_bert.layers.token_layout import LONG, TokenLayout
from official_bert.layers.transformer import TransformerLayer
from official_bert.model_config import ModelConfig
from official_bert.models.reader import Inputs, LastRowReader, MeanReader, Reader
from official_bert.models.stack import InWindows, Normalized, Recomputed, Stack, Step, WithConvolution

# The parts of relatives, and of long rows, by the name that this file gives them.
PARTS: Mapping[str, str] = {
    "positions": "official_bert.layers.relatives.relative_positions",
    "disentangled attention": "official_bert.layers.relatives.disentangled_attention:DisentangledAttention",
    "pre-norm layer": "official_bert.layers.relatives.pre_norm:PreNormLayer",
    "more norms": "official_bert.layers.relatives.more_norms",
    "convolution": "official_bert.layers.relatives.convolution:Convolution",
    "windows": "official_bert.layers.relatives.windows:in_windows",
    "bilstm": "official_bert.models.bilstm_reader",
    "long rows": "official_bert.layers.speed.long_rows:LongLayout",
}


class PositionParts(Protocol):
    """The classes of `layers/relatives/relative_positions.py` that this module uses."""

    RelativePositions: type[keras.layers.Layer]
    DistanceEmbeddings: type[keras.layers.Layer]
    Alibi: Callable[[int, Any, Any], Positions]
    Rotary: Callable[..., Positions]


def _positions() -> PositionParts:
    return by_name(PARTS["positions"])


def make_relative_positions(config: ModelConfig, dtype: Any) -> keras.layers.Layer | None:
    """Returns the distance table that all layers share, or None for an encoder without one."""
    if config.relative_buckets:
        return _positions().RelativePositions(config, name="relative_positions", dtype=dtype)
    if config.position_buckets:
        return _positions().DistanceEmbeddings(config, name="relative_positions", dtype=dtype)
    return None


def make_layers(
    config: ModelConfig, recompute: bool | str, dtype: Any, attention: type[SelfAttention] | None = None
) -> list[TransformerLayer]:
    """Returns the layers that have weights of their own.

    With `recompute="attention"`, each layer recomputes its attention in the backward pass. `attention` is another class
    for the attention layers.
    """
    own: type[SelfAttention] = SelfAttention
    if config.position_buckets:
        own = by_name(PARTS["disentangled attention"])
    elif config.query_key_norm:
        own = by_name(PARTS["more norms"]).NormalizedAttention
    attention = attention or own
    layer: type[TransformerLayer] = TransformerLayer
    if config.norm == "pre":
        layer = by_name(PARTS["pre-norm layer"])
    elif config.norm == "twice":
        layer = by_name(PARTS["more norms"]).TwiceNormLayer
    layers = []
    for index in range(config.sharing.own_layers):
        options: dict[str, Any] = {"name": f"layer_{index}", "dtype": dtype}
        if config.norm == "pre":
            options["first"] = index == 0 and not config.sharing.groups
        own_attention = attention(config, recompute == "attention", name="attention", dtype=dtype)
        layers.append(layer(config, own_attention, **options))
    return layers


def make_final_norm(config: ModelConfig, dtype: Any) -> LayerNormalization | None:
    """Returns the layer norm after the last layer if layer norms stand before their sublayers, else None."""
    if config.norm != "pre":
        return None
    return LayerNormalization(
        epsilon=config.layer_norm_epsilon, center=config.biases, name="final_LayerNorm", dtype=dtype
    )


def make_convolution(config: ModelConfig, dtype: Any) -> keras.layers.Layer | None:
    """Returns the convolution over the embeddings, or None."""
    if not config.convolution:
        return None
    convolution: type[keras.layers.Layer] = by_name(PARTS["convolution"])
    return convolution(config, name="convolution", dtype=dtype)


def make_bilstms(config: ModelConfig, dtype: Any) -> list[keras.layers.Bidirectional]:
    """Returns the BiLSTMs on top of the encoder."""
    if not config.bilstm_layers:
        return []
    make: Callable[[int, str, Any], keras.layers.Bidirectional] = by_name(PARTS["bilstm"]).make_bilstm
    return [make(config.hidden_size, f"bilstm_{index}", dtype) for index in range(config.bilstm_layers)]


def make_stack(encoder: Any, recompute: bool | str) -> Stack:
    """Returns the layers of an encoder in order, each wrapped in its further steps."""
    config: ModelConfig = encoder.config
    steps: list[Step] = []
    for index in range(config.num_hidden_layers):
        step: Step = encoder.transformer_layers[config.sharing.weights_of_layer(index)]
        step = Recomputed(step) if recompute is True else step
        step = InWindows(step) if config.windows.of_layer(index) else step
        steps.append(step)
    if encoder.convolution is not None:
        steps[0] = WithConvolution(steps[0], encoder.convolution)
    if encoder.final_layer_norm is not None:
        steps[-1] = Normalized(steps[-1], encoder.final_layer_norm)
    return Stack(steps)


def make_reader(config: ModelConfig, bilstms: Sequence[keras.layers.Layer]) -> Reader:
    """Returns the reader, which chooses the returned and the pooled rows."""
    texts = Reader() if config.attention == "bidirectional" else LastRowReader()
    if bilstms:
        reader: Callable[[Reader, Sequence[keras.layers.Layer]], Reader] = by_name(PARTS["bilstm"]).BiLSTMReader
        return reader(texts, bilstms)
    return MeanReader(texts) if config.pooling == "mean" else texts


def make_layout(encoder: Any, inputs: Inputs, embedded: Any, training: bool | None) -> TokenLayout:
    """Returns the token layout of an encoder's `inputs`; `embedded` [B,S,D] is the output of the embeddings."""
    config: ModelConfig = encoder.config
    tokens = TokenInputs(
        ops.cast(inputs["input_mask"], "bool"),
        inputs.get("instance_ids"),
        config.attention == "left_to_right",
        embedded,
    )
    length = inputs["input_mask"].shape[1]
    padding = tokens_of(inputs["input_mask"], training)
    positions = make_positions(config, encoder.relative_positions, inputs)
    if config.longest_row > LONG and (length is None or length > LONG):
        long: type[TokenLayout] = by_name(PARTS["long rows"])
        layout = long(None, tokens, padding, positions)
    else:
        layout = TokenLayout(tokens.mask(), tokens, padding, positions)
    if not config.windows.size:
        return layout
    in_windows: Callable[[TokenLayout, int], TokenLayout] = by_name(PARTS["windows"])
    return dataclasses.replace(layout, windowed=in_windows(layout, config.windows.size))


def make_positions(config: ModelConfig, relative_positions: Any, inputs: Inputs) -> Positions:
    """Returns the `Positions` that attention reads."""
    if relative_positions is None and config.has_position_table:
        return EMBEDDED
    length = ops.shape(inputs["input_mask"])[1]
    if relative_positions is not None:
        return relative_positions.positions(length)
    position_ids = inputs.get("position_ids")
    if position_ids is None or config.alibi:
        position_ids = ops.expand_dims(ops.arange(length, dtype="int32"), 0)
    if config.alibi:
        return _positions().Alibi(config.num_attention_heads, position_ids, position_ids)
    size, base, window_base = (
        config.hidden_size // config.num_attention_heads,
        config.rotary,
        config.window_rotary or config.rotary,
    )
    rotary = _positions().Rotary
    return rotary(
        position_ids,
        base,
        size,
        config.rotary_factor,
        windows=None if window_base == base else rotary(position_ids, window_base, size),
    )
