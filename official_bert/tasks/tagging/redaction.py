"""Replaces the entities of a text by their type and a number, so that it can go on to somebody else: `[PER_1]`.

B texts, E the most entities of a text.
"""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import tensorflow as tf

from official_bert.serving.served_model import Tensors

MARK = "\x01"
REST = 1 << 30  # characters; no text is as long


class Redaction:
    """Makes a `ServedTagger` give a text with replacements instead of its entities.

    Numbers count the different entities of a text, in their order; the same words of one type have one number. They
    begin above the numbers of all that looks like a replacement in the text itself.
    """

    padded_text: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("replacements", "types", "starts", "ends", "scores"), "num_entities"
    )
    outputs: ClassVar[tuple[str, ...]] = ("redacted", *padded_text, "num_entities", "truncated")
    types: list[str]

    def answer_text(self, inputs: Tensors) -> dict[str, tf.Tensor]:
        """Returns `redacted` [B], the texts; `replacements`, and `types`, `starts`, `ends`, `scores` of what they
        replace [B,E], padded with "" and 0 beyond `num_entities` [B]; `truncated` [B].

        Places are those in the texts that were given.
        """
        found = super().answer_text(inputs)  # type: ignore[misc]
        text, counts = tf.strings.unicode_transcode(inputs["text"], "UTF-8", "UTF-8"), found["num_entities"]
        row, real = tf.repeat(tf.range(tf.size(text)), counts), tf.sequence_mask(counts, tf.shape(found["starts"])[1])
        ends = tf.pad(found["ends"], [[0, 0], [1, 0]])  # of the entity before
        columns = (found["types"], found.pop("entities"), found["starts"], ends[:, :-1])
        kinds, entities, starts, before = (tf.boolean_mask(column, real) for column in columns)
        # In the order in which they first stand there, so those of a text follow each other.
        number = tf.unique(tf.strings.join([tf.strings.as_string(row), kinds, entities], MARK)).idx
        number += tf.gather(self._used_number(text) + 1 - tf.math.unsorted_segment_min(number, row, tf.size(text)), row)
        replacements = tf.strings.join(["[", kinds, "_", tf.strings.as_string(number), "]"])
        kept = tf.strings.substr(tf.gather(text, row), before, starts - before, unit="UTF8_CHAR")
        head = tf.strings.unsorted_segment_join(tf.strings.join([kept, replacements]), row, tf.size(text))
        last = tf.reduce_max(ends, axis=1)
        tail = tf.strings.substr(text, last, tf.fill(tf.shape(last), REST), unit="UTF8_CHAR")
        padded = tf.RaggedTensor.from_row_lengths(replacements, counts, validate=False).to_tensor()
        return {**found, "redacted": tf.strings.join([head, tail]), "replacements": padded}

    def _used_number(self, text: tf.Tensor) -> tf.Tensor:
        """Returns the highest number in what looks like a replacement in each text, 0 if nothing does."""
        like = rf"(?i)\[(?:{'|'.join(map(re.escape, self.types))})_([0-9]{{1,9}})\]"
        marked = tf.strings.regex_replace(tf.strings.regex_replace(text, MARK, ""), like, rf"{MARK}\1{MARK}")
        numbers = tf.strings.to_number(tf.strings.split(marked, MARK)[:, 1::2], tf.int32)
        return tf.maximum(tf.reduce_max(numbers, axis=1), 0)

    @staticmethod
    def describe(row: Mapping[str, Any], answer: Mapping[str, Any]) -> list[str]:
        """Returns the text with its replacements."""
        return [answer["redacted"]]
