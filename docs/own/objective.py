"""A pre-training objective of your own: beside each masked word, the model predicts how many letters it has."""

import dataclasses

import keras
import tensorflow as tf

from official_bert.layers.heads import OutputLayer
from official_bert.models.pretrainer import Pretrainer
from official_bert.objectives.cross_entropy import CrossEntropy
from official_bert.objectives.losses import prediction_weights
from official_bert.objectives.masked_lm import MaskedLM
from official_bert.objectives.objective import Sum
from official_bert.tasks.pretraining import task

LONGEST = 12  # letters; longer words count as this


@dataclasses.dataclass(frozen=True)
class WordLength(CrossEntropy):
    """A class for each length; loss, accuracy and what evaluation needs follow."""

    name: str = "length"
    lengths: tuple[int, ...] = ()  # of the words of the vocabulary

    def predicted(self, outputs, batch):
        """Logits [B,P,L] and labels [B,P]."""
        return outputs["length_logits"], tf.gather(self.lengths, batch["masked_lm_ids"])

    def place_weights(self, batch):
        """The weight of each place [B,P]."""
        return prediction_weights(batch)


@keras.saving.register_keras_serializable("my_project")
class LengthPretrainer(Pretrainer):
    """A `Pretrainer` that also gives `length_logits` [B,P,L]."""

    def __init__(self, encoder, **settings):
        super().__init__(encoder, **settings)
        self.heads = (*self.heads, "length")
        self.length = OutputLayer(LONGEST + 1, encoder.config.initializer_range, name="length", dtype=self.dtype_policy)

    def read_heads(self, rows, encoded):
        """The rows [B,P,D] of masked words."""
        return super().read_heads(rows, encoded) | {"length_logits": self.length(rows)}


class Task(task.Task):
    """Masked LM and the lengths of words, without a task about sentences (`options.sentence_task: none`)."""

    def build_model(self):
        """Builds the encoder and both heads."""
        return LengthPretrainer.make(self.config.model, {"next_sentence": False})

    @property
    def objective(self):
        """What is learned and measured."""
        lengths = tuple(min(len(word.removeprefix("##")), LONGEST) for word in self.tokenizer.vocab)
        return Sum((MaskedLM(), WordLength(lengths=lengths)))
