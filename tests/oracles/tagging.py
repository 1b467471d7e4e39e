"""Entities of raw text: its words with their offsets, and tagged words as slices of the text."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.special

from official_bert.data.tagged.chunk_tags import read_chunks
from official_bert.tasks.tagging.features import TaggingFeatureMaker, gather_words
from official_bert.text.packing import sliding_windows
from official_bert.text.tokenization import FullTokenizer, is_cjk, is_punctuation


class Word(NamedTuple):
    """A word of a raw text."""

    pieces: tuple[str, ...]
    start: int  # code points
    end: int


def split_text(tokenizer: FullTokenizer, text: str) -> list[Word]:
    """Splits a text into words as annotators segment them: at spaces, with punctuation at a word's ends set apart.

    "Dr. O'Neil's (new) U.S. home," has the words Dr . O'Neil's ( new ) U.S . home , and a CJK ideograph is a word.
    """
    words: list[Word] = []
    run: list[tuple[str, int, int]] = []
    for token in tokenizer.tokenize_with_offsets(text):
        begins = run and not token[0].startswith("##")
        if begins and (token[1] != run[-1][2] or is_cjk(text[token[1]]) or is_cjk(text[run[-1][1]])):
            words += _split_run(text, run)
            run = []
        run.append(token)
    return words + _split_run(text, run)


def _split_run(text: str, run: list[tuple[str, int, int]]) -> list[Word]:
    """Splits tokens without a space between them: punctuation at either end stands alone."""
    inner = [index for index, (_, start, _) in enumerate(run) if not is_punctuation(text[start])]
    first, last = (inner[0], inner[-1]) if inner else (len(run), -1)
    words: list[Word] = []
    for index, (token, start, end) in enumerate(run):
        if words and (first < index <= last or token.startswith("##")):
            before = words.pop()
            words.append(Word((*before.pieces, token), before.start, end))
        else:
            words.append(Word((token,), start, end))
    return words


def entities_of(
    text: str, words: Sequence[Word], tags: Sequence[str], probabilities: Sequence[float]
) -> dict[str, list[Any]]:
    """`entities` = text[start:end], `types`, `starts`, `ends`, `scores` from the words' tags; pure.

    Tags are read as conlleval reads them. A score is the mean probability of its words' tags.
    """
    found: dict[str, list[Any]] = {name: [] for name in ("entities", "types", "starts", "ends", "scores")}
    for chunk in read_chunks(tags):
        start, end = words[chunk.start].start, words[chunk.end - 1].end
        values = (text[start:end], chunk.kind, start, end, float(np.mean(probabilities[chunk.start : chunk.end])))
        for name, value in zip(found, values):
            found[name].append(value)
    return found


def encode(task, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Makes the rows of all windows of raw texts, with the words of `split_text`."""
    maker = TaggingFeatureMaker(task.tokenizer, task.options.max_seq_length, task.options.doc_stride)
    encoded = []
    for number, row in enumerate(rows):
        words = [task.tokenizer.convert_tokens_to_ids(word.pieces) for word in split_text(task.tokenizer, row["text"])]
        firsts = np.cumsum([0, *map(len, words)])[:-1]
        windows = sliding_windows(sum(map(len, words)), maker.max_seq_length - 2, maker.doc_stride)
        for feature, (start, length) in zip(maker.windows(number, words), windows, strict=True):
            first_pieces = np.zeros(len(feature.input_ids), np.int32)
            first_pieces[firsts[(firsts >= start) & (firsts < start + length)] - start + 1] = 1
            values = feature.row(np.zeros(len(words), np.int32))
            encoded.append(
                {
                    **{name: values[name] for name in ("input_ids", "input_mask", "segment_ids")},
                    "first_pieces": first_pieces,
                    "feature": feature,
                }
            )
    return encoded


def decode(
    task,
    rows: Sequence[Mapping[str, Any]],
    features: Sequence[Mapping[str, Any]],
    predictions: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Returns `entities` (slices of the text), `types`, `starts`, `ends`, `scores` of each text; `truncated` is never
    true.
    """
    words = [split_text(task.tokenizer, row["text"]) for row in rows]
    if not features:
        return [entities_of(row["text"], [], [], []) | {"truncated": False} for row in rows]
    logits = gather_words(
        [row["feature"] for row in features], [row["logits"] for row in predictions], [len(part) for part in words]
    )
    answers = []
    for row, own, one, found in zip(rows, words, logits, task.answers.decode_tags(logits, predictions[0])):
        chances = scipy.special.softmax(one, axis=-1)
        names = [task.options.labels[tag] for tag in found]
        answers.append(
            entities_of(row["text"], own, names, chances[np.arange(len(found)), found]) | {"truncated": False}
        )
    return answers
