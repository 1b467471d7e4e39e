"""The model of pre-training: encoder, masked-LM head and, for most objectives, next-sentence head."""

import keras

from official_bert.layers.heads import MaskedLMHead, OutputLayer
from official_bert.models.encoder import BertEncoder, EncoderWithHeads


@keras.saving.register_keras_serializable("official_bert")
class Pretrainer(EncoderWithHeads):
    """An encoder with both pre-training heads (2018 `run_pretraining.py`), or without the one for sentences.

    Inputs: the encoder's and `masked_lm_positions` [B,P]. Outputs: `mlm_logits` [B,P,V] and, unless `next_sentence` is False,
    `nsp_logits` [B,2], or [B,K,2] for packed rows with `cls_positions` [B,K], float32. They tell a next from a random sentence, or an
    order from the other: as it was trained.
    """

    def __init__(self, encoder: BertEncoder, next_sentence: bool = True, **kwargs):
        super().__init__(encoder, **kwargs)
        self.settings = {"next_sentence": next_sentence}
        self.heads = ("masked_lm", "next_sentence") if next_sentence else ("masked_lm",)
        settings = encoder.settings
        shared = {"initializer_range": settings["initializer_range"], "dtype": self.dtype_policy}
        self.masked_lm = MaskedLMHead(settings["vocab_size"], settings["hidden_size"],
                                      settings["masked_lm_act"] or settings["hidden_act"],
                                      layer_norm_epsilon=settings["layer_norm_epsilon"],
                                      embedding_size=settings["embedding_size"], transforms=not settings["pooler_norm"],
                                      name="masked_lm", **shared)
        self.next_sentence = OutputLayer(2, name="next_sentence", **shared) if next_sentence else None

    def call(self, inputs, training=None):
        positions = inputs["masked_lm_positions"]
        encoded = self.encoder({**inputs, "output_positions": positions}, training=training)
        rows = self.encoder.read_rows(encoded["sequence_output"])
        outputs = {"mlm_logits": self.masked_lm(rows, self.encoder.embeddings.word_embeddings)}
        if self.next_sentence is not None:
            outputs["nsp_logits"] = self.next_sentence(encoded["pooled_output"])
        return outputs
