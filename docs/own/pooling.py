"""A pooling of your own: the classifier reads the largest number of each column over the real tokens, not [CLS]."""

import keras
from keras import ops

from official_bert.models.classifier import Classifier
from official_bert.tasks.texts import classification


@keras.saving.register_keras_serializable("my_project")
class MaxPooled(Classifier):
    """A classifier of the maximum over rows. Outputs: `logits` [B,K]."""

    def call(self, inputs, training=None):
        """inputs: `input_ids`, `input_mask`, `segment_ids` [B,S]."""
        rows = self.encoder(inputs, training=training)["sequence_output"]  # [B,S,D]
        real = ops.expand_dims(inputs["input_mask"], -1) > 0
        pooled = ops.max(ops.where(real, rows, -1e4), axis=1)  # [B,D]
        return {"logits": self.classifier(self.dropout(pooled, training=training))}


class Task(classification.Task):
    """Classification with this pooling."""

    def build_model(self):
        """Builds the encoder and the head."""
        settings = {"num_classes": self.num_outputs, "dropout": self.options.dropout}
        return MaxPooled.make(self.config.model, settings, recompute=self.config.training.recompute)

    def reads_pooler(self, model):
        """The dense layer on [CLS] is not read: it keeps its weights."""
        return False
