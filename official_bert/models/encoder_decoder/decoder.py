"""A decoder from BERT's layers (Rothe et al. 2020): left-to-right self-attention, a second attention over the encoder's
rows, and the feed-forward network.

B texts, R rows (K for each text: beams), T tokens so far, n new tokens, S tokens of the source, N heads, H head size, D
hidden size, V words.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import ops

from official_bert.layers.attention import SelfAttention, attend
from official_bert.layers.attention_mask import Tokens, is_not_behind, is_real, join, make_attention_mask
from official_bert.layers.configured import truncated_normal
from official_bert.layers.dense import Dense
from official_bert.layers.embeddings import Embeddings
from official_bert.layers.heads import MaskedLMHead
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.speed import fused
from official_bert.layers.token_layout import swap_heads
from official_bert.layers.transformer import normalized_sum
from official_bert.model_config import BERT_BASE, OF_RELATIVES, ModelConfig
from official_bert.models.encoder_parts import make_layers

# fields of relatives that change how layers see tokens: a decoder has BERT's values
OF_LAYERS = {*OF_RELATIVES, "bilstm_layers"} - {
    *("embedding_size", "first_position", "layer_groups", "layers_in_group", "pooler_act", "pooling", "masked_lm_act"),
    *("biases", "unbiased", "feed_forward", "row_limit"),
}
KeysAndValues = tuple[Any, Any]  # [_,N,_,H] each


class Memory(NamedTuple):
    """The encoder's rows for a decoder: keys and values [B,N,S,H] of each layer, and which are real [B,1,1,S]."""

    layers: Sequence[KeysAndValues]
    mask: Any


def keys_and_values(attention: SelfAttention, rows: Any) -> KeysAndValues:
    """Returns the keys and values of rows."""
    return swap_heads(attention.key(rows)), swap_heads(attention.value(rows))


def attended(attention: SelfAttention, queries: Any, seen: KeysAndValues, mask: Any, training: bool | None) -> Any:
    """Returns the output of an attention layer for queries that see these keys and values, by a mask [B,1,Q,S]."""
    q = swap_heads(attention.query(queries) * attention.scale)
    return attention.merge_heads(swap_heads(attend(q, *seen, mask, None, attention.dropout, training=training)))


