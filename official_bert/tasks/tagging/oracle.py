"""Entities of raw text: its words with their places, and tagged words back as slices of the text."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from official_bert.tasks.tagging.conll import read_chunks
from official_bert.text.tokenization import FullTokenizer, is_cjk, is_punctuation


class Word(NamedTuple):
    """A word of a raw text."""

    pieces: tuple[str, ...]
    start: int  # code points
    end: int


def split_text(tokenizer: FullTokenizer, text: str) -> list[Word]:
    """The words of a text, as people who annotate write them: what stands between spaces, with punctuation at its ends set apart.

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
    """Tokens without a space between them: punctuation before and behind the rest stands by itself."""
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


def entities_of(text: str, words: Sequence[Word], tags: Sequence[str], probabilities: Sequence[float]) -> dict[str, list[Any]]:
    """`entities` = text[start:end], `types`, `starts`, `ends`, `scores` from the words' tags; pure.

    Tags are read as conlleval reads them. A score is the mean probability of its words' tags.
    """
    found: dict[str, list[Any]] = {name: [] for name in ("entities", "types", "starts", "ends", "scores")}
    for chunk in read_chunks(tags):
        start, end = words[chunk.start].start, words[chunk.end - 1].end
        values = (text[start:end], chunk.kind, start, end, float(np.mean(probabilities[chunk.start:chunk.end])))
        for name, value in zip(found, values):
            found[name].append(value)
    return found
