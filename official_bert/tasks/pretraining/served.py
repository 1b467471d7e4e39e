"""Fill-mask: the words that the masked-LM head puts at each [MASK] of a text.

B texts, S tokens, M blanks, V words, K best.
"""

import keras
import tensorflow as tf

from official_bert.serving import post_processing
from official_bert.serving.served_model import ROWS, ServedModel, Tensors
from official_bert.text.graph import GraphTokenizer

MASK = "[MASK]"


class ServedFillMask(ServedModel):
    """The words that may stand at each [MASK] of a text."""

    outputs = ("tokens", "probabilities", "truncated")
    reads = ("top_k",)
    ids_inputs = {**ROWS, "masked_lm_positions": tf.TensorSpec([None, None], tf.int32, "masked_lm_positions")}

    def __init__(self, model: keras.Model, tokenizer: GraphTokenizer, max_seq_length: int, top_k: int = 5):
        super().__init__(model, tokenizer, max_seq_length)
        self.top_k = min(top_k, len(tokenizer.vocab))
        self.words = tf.constant(list(tokenizer.vocab))

    def answer_ids(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """`logits` [B,M,V] at `masked_lm_positions` [B,M]."""
        return {"logits": self.run(inputs, masked_lm_positions=inputs["masked_lm_positions"])["mlm_logits"]}

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """`tokens`, `probabilities` [B,M,K]: the K best words for each [MASK], in order, and `truncated` [B]."""
        features, truncated = self.pack(self._tokenize(inputs["text"]))
        blanks = tf.equal(features["input_ids"], self.special["MASK"])
        places = tf.RaggedTensor.from_value_rowids(tf.where(blanks)[:, 1], tf.where(blanks)[:, 0],
                                                   nrows=tf.shape(blanks, tf.int64)[0], validate=False)
        positions = tf.cast(places.to_tensor(), tf.int32)                             # [B,M]
        present = tf.sequence_mask(places.row_lengths(), tf.shape(positions)[1])
        logits = self.answer_ids({**features, "masked_lm_positions": positions})["logits"]
        return {**post_processing.best_words(logits, present, self.words, self.top_k), "truncated": truncated}

    def _tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Ids of texts with [MASK] in them, which the tokenizer alone would split into `[`, `mask` and `]`."""
        parts = tf.strings.split(text, MASK)                                          # [B,(M+1)]
        ids = self.tokenizer.tokenize(parts.values)
        ends_text = tf.scatter_nd(parts.row_splits[1:, None] - 1, tf.ones_like(parts.row_splits[1:]),
                                  tf.shape(parts.values, tf.int64))
        masks = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.size(ends_text) - tf.size(parts.row_splits) + 1], self.special["MASK"]), 1 - ends_text,
            validate=False)
        joined = tf.concat([ids, masks], axis=1)
        return tf.RaggedTensor.from_row_splits(joined.values, tf.gather(joined.row_splits, parts.row_splits),
                                               validate=False)

    @staticmethod
    def unpadded(answer):
        """The answer for the blanks that the text has."""
        blanks = [blank for blank in zip(answer["tokens"], answer["probabilities"]) if any(blank[0])]
        return {**answer, "tokens": [tokens for tokens, _ in blanks], "probabilities": [values for _, values in blanks]}

    @staticmethod
    def describe(row, answer):
        """The words for each blank, with their probabilities."""
        blanks = zip(answer["tokens"], answer["probabilities"])
        return [f"  {probability:.3f}  {token}" for tokens, probabilities in blanks if any(tokens)
                for token, probability in zip(tokens, probabilities)]
