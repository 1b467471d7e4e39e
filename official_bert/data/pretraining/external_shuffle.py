"""Rows of a file in a random order that is given, read and written mostly in sequence: no disk is asked for single rows.

The order is cut into buckets of neighbouring places. A first pass over the rows puts each into its bucket's part of a second
file; then a bucket after another is mapped into memory, where picking single rows is cheap. A file that is one bucket
is mapped as it is.
"""

import os
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import numpy as np

BUCKET_BYTES = 1 << 27  # mapped into memory at a time
CHUNK_BYTES = 1 << 24  # held in memory twice while rows are put into buckets


class Bucket(NamedTuple):
    """Neighbours in the order: `rows[chosen]` are those of places `start`, start + 1, ..."""

    start: int
    rows: np.ndarray  # [n, width]
    chosen: np.ndarray  # [n] int64


def shuffled(file: IO[bytes], row: np.dtype, order: np.ndarray, open_scratch: Callable[[], IO[bytes]], multiple: int = 1,
             progress: Callable[[float], Any] = lambda share: None) -> Iterator[Bucket]:
    """Yields `rows[order]` bucket by bucket; the rows (of type `row`, with a shape) fill `file`, which is empty afterwards.

    Buckets hold a multiple of `multiple` rows. A file of several buckets shrinks while their file grows, so they need hardly
    more disk together. Memory: 2 bytes a row and 32 MB; `progress` is called with the share of the rows in buckets.
    """
    size = max(1, BUCKET_BYTES // (row.itemsize * multiple)) * multiple
    if len(order) > size:
        file = _put_in_buckets(file, row, order, size, open_scratch, progress)
    for start in range(0, len(order), size):
        count = min(size, len(order) - start)
        rows = np.memmap(file, row.base, "r", start * row.itemsize, (count, *row.shape))
        rows[:, 0].max()  # reads the bucket in sequence, if it is not in the system's cache
        chosen = np.asarray(order[start:start + count])
        if len(order) > size:  # rows stand in a bucket as they stood in the file, from its last chunk to its first
            places = np.empty(count, np.int64)
            places[_as_put(chosen, row)] = np.arange(count)
            chosen = places
        yield Bucket(start, rows, chosen)


def _rows_in_chunk(row: np.dtype) -> int:
    return max(1, CHUNK_BYTES // row.itemsize)


def _as_put(numbers: np.ndarray, row: np.dtype) -> np.ndarray:
    """The order in which rows of these numbers come into a bucket: the file is read chunk by chunk from its end."""
    chunk = _rows_in_chunk(row)
    return np.argsort(numbers % chunk - numbers // chunk * chunk)


def _put_in_buckets(file: IO[bytes], row: np.dtype, order: np.ndarray, size: int, open_scratch: Callable[[], IO[bytes]],
                    progress: Callable[[float], Any]) -> IO[bytes]:
    """A file with the rows of each bucket of `size` places together; `file` is cut off behind what is still to be read."""
    ends = np.arange(0, len(order), size)  # in rows, where each bucket's part is filled up to
    bucket_of = np.empty(len(order), np.min_scalar_type(len(ends)))
    for number, start in enumerate(ends.tolist()):
        bucket_of[order[start:start + size]] = number
    buckets, chunk = open_scratch(), _rows_in_chunk(row)
    for first in reversed(range(0, len(order), chunk)):
        count = min(chunk, len(order) - first)
        file.seek(first * row.itemsize)
        rows = np.fromfile(file, row, count)
        by_bucket = np.argsort(bucket_of[first:first + count], kind="stable")
        rows, lengths = rows[by_bucket], np.bincount(bucket_of[first:first + count], minlength=len(ends))
        begin = 0
        for number in np.flatnonzero(lengths).tolist():
            buckets.seek(int(ends[number]) * row.itemsize)
            buckets.write(rows[begin:begin + lengths[number]].data)
            begin += lengths[number]
        ends += lengths
        os.truncate(file.fileno(), first * row.itemsize)
        progress(1 - first / len(order))
    buckets.flush()
    return buckets
