"""The served model of `text_to_text`: a text in, its answer out, written in a loop of the graph.

B texts, S tokens, W places of an answer.
"""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from official_bert.generation.generate import gumbel
from official_bert.generation.passes import NEVER_WRITTEN, NO_LOOP, Passes, fill, writable
from official_bert.generation.pieces import Pieces
from official_bert.serving.served_model import ServedModel, ServingOptions, Tensors
from official_bert.serving.served_words import ServedWords
from official_bert.serving.task_serving import Serving
from official_bert.tasks.writing.served_decoder import ServedDecoder, make_decoder
from official_bert.text import graph_packing
from official_bert.text.graph_loading import AnyGraphTokenizer

MOST_TOKENS = 2**17  # tokens of a row times its passes: what one text may cost


class ServedText(ServedWords):
    """Writes an answer of at most `answer_length` tokens to a text, in passes."""

    outputs = ("answer", "score", "tokens", "passes", "truncated")
    reads = ("passes", "block_size", "temperature", "seed")
    padded_text: ClassVar[Mapping[str, str]] = {}
    why_not_dense = NO_LOOP

    def __init__(
        self,
        model: keras.Model,
        tokenizer: AnyGraphTokenizer,
        max_seq_length: int,
        *,
        answer_length: int,
        how: tuple[int, int] = (0, 0),
        passes: int = 0,
        block_size: int = 0,
        temperature: float = 0.0,
        seed: int = 0,
    ):
        super().__init__(model, tokenizer, max_seq_length, answer_length)
        self.width = answer_length
        own_passes, own_block = how
        self.how = Passes.of_answer(answer_length, passes or own_passes, block_size or (0 if passes else own_block))
        if self.how.passes * max_seq_length > MOST_TOKENS:
            raise ValueError(
                f"--passes: expected at most {MOST_TOKENS // max_seq_length} of rows of {max_seq_length} tokens, "
                f"got {self.how.passes}"
            )
        self.temperature, self.seed = temperature, seed % 2**32
        self.allowed = writable(tokenizer.tokens, map(tokenizer.special_id, NEVER_WRITTEN))
        self.pieces = Pieces(tokenizer.host)

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `answer` [B]; `score` [B], the sum of the log-probabilities of its tokens and its final [SEP];
        `tokens` [B,W]; `passes` [B,W], the pass that wrote each; and `truncated` [B], whether the text was cut.
        """
        ids = self.tokenizer.tokenize(inputs["text"])
        features, truncated = self._rows(ids)
        B, length = tf.shape(features["input_ids"])[0], tf.reduce_sum(features["input_mask"], axis=1)
        places = length[:, None] - self.width + tf.range(self.width)  # [B,W]
        perturb = None
        if self.temperature:
            perturb = functools.partial(gumbel, places=places, temperature=self.temperature, seed=self.seed)
        filled = fill(
            functools.partial(self.logits_of, features),
            features["input_ids"],
            places,
            tf.ones((B, self.width), tf.bool),
            self.allowed,
            self.how,
            perturb=perturb,
        )
        words = filled.words[:, :, 0]
        ended = tf.cumsum(tf.cast(tf.equal(words, self.special["SEP"]), tf.int32), axis=1)
        is_word = tf.equal(ended, 0)
        ends = tf.equal(tf.cumsum(ended, axis=1), 1)  # the first [SEP]
        chances = tf.where(is_word | ends, tf.math.log(filled.probabilities[:, :, 0]), 0.0)
        return {
            "answer": self.pieces.join(tf.ragged.boolean_mask(words, is_word)),
            "score": tf.reduce_sum(chances, axis=1),
            "tokens": tf.gather(self.words, words),
            "passes": filled.passes,
            "truncated": truncated,
        }

    def _rows(self, ids: tf.RaggedTensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        """Returns rows of texts with W blanks behind them, and whether each text was cut [B]."""
        room = self.max_seq_length - self.width - 1 - self.template.separators
        text, truncated = graph_packing.truncate(graph_packing.whole(ids), room)
        zeros = tf.zeros_like(text.start)
        blanks = graph_packing.Slices(tf.fill([self.width], self.special["MASK"]), zeros, zeros + self.width - 1)
        layout = graph_packing.lay_out(text, blanks, self.template)
        last = tf.reduce_sum(layout.input_mask, axis=1, keepdims=True) - 1  # [SEP], the last place of an answer
        is_last = tf.equal(tf.range(tf.shape(layout.input_ids)[1]), last)
        features = layout.features()
        return {**features, "input_ids": tf.where(is_last, self.special["MASK"], features["input_ids"])}, truncated

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the answer."""
        return [f"  {answer['answer']}   {answer['score']:.3f}"]


def _make(task: Any, model: keras.Model, options: ServingOptions) -> ServedModel:
    if task.options.generator == "decoder":
        return make_decoder(task, model, options)
    how = task.options.passes, task.options.block_size
    return ServedText.make(task, model, options, answer_length=task.options.answer_length, how=how)


ANSWERS = Serving((ServedText, ServedDecoder), _make)
