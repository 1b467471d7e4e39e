"""The pooler with a layer norm, of ModernBERT: its classifiers, taggers and head for words all begin with it."""

import keras

from official_bert.layers.layer_norm import LayerNormalization


@keras.saving.register_keras_serializable("official_bert")
class NormalizedPooler(keras.layers.Dense):
    """A product, its activation and a layer norm, without bias if the product has none: [...,D] -> [...,D]."""

    def __init__(self, units, epsilon=1e-5, use_bias=True, **kwargs):
        super().__init__(units, use_bias=use_bias, **kwargs)
        self.layer_norm = LayerNormalization(epsilon=epsilon, center=use_bias, name="LayerNorm", dtype=self.dtype_policy)

    def build(self, input_shape):
        """Makes the weights of both."""
        super().build(input_shape)
        self.layer_norm.build((*input_shape[:-1], self.units))

    def call(self, inputs, training=None):
        """[...,D] -> [...,D]."""
        return self.layer_norm(super().call(inputs, training=training))

    def get_config(self):
        return super().get_config() | {"epsilon": self.layer_norm.epsilon}