class CrossAttention(keras.layers.Layer):
    """The attention of a decoder's layer over the encoder's rows, with residual and layer norm."""

    def __init__(self, config: ModelConfig, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        policy = self.dtype_policy
        self.attention = SelfAttention(config, name="attention", dtype=policy)
        self.dropout = fused.Dropout(config.hidden_dropout_prob, dtype=policy)
        self.layer_norm = LayerNormalization(
            epsilon=config.layer_norm_epsilon, center=config.biases, name="LayerNorm", dtype=policy
        )

    def build(self, shape: Any) -> None:
        """Makes the weights."""
        self.attention.build(shape)
        self.layer_norm.build(shape)
        self.built = True

    def call(self, x: Any, seen: Any, mask: Any, training: bool | None = None) -> Any:
        """Returns LayerNorm(x + attention over the encoder's keys and values) for rows x [R,n,D].

        The rows of a text's beams are queries of one attention, so that its keys are not copied for each.
        """
        queries = ops.reshape(x, (ops.shape(seen[0])[0], -1, x.shape[2]))  # [B,K*n,D]
        context = ops.reshape(attended(self.attention, queries, seen, mask, training), ops.shape(x))
        return normalized_sum(context, x, self.dropout, self.layer_norm, training=training)


class Decoder(keras.layers.Layer):
    """The layers of a decoder, its own or those of the encoder `shared` (BERTShare), and its head for words.

    Without `transforms`, the head is a product with the word table alone (BertGeneration). Raises ValueError for a
    configuration whose layers are not like BERT's.
    """

    def __init__(self, config: ModelConfig, transforms: bool = True, shared: Any = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for key in sorted(OF_LAYERS):
            if (value := getattr(config, key)) != getattr(BERT_BASE, key):
                raise ValueError(f"decoder: a second attention is computed in layers like BERT's, got {key} {value!r}")
        policy, self.config, self.owns = self.dtype_policy, config, shared is None
        self.embeddings = Embeddings(config, name="embeddings", dtype=policy) if self.owns else shared.embeddings
        self.transformer_layers = make_layers(config, False, policy) if self.owns else shared.transformer_layers
        self.cross_attentions = [
            CrossAttention(config, name=f"cross_{index}", dtype=policy) for index in range(config.num_hidden_layers)
        ]
        self.masked_lm = MaskedLMHead(config, transforms=transforms, name="masked_lm", dtype=policy)
        self.projection: Dense | None = None  # of the encoder's rows

    def build(self, memory_shape: Any) -> None:
        """Makes the weights; a projection of the encoder's rows if these have another width."""
        width = self.config.hidden_size
        own = (self.embeddings, *self.transformer_layers) if self.owns else ()
        for part in (*own, *self.cross_attentions, self.masked_lm):
            part.build((None, None, width))
        if memory_shape[-1] != width:
            initializer = truncated_normal(self.config.initializer_range)
            self.projection = Dense(width, kernel_initializer=initializer, name="projection", dtype=self.dtype_policy)
            self.projection.build(memory_shape)
        self.built = True

    def remember(self, rows: Any, mask: Any) -> Memory:
        """Returns what all words see of the encoder's rows, whose mask is [B,S]."""
        rows = rows if self.projection is None else self.projection(rows)
        layers = [keys_and_values(cross.attention, rows) for cross in self.cross_attentions]
        return Memory(layers, make_attention_mask(mask))

    def extend(
        self,
        ids: Any,
        memory: Memory,
        past: Sequence[KeysAndValues] = (),
        mask: Any = None,
        positions: Any = None,
        training: bool | None = None,
    ) -> tuple[Any, list[KeysAndValues]]:
        """Returns the rows of new tokens `ids` [R,n], and the keys and values [R,N,T+n,H] of each layer with theirs.

        `past` has those of the T tokens before them. `mask` [R,n] is 0 for padding among tokens without a past,
        `positions` [R,n] are their places (from 0) if they are not T, T + 1, ...
        """
        begin = ops.shape(past[0][0])[2] if past else 0
        places = begin + ops.arange(ops.shape(ids)[1], dtype="int32")
        if positions is None:
            positions = ops.where(ids == self.config.first_position - 1, -1, places)  # RoBERTa's padding has its own
        keys = Tokens(
            input_mask=None if mask is None else ops.cast(mask, "bool"),
            places=ops.expand_dims(ops.arange(begin + ops.shape(ids)[1], dtype="int32"), 0),
        )
        rules = [is_not_behind] if mask is None else [is_not_behind, is_real]
        seen = join(rules, Tokens(places=ops.expand_dims(places, 0)), keys)  # [R or 1,1,n,T+n]
        x, grown = self.embeddings(ids, ops.zeros_like(ids), positions, training=training), []
        for index, cross in enumerate(self.cross_attentions):
            layer = self.transformer_layers[self.config.sharing.weights_of_layer(index)]
            keys, values = keys_and_values(layer.attention, x)
            if past:
                keys, values = (ops.concatenate(pair, axis=2) for pair in zip(past[index], (keys, values)))
            grown.append((keys, values))
            context = attended(layer.attention, x, grown[-1], seen, training)
            x = normalized_sum(context, x, layer.attention_dropout, layer.attention_layer_norm, training=training)
            x = cross(x, memory.layers[index], memory.mask, training=training)
            transformed = layer.feed_forward_of(x, training)
            x = normalized_sum(transformed, x, layer.output_dropout, layer.output_layer_norm, training=training)
        return x, grown

    def logits(self, rows: Any, training: bool | None = None) -> Any:
        """Returns the logits of the next word after each row, float32."""
        return self.masked_lm(rows, self.embeddings.word_embeddings, training=training)
