"""The model that tells replaced tokens: ELECTRA's discriminator (Clark et al. 2020, 2)."""

import keras
from keras import ops

from official_bert.layers.attention import truncated_normal
from official_bert.layers.heads import OutputLayer
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.transformer import get_activation
from official_bert.models.encoder import BertEncoder, EncoderWithHeads


@keras.saving.register_keras_serializable("official_bert")
class ReplacedTokenDetector(EncoderWithHeads):
    """An encoder with a number for each token: above 0 if a generator seems to have replaced it. B batch, S sequence, P wanted rows.

    With `adds_first`, the row of [CLS] is added to each, and the sum normalized (DeBERTa v3). Inputs: the encoder's. Outputs: `logits`
    [B,S or P], float32.
    """

    heads: tuple[str, ...] = ("replaced_transform", "replaced")

    def __init__(self, encoder: BertEncoder, adds_first: bool = False, **kwargs):
        super().__init__(encoder, **kwargs)
        config = encoder.config
        self.settings = {"adds_first": adds_first}
        if adds_first:
            self.heads = ("replaced_layer_norm", *self.heads)
            self.replaced_layer_norm = LayerNormalization(epsilon=config.layer_norm_epsilon, name="replaced_LayerNorm",
                                                          dtype=self.dtype_policy)
        self.replaced_transform = keras.layers.Dense(
            config.hidden_size, get_activation(config.hidden_act), kernel_initializer=truncated_normal(config.initializer_range),
            name="replaced_transform", dtype=self.dtype_policy)
        self.replaced = OutputLayer(1, config.initializer_range, name="replaced", dtype=self.dtype_policy)

    def call(self, inputs, training=None):
        if self.settings["adds_first"] and (places := inputs.get("output_positions")) is not None:
            first = ops.zeros_like(places[:, :1])
            inputs = {**inputs, "output_positions": ops.concatenate([first, places], axis=1)}
        rows = self.encoder(inputs, training=training)["sequence_output"]             # [B,S or P,D]
        if self.settings["adds_first"]:
            sums = self.replaced_layer_norm(rows[:, :1] + rows)
            rows = sums if places is None else sums[:, 1:]
        return {"logits": self.replaced(self.replaced_transform(rows))[..., 0]}
