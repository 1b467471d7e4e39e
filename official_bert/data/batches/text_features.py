"""Makes model inputs from texts; rows are packed and truncated as in 2018 (`convert_single_example`)."""

import array
import functools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from official_bert.data.batches.feature_rows import ChoiceFeatures, TextFeatures
from official_bert.data.cache import cached, text_digest
from official_bert.text import loading
from official_bert.text.packing import Template, keep, sliding_windows, truncate_pair
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.tokenizer import Tokenizer

LARGE = 5_000_000  # characters; for more, building the compiled tokenizer and using it is quicker than the plain one
LAYOUT = 2  # version of the cached arrays
Truncate = Literal["head", "tail", "head_tail", "windows"]


def make_features(
    text: Sequence[str],
    text_pair: Sequence[str] | None,
    tokenizer: Tokenizer,
    max_seq_length: int,
    cache_dir: str = "",
    truncate: Truncate = "head",
    doc_stride: int = 64,
) -> Mapping[str, np.ndarray]:
    """Makes the arrays of `TextFeatures`; keeps them between runs in `cache_dir`, if given.

    `truncate` names the part of an overlong text that is kept; with `windows`, a single text becomes several rows,
    `doc_stride` tokens apart. Raises ValueError if `max_seq_length` leaves no room for the special tokens.
    """
    special = tokenizer.template.extra(text_pair is not None)
    if max_seq_length < special:
        raise ValueError(f"max_seq_length: expected at least {special} for the special tokens, got {max_seq_length}")
    pack = functools.partial(_pack_all, text, text_pair, tokenizer, max_seq_length, truncate, doc_stride)
    if not cache_dir:  # spares the digests
        return pack()
    depends_on = {
        "layout": LAYOUT,
        "texts": [text_digest(text), text_digest(text_pair or [])],
        "pairs": text_pair is not None,
        "vocab": loading.digest(tokenizer.vocab_file),
        "do_lower_case": tokenizer.do_lower_case,
        "max_seq_length": max_seq_length,
    }
    depends_on |= {} if truncate == "head" else {"truncate": truncate, "doc_stride": doc_stride}
    return cached(cache_dir, depends_on, pack)


def make_choice_features(
    rows: Sequence[tuple[str, Sequence[str]]],
    tokenizer: Tokenizer,
    max_seq_length: int,
    cache_dir: str = "",
    extra: Mapping[str, np.ndarray] | None = None,
) -> ChoiceFeatures:
    """Returns an example for each text and its second texts: one row per second text, and the example's values in
    `extra`.
    """
    arrays = make_features(
        [text for text, others in rows for _ in others],
        [other for _, others in rows for other in others],
        tokenizer,
        max_seq_length,
        cache_dir,
    )
    return ChoiceFeatures(TextFeatures(arrays), [len(others) for _, others in rows], extra or {})


def tokenize_all(tokenizer: Tokenizer, texts: Sequence[str]) -> list[np.ndarray]:
    """Returns the ids of each text."""
    if not isinstance(tokenizer, FullTokenizer) or sum(map(len, texts)) < LARGE:
        return [np.array(tokenizer.tokenize_ids(text), np.int32) for text in texts]
    ids, lengths = loading.load_lines(tokenizer.vocab_file, tokenizer.do_lower_case).encode_lines(texts)
    return np.split(ids, np.cumsum(lengths)[:-1])


def _pack_all(
    text: Sequence[str],
    text_pair: Sequence[str] | None,
    tokenizer: Tokenizer,
    max_seq_length: int,
    truncate: Truncate,
    doc_stride: int,
) -> dict[str, np.ndarray]:
    first, template = tokenize_all(tokenizer, text), tokenizer.template
    if truncate == "windows":
        return _pack_windows(first, template, max_seq_length, doc_stride)
    second = [np.zeros(0, np.int32)] * len(first) if text_pair is None else tokenize_all(tokenizer, text_pair)
    ids = array.array("i")
    starts, first_lengths, longer = [0], [], 0
    for a, b in zip(map(np.ndarray.tolist, first), map(np.ndarray.tolist, second)):
        room = max_seq_length - template.extra(bool(b))
        longer += len(a) + len(b) > room
        head_a, head_b = truncate_pair(a, b, room)
        row, segments = template.pack(keep(a, len(head_a), truncate), keep(b, len(head_b), truncate))
        ids.extend(row)
        first_lengths.append(len(row) - sum(segments))
        starts.append(len(ids))
    return {
        "ids": np.array(ids, np.int32),
        "starts": np.array(starts),
        "first_lengths": np.array(first_lengths, np.int32),
        "longer": np.array(longer),
    }


def _pack_windows(
    texts: Sequence[np.ndarray], template: Template, max_seq_length: int, stride: int
) -> dict[str, np.ndarray]:
    """A row for each window over a text; a text without tokens has one row."""
    room = max_seq_length - template.extra(False)
    ids, starts, owners = array.array("i"), [0], []
    for number, tokens in enumerate(texts):
        for start, length in sliding_windows(len(tokens), room, stride) or [(0, 0)]:
            ids.extend(template.pack(tokens[start : start + length].tolist())[0])
            starts.append(len(ids))
            owners.append(number)
    return {
        "ids": np.array(ids, np.int32),
        "starts": np.array(starts),
        "first_lengths": np.diff(starts).astype(np.int32),
        "longer": np.array(sum(len(tokens) > room for tokens in texts)),
        "texts": np.array(owners),
    }
