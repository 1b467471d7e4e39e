"""A model of pre-training that shows its last layer: what a student of another model, and that model, are compared by."""

from collections.abc import Mapping
from typing import Any, ClassVar

import keras

from official_bert.models.pretrainer import Pretrainer

OF_RELATIONS = ("queries", "keys", "values")


@keras.saving.register_keras_serializable("official_bert")
class ObservedPretrainer(Pretrainer):
    """A `Pretrainer` that in training gives more outputs: `states` [B,S,D], the last layer's of all tokens, and its `queries`, `keys`
    and `values` [B,S,D], all heads beside each other, before positions turn them.

    Then the last layer is computed for all tokens, not for those alone that heads read.
    """

    encoder_options: ClassVar[dict] = {"return_layers": True}

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> dict[str, Any]:
        return self.observe(inputs, training=True) if training else super().call(inputs, training=training)

    def observe(self, inputs: Mapping[str, Any], training: bool | None = None) -> dict[str, Any]:
        """All outputs, in training or not."""
        encoder = self.encoder
        encoded = encoder(inputs, training=training)
        rows = encoder.read_rows(encoder.reader.gather_rows(encoded["sequence_output"], inputs["masked_lm_positions"]))
        outputs = {"mlm_logits": self.masked_lm(rows, encoder.embeddings.word_embeddings), "states": encoded["sequence_output"]}
        if self.next_sentence is not None:
            outputs["nsp_logits"] = self.next_sentence(encoded["pooled_output"])
        last = encoder.config.num_hidden_layers - 1
        below = encoded["layer_outputs"][last - 1] if last else encoded["embedding_output"]
        layer = encoder.transformer_layers[encoder.config.weights_of_layer(last)]
        return outputs | dict(zip(OF_RELATIONS, layer.queries_keys_values(below)))
