"""The served model of an encoder and its decoder: a text in, its answer out, written word by word in the graph.

B texts, W most tokens of an answer.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from official_bert.generation.pieces import Pieces
from official_bert.generation.word_search import Search, check_limits, functions_of, write_with
from official_bert.serving.served_model import ID_INPUTS, ServedModel, ServingOptions, Tensors
from official_bert.tasks.writing.decoding import search_of
from official_bert.text.graph_loading import AnyGraphTokenizer


class ServedDecoder(ServedModel):
    """Writes an answer to a text, by `search`: greedy, or with `beams`."""

    outputs = ("answer", "score", "tokens", "truncated")
    reads = ("beams",)
    why_not_dense = "a decoder is asked once for each word, in a loop that these formats lack"

    def __init__(
        self,
        model: keras.Model,
        tokenizer: AnyGraphTokenizer,
        max_seq_length: int,
        *,
        search: Search,
        beams: int = 0,
    ):
        super().__init__(model, tokenizer, max_seq_length)
        self.search = dataclasses.replace(search, num_beams=beams or search.num_beams)
        check_limits(model, self.search)
        self.words = tf.constant(tokenizer.tokens)
        self.pieces = Pieces(tokenizer.host)

    def answer_rows(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `sequences` [B,W], the ids of the answers, and `score` [B]: greedy, the sum of the log-probabilities;
        by beams, that divided by the length.
        """
        begun = tf.fill([tf.shape(inputs["input_ids"])[0], 1], self.search.decoder_start_token_id)
        rows = (inputs[name] for name in ID_INPUTS)
        texts, scores, _ = write_with(functions_of(self.model), begun, self.search, *rows)
        return {"sequences": texts[:, 0, 1:], "score": scores[:, 0]}

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `answer` [B], its `score` [B], its `tokens` [B,W], and `truncated` [B], whether the text was cut."""
        features, truncated = self.pack(self.tokenizer.tokenize(inputs["text"]))
        answer = self.answer_rows(features)
        # the table of words may have more rows than the vocabulary has tokens
        words = tf.where(answer["sequences"] < tf.size(self.words), answer["sequences"], self.special["UNK"])
        is_word = tf.equal(tf.cumsum(tf.cast(self.search.ends(words), tf.int32), axis=1), 0)
        return {
            "answer": self.pieces.join(tf.ragged.boolean_mask(words, is_word)),
            "score": answer["score"],
            "tokens": tf.gather(self.words, words),
            "truncated": truncated,
        }

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the answer."""
        return [f"  {answer['answer']}   {answer['score']:.3f}"]


def make_decoder(task: Any, model: keras.Model, options: ServingOptions) -> ServedDecoder:
    """Returns the served model of a task; one that is exported writes greedily, unless beams are asked for."""
    search = search_of(task, **({"num_beams": 1} if options.bounded else {}))
    return ServedDecoder.make(task, model, options, search=search)
