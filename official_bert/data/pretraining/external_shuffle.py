"""Reads the rows of a file in a given random order, with mostly sequential reads and writes of the disk.

The order is cut into buckets of neighbouring places. A first pass copies each row into its bucket's part of a second file.
Then one bucket after another is mapped into memory, because single rows are cheap to pick there. A file that fits one bucket
is mapped directly.
"""

import os
from collections.abc import Callable, Iterator
from typing import IO, Any, NamedTuple

import numpy as np

BUCKET_BYTES = 1 << 27  # mapped into memory at a time
CHUNK_BYTES = 1 << 24  # held in memory twice while rows are put into buckets


class Bucket(NamedTuple):
    """Rows that are neighbours in the order: `rows[numbers]` have the places `start`, start + 1, ..."""

    start: int
    rows: np.ndarray  # [n, width]
    numbers: np.ndarray  # [n] int64


def shuffled(file: IO[bytes], row: np.dtype, order: np.ndarray, open_scratch: Callable[[], IO[bytes]], multiple: int = 1,
             progress: Callable[[float], Any] = lambda share: None) -> Iterator[Bucket]:
    """Yields `rows[order]` bucket by bucket; the rows (of type `row`, with a shape) fill `file`, which is empty afterwards.

    Buckets hold a multiple of `multiple` rows. With several buckets, `file` shrinks while the file of buckets grows, so both
    together need hardly more disk. Memory: 2 bytes a row and 32 MB. `progress` is called with the share of the rows in buckets.
    """
    size = max(1, BUCKET_BYTES // (row.itemsize * multiple)) * multiple
    if len(order) > size:
        file = _put_in_buckets(file, row, order, size, open_scratch, progress)
    for start in range(0, len(order), size):
        count = min(size, len(order) - start)
        rows = np.memmap(file, row.base, "r", start * row.itemsize, (count, *row.shape))
        rows[:, 0].max()  # reads the bucket in sequence, if it is not in the system's cache
        numbers = np.asarray(order[start:start + count])
        if len(order) > size:  # a bucket has its rows in the order of the file's chunks, the last chunk first
            places = np.empty(count, np.int64)
            places[_as_put(numbers, row)] = np.arange(count)
            numbers = places
        yield Bucket(start, rows, numbers)


def _rows_in_chunk(row: np.dtype) -> int:
    return max(1, CHUNK_BYTES // row.itemsize)


def _as_put(numbers: np.ndarray, row: np.dtype) -> np.ndarray:
    """Returns the order in which rows with these numbers enter a bucket: the file is read chunk by chunk from its end."""
    chunk = _rows_in_chunk(row)
    return np.argsort(numbers % chunk - numbers // chunk * chunk)


def _put_in_buckets(file: IO[bytes], row: np.dtype, order: np.ndarray, size: int, open_scratch: Callable[[], IO[bytes]],
                    progress: Callable[[float], Any]) -> IO[bytes]:
    """Returns a file that groups rows by bucket of `size` places; truncates `file` behind the part that is still to be read."""
    ends = np.arange(0, len(order), size)  # the row up to which each bucket's part is filled
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
