"""Damaged sources, which a decoder learns to repair: those of BART (Lewis et al. 2020), and MASS (Song et al. 2019).

n tokens of a text, k of a span.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

Corruption = Literal["none", "token_masking", "deletion", "infilling", "sentence_permutation", "mass"]
MEAN_SPAN = 3.0  # tokens of a span of infilling, Poisson distributed
LAST_TOKENS = (".", "!", "?", "。", "！", "？")  # of sentences


class Words(NamedTuple):
    """The tokens of a vocabulary that corruptions put in, or look for."""

    mask_id: int
    ordinary: np.ndarray  # all but the special ones
    ends: np.ndarray  # of sentences


class HiddenSpan(NamedTuple):
    """A text with a hidden span for the encoder, and the span for the decoder, [k] each."""

    encoder_ids: np.ndarray
    decoder_ids: np.ndarray  # the true token before each place
    decoder_positions: np.ndarray  # of these tokens
    labels: np.ndarray


def damage(ids: np.ndarray, kind: Corruption, rate: float, words: Words, rng: np.random.Generator) -> np.ndarray:
    """Returns a damaged copy of a text's tokens [n]; `rate` is the share of tokens that are damaged."""
    if kind == "token_masking":
        return np.where(rng.random(len(ids)) < rate, words.mask_id, ids)
    if kind == "deletion":
        return ids[rng.random(len(ids)) >= rate]
    if kind == "infilling":
        return infill(ids, draw_spans(len(ids), rate, rng), words.mask_id)
    if kind == "sentence_permutation":
        sentences = split_sentences(ids, words.ends)
        return np.concatenate([ids[:0], *(sentences[number] for number in rng.permutation(len(sentences)))])
    return ids


def draw_spans(count: int, rate: float, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Draws spans (start, length) that do not overlap and hold round(rate * count) tokens; some are empty."""
    left, lengths = round(rate * count), list[int]()
    while left > 0:
        lengths.append(min(int(rng.poisson(MEAN_SPAN)), left))
        left -= lengths[-1]
    kept = count - sum(lengths)
    places = np.sort(rng.permutation(kept + len(lengths))[: len(lengths)])  # of the spans among kept tokens and spans
    starts = places - np.arange(len(lengths)) + np.cumsum([0, *lengths])[: len(lengths)]
    return [(int(start), length) for start, length in zip(starts, lengths)]


def infill(ids: np.ndarray, spans: Sequence[tuple[int, int]], mask_id: int) -> np.ndarray:
    """Replaces each span (start, length) by one [MASK], so that the number of tokens is hidden too; an empty span
    becomes a [MASK] more.
    """
    parts, begin = [ids[:0]], 0
    for start, length in spans:
        parts += [ids[begin:start], np.array([mask_id])]
        begin = start + length
    return np.concatenate([*parts, ids[begin:]]).astype(ids.dtype)


def split_sentences(ids: np.ndarray, ends: np.ndarray) -> list[np.ndarray]:
    """Splits a text behind the tokens that end sentences."""
    return [part for part in np.split(ids, np.flatnonzero(np.isin(ids, ends)) + 1) if len(part)]


def hide_span(ids: np.ndarray, rate: float, words: Words, rng: np.random.Generator) -> HiddenSpan:
    """Hides a span of round(rate * n) tokens behind the first, which is [CLS], and gives it to the decoder.

    It begins at the first place or at the last possible one, each with probability 0.2, or at any. The encoder sees
    80 % of it as [MASK], 10 % as they are and 10 % as another word. The decoder reads the true tokens, one place
    earlier, at their own positions (the authors' code).
    """
    count = min(max(1, round(len(ids) * rate)), len(ids) - 1)
    latest, draw = len(ids) - count, rng.random()
    start = 1 if draw >= 0.8 else latest if draw >= 0.6 else int(rng.integers(1, latest + 1))
    span, given = np.arange(start, start + count), ids.copy()
    for place in span:
        draw = rng.random()
        if draw < 0.8:
            given[place] = words.mask_id
        elif draw >= 0.9:
            given[place] = words.ordinary[rng.integers(0, len(words.ordinary))]
    return HiddenSpan(given, ids[span - 1], span - 1, ids[span])
