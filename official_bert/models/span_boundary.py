"""SpanBERT's pre-training model (Joshi et al. 2020): it also predicts words from the rows beside their span."""

from typing import Any

import keras
from keras import ops

from official_bert.layers.heads import LONGEST_SPAN, SpanBoundaryHead, places_in_spans
from official_bert.models.encoder import BertEncoder, Inputs, Outputs
from official_bert.models.pretrainer import Pretrainer


@keras.saving.register_keras_serializable("official_bert")
class SpanPretrainer(Pretrainer):
    """A `Pretrainer` with a third head: if the inputs have `masked_lm_weights` [B,P], the outputs also have
    `boundary_logits` [B,P,V].
    """

    def __init__(self, encoder: BertEncoder, next_sentence: bool = True, **kwargs: Any) -> None:
        super().__init__(encoder, next_sentence, **kwargs)
        self.heads = (*self.heads, "boundary")
        self.boundary = SpanBoundaryHead(encoder.config, name="boundary", dtype=self.dtype_policy)

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        if "masked_lm_weights" not in inputs:
            return super().call(inputs, training=training)
        positions = inputs["masked_lm_positions"]
        begin, end, place = places_in_spans(positions, inputs["masked_lm_weights"])
        last, count = ops.shape(inputs["input_ids"])[1] - 1, ops.shape(positions)[1]
        beside = (ops.maximum(begin - 1, 0), ops.minimum(end + 1, last))
        read_positions = ops.concatenate([positions, *beside], axis=1)
        encoded = self.encoder({**inputs, "output_positions": read_positions}, training=training)
        rows = encoded["sequence_output"]  # [B,3P,D]
        outputs = self.read_heads(rows[:, :count], encoded)
        outputs["boundary_logits"] = self.boundary(
            rows[:, count : 2 * count],
            rows[:, 2 * count :],
            ops.minimum(place, LONGEST_SPAN - 1),
            self.encoder.embeddings.word_embeddings,
        )
        return outputs
