"""Pre-training models: an encoder, a masked-LM head and, for most objectives, a next-sentence head.

`ObservedPretrainer` also returns its last layer, by which distillation compares student and teacher.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Self

import keras

from official_bert.dotted_names import by_name
from official_bert.layers.heads import MaskedLMHead, OutputLayer
from official_bert.models.encoder import BertEncoder, EncoderWithHeads, Inputs, Outputs

OF_RELATIONS = ("queries", "keys", "values")


@keras.saving.register_keras_serializable("official_bert")
class Pretrainer(EncoderWithHeads):
    """An encoder with the masked-LM head and, unless `next_sentence` is False, the next-sentence head (2018
    `run_pretraining.py`).

    Inputs: the encoder's and `masked_lm_positions` [B,P]. Outputs, float32: `mlm_logits` [B,P,V] and, with the second
    head, `nsp_logits` [B,2], or [B,K,2] for packed rows with `cls_positions` [B,K]. `nsp_logits` distinguish next from
    random sentences, or the two orders of segments, depending on the training.
    """

    def __init__(self, encoder: BertEncoder, next_sentence: bool = True, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.settings = {"next_sentence": next_sentence}
        self.heads = ("masked_lm", *(("next_sentence",) if next_sentence else ()))
        config, policy = encoder.config, self.dtype_policy
        self.masked_lm = MaskedLMHead(config, name="masked_lm", dtype=policy)
        self.next_sentence = (
            OutputLayer(2, config.initializer_range, name="next_sentence", dtype=policy) if next_sentence else None
        )

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Returns the model of a configuration, also from files that predate `SpanPretrainer`."""
        known = {key: value for key, value in config.items() if key != "boundary"}
        if config.get("boundary"):
            spans: type[Self] = by_name("official_bert.models.span_boundary:SpanPretrainer")
            return spans.from_config(known)
        return super().from_config(known)

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        encoded = self.encoder({**inputs, "output_positions": inputs["masked_lm_positions"]}, training=training)
        return self.read_heads(encoded["sequence_output"], encoded)

    def read_heads(self, rows: Any, encoded: Inputs) -> Outputs:
        """Returns the outputs from the rows [B,P,D] at the masked positions and the encoder's outputs."""
        outputs = {"mlm_logits": self.masked_lm(self.encoder.read_rows(rows), self.encoder.embeddings.word_embeddings)}
        if self.next_sentence is not None:
            outputs["nsp_logits"] = self.next_sentence(encoded["pooled_output"])
        return outputs

    def generate(self, inputs: Inputs, **how: Any) -> Outputs:
        """Fills the [MASK]s of rows in passes, with the arguments of `official_bert.generation.generate.generate`."""
        fill: Callable[..., Outputs] = by_name("official_bert.generation.generate").generate
        return fill(self, inputs, **how)


@keras.saving.register_keras_serializable("official_bert")
class ObservedPretrainer(Pretrainer):
    """A `Pretrainer` with more outputs in training: `states` [B,S,D] of all tokens in the last layer, and its
    `queries`, `keys` and `values` [B,S,D], with the heads concatenated, before rotary positions.

    The last layer is then computed for all tokens, not only for those that heads read.
    """

    encoder_options: ClassVar[dict] = {"return_layers": True}

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        return self.observe(inputs, training=True) if training else super().call(inputs, training=training)

    def observe(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        """Returns all outputs, in training or not."""
        encoder = self.encoder
        encoded = encoder(inputs, training=training)
        rows = encoder.reader.gather_rows(encoded["sequence_output"], inputs["masked_lm_positions"])
        outputs = self.read_heads(rows, encoded) | {"states": encoded["sequence_output"]}
        last = encoder.config.num_hidden_layers - 1
        below = encoded["layer_outputs"][last - 1] if last else encoded["embedding_output"]
        layer = encoder.transformer_layers[encoder.config.sharing.weights_of_layer(last)]
        return outputs | dict(zip(OF_RELATIONS, layer.queries_keys_values(below)))
