"""How tokens become rows: `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]`, truncation, sliding windows."""

import bisect
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T", bound=Sequence)


def truncate_pair(tokens_a: T, tokens_b: T, max_tokens: int) -> tuple[T, T]:
    """Both sequences, together at most `max_tokens` long (2018 `_truncate_seq_pair`).

    Takes one token after another from the end of the longer one, of equally long ones from the second: a short text
    carries more in each token than a long one. Pass an empty second sequence to cut a single one.
    """
    if max_tokens < 0:
        raise ValueError(f"expected room for at least 0 tokens between the special ones, got {max_tokens}")
    length_a, length_b = len(tokens_a), len(tokens_b)
    while length_a + length_b > max_tokens:
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    return tokens_a[:length_a], tokens_b[:length_b]  # type: ignore[return-value]


def pack_pair(ids_a: Sequence[int], ids_b: Sequence[int] | None, cls_id: int, sep_id: int) -> tuple[list[int], list[int]]:
    """(input_ids, segment_ids) of one text, or of two: [CLS] a [SEP] in segment 0, b [SEP] in segment 1.

    As in 2018, an empty second text is none: it gets no [SEP].
    """
    input_ids = [cls_id, *map(int, ids_a), sep_id]
    segment_ids = [0] * len(input_ids)
    if ids_b is not None and len(ids_b):
        input_ids += [*map(int, ids_b), sep_id]
        segment_ids += [1] * (len(ids_b) + 1)
    return input_ids, segment_ids


def pad(input_ids: Sequence[int], segment_ids: Sequence[int], max_seq_length: int,
        pad_id: int = 0) -> dict[str, np.ndarray]:
    """`input_ids`, `input_mask` (1 = real token) and `segment_ids`, each int32 [max_seq_length].

    Raises ValueError where the row is longer than `max_seq_length`.
    """
    length = len(input_ids)
    if length > max_seq_length:
        raise ValueError(f"expected a row of at most {max_seq_length} tokens, got {length}")
    row = {name: np.zeros(max_seq_length, np.int32) for name in ("input_ids", "input_mask", "segment_ids")}
    row["input_ids"][length:] = pad_id
    row["input_ids"][:length] = input_ids
    row["input_mask"][:length] = 1
    row["segment_ids"][:length] = segment_ids
    return row


def pack_padded(ids_a: Sequence[int], ids_b: Sequence[int] | None, cls_id: int, sep_id: int, max_seq_length: int,
                pad_id: int = 0) -> dict[str, np.ndarray]:
    """One example of a classifier: truncated, packed and padded, see `pad` for the keys.

    Raises ValueError where `max_seq_length` leaves no room for the special tokens.
    """
    ids_b = () if ids_b is None else ids_b
    special = 3 if len(ids_b) else 2
    if max_seq_length < special:
        raise ValueError(f"max_seq_length: expected at least {special} for the special tokens, got {max_seq_length}")
    ids_a, ids_b = truncate_pair(ids_a, ids_b, max_seq_length - special)
    return pad(*pack_pair(ids_a, ids_b, cls_id, sep_id), max_seq_length, pad_id)


def sliding_windows(length: int, window: int, stride: int) -> list[tuple[int, int]]:
    """(start, length) of overlapping windows over `length` tokens (2018 `run_squad`, `_DocSpan`).

    Windows begin `stride` tokens apart (at most a window, so that none is skipped) until one reaches the end; of no
    tokens there are no windows. Raises ValueError for a window or stride below 1.
    """
    if window < 1 or stride < 1:
        raise ValueError(f"expected a window and a stride of at least 1 token, got {window} and {stride}")
    windows = []
    start = 0
    while start < length:
        windows.append((start, min(window, length - start)))
        if start + window >= length:
            break
        start += min(window, stride)
    return windows


def is_max_context(windows: Sequence[tuple[int, int]], window_index: int, position: int) -> bool:
    """Whether, of all windows that hold `position`, this one shows it with the most context.

    The score is that of 2018 `_check_is_max_context`: the smaller of left and right context, plus a hundredth of the
    window's length; of equal ones the first window wins. `windows` are those of `sliding_windows`.
    """
    first = bisect.bisect_left(windows, position, key=lambda item: item[0] + item[1] - 1)
    behind = bisect.bisect_right(windows, position, key=lambda item: item[0])

    def score(index: int) -> float:
        start, length = windows[index]
        return min(position - start, start + length - 1 - position) + 0.01 * length
    return first < behind and window_index == max(range(first, behind), key=score)
