"""Fill-mask models that fill the [MASK]s of a text together: in passes, or by beams.

B texts, M blanks, K best words or beams.
"""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import tensorflow as tf

from official_bert.generation.passes import NEVER_WRITTEN, NO_LOOP, Filled, Passes, beam_fill, fill, writable
from official_bert.generation.pieces import Pieces
from official_bert.serving.bounds import in_range, require
from official_bert.serving.served_model import ServedModel, ServingOptions, Tensors
from official_bert.serving.task_serving import Serving
from official_bert.tasks.pretraining.served import MASK, ServedFillMask, ServedNextToken
from official_bert.tasks.task import TaskBase
from official_bert.text.graph_loading import AnyGraphTokenizer

MOST_BLANKS = 4  # of beams: their number of candidates grows with each


class ServedTogether(ServedFillMask):
    """The base of both: blanks, and the words that may be written."""

    why_not_dense = NO_LOOP

    def __init__(self, model: keras.Model, tokenizer: AnyGraphTokenizer, max_seq_length: int, **settings: Any):
        super().__init__(model, tokenizer, max_seq_length, **settings)
        self.allowed = writable(tokenizer.tokens, map(tokenizer.special_id, (*NEVER_WRITTEN, "[SEP]")))
        self.blank = tokenizer.host.special["[MASK]"] if hasattr(tokenizer, "added") else MASK
        self.pieces = Pieces(tokenizer.host)


class ServedPasses(ServedTogether):
    """Gives the likeliest words at each [MASK], filled in `passes`, and the text with them."""

    outputs = (*ServedFillMask.outputs[:-1], "filled", "truncated")
    reads = ("top_k", "max_positions", "passes")

    def __init__(self, *arguments: Any, passes: int = 1, **settings: Any):
        super().__init__(*arguments, **settings)
        self.how = Passes(passes=min(passes, self.max_seq_length))  # more fill one blank at a time, too

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `tokens`, `probabilities` [B,M,K] of the pass that filled each [MASK], its word first; `num_blanks`,
        `filled`, the text with its blanks replaced, and `truncated` [B].
        """
        features, places, present, truncated = self.find_blanks(inputs["text"])
        filled: Filled = fill(
            functools.partial(self.logits_of, features),
            features["input_ids"],
            places,
            present,
            self.allowed,
            self.how,
            self.top_k,
        )
        count = tf.reduce_sum(tf.cast(present, tf.int32), axis=1)
        return {
            "tokens": tf.where(present[:, :, None], tf.gather(self.words, filled.words), ""),
            "probabilities": tf.where(present[:, :, None], filled.probabilities, 0.0),
            "num_blanks": count,
            "filled": self.pieces.insert(inputs["text"], self.blank, filled.words[:, :, 0], count),
            "truncated": truncated,
        }

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the filled text, and a line for each blank."""
        return [f"  {answer['filled']}", *ServedFillMask.describe(row, answer)]


class ServedBeams(ServedTogether):
    """Gives the best fillings of all [MASK]s of a text, found from left to right with `beams`, best first."""

    outputs = ("fillings", "scores", "num_blanks", "num_fillings", "truncated")
    padded_text: ClassVar = {"fillings": "num_fillings", "scores": "num_fillings"}
    reads = ("max_positions", "beams")

    def __init__(self, *arguments: Any, beams: int = 1, **settings: Any):
        super().__init__(*arguments, **settings)
        self.beams = min(beams, int(self.allowed.sum()) ** MOST_BLANKS)

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `fillings` [B,K,M], the tokens of each blank, and `scores` [B,K], the sum of their log-probabilities;
        a text has `num_fillings` of `num_blanks` tokens [B]; `truncated` [B].
        """
        features, places, present, truncated = self.find_blanks(inputs["text"])
        count = tf.reduce_sum(tf.cast(present, tf.int32), axis=1)
        most = tf.reduce_max(tf.concat([count, [0]], 0))
        expected = f"times {self.blank} in a text for --beams (--passes takes more)"
        places = require([in_range("text: expected", most, 0, MOST_BLANKS, expected)], places)
        repeated = {name: tf.repeat(values, self.beams, axis=0) for name, values in features.items()}
        words, scores = beam_fill(
            functools.partial(self.logits_of, repeated),
            features["input_ids"],
            places,
            present,
            self.allowed,
            self.beams,
        )
        found = tf.math.is_finite(scores) & (count > 0)[:, None]
        shown = found[:, :, None] & present[:, None]
        return {
            "fillings": tf.where(shown, tf.gather(self.words, words), ""),
            "scores": tf.where(found, scores, 0.0),
            "num_blanks": count,
            "num_fillings": tf.reduce_sum(tf.cast(found, tf.int32), axis=1),
            "truncated": truncated,
        }

    @classmethod
    def unpadded(cls, answer: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer without its padding."""
        own = {**answer, "fillings": [filling[: answer["num_blanks"]] for filling in answer["fillings"]]}
        return {name: value for name, value in super().unpadded(own).items() if name != "num_blanks"}

    @staticmethod
    def lacks_question(row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
        """Returns a message for a text without a blank, else ""."""
        return ServedFillMask.lacks_question(row, {"tokens": answer["fillings"]})

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns a line for each filling, with its score."""
        fillings = [(words, score) for words, score in zip(answer["fillings"], answer["scores"]) if any(words)]
        lines = [f"  {' '.join(filter(None, words))}  {score:.3f}" for words, score in fillings]
        return lines or [f"  {ServedBeams.lacks_question(row, answer)}"]


def _make(task: TaskBase, model: keras.Model, options: ServingOptions) -> ServedModel:
    if getattr(task.options, "objective", "") == "next_token":
        return ServedNextToken.make(task, model, options)
    if options.passes is not None and options.beams is not None:
        raise ValueError("--passes, --beams: expected one of them, got both")
    kind = ServedFillMask if options.beams is None else ServedBeams
    return (kind if options.passes is None else ServedPasses).make(task, model, options)


# Of a model's outputs, the first class counts whose outputs they hold.
BLANKS = Serving((ServedPasses, ServedBeams, ServedFillMask), _make)
