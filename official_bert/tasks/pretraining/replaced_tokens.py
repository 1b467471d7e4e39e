"""ELECTRA's pre-training (Clark et al. 2020): a discriminator of the tokens that a small generator has replaced."""

from typing import Any

import keras
import tensorflow as tf
from jaxtyping import Float

from official_bert.data.pretraining.dynamic_masking import sample_keys
from official_bert.model_config import ModelConfig
from official_bert.models.encoder import encoder_settings
from official_bert.models.replaced_tokens import ReplacedTokenPretrainer, generator_config
from official_bert.objectives.masked_lm import MaskedLM
from official_bert.objectives.objective import Batch, Objective
from official_bert.objectives.replaced_tokens import ReplacedTokens
from official_bert.tasks.pretraining.masked_words import MaskedWords
from official_bert.training.flops import training_flops


class ReplacedWords(MaskedWords):
    """Masked words of the generator, and replaced tokens."""

    @property
    def objectives(self) -> tuple[Objective, ...]:
        return (MaskedLM(), ReplacedTokens(factor=self.options.replaced_weight))

    def check(self) -> None:
        super().check()
        model, options, where = self.config.model, self.options, "config.options.objective: replaced_tokens: expected"
        if model.attention != "bidirectional" or model.bilstm_layers:
            raise ValueError(
                f"{where} model.attention bidirectional and model.bilstm_layers 0 (its generator guesses a word from "
                f"both sides), got {model.attention} and {model.bilstm_layers}"
            )
        if options.learns_sentences:
            raise ValueError(
                f"{where} sentence_loss false or sentence_task none (neither model has a head for sentences), got "
                f"sentence_task {options.sentence_task} and sentence_loss true"
            )
        if model.pooler_norm and round(model.hidden_size * options.generator_width) != model.table_width:
            raise ValueError(
                "config.model.pooler_norm: expected false beside options.objective replaced_tokens, whose generator is "
                f"narrower than its word table (generator_width {options.generator_width}), got true"
            )
        if options.adds_first and options.pack:
            raise ValueError(f"{where} adds_first false beside pack (a packed row has several [CLS]), got true")
        self._generator_config()

    def _generator_config(self) -> ModelConfig:
        """The generator's sizes. Raises ValueError, naming the options, for a model that there cannot be."""
        width, layers = self.options.generator_width, self.options.generator_layers
        try:
            return generator_config(self.config.model, width, layers)
        except ValueError as error:
            raise ValueError(
                f"config.options.generator_width {width} and generator_layers {layers}: no generator can be made of "
                f"this model: {error}"
            ) from None

    def build_model(self) -> keras.Model:
        """Builds the model and the generator."""
        return ReplacedTokenPretrainer.make(
            self.config.model,
            {
                "generator": encoder_settings(self._generator_config()),
                "embedding_sharing": self.options.embedding_sharing,
                "adds_first": self.options.adds_first,
            },
            recompute=self.config.training.recompute,
        )

    def flops(self, batch: Batch) -> Float[Any, ""]:
        """Returns the FLOPs of both models; only the generator has a head for words."""
        rows = {"input_ids": batch["input_ids"]}
        return training_flops(self.config.model, rows) + training_flops(self._generator_config(), batch)

    def more_inputs(self, indices: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the sampling keys for the generator's guesses."""
        return {"sample_keys": sample_keys(indices, self.config.seed)}

    def more_specs(self, batch_size: int) -> dict[str, tf.TensorSpec]:
        return {"sample_keys": tf.TensorSpec((batch_size, 2), tf.int32)}
