"""Models with one linear layer on an encoder: for classes of whole texts (`Classifier`, `ChoiceClassifier`), for tags
of tokens (`Tagger`), and for the ends of an answer (`SpanPredictor`).

B batch, S sequence, D hidden size, K classes, C choices. Classifiers of whole texts read only the pooled output of
[CLS], so the last layer computes no other row.
"""

from typing import Any

import keras
from keras import ops

from official_bert.layers.heads import OutputLayer
from official_bert.models.encoder import INPUTS, BertEncoder, EncoderWithHeads, Inputs, Outputs


@keras.saving.register_keras_serializable("official_bert")
class Classifier(EncoderWithHeads):
    """An encoder with a linear layer on its pooled output (paper 4.1; 2018 `run_classifier.py`).

    Inputs: the encoder's, [B,S] each. Outputs: `logits` [B,K], float32: of K exclusive labels, of K independent labels,
    or a score with K = 1. `dropout` applies between pooler and classifier: 0.1 in 2018, whatever the encoder's rate.
    """

    heads = ("classifier",)

    def __init__(self, encoder: BertEncoder, num_classes: int = 2, dropout: float = 0.1, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.settings = {"num_classes": num_classes, "dropout": dropout}
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.classifier = OutputLayer(
            num_classes, encoder.config.initializer_range, name="classifier", dtype=self.dtype_policy
        )

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        nothing = inputs["input_ids"][:, :0]  # no row but that of [CLS], which the pooler needs
        encoded = self.encoder({**inputs, "output_positions": nothing}, training=training)
        return {"logits": self.classifier(self.dropout(encoded["pooled_output"], training=training))}


@keras.saving.register_keras_serializable("official_bert")
class ChoiceClassifier(Classifier):
    """Scores each of C choices by itself with one vector; the loss applies the softmax over them (paper 4.4, SWAG).

    Inputs: `input_ids`, `input_mask`, `segment_ids` [B,C,S]. Outputs: `logits` [B,C], float32. Texts with different
    numbers of choices share a batch: a choice without any token (`input_mask` 0) is absent and gets the logit -1e9.
    """

    def __init__(self, encoder: BertEncoder, dropout: float = 0.1, **kwargs: Any) -> None:
        super().__init__(encoder, num_classes=1, dropout=dropout, **kwargs)
        self.settings = {"dropout": dropout}

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        _, choices, length = ops.shape(inputs["input_ids"])
        rows = {name: ops.reshape(inputs[name], (-1, length)) for name in INPUTS}
        logits = ops.reshape(super().call(rows, training=training)["logits"], (-1, choices))
        return {"logits": ops.where(ops.max(inputs["input_mask"], axis=-1) > 0, logits, -1e9)}


@keras.saving.register_keras_serializable("official_bert")
class Tagger(EncoderWithHeads):
    """An encoder with a linear layer on each row: tagging (paper 5.3 and 4; named entities). P output rows, T tags.

    Inputs: the encoder's; with `output_positions` [B,P] (first pieces of words, say) only these rows are tagged.
    Outputs: `logits` [B,S or P,T], float32.
    """

    heads: tuple[str, ...] = ("tagger",)

    def __init__(self, encoder: BertEncoder, num_tags: int = 9, dropout: float = 0.1, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.settings = {"num_tags": num_tags, "dropout": dropout}
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.tagger = OutputLayer(num_tags, encoder.config.initializer_range, name="tagger", dtype=self.dtype_policy)

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        rows = self.encoder.read_rows(self.encoder(inputs, training=training)["sequence_output"])  # [B,S or P,D]
        return {"logits": self.tagger(self.dropout(rows, training=training))}


@keras.saving.register_keras_serializable("official_bert")
class SpanPredictor(EncoderWithHeads):
    """An encoder with a start and an end vector: question answering (paper 4.2 and 4.3; 2018 `run_squad.py`).

    Inputs: the encoder's. Outputs: `start_logits`, `end_logits` [B,S], float32.
    """

    heads = ("span",)

    def __init__(self, encoder: BertEncoder, **kwargs: Any) -> None:
        super().__init__(encoder, **kwargs)
        self.span = OutputLayer(2, encoder.config.initializer_range, name="span", dtype=self.dtype_policy)

    def call(self, inputs: Inputs, training: bool | None = None) -> Outputs:
        rows = self.encoder.read_rows(self.encoder(inputs, training=training)["sequence_output"])  # [B,S,D]
        logits = self.span(rows)  # [B,S,2]
        return {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
