"""Where an answer starts and ends in its context (paper 4.2 and 4.3; 2018 `run_squad.py`)."""

import keras

from official_bert.config import ModelConfig
from official_bert.layers.heads import OutputLayer
from official_bert.models.encoder import BertEncoder, EncoderWithHeads, make_encoder


@keras.saving.register_keras_serializable("official_bert")
class SpanPredictor(EncoderWithHeads):
    """An encoder with a start and an end vector. B batch, S sequence.

    Inputs: the encoder's. Outputs: `start_logits`, `end_logits` [B,S], float32.
    """

    def __init__(self, encoder: BertEncoder, **kwargs):
        super().__init__(encoder, **kwargs)
        self.span = OutputLayer(2, encoder.settings["initializer_range"], name="span", dtype=self.dtype_policy)

    def build(self, *_):
        """Makes every weight."""
        super().build()
        self.span.build((None, None, self.encoder.settings["hidden_size"]))

    def call(self, inputs, training=None):
        """The dict of inputs -> the dict of outputs, both described with the class."""
        logits = self.span(self.encoder(inputs, training=training)["sequence_output"])  # [B,S,2]
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}


def make_span_predictor(config: ModelConfig, **options) -> SpanPredictor:
    """The span predictor of a configuration, its weights made; `options` are the encoder's."""
    model = SpanPredictor(make_encoder(config, **options))
    model.build()
    return model
