"""The model of sparse vectors: a weight for each word of the vocabulary (SPLADE, Formal et al. 2021).

B batch, T texts of an example, R texts in all, S sequence, V words.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from official_bert.layers.heads import MaskedLMHead
from official_bert.layers.speed.recomputation import recomputed_in_chunks
from official_bert.models.bi_encoder import cut_to_longest
from official_bert.models.encoder import INPUTS, BertEncoder, EncoderWithHeads

TEXTS_AT_ONCE = 2  # whose logits are held together


@keras.saving.register_keras_serializable("official_bert")
class SparseEncoder(EncoderWithHeads):
    """An encoder with the head for words: a word weighs log(1 + ReLU(its largest logit over the tokens of a text)).

    Inputs: `input_ids`, `input_mask`, `segment_ids` [B,T,S]. Outputs: `weights` [B,T,V], float32. The logits [R,S,V] never exist whole:
    they are computed for the positions of a few texts at a time, and again in the backward pass.
    """

    heads = ("masked_lm",)

    def __init__(self, encoder: BertEncoder, cuts: bool = False, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.settings = {"cuts": cuts}
        self.masked_lm = MaskedLMHead(encoder.config, name="masked_lm", dtype=self.dtype_policy)

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> dict[str, Any]:
        _, texts, length = ops.shape(inputs["input_ids"])
        rows = {name: ops.reshape(inputs[name], (-1, length)) for name in INPUTS}           # [R,S]
        weights = self.word_weights(cut_to_longest(rows) if self.settings["cuts"] else rows, training)
        return {"weights": ops.reshape(weights, (-1, texts, self.encoder.settings["vocab_size"]))}

    def word_weights(self, rows: Any, training: bool | None = None, in_parts: bool = True) -> Any:
        """Returns the weights [R,V] of rows [R,S] of the encoder's inputs; with `in_parts=False` from all logits [R,S,V] at once."""
        hidden = self.encoder.read_rows(self.encoder(rows, training=training)["sequence_output"])  # [R,S,D]
        table = self.encoder.embeddings.word_embeddings

        def largest(part: Any) -> Any:
            logits = self.masked_lm(part["hidden"], table, training=training)               # [TEXTS_AT_ONCE,S,V]
            return ops.max(ops.where(ops.expand_dims(part["mask"], 2) > 0, logits, -1e9), axis=1)
        parts = {"hidden": hidden, "mask": rows["input_mask"]}
        largest_scores = recomputed_in_chunks(largest, [*self.masked_lm.weights, table], [], parts, TEXTS_AT_ONCE,
                                     self.encoder.settings["vocab_size"]) if in_parts else largest(parts)
        # ONNX has no log1p; of what it loses, nothing is left beyond float32's last place at 1.
        return ops.log1p(ops.relu(largest_scores)) if in_parts else ops.log(1.0 + ops.relu(largest_scores))
