"""Fill-mask: the words that the masked-LM head predicts at each [MASK] of a text.

B texts, S tokens, M blanks, V words, K best.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from official_bert.generation.scoring import Scorer
from official_bert.serving.bounds import in_range, require
from official_bert.serving.served_model import Tensors
from official_bert.serving.served_words import ServedWords
from official_bert.text.graph_loading import AnyGraphTokenizer
from official_bert.text.graph_subwords import GraphSubwords

MASK = "[MASK]"
NO_BLANK = (
    f"  nothing to fill: the text has no {MASK}, which stands for a word to be found (capitals and brackets as here)"
)
CUT_OFF = f"  nothing to fill: the text is too long, and its {MASK} lies behind the last token that the model takes"


class ServedFillMask(ServedWords):
    """Gives the likeliest words at each [MASK] of a text, which may have `max_positions` of them."""

    outputs: ClassVar[tuple[str, ...]] = ("tokens", "probabilities", "num_blanks", "truncated")
    padded_text: ClassVar[Mapping[str, str]] = dict.fromkeys(("tokens", "probabilities"), "num_blanks")
    reads: ClassVar[tuple[str, ...]] = ("top_k", "max_positions")

    def __init__(
        self,
        model: keras.Model,
        tokenizer: AnyGraphTokenizer,
        max_seq_length: int,
        top_k: int = 5,
        max_positions: int = 128,
    ):
        super().__init__(model, tokenizer, max_seq_length, max_positions)
        self.top_k = min(top_k, len(tokenizer.vocab))

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `tokens` and `probabilities` [B,M,K], the K best words for each [MASK] in order, and `num_blanks` and
        `truncated` [B].
        """
        features, positions, present, truncated = self.find_blanks(inputs["text"])
        logits = self.answer_rows({**features, "masked_lm_positions": positions})["logits"]
        return {
            **best_words(logits, present, self.words, self.top_k),
            "num_blanks": tf.reduce_sum(tf.cast(present, tf.int32), axis=1),
            "truncated": truncated,
        }

    def find_blanks(self, text: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns texts [B] as rows of ids, the positions of their blanks [B,M], whether each is `present` [B,M], and
        whether each text was cut [B].
        """
        features, truncated = self.pack(self._tokenize(text))
        blanks = tf.equal(features["input_ids"], self.special["MASK"])
        places = tf.RaggedTensor.from_value_rowids(
            tf.where(blanks)[:, 1], tf.where(blanks)[:, 0], nrows=tf.shape(blanks, tf.int64)[0], validate=False
        )
        most = tf.reduce_max(tf.concat([places.row_lengths(), [0]], 0))
        places = require([in_range("text: expected", most, 0, self.max_positions, "times [MASK] in a text")], places)
        positions = tf.cast(places.to_tensor(), tf.int32)  # [B,M]
        return features, positions, tf.sequence_mask(places.row_lengths(), tf.shape(positions)[1]), truncated

    def _tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        """Returns ids of texts with [MASK] in them, which the tokenizer alone would split into `[`, `mask` and `]`."""
        if isinstance(self.tokenizer, GraphSubwords):  # finds its own mask
            return self.tokenizer.tokenize(text)
        parts = tf.strings.split(text, MASK)  # [B,(M+1)]
        ids = self.tokenizer.tokenize(parts.values)
        ends_text = tf.scatter_nd(
            parts.row_splits[1:, None] - 1, tf.ones_like(parts.row_splits[1:]), tf.shape(parts.values, tf.int64)
        )
        masks = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.size(ends_text) - tf.size(parts.row_splits) + 1], self.special["MASK"]),
            1 - ends_text,
            validate=False,
        )
        joined = tf.concat([ids, masks], axis=1)
        return tf.RaggedTensor.from_row_splits(
            joined.values, tf.gather(joined.row_splits, parts.row_splits), validate=False
        )

    def scorer(self) -> Scorer:
        """Returns the scorer of the probability of texts."""
        return Scorer(self.model, self.tokenizer.host, self.max_seq_length)

    @staticmethod
    def lacks_question(row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """Returns a message for a text without a blank, else ""."""
        return "" if any(map(any, answer["tokens"])) else (CUT_OFF if MASK in row["text"] else NO_BLANK).strip()

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns a line for each blank, its words with their probabilities, or says that there is none."""
        blanks = [blank for blank in zip(answer["tokens"], answer["probabilities"]) if any(blank[0])]
        if not blanks:
            return [f"  {ServedFillMask.lacks_question(row, answer)}"]
        return [
            "  " + "   ".join(f"{token} {probability:.3f}" for token, probability in zip(*blank)) for blank in blanks
        ]


class ServedNextToken(ServedFillMask):
    """Gives the same for a left-to-right model: the words that may follow the text before each [MASK]."""

    def scorer(self) -> Scorer:
        """Raises ValueError: scoring hides tokens that a left-to-right model does not see anyway."""
        raise ValueError("score: expected a model that sees both sides of a token, got one that reads left to right")

    def call_model(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `logits` [G,M,V] for `masked_lm_positions` [G,M], from the places before them."""
        places = tf.maximum(inputs["masked_lm_positions"] - 1, 0)
        return super().call_model({**inputs, "masked_lm_positions": places})


def best_words(logits: tf.Tensor, present: tf.Tensor, words: tf.Tensor, count: int) -> dict[str, tf.Tensor]:
    """Returns `tokens` and `probabilities` [B,M,K] of logits [B,M,R] (present [B,M] bool, words [V]); "" and 0 for
    absent blanks.

    The model may have more rows than the vocabulary has words (R >= V); the extra rows are never answers.
    """
    logits = tf.ensure_shape(logits, [None, None, None])  # without a rank, TensorFlow warns of a cost that it lacks
    probabilities, best = tf.math.top_k(tf.nn.softmax(logits)[:, :, : tf.size(words)], count)
    return {
        "tokens": tf.where(present[:, :, None], tf.gather(words, best), ""),
        "probabilities": tf.where(present[:, :, None], probabilities, 0.0),
    }
