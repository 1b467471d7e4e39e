"""Tags of words (paper 5.3): with a CRF on top, or from a frozen encoder's layers through a BiLSTM.

B batch, S pieces, W words, N layers, D hidden size, T tags.
"""

from collections.abc import Mapping
from typing import Any

import keras
from jaxtyping import Float, Shaped
from keras import ops

from official_bert.layers.heads import OutputLayer
from official_bert.layers.layer_mixing import Features, LayerMixing, chosen_layers
from official_bert.layers.relatives.bilstm import make_bilstm, run_bilstm
from official_bert.layers.relatives.crf import CRF, chain_first
from official_bert.models.classifier import Tagger
from official_bert.models.encoder import INPUTS, BertEncoder, EncoderWithHeads
from official_bert.objectives.tag_chains import CHAIN


@keras.saving.register_keras_serializable("official_bert")
class CRFTagger(Tagger):
    """A tagger whose logits are the emissions of a CRF. Outputs: those of `Tagger`, and `CHAIN`."""

    heads = ("tagger", "crf")

    def __init__(
        self,
        encoder: BertEncoder,
        num_tags: int = 9,
        dropout: float = 0.1,
        boundary_scores: bool = True,
        crf_rate: float = 100.0,
        **kwargs: Any,
    ):
        super().__init__(encoder, num_tags, dropout, **kwargs)
        self.settings |= {"boundary_scores": boundary_scores, "crf_rate": crf_rate}
        self.crf = CRF(num_tags, boundary_scores, crf_rate, name="crf")

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> dict[str, Any]:
        return super().call(inputs, training=training) | dict(zip(CHAIN, self.crf.scores()))


@keras.saving.register_keras_serializable("official_bert")
class FeatureTagger(EncoderWithHeads):
    """A frozen encoder's layers, mixed, through a BiLSTM to tags (paper 5.3: two layers, 768 wide).

    Inputs: the encoder's and `first_pieces` [B,S], 1 at pieces that begin a word (default: at every real piece);
    `logits` [B,S,T] are valid at these pieces. Or `word_features` [B,N,D,W], made earlier by `features`, and
    `input_mask` [B,W]: `logits` [B,W,T], and the encoder does not run. With `crf` the outputs have `CHAIN` too. Only
    the layers after the encoder are trained.
    """

    encoder_options = {"return_layers": True}

    def __init__(
        self,
        encoder: BertEncoder,
        num_tags: int = 9,
        features: Features = "concat",
        feature_layers: int = 4,
        lstm_size: int = 768,
        lstm_layers: int = 2,
        dropout: float = 0.1,
        crf: bool = False,
        boundary_scores: bool = True,
        crf_rate: float = 100.0,
        **kwargs: Any,
    ):
        super().__init__(encoder, **kwargs)
        self.settings = {
            "num_tags": num_tags,
            "features": features,
            "feature_layers": feature_layers,
            "lstm_size": lstm_size,
            "lstm_layers": lstm_layers,
            "dropout": dropout,
            "crf": crf,
            "boundary_scores": boundary_scores,
            "crf_rate": crf_rate,
        }
        if lstm_size % 2 or lstm_size < 2:
            raise ValueError(
                f"config.options.lstm_size: expected an even number, half of it for each direction, got {lstm_size}"
            )
        encoder.trainable = False
        self.layers_used = chosen_layers(features, feature_layers, encoder.config.num_hidden_layers)
        self.mixing = LayerMixing(features, name="mixing", dtype=self.dtype_policy)
        self.dropouts = [keras.layers.Dropout(dropout, dtype=self.dtype_policy) for _ in range(lstm_layers + 1)]
        self.lstms = [make_bilstm(lstm_size, f"lstm_{index}", self.dtype_policy) for index in range(lstm_layers)]
        self.tagger = OutputLayer(num_tags, encoder.config.initializer_range, name="tagger", dtype=self.dtype_policy)
        self.crf = CRF(num_tags, boundary_scores, crf_rate, name="crf") if crf else None

    def build(self, *_: Any) -> None:
        super().build()
        shape = (None, None, len(self.layers_used), self.encoder.config.hidden_size)
        self.mixing.build(shape)
        width = self.mixing.compute_output_shape(shape)[-1]
        for lstm in self.lstms:
            lstm.build((None, None, width))
            width = self.settings["lstm_size"]
        self.tagger.build((None, None, width))
        if self.crf:
            self.crf.build()

    def features(self, inputs: Mapping[str, Shaped[Any, "B S"]]) -> Float[Any, "B S N D"]:
        """Returns the encoder's chosen layers for every piece [B,S,N,D], without dropout."""
        encoded = self.encoder({name: inputs[name] for name in INPUTS}, training=False)
        outputs = [encoded["embedding_output"], *encoded["layer_outputs"]]
        return ops.stack([outputs[layer] for layer in self.layers_used], axis=2)

    def call(self, inputs: Mapping[str, Any], training: bool | None = None) -> dict[str, Any]:
        if "word_features" in inputs:
            logits = self.tag(ops.transpose(inputs["word_features"], (0, 3, 1, 2)), inputs["input_mask"], training)
        else:
            logits = self._tag_pieces(inputs, training)
        return {"logits": logits} | (dict(zip(CHAIN, self.crf.scores())) if self.crf else {})

    def tag(
        self, x: Float[Any, "B W N D"], mask: Shaped[Any, "B W"], training: bool | None = None
    ) -> Float[Any, "B W T"]:
        """Features of words x [B,W,N,D], the real ones (mask [B,W]) first -> logits [B,W,T]."""
        x, mask = self.mixing(ops.cast(x, self.compute_dtype)), ops.cast(mask, "bool")
        for lstm, dropout in zip(self.lstms, self.dropouts):
            x = run_bilstm(lstm, dropout(x, training=training), mask, training)  # [B,W,lstm_size]
        return self.tagger(self.dropouts[-1](x, training=training))

    def _tag_pieces(self, inputs: Mapping[str, Shaped[Any, "B S"]], training: bool | None) -> Float[Any, "B S T"]:
        """Tags the words by their first pieces; puts the logits back at these pieces."""
        words = ops.cast(inputs.get("first_pieces", inputs["input_mask"]), "int32")  # [B,S]
        order = chain_first(words > 0)
        x = ops.take_along_axis(self.features(inputs), order[:, :, None, None], axis=1)
        logits = self.tag(x, ops.take_along_axis(words, order, axis=1), training)
        back = ops.cast(ops.argsort(order, axis=1), "int32")
        return ops.take_along_axis(logits, back[:, :, None], axis=1)
