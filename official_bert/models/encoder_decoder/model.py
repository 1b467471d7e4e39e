"""BERT2BERT: an encoder and a decoder, each from a BERT checkpoint (Rothe et al. 2020)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import keras

from official_bert.dotted_names import by_name
from official_bert.model_config import ModelConfig
from official_bert.models.encoder import BertEncoder, EncoderWithHeads, Inputs, Outputs, weights_by_name
from official_bert.models.encoder_decoder.decoder import Decoder, Memory
from official_bert.models.interchange import formats
from official_bert.models.interchange.names import matrix_shape
from official_bert.models.interchange.stored_models import StoredModel

DECODER = "decoder/"  # the beginning of its weights' names


@keras.saving.register_keras_serializable("official_bert")
class EncoderDecoder(EncoderWithHeads):
    """An encoder of the family, and a decoder with layers like BERT's, which writes a text about the source.

    `decoder` are the fields of the decoder's `ModelConfig`; none: its embeddings and layers are the encoder's
    (BERTShare). Without `transforms`, its head is that of BertGeneration. `search` are the defaults of `generate`. B
    batch, S tokens of the source, T of the target, V words.

    Inputs: the encoder's, `target_ids` [B,T], the target behind a start token; optionally `target_mask` [B,T] (0:
    padding) and `target_positions` [B,T] (from 0). Output: `logits` [B,T,V] of the word after each, float32.

    Raises ValueError for a decoder whose layers are not like BERT's, and for a target longer than its positions.
    """

    heads = ("decoder",)
    decoder_checkpoint = ""  # that gives the decoder's first weights; "": that of the encoder

    def __init__(
        self,
        encoder: BertEncoder,
        decoder: Mapping[str, Any] | None = None,
        transforms: bool = True,
        search: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(encoder, **kwargs)
        self.settings = {"decoder": decoder and dict(decoder), "transforms": transforms, "search": dict(search or {})}
        self.decoder = Decoder(
            ModelConfig(**decoder) if decoder else encoder.config,
            transforms,
            None if decoder else encoder,
            name="decoder",
            dtype=self.dtype_policy,
        )

    @property
    def reuses_encoder(self) -> bool:
        """Whether the decoder reads weights of the encoder."""
        return not self.decoder.owns

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        ids, longest = inputs["target_ids"], self.decoder.config.longest_row
        if (ids.shape[1] or 0) > longest:
            raise ValueError(f"target_ids: expected at most the decoder's {longest} positions, got {ids.shape[1]}")
        mask, positions = inputs.get("target_mask"), inputs.get("target_positions")
        rows, _ = self.decoder.extend(ids, self.remember(inputs, training), (), mask, positions, training)
        return {"logits": self.decoder.logits(rows, training)}

    def remember(self, inputs: Inputs, training: bool | None = None) -> Memory:
        """Returns what the decoder sees of the encoder."""
        rows = self.encoder(inputs, training=training)["sequence_output"]
        return self.decoder.remember(rows, inputs["input_mask"])

    def with_decoder(self, stored: StoredModel) -> StoredModel:
        """Returns a checkpoint with weights for the decoder: its own, or those of an encoder and its head for words.

        The second attention keeps random weights then. So do weights of another shape, unless `decoder_checkpoint`
        names a checkpoint for the decoder, which must fit.
        """
        variables, weights = weights_by_name(self), dict(stored.weights)
        lent = formats.read(self.decoder_checkpoint) if self.decoder_checkpoint else stored
        for name, weight in sorted(lent.weights.items(), key=lambda item: item[0].startswith(DECODER)):
            if (own := f"{DECODER}{name.removeprefix(DECODER)}") in variables:
                shape = tuple(variables[own].shape)
                if self.decoder_checkpoint or weight.shape in (shape, matrix_shape(own, shape)):
                    weights[own] = weight
                    weights = {key: value for key, value in weights.items() if key != name or name in variables}
        return dataclasses.replace(stored, weights=weights)

    def generate(self, inputs: Inputs, **how: Any) -> Outputs:
        """Writes a text for each source, with the arguments of transformers' `generate` (`generation/word_search`).

        `inputs` are the encoder's, [B,S] each, and optionally `target_ids` [B,P], the beginnings of the texts, start
        token included. Returns `sequences` [B*R,T], the R best texts of each source, best first, and `scores` [B*R].
        Raises ValueError for unknown arguments and values beyond the limits.
        """
        search: Callable[..., Outputs] = by_name("official_bert.generation.generate").search
        return search(self, inputs, **{**self.settings["search"], **how})
