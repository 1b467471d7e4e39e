"""BERT's pre-training (paper 3.1): masked words and a sentence task, with their model and features.

The other kinds of pre-training derive from this one.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from jaxtyping import Float

from official_bert.config import Config
from official_bert.data.batches.sources import RecordSource
from official_bert.data.pretraining import dynamic_masking
from official_bert.data.pretraining.dynamic_masking import DynamicMasking
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.record_files import records
from official_bert.models.pretrainer import ObservedPretrainer, Pretrainer
from official_bert.objectives.cross_entropy import CrossEntropy
from official_bert.objectives.masked_lm import MaskedLM
from official_bert.objectives.next_sentence import NextSentence
from official_bert.objectives.objective import Batch, Objective, Sum
from official_bert.tasks.pretraining.held_out import HeldOutRecords
from official_bert.tasks.pretraining.options import Options
from official_bert.tasks.pretraining.record_kinds import packed_features
from official_bert.text.tokenizer import Tokenizer
from official_bert.training.flops import training_flops

# Records without masks, their numbers -> the features of masked records.
Masking = Callable[[dynamic_masking.Batch, tf.Tensor], dynamic_masking.Batch]
HeldOutSize = Callable[[], int] | None  # how many records are evaluated on, once they are open; None in training


class MaskedWords:
    """Masked words, and next sentences or the order of two segments, or neither."""

    masks = True  # whether `options.masking` is read
    why_unread = "masks nothing"  # why it is not

    def __init__(self, config: Config, options: Options):
        self.config, self.options = config, options

    @property
    def objectives(self) -> tuple[Objective, ...]:
        """The objectives of words."""
        return (MaskedLM(),)

    @property
    def objective(self) -> Objective:
        """The objective of the run."""
        of_sentences = (NextSentence(self.options.sentence_task),) if self.options.learns_sentences else ()
        return Sum((*self.objectives, *of_sentences))

    def check(self) -> None:
        """Raises ValueError for inconsistent values of model and options."""
        model = self.config.model
        if self.options.pack and (not self.masks or model.attention != "bidirectional" or model.bilstm_layers):
            raise ValueError(
                "config.options.pack: expected objective masked_lm, model.attention bidirectional and "
                "model.bilstm_layers 0 (packed instances are told apart by attention, and stand for themselves by "
                f"their [CLS]), got {self.options.objective}, {model.attention} and {model.bilstm_layers}"
            )

    def build_model(self) -> keras.Model:
        """Builds the encoder with the heads that the losses need."""
        kind = ObservedPretrainer if self.config.training.distillation.observes else Pretrainer
        return self._make(kind)

    def _make(self, kind: type[Pretrainer]) -> keras.Model:
        settings = {"next_sentence": self.options.learns_sentences}
        return kind.make(self.config.model, settings, recompute=self.config.training.recompute)

    def flops(self, batch: Batch) -> Float[Any, ""]:
        """Returns the FLOPs of the encoder and its heads."""
        return training_flops(self.config.model, batch)

    def features(self) -> tuple[records.Feature, ...]:
        """Returns the features of a batch."""
        if self.options.pack:
            return packed_features(self.options)
        return records.pretraining_features(self.options.max_seq_length, self.options.max_predictions_per_seq)

    def make_masking(self, tokenizer: Callable[[], Tokenizer], held_out: HeldOutSize = None) -> Masking:
        """Returns a function that masks batches of records without masks."""
        if not self.config.tokenizer.vocab_file:
            raise ValueError("records without masks need the vocabulary: give --vocab_file")
        options = self.options
        return DynamicMasking(
            options.masking,
            VocabularyFacts.of(tokenizer()),
            options.max_seq_length,
            options.max_predictions_per_seq,
            self.config.seed,
        )

    def held_out(self, source: RecordSource) -> HeldOutRecords:
        """Returns the records to evaluate on."""
        return HeldOutRecords(
            source, tuple(part.name for part in self.objective.parts if isinstance(part, CrossEntropy))
        )

    def more_inputs(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns inputs of the model that records lack, from the numbers of the records [B]."""
        return {}

    def more_specs(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        """Returns the shapes of `more_inputs`."""
        return {}

    def of_masked(self, batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns a batch of records with masks, after checking them."""
        return batch
