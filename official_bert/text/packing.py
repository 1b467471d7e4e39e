"""Rows of tokens: `[CLS] a [SEP]` and `[CLS] a [SEP] b [SEP]`, truncation, sliding windows."""

import bisect
import dataclasses
from collections.abc import Sequence
from typing import Literal, TypeVar

T = TypeVar("T", bound=Sequence)
Part = Literal["head", "tail", "head_tail"]  # of a text that is too long: what the model sees


def truncate_pair(tokens_a: T, tokens_b: T, max_tokens: int) -> tuple[T, T]:
    """Cuts both sequences to at most `max_tokens` tokens in all (2018 `_truncate_seq_pair`).

    Removes one token at a time from the end of the longer one, or of the second if both are equally long: each token of
    a short text carries more than one of a long text. Pass an empty second sequence to cut a single one.
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


def keep(tokens: T, count: int, part: Part) -> T:
    """Returns `count` tokens of a longer sequence: its head, its tail, or half from each end (Sun et al. 2019).

    If `count` is odd, the head has one more.
    """
    if part == "head" or len(tokens) <= count:
        return tokens[:count]  # type: ignore[return-value]
    last = count if part == "tail" else count // 2
    return [*tokens[: count - last], *tokens[len(tokens) - last :]]  # type: ignore[return-value]


@dataclasses.dataclass(frozen=True)
class Template:
    """The form of rows: `[CLS] a [SEP] b [SEP]` or, with two separators and a single segment, `<s> a </s></s> b </s>`.

    Without a second text, or with an empty one, a row is `[CLS] a [SEP]`.
    """

    cls_id: int
    sep_id: int
    pad_id: int = 0
    separators: int = 1  # between two texts
    second_segment: int = 1  # of the second text

    def extra(self, pair: bool) -> int:
        """Returns the number of special tokens in a row of one text, or of a pair."""
        return 2 + self.separators * pair

    def pack(self, ids_a: Sequence[int], ids_b: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Returns (input_ids, segment_ids) of one text or two. As in 2018, an empty second text gets no [SEP]."""
        input_ids = [self.cls_id, *map(int, ids_a), self.sep_id]
        segment_ids = [0] * len(input_ids)
        if ids_b is not None and len(ids_b):
            more = [self.sep_id] * (self.separators - 1)
            input_ids += [*more, *map(int, ids_b), self.sep_id]
            segment_ids += [0] * len(more) + [self.second_segment] * (len(ids_b) + 1)
        return input_ids, segment_ids


def check_segments(type_vocab_size: int, where: str, second_segment: int = 1) -> None:
    """Raises ValueError, naming `where`, if the model lacks an embedding for the second segment; models without
    segments pass.
    """
    if 0 < type_vocab_size <= second_segment:
        raise ValueError(
            f"{where}: expected a model.type_vocab_size of at least 2 for two texts in a row (segments 0 and 1), "
            f"got {type_vocab_size}"
        )


def sliding_windows(length: int, window: int, stride: int) -> list[tuple[int, int]]:
    """Returns (start, length) of overlapping windows over `length` tokens (2018 `run_squad`, `_DocSpan`).

    Windows begin `stride` tokens apart (at most a window, so that no token is skipped) until one reaches the end. No
    tokens give no windows. Raises ValueError for a window or stride below 1.
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
    """Returns whether this window shows `position` with the most context of all windows that hold it.

    As in 2018 (`_check_is_max_context`), the score is the smaller of left and right context plus a hundredth of the
    window's length; the first of equal windows wins. `windows` are those of `sliding_windows`.
    """
    first = bisect.bisect_left(windows, position, key=lambda item: item[0] + item[1] - 1)
    behind = bisect.bisect_right(windows, position, key=lambda item: item[0])

    def score(index: int) -> float:
        start, length = windows[index]
        return min(position - start, start + length - 1 - position) + 0.01 * length

    return first < behind and window_index == max(range(first, behind), key=score)
