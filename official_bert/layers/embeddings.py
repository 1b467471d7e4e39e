"""The summed embeddings of words, segments and positions (paper 3, figure 2; 2018 `embedding_postprocessor`)."""

import keras
from keras import ops

from official_bert.layers.attention import truncated_normal
from official_bert.layers.fused import Dropout
from official_bert.layers.layer_norm import LayerNormalization
from official_bert.model_config import BERT_BASE


@keras.saving.register_keras_serializable("official_bert")
class Embeddings(keras.layers.Layer):
    """Word + segment + position embeddings, layer norm, dropout. B batch, S sequence, D hidden size, V words."""

    def __init__(self, vocab_size=BERT_BASE.vocab_size, hidden_size=BERT_BASE.hidden_size,
                 max_position_embeddings=BERT_BASE.max_position_embeddings, type_vocab_size=BERT_BASE.type_vocab_size,
                 dropout=BERT_BASE.hidden_dropout_prob, initializer_range=BERT_BASE.initializer_range,
                 layer_norm_epsilon=BERT_BASE.layer_norm_epsilon, **kwargs):
        super().__init__(**kwargs)
        self.settings = {"vocab_size": vocab_size, "hidden_size": hidden_size,
                         "max_position_embeddings": max_position_embeddings, "type_vocab_size": type_vocab_size,
                         "dropout": dropout, "initializer_range": initializer_range,
                         "layer_norm_epsilon": layer_norm_epsilon}
        self.layer_norm = LayerNormalization(epsilon=layer_norm_epsilon, name="LayerNorm", dtype=self.dtype_policy)
        self.dropout = Dropout(dropout, dtype=self.dtype_policy)
        # One each: tables that share an initializer begin with the same rows.
        self.word_embeddings_initializer, self.token_type_embeddings_initializer, self.position_embeddings_initializer = (
            truncated_normal(initializer_range) for _ in range(3))

    def build(self, *_):
        """Makes the three tables."""
        width = self.settings["hidden_size"]
        self.word_embeddings, self.token_type_embeddings, self.position_embeddings = (
            self.add_weight(shape=(self.settings[rows], width), initializer=getattr(self, f"{name}_initializer"), name=name,
                            autocast=False)  # rows are cast, not tables
            for name, rows in (("word_embeddings", "vocab_size"), ("token_type_embeddings", "type_vocab_size"),
                               ("position_embeddings", "max_position_embeddings")))
        self.layer_norm.build((None, None, width))
        self.built = True

    def call(self, input_ids, segment_ids, position_ids=None, training=None):
        """input_ids, segment_ids, position_ids [B,S] (None: 0 to S-1) -> [B,S,D].

        Raises ValueError for a sequence longer than the position table.
        """
        length = input_ids.shape[1]
        if position_ids is None and length is not None and length > self.settings["max_position_embeddings"]:
            raise ValueError(f"sequence of {length} tokens is longer than the model's "
                             f"{self.settings['max_position_embeddings']} positions (max_position_embeddings)")
        words = ops.take(self.word_embeddings, input_ids, axis=0)                     # [B,S,D]
        if position_ids is None:
            positions = self.position_embeddings[:ops.shape(input_ids)[1]][None]      # [1,S,D]
        else:
            positions = ops.take(self.position_embeddings, position_ids, axis=0)      # [B,S,D]
        segments = ops.take(self.token_type_embeddings, segment_ids, axis=0)          # [B,S,D]
        # Rows are added in float32 under every precision policy; the tables of an export may be of bfloat16.
        words, segments, positions = (ops.cast(rows, "float32") for rows in (words, segments, positions))
        summed = ops.cast(words + segments + positions, self.compute_dtype)
        return self.dropout(self.layer_norm(summed), training=training)

    def compute_output_shape(self, input_ids_shape, *_):
        """[B,S,D]."""
        return (*input_ids_shape, self.settings["hidden_size"])

    def get_config(self):
        return super().get_config() | self.settings
