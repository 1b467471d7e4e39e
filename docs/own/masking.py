"""A masking scheme of your own: the tokens to predict stand beside each other, at a random place of the row.

For records without masks (`create_pretraining_data --masking=dynamic`).
"""

import tensorflow as tf

from official_bert.data.pretraining.dynamic_masking import ORDER, DynamicMasking, uniform
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.tasks.pretraining import task


class OneStretch(DynamicMasking):
    """Masks one stretch of tokens in a row. B rows, S tokens."""

    def choose_tokens(self, rows, candidates, budgets):
        """Returns the chosen tokens [B,S], and the number of the draw that decides each one's replacement [S].

        `rows` are keys of random numbers, `candidates` [B,S] the tokens that may be masked, `budgets` [B] how many.
        """
        numbers = tf.cumsum(tf.cast(candidates, tf.int32), axis=1)  # from 1
        free = tf.cast(numbers[:, -1] - budgets + 1, tf.float64)  # places where a stretch may begin
        first = 1 + tf.cast(uniform(rows, ORDER, tf.range(1))[:, 0] * free, tf.int32)
        inside = (numbers >= first[:, None]) & (numbers < (first + budgets)[:, None])
        return candidates & inside, tf.range(self.max_seq_length)


class Task(task.Task):
    """Pre-training with this masking; `options.masking` has strategy `token`."""

    def make_masking(self):
        """Makes the function from records without masks to masked ones."""
        options = self.options
        return OneStretch(
            options.masking,
            VocabularyFacts.of(self.tokenizer),
            options.max_seq_length,
            options.max_predictions_per_seq,
            self.config.seed,
        )
