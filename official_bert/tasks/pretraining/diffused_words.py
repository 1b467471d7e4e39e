"""Masked diffusion on records without masks: every token may be hidden, at a rate that is drawn for each row and epoch.

B rows, S tokens, P = S - 2 places: the most that a row has beside [CLS] and [SEP].
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from official_bert.data.batches.sources import RecordSource
from official_bert.data.pretraining.dynamic_masking import ORDER, SAMPLE, of_this_schema, row_hashes, uniform
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.record_files import records
from official_bert.objectives.masked_diffusion import LEAST_RATE, MaskedDiffusion, bound_of
from official_bert.objectives.objective import Objective
from official_bert.tasks.pretraining.held_out import HeldOutRecords
from official_bert.tasks.pretraining.masked_words import HeldOutSize, MaskedWords, Masking
from official_bert.text.tokenizer import Tokenizer
from official_bert.training.held_out import Predictions

WHERE = "config.options.objective: masked_diffusion: expected"


class DiffusedWords(MaskedWords):
    """Every token of a row but [CLS] and [SEP], each hidden with the row's probability."""

    masks = False
    why_unread = "draws a rate for each row"

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return (MaskedDiffusion(),)

    def check(self) -> None:
        model, options = self.config.model, self.options
        if model.attention != "bidirectional" or model.bilstm_layers:
            raise ValueError(
                f"{WHERE} model.attention bidirectional and model.bilstm_layers 0, got {model.attention} and "
                f"{model.bilstm_layers}"
            )
        if options.learns_sentences:
            raise ValueError(f"{WHERE} sentence_loss false or sentence_task none, got {options.sentence_task}")
        if options.pack:
            raise ValueError(f"{WHERE} pack false, because a rate is drawn for each row, got true")
        if self.config.training.teacher:
            raise ValueError(f"{WHERE} no training.teacher, got {self.config.training.teacher}")

    @property
    def places(self) -> int:
        """The number of tokens of a row that may be hidden."""
        return self.options.max_seq_length - 2

    def features(self) -> tuple[records.Feature, ...]:
        return records.pretraining_features(self.options.max_seq_length, self.places)

    def more_specs(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        return {
            "maskable": tf.TensorSpec((batch_size, self.places), tf.float32),
            "masking_rates": tf.TensorSpec((batch_size,), tf.float32),
        }

    def make_masking(self, tokenizer: Callable[[], Tokenizer], held_out: HeldOutSize = None) -> Masking:
        if not self.config.tokenizer.vocab_file:
            raise ValueError("records without masks need the vocabulary: give --vocab_file")
        facts, seed, length, places = (
            VocabularyFacts.of(tokenizer()),
            self.config.seed,
            self.options.max_seq_length,
            self.places,
        )

        def mask(batch: dict[str, tf.Tensor], examples: tf.Tensor) -> dict[str, tf.Tensor]:
            batch, rows = of_this_schema(batch), row_hashes(examples, seed)
            ids = batch["input_ids"]
            maskable = tf.equal(batch["input_mask"], 1) & (ids != facts.cls_id) & (ids != facts.sep_id)
            draws = uniform(rows, SAMPLE, tf.zeros([1], tf.int32))  # [B,1]
            if held_out:  # so that the bound varies less: one rate of each of as many equal parts of (0, 1] as records
                order = np.random.default_rng(seed).permutation(held_out())
                draws = (tf.cast(tf.gather(order, examples), tf.float64)[:, None] + draws) / len(order)
            rates = LEAST_RATE + (1 - LEAST_RATE) * draws
            hidden = maskable & (uniform(rows, ORDER, tf.range(length)) < rates)
            # The maskable tokens in order, then others, which do not count.
            order = tf.argsort(tf.where(maskable, 0, 1), axis=1, stable=True)[:, :places]  # [B,P]
            counts = tf.gather(tf.cast(maskable, tf.float32), order, batch_dims=1)
            return {name: batch[name] for name in ("input_mask", "segment_ids", "next_sentence_labels")} | {
                "input_ids": tf.where(hidden, facts.mask_id, ids),
                "masked_lm_positions": order,
                "masked_lm_ids": tf.gather(ids, order, batch_dims=1),
                "masked_lm_weights": tf.gather(tf.cast(hidden, tf.float32), order, batch_dims=1),
                "maskable": counts,
                "masking_rates": tf.cast(rates[:, 0], tf.float32),
            }

        return mask

    def of_masked(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Raises ValueError: records that are masked already, at 15 %, say nothing about other rates."""
        raise ValueError(f"{WHERE} records without masks (create_pretraining_data --masking=dynamic), got masked ones")

    def held_out(self, source: RecordSource) -> "HeldOutBounds":
        """Returns records to evaluate by their bound."""
        return HeldOutBounds(source, ())


@dataclasses.dataclass(frozen=True)
class HeldOutBounds(HeldOutRecords):
    """Records to evaluate on, by their bound: the mean upper bound of -log p, in nats for each token."""

    compared = "bound"

    def evaluate(self, predictions: Predictions) -> dict[str, float]:
        """Returns `bound` and `perplexity`, an upper bound of the perplexity too."""
        return bound_of(np.stack([row["bound"] for row in predictions]))

    def measure(self, bounds: np.ndarray) -> dict[str, float]:
        """Measures the bounds [N,2] of records."""
        return bound_of(bounds)
