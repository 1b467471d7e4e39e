"""The model that tells replaced tokens: ELECTRA's discriminator (Clark et al. 2020, 2)."""

import keras

from official_bert.layers.attention import truncated_normal
from official_bert.layers.heads import OutputLayer
from official_bert.layers.transformer import get_activation
from official_bert.models.encoder import BertEncoder, EncoderWithHeads


@keras.saving.register_keras_serializable("official_bert")
class ReplacedTokenDetector(EncoderWithHeads):
    """An encoder with a number for each token: above 0 if a generator seems to have replaced it. B batch, S sequence, P wanted rows.

    Inputs: the encoder's. Outputs: `logits` [B,S or P], float32.
    """

    heads = ("replaced_transform", "replaced")

    def __init__(self, encoder: BertEncoder, **kwargs):
        super().__init__(encoder, **kwargs)
        config = encoder.config
        self.replaced_transform = keras.layers.Dense(
            config.hidden_size, get_activation(config.hidden_act), kernel_initializer=truncated_normal(config.initializer_range),
            name="replaced_transform", dtype=self.dtype_policy)
        self.replaced = OutputLayer(1, config.initializer_range, name="replaced", dtype=self.dtype_policy)

    def call(self, inputs, training=None):
        rows = self.encoder(inputs, training=training)["sequence_output"]             # [B,S or P,D]
        return {"logits": self.replaced(self.replaced_transform(rows))[..., 0]}
