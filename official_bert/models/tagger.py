"""A tag for every token (paper 5.3 and 4; named entities)."""

import keras

from official_bert.config import ModelConfig
from official_bert.layers.heads import OutputLayer
from official_bert.models.encoder import BertEncoder, EncoderWithHeads, make_encoder


@keras.saving.register_keras_serializable("official_bert")
class Tagger(EncoderWithHeads):
    """An encoder with a linear layer on each row. B batch, S sequence, P wanted rows, T tags.

    Inputs: the encoder's; `output_positions` [B,P] there (first pieces of words, say) are the rows that are tagged.
    Outputs: `logits` [B,S or P,T], float32.
    """

    def __init__(self, encoder: BertEncoder, num_tags=9, dropout=0.1, **kwargs):
        super().__init__(encoder, **kwargs)
        self.settings = {"num_tags": num_tags, "dropout": dropout}
        self.dropout = keras.layers.Dropout(dropout, dtype=self.dtype_policy)
        self.tagger = OutputLayer(num_tags, encoder.settings["initializer_range"], name="tagger", dtype=self.dtype_policy)

    def build(self, *_):
        """Makes every weight."""
        super().build()
        self.tagger.build((None, None, self.encoder.settings["hidden_size"]))

    def call(self, inputs, training=None):
        """The dict of inputs -> the dict of outputs, both described with the class."""
        rows = self.encoder(inputs, training=training)["sequence_output"]             # [B,S or P,D]
        return {"logits": self.tagger(self.dropout(rows, training=training))}


def make_tagger(config: ModelConfig, num_tags: int = 9, dropout: float = 0.1, **options) -> Tagger:
    """The tagger of a configuration, its weights made; `options` are the encoder's."""
    model = Tagger(make_encoder(config, **options), num_tags, dropout)
    model.build()
    return model
