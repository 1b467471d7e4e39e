"""Models that detect replaced tokens: ELECTRA's discriminator, alone and with its generator (Clark et al. 2020)."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Self

import keras
from keras import ops

from official_bert.layers.activations import get_activation
from official_bert.layers.configured import truncated_normal
from official_bert.layers.dense import Dense
from official_bert.layers.heads import OutputLayer
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.layers.relatives.lent_embeddings import DisentangledEmbeddings, SharedEmbeddings
from official_bert.layers.relatives.sampling import draw_words
from official_bert.model_config import EmbeddingSharing, ModelConfig
from official_bert.models.encoder import GENERATOR, BertEncoder, EncoderWithHeads, Inputs, Outputs, encoder_settings
from official_bert.models.pretrainer import Pretrainer


@keras.saving.register_keras_serializable("official_bert")
class ReplacedTokenDetector(EncoderWithHeads):
    """An encoder with a logit for each token: above 0 if a generator has probably replaced it. B batch, S sequence, P
    output rows.

    With `adds_first`, the row of [CLS] is added to each row and the sum is normalized (DeBERTa v3). Inputs: the
    encoder's. Outputs: `logits` [B,S or P], float32.
    """

    heads: tuple[str, ...] = ("replaced_transform", "replaced")
    unserved = "a head that detects replaced tokens"

    def __init__(self, encoder: BertEncoder, adds_first: bool = False, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        config = encoder.config
        self.settings = {"adds_first": adds_first}
        if adds_first:
            self.heads = ("replaced_layer_norm", *self.heads)
            self.replaced_layer_norm = LayerNormalization(
                epsilon=config.layer_norm_epsilon, name="replaced_LayerNorm", dtype=self.dtype_policy
            )
        self.replaced_transform = Dense(
            config.hidden_size,
            activation=get_activation(config.hidden_act),
            kernel_initializer=truncated_normal(config.initializer_range),
            name="replaced_transform",
            dtype=self.dtype_policy,
        )
        self.replaced = OutputLayer(1, config.initializer_range, name="replaced", dtype=self.dtype_policy)

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        if self.settings["adds_first"] and (places := inputs.get("output_positions")) is not None:
            first = ops.zeros_like(places[:, :1])
            inputs = {**inputs, "output_positions": ops.concatenate([first, places], axis=1)}
        rows = self.encoder(inputs, training=training)["sequence_output"]  # [B,S or P,D]
        if self.settings["adds_first"]:
            sums = self.replaced_layer_norm(rows[:, :1] + rows)
            rows = sums if places is None else sums[:, 1:]
        return {"logits": self.replaced(self.replaced_transform(rows))[..., 0]}


@keras.saving.register_keras_serializable("official_bert")
class ReplacedTokenPretrainer(ReplacedTokenDetector):
    """A discriminator and its generator, a smaller masked LM; the discriminator detects which words the generator has
    replaced.

    `discriminator` and `generator` are the fields of their `ModelConfig`. Tables and layer norm of the embeddings are
    `shared` (ELECTRA), or the discriminator adds differences of its own to the generator's tables (`disentangled`:
    DeBERTa v3), or both have their own (`separate`). B batch, S sequence, P predictions, V words.

    Inputs: those of masked LM, with `masked_lm_ids` and `masked_lm_weights`, and `sample_keys` [B,2], which determine
    the guesses of a row. Outputs, float32: `mlm_logits` [B,P,V] of the generator, `replaced_logits` [B,S] of the
    discriminator, and `replaced` [B,S], 1 for each token that differs from the text.
    """

    next_sentence = None  # no head reads the pooler

    def __init__(
        self,
        discriminator: Mapping[str, Any],
        generator: Mapping[str, Any],
        embedding_sharing: EmbeddingSharing = "shared",
        adds_first: bool = False,
        recompute: Any = False,
        **kwargs: Any,
    ) -> None:
        options = {"recompute": recompute}
        make_generator = functools.partial(BertEncoder, name="encoder", **generator, **options)
        if embedding_sharing == "shared":
            encoder = BertEncoder(name="bert", **discriminator, **options)
            guesser = make_generator(
                embeddings=SharedEmbeddings(encoder.embeddings, generator["hidden_size"], name="embeddings")
            )
        else:
            guesser = make_generator()
            embeddings = (
                None
                if embedding_sharing == "separate"
                else DisentangledEmbeddings(guesser.embeddings, ModelConfig(**discriminator), name="embeddings")
            )
            encoder = BertEncoder(name="bert", embeddings=embeddings, **discriminator, **options)
        super().__init__(encoder, adds_first, **kwargs)
        self.settings |= {
            "discriminator": dict(discriminator),
            "generator": dict(generator),
            "embedding_sharing": embedding_sharing,
            "recompute": recompute,
        }
        self.generator = Pretrainer(guesser, next_sentence=False, name=GENERATOR)

    @classmethod
    def make(cls, config: ModelConfig, settings: Mapping[str, Any] | None = None, **options: Any) -> Self:
        """Returns the model of a discriminator's configuration with all its weights; `settings` are further arguments
        of the class.
        """
        model = cls(encoder_settings(config), **(settings or {}), **options)
        model.build_parts()  # here, so that no weight has the whole model's name in its path
        model.build()
        return model

    def build_parts(self) -> None:
        """Makes the weights of both models, tables before the parts that borrow them."""
        parts = (self.encoder, self.generator)
        for part in parts if self.settings["embedding_sharing"] == "shared" else reversed(parts):
            if not part.built:
                part.build()

    def build(self, *_: Any) -> None:
        """Makes all weights."""
        self.build_parts()
        super().build()

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        masked = self.generator(inputs, training=training)["mlm_logits"]  # [B,P,V]
        ids, replaced = replace_tokens(inputs, draw_words(masked, inputs["sample_keys"]))
        told = super().call({**inputs, "input_ids": ids}, training=training)["logits"]  # [B,S]
        return {"mlm_logits": masked, "replaced_logits": told, "replaced": replaced}

    def get_config(self) -> dict[str, Any]:
        return keras.Model.get_config(self) | self.settings

    @classmethod
    def from_config(cls, config: Any) -> Any:
        return cls(**config)


def replace_tokens(batch: Inputs, guesses: Any) -> Any:
    """Returns the tokens of a masked batch with `guesses` [B,P] at the predicted positions, and 1 for each token that
    differs from the text: both [B,S].

    A position that is predicted twice gets the mean of its guesses, rounded down, as in the authors' code
    (`scatter_update`). A correct guess counts as an original token (paper 2).
    """
    rows, length = ops.shape(batch["input_ids"])
    used = ops.cast(batch["masked_lm_weights"] > 0, "int32")  # [B,P]
    places = ops.cast(batch["masked_lm_positions"], "int32") + length * ops.expand_dims(
        ops.arange(rows, dtype="int32"), 1
    )
    places = ops.reshape(places, (-1, 1))

    def by_place(values: Any) -> Any:
        summed = ops.scatter(places, ops.reshape(ops.cast(values, "int32") * used, (-1,)), (rows * length,))
        return ops.reshape(summed, (rows, length))

    counts = by_place(used)
    drawn, once = counts > 0, ops.maximum(counts, 1)
    mean, original_ids = by_place(guesses) // once, by_place(batch["masked_lm_ids"]) // once
    ids = ops.where(drawn, mean, ops.cast(batch["input_ids"], "int32"))
    return ids, ops.cast(ops.logical_and(drawn, mean != original_ids), "int32")


def generator_config(config: ModelConfig, width: float, layers: float) -> ModelConfig:
    """Returns the configuration of a discriminator's generator; `width` and `layers` are fractions of the
    discriminator's.

    `width` applies to the hidden size and the feed-forward network. The generator has the most heads that divide its
    hidden size and are at least as wide as the discriminator's, or else one head. The tables are as wide as the
    discriminator's. Raises ValueError for an impossible model.
    """
    hidden = max(1, round(config.hidden_size * width))
    most = max(1, hidden // (config.hidden_size // config.num_attention_heads))
    heads = next(count for count in range(most, 0, -1) if hidden % count == 0)
    return dataclasses.replace(
        config,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=max(1, round(config.intermediate_size * width)),
        num_hidden_layers=max(1, round(config.num_hidden_layers * layers)),
        embedding_size=0 if config.table_width == hidden else config.table_width,
    )
