"""A pre-training objective of your own: beside each masked word, the model predicts how many letters it has."""

import keras
import numpy as np
import tensorflow as tf

from official_bert.layers.heads import OutputLayer
from official_bert.models.pretrainer import Pretrainer
from official_bert.objectives import losses
from official_bert.tasks.pretraining import task

LONGEST = 12  # letters; longer words count as this


@keras.saving.register_keras_serializable("my_project")
class LengthPretrainer(Pretrainer):
    """A `Pretrainer` that also gives `length_logits` [B,P,L]."""

    def __init__(self, encoder, **settings):
        super().__init__(encoder, **settings)
        self.heads = (*self.heads, "length")
        self.length = OutputLayer(LONGEST + 1, encoder.config.initializer_range, name="length", dtype=self.dtype_policy)

    def call(self, inputs, training=None):
        """The inputs of a `Pretrainer`."""
        encoded = self.encoder({**inputs, "output_positions": inputs["masked_lm_positions"]}, training=training)
        rows = encoded["sequence_output"]  # [B,P,D]
        outputs = {"mlm_logits": self.masked_lm(rows, self.encoder.embeddings.word_embeddings)}
        return outputs | {"length_logits": self.length(rows)}


class Task(task.Task):
    """Masked LM and the lengths of words, without a task about sentences (`options.sentence_task: none`)."""

    loss_names = ("mlm", "length")

    def build_model(self):
        """Builds the encoder and both heads."""
        return LengthPretrainer.make(self.config.model, {"next_sentence": False})

    def predicted(self, outputs, batch):
        """Logits, labels and weights of each loss: its value, its accuracy and what evaluation needs follow."""
        words = self.tokenizer.vocab
        lengths = np.array([min(len(word.removeprefix("##")), LONGEST) for word in words], np.int32)
        labels = tf.gather(lengths, batch["masked_lm_ids"])
        weights = losses.prediction_weights(batch)
        return super().predicted(outputs, batch) | {"length": (outputs["length_logits"], labels, weights)}
