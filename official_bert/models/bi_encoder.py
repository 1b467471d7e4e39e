"""Embedding models: one encoder gives each text a vector by itself (Reimers and Gurevych 2019), or a weight for each
word of the vocabulary (SPLADE, Formal et al. 2021).

B batch, T texts of an example, R texts in all, S sequence, D hidden size, V words.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import keras
from keras import ops

from official_bert.layers.heads import MaskedLMHead
from official_bert.layers.speed.recomputation import recomputed_in_chunks
from official_bert.models.encoder import INPUTS, BertEncoder, EncoderWithHeads, Inputs, Outputs
from official_bert.models.text_vectors import PROMPT_TOKENS, make_vector_layers, text_vectors
from official_bert.models.vector_layers import Poolings, VectorLayer, poolings_of, vector_width

TEXTS_AT_ONCE = 2  # whose logits for words are held together


def cut_to_longest(rows: Any) -> Any:
    """Returns the encoder's inputs [R,S] without the columns in which no row has a token; their number stays a multiple
    of 8.

    It cuts only if S changes from batch to batch: otherwise compilers need fixed shapes.
    """
    if rows["input_mask"].shape[1] is not None:
        return rows
    longest = ops.max(ops.sum(ops.cast(rows["input_mask"], "int32"), axis=1))
    longest = (longest + 7) // 8 * 8
    return {name: value[:, :longest] for name, value in rows.items()}


@keras.saving.register_keras_serializable("official_bert")
class BiEncoder(EncoderWithHeads):
    """An encoder that gives each of the T texts of an example a vector.

    Inputs: `input_ids`, `input_mask`, `segment_ids` [B,T,S], optionally `prompt_tokens` [B,T,1]. Outputs: `embedding`
    [B,T,W], float32, of length 1. `layers` follow the pooling; the vector is the first `dimensions` numbers of their
    result (0: all). With `texts_at_once`, training encodes that many texts at a time and keeps no activations, so that
    memory does not limit the size of a group. With `cuts`, first texts are encoded apart from the others, each part cut
    to its longest text.
    """

    def __init__(
        self,
        encoder: BertEncoder,
        pooling: Poolings = "mean",
        texts_at_once: int = 0,
        cuts: bool = False,
        layers: Sequence[VectorLayer | Mapping[str, Any]] = (),
        dimensions: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, **kwargs)
        kinds = [layer if isinstance(layer, VectorLayer) else VectorLayer(**layer) for layer in layers]
        self.settings = {
            "pooling": pooling,
            "texts_at_once": texts_at_once,
            "cuts": cuts,
            "dimensions": dimensions,
            "layers": [dataclasses.asdict(layer) for layer in kinds],
        }
        hidden_size = encoder.config.hidden_size
        self.width = vector_width(hidden_size, pooling, kinds)
        self.vector_layers = make_vector_layers(kinds, hidden_size * len(poolings_of(pooling)))

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        texts = inputs["input_ids"].shape[1]
        sides = [(0, 1), (1, texts)] if self.settings["cuts"] and texts > 1 else [(0, texts)]
        # [B,T,D]
        vectors = ops.concatenate([self._encode(inputs, first, last, training) for first, last in sides], axis=1)
        return {"embedding": ops.normalize(vectors, axis=-1, order=2, epsilon=1e-12)}

    def _encode(self, inputs: Inputs, first: Any, last: Any, training: bool | None) -> Any:
        """Returns the vectors of some texts of each example, [B,last-first,D]."""
        rows = {
            name: ops.reshape(inputs[name][:, first:last], (-1, ops.shape(inputs[name])[2]))
            for name in self._names(inputs)
        }
        rows = cut_to_longest(rows) if self.settings["cuts"] else rows
        width, size = self.settings["dimensions"] or self.width, self.settings["texts_at_once"]
        if size and training:
            sites = [variable for variable in self.encoder.variables if variable.name == "seed_generator_state"]
            vectors = recomputed_in_chunks(
                lambda part: self._vectors(part, training=True), self.weights, sites, rows, size, width
            )
        else:
            vectors = self._vectors(rows, training)
        return ops.reshape(vectors, (-1, last - first, width))

    def _vectors(self, rows: Any, training: bool | None) -> Any:
        vectors = text_vectors(self.encoder, rows, self.settings["pooling"], self.vector_layers, training)
        return vectors[:, : self.settings["dimensions"] or self.width]  # [R,W]

    @staticmethod
    def _names(inputs: Inputs) -> tuple[str, ...]:
        """The inputs of `text_vectors` that are there."""
        return (*INPUTS, *([PROMPT_TOKENS] if PROMPT_TOKENS in inputs else ()))


@keras.saving.register_keras_serializable("official_bert")
class SparseEncoder(EncoderWithHeads):
    """An encoder with the head for words: the weight of a word is log(1 + ReLU(its largest logit over the text's
    tokens)).

    Inputs: `input_ids`, `input_mask`, `segment_ids` [B,T,S]. Outputs: `weights` [B,T,V], float32. The logits [R,S,V]
    never exist whole: they are computed for the positions of a few texts at a time, and again in the backward pass.
    """

    heads = ("masked_lm",)

    def __init__(self, encoder: BertEncoder, cuts: bool = False, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.settings = {"cuts": cuts}
        self.masked_lm = MaskedLMHead(encoder.config, name="masked_lm", dtype=self.dtype_policy)

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        _, texts, length = ops.shape(inputs["input_ids"])
        rows = {name: ops.reshape(inputs[name], (-1, length)) for name in INPUTS}  # [R,S]
        weights = self.word_weights(cut_to_longest(rows) if self.settings["cuts"] else rows, training)
        return {"weights": ops.reshape(weights, (-1, texts, self.encoder.config.vocab_size))}

    def word_weights(self, rows: Any, training: bool | None = None, in_parts: bool = True) -> Any:
        """Returns the weights [R,V] of the encoder's inputs [R,S]; `in_parts=False` computes all logits [R,S,V] at
        once.
        """
        hidden = self.encoder.read_rows(self.encoder(rows, training=training)["sequence_output"])  # [R,S,D]
        table = self.encoder.embeddings.word_embeddings

        def largest(part: Any) -> Any:
            logits = self.masked_lm(part["hidden"], table, training=training)  # [TEXTS_AT_ONCE,S,V]
            return ops.max(ops.where(ops.expand_dims(part["mask"], 2) > 0, logits, -1e9), axis=1)

        parts = {"hidden": hidden, "mask": rows["input_mask"]}
        if not in_parts:
            # ONNX has no log1p; of what it loses, nothing is left beyond float32's last place at 1.
            return ops.log(1.0 + ops.relu(largest(parts)))
        learned, words = [*self.masked_lm.weights, table], self.encoder.config.vocab_size
        return ops.log1p(ops.relu(recomputed_in_chunks(largest, learned, [], parts, TEXTS_AT_ONCE, words)))
