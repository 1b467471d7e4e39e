"""A masking rate that falls while training goes on (Yang et al., 2023): from `options.masking.rate` to 15 %.

For records without masks (`create_pretraining_data --masking=dynamic`). With `options.masking.rate: 0.3` a row of 128
tokens has 38 masked tokens at first and 19 at last: `options.max_predictions_per_seq` must hold the first number.
"""

import tensorflow as tf

from official_bert.data.pretraining.dynamic_masking import DynamicMasking
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.tasks.pretraining import task

LAST = 0.15


class FallingRate(DynamicMasking):
    """Masks ever fewer tokens. B rows."""

    def count_predictions(self, batch):
        """How many tokens of each row are masked [B]; `progress` [B] goes from 0 to 1, and is 1 in evaluation."""
        rate = self.config.rate + (LAST - self.config.rate) * batch["progress"]
        tokens = tf.cast(tf.reduce_sum(batch["input_mask"], axis=1), tf.float32)
        return tf.clip_by_value(tf.cast(tf.round(rate * tokens), tf.int32), 1, self.max_predictions_per_seq)


class Records(task.RecordData):
    """The records of pre-training."""

    reads_progress = True  # batches have `progress`


class Task(task.Task):
    """Pre-training with this masking rate, and any `options.masking.strategy`."""

    data = property(Records)

    def make_masking(self):
        """Makes the function from records without masks to masked ones."""
        options = self.options
        return FallingRate(
            options.masking,
            VocabularyFacts.of(self.tokenizer),
            options.max_seq_length,
            options.max_predictions_per_seq,
            self.config.seed,
        )
