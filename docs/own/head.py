"""A head of your own: a hidden layer between the pooler and the logits."""

import keras

from official_bert.layers.activations import get_activation
from official_bert.layers.dense import Dense
from official_bert.models.classifier import Classifier
from official_bert.tasks.texts import classification


@keras.saving.register_keras_serializable("my_project")
class DeepClassifier(Classifier):
    """A classifier with a hidden layer. Outputs: `logits` [B,K]."""

    heads = ("hidden", "classifier")  # layers that are made anew if a checkpoint has no such head

    def __init__(self, encoder, **settings):
        super().__init__(encoder, **settings)
        self.hidden = Dense(
            encoder.config.hidden_size, activation=get_activation("gelu"), name="hidden", dtype=self.dtype_policy
        )

    def call(self, inputs, training=None):
        """inputs: `input_ids`, `input_mask`, `segment_ids` [B,S]."""
        nothing = inputs["input_ids"][:, :0]  # the last layer computes no row but that of [CLS]
        pooled = self.encoder({**inputs, "output_positions": nothing}, training=training)["pooled_output"]
        hidden = self.hidden(self.dropout(pooled, training=training))
        return {"logits": self.classifier(self.dropout(hidden, training=training))}


class Task(classification.Task):
    """Classification with this head."""

    def build_model(self):
        """Builds the encoder and the head."""
        settings = {"num_classes": self.num_outputs, "dropout": self.options.dropout}
        return DeepClassifier.make(self.config.model, settings, recompute=self.config.training.recompute)
