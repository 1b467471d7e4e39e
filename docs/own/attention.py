"""An attention variant of your own: queries and keys have length 1 (Henry et al., 2020).

It has the weights of `SelfAttention`: those of a checkpoint have to fit.
"""

import keras
from keras import ops

from official_bert.layers.attention import SelfAttention
from official_bert.layers.token_layout import TokenLayout
from official_bert.models.classifier import Classifier
from official_bert.models.encoder import BertEncoder, encoder_settings
from official_bert.tasks.texts import classification

SHARPNESS = 10.0


@keras.saving.register_keras_serializable("my_project")
class CosineAttention(SelfAttention):
    """Scores are cosines, times a number."""

    def call(self, x, layout, queries=None, training=None):
        """x [B,S,D], layout a `TokenLayout`, queries [B,Q,D] (some rows of x) or None -> [B,Q,D]."""
        layout = TokenLayout.of(layout, queries)
        q = ops.normalize(self.query(layout.query_rows(x, queries)), axis=-1) * SHARPNESS  # [B,Q,N,H]
        k = ops.normalize(self.key(x), axis=-1)
        q, k, v = layout.split_heads(q, k, self.value(x))
        return self.merge_heads(layout.merge_rows(self.attend(layout, q, k, v, training)))


@keras.saving.register_keras_serializable("my_project")
class CosineEncoder(BertEncoder):
    """An encoder with this attention in every layer."""

    attention = CosineAttention


class Task(classification.Task):
    """Classification with this encoder."""

    def build_model(self):
        """Builds the encoder and the head."""
        encoder = CosineEncoder(**encoder_settings(self.config.model), name="bert")
        encoder.build()
        model = Classifier(encoder, num_classes=self.num_outputs, dropout=self.options.dropout)
        model.build()
        return model
