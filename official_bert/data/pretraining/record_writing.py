"""Reads rows of instances in a random order and writes them to record files: values, bytes, compression.

Each step runs in threads; the bytes are always the same.
"""

import contextlib
import itertools
import os
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np

from official_bert.data.pretraining.instances import InstanceConfig
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.pretraining.parallel import in_order
from official_bert.data.pretraining.rows import HEADER, LABEL, LENGTH, PREDICTIONS, SECOND_START, UNMASKED, Plan
from official_bert.data.record_files import records
from official_bert.text.compiling import compiled, read_only

BUCKET_BYTES = 1 << 27  # mapped into memory at a time
CHUNK_BYTES = 1 << 24  # held in memory twice while rows are put into buckets
VALUES_AT_A_TIME = 1 << 18
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"  # without name and time: the same bytes each time
GZIP_LEVEL = 6
LAST_BLOCK = b"\x03\x00"  # of a deflate stream: empty, and the last
# In the order of `expand_rows`.
COLUMNS = (
    "input_ids",
    "input_mask",
    "segment_ids",
    "masked_lm_positions",
    "masked_lm_ids",
    "masked_lm_weights",
    "next_sentence_labels",
    "word_starts",
    "schema_version",
)
Progress = Callable[[float], Any]  # is called with the share done


def no_progress(share: float) -> None:
    """Shows nothing."""


@compiled(inline="always")
def _plain(token: int, plan: Plan) -> np.int64:
    """A token's id in the vocabulary."""
    return np.int64(token) - plan.vocab_size if token >= plan.vocab_size else np.int64(token)


@compiled(nogil=True)
def expand_rows(
    rows: np.ndarray,
    numbers: np.ndarray,
    plan: Plan,
    continues_word: np.ndarray,
    columns: np.ndarray,
    version: int,
    values: np.ndarray,
) -> None:
    """Writes the features of `rows[chosen]` to `values` [n, W], each at its first column (-1: not wanted).

    `columns` are in the order of COLUMNS.
    """
    S, P = plan.max_seq_length, plan.max_predictions_per_seq
    one_bits = np.int32(0x3F800000)  # the bits of 1.0
    values[: len(numbers)] = 0
    for n in range(len(numbers)):
        row, out = rows[numbers[n]], values[n]
        length, second = np.int64(row[LENGTH]), np.int64(row[SECOND_START])
        for place in range(length):
            out[columns[0] + place] = _plain(row[HEADER + place], plan)
            out[columns[1] + place] = 1
            out[columns[2] + place] = place >= second
        out[columns[6]] = row[LABEL]
        if plan.strategy != UNMASKED:
            for index in range(row[PREDICTIONS]):
                out[columns[3] + index] = row[HEADER + S + index]
                out[columns[4] + index] = _plain(row[HEADER + S + P + index], plan)
                out[columns[5] + index] = one_bits
        else:
            for place in range(length):
                token = row[HEADER + place]
                special = token == plan.cls_id or token == plan.sep_id
                rest = token >= plan.vocab_size and (place == 1 or place == second)  # of a unit that was cut
                out[columns[7] + place] = not special and (rest or not continues_word[token])
            out[columns[8]] = version


class RowEncoder:
    """Turns rows of instances (see `rows`) into framed records."""

    def __init__(self, config: InstanceConfig, facts: VocabularyFacts):
        self._plan, self._continues_word = config.plan(facts), facts.continues_word
        self._encoder = records.make_example_encoder(
            records.pretraining_features(config.max_seq_length, config.max_predictions_per_seq)
            if config.masking
            else records.unmasked_features(config.max_seq_length)
        )
        self._columns = np.array(
            [self._encoder.columns[name].start if name in self._encoder.columns else -1 for name in COLUMNS], np.int64
        )
        self.block = max(16, VALUES_AT_A_TIME // self._encoder.width)  # records to encode at a time
        self.least_bytes = self._encoder.width  # of a record: one byte per value

    def encode(self, rows: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """Returns the bytes (uint8) of the records of `rows[chosen]`."""
        values = np.empty((len(numbers), self._encoder.width), np.int32)
        expand_rows(
            read_only(rows),
            np.ascontiguousarray(numbers),
            self._plan,
            self._continues_word,
            self._columns,
            records.SCHEMA_VERSION,
            values,
        )
        out = np.empty(len(numbers) * self._encoder.most_bytes, np.uint8)
        return out[: self._encoder.encode(values, out)]


class FilePart(NamedTuple):
    """A part of a file as stored, with the facts about its uncompressed bytes."""

    stored: Any
    original: np.ndarray


def make_file_part(original: np.ndarray, compress: bool) -> FilePart:
    """Returns the bytes as stored; if compressed, an independent piece of a deflate stream."""
    if not compress:
        return FilePart(original.data, original)
    deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return FilePart(deflate.compress(original.data) + deflate.flush(zlib.Z_FULL_FLUSH), original)


class OutputFile:
    """A record file, plain or gzip, that is written part by part. Disk-full errors name the file."""

    def __init__(self, path: str, compress: bool):
        self._path, self._compress = path, compress
        self._crc, self._size = 0, 0

    def __enter__(self) -> "OutputFile":
        with self._named_errors():
            self._file = open(self._path, "wb")
            if self._compress:
                self._file.write(GZIP_HEADER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: types.TracebackType | None
    ) -> None:
        with self._named_errors(), self._file:
            if kind is None and self._compress:
                self._file.write(
                    LAST_BLOCK + self._crc.to_bytes(4, "little") + (self._size % 2**32).to_bytes(4, "little")
                )

    def write(self, part: FilePart) -> None:
        """Appends a part."""
        with self._named_errors():
            self._file.write(part.stored)
        if self._compress:
            self._crc = zlib.crc32(part.original.data, self._crc)
            self._size += len(part.original)

    @contextlib.contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, os.strerror(error.errno or 0), self._path) from None


class Bucket(NamedTuple):
    """Consecutive rows of the order: `rows[numbers]` have the places `start`, start + 1, ..."""

    start: int
    rows: np.ndarray  # [n, width]
    numbers: np.ndarray  # [n] int64


class ShuffledRows(NamedTuple):
    """Rows in a file, and the order in which they are read, with mostly sequential reads and writes of the disk.

    The order is cut into buckets of neighbouring places. A first pass copies each row into its bucket's part of a
    second file. Then one bucket after another is mapped into memory, because single rows are cheap to pick there. A
    file that fits one bucket is mapped directly.
    """

    file: IO[bytes]  # of rows (see `rows`)
    row: np.dtype  # of one row, its width as shape
    order: np.ndarray  # [rows] int64

    def buckets(
        self, open_scratch: Callable[[], IO[bytes]], multiple: int = 1, progress: Progress = no_progress
    ) -> Iterator[Bucket]:
        """Yields `rows[order]` bucket by bucket; the file is empty afterwards.

        Buckets hold a multiple of `multiple` rows. With several buckets, the file shrinks while the file of buckets
        grows, so both together need hardly more disk. Memory: 2 bytes a row and 32 MB. `progress` is called with the
        share of the rows in buckets.
        """
        file, row, order = self
        size = max(1, BUCKET_BYTES // (row.itemsize * multiple)) * multiple
        chunk = max(1, CHUNK_BYTES // row.itemsize)
        if len(order) > size:
            file = self._put_in_buckets(size, chunk, open_scratch(), progress)
        for start in range(0, len(order), size):
            numbers = np.asarray(order[start : start + size])
            rows = np.memmap(file, row.base, "r", start * row.itemsize, (len(numbers), *row.shape))
            rows[:, 0].max()  # reads the bucket in sequence, if it is not in the system's cache
            if len(order) > size:  # a bucket has its rows in the order of the file's chunks, the last chunk first
                places = np.empty(len(numbers), np.int64)
                places[np.argsort(numbers % chunk - numbers // chunk * chunk)] = np.arange(len(numbers))
                numbers = places
            yield Bucket(start, rows, numbers)

    def _put_in_buckets(self, size: int, chunk: int, buckets: IO[bytes], progress: Progress) -> IO[bytes]:
        """Groups rows by bucket of `size` places in the file `buckets`; truncates `file` behind the part that is still
        to be read.
        """
        file, row, order = self
        ends = np.arange(0, len(order), size)  # the row up to which each bucket's part is filled
        bucket_of = np.empty(len(order), np.min_scalar_type(len(ends)))
        for number, start in enumerate(ends.tolist()):
            bucket_of[order[start : start + size]] = number
        for first in reversed(range(0, len(order), chunk)):
            numbers = bucket_of[first : first + chunk]
            file.seek(first * row.itemsize)
            rows = np.fromfile(file, row, len(numbers))[np.argsort(numbers, kind="stable")]
            lengths = np.bincount(numbers, minlength=len(ends))
            begin = 0
            for number in np.flatnonzero(lengths).tolist():
                buckets.seek(int(ends[number]) * row.itemsize)
                buckets.write(rows[begin : begin + lengths[number]].data)
                begin += lengths[number]
            ends += lengths
            os.truncate(file.fileno(), first * row.itemsize)
            progress(1 - first / len(order))
        buckets.flush()
        return buckets


def write_rows(
    rows: ShuffledRows,
    paths: Sequence[str],
    encoder: RowEncoder,
    compress: bool,
    num_workers: int,
    open_scratch: Callable[[], IO[bytes]],
    writing: Progress,
    shuffling: Progress = no_progress,
) -> None:
    """Writes the rows to the files in turn, as 2018 does: row i of the order goes to file i mod files.

    The encoder's block of rows of a file is encoded and compressed at a time, fewer for very many files: a bucket of
    the shuffle holds such a part of each file. `writing` and `shuffling` are called with the shares done.
    """
    together = min(encoder.block, max(1, BUCKET_BYTES // (rows.row.itemsize * len(paths))))

    def make_jobs() -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        for bucket in rows.buckets(open_scratch, together * len(paths), shuffling):
            shares = [bucket.numbers[number :: len(paths)] for number in range(len(paths))]
            for start, number in itertools.product(range(0, len(shares[0]), together), range(len(paths))):
                yield number, bucket.rows, shares[number][start : start + together]

    def make_part(job: tuple[int, np.ndarray, np.ndarray]) -> FilePart:
        _, bucket_rows, numbers = job
        return make_file_part(encoder.encode(bucket_rows, numbers), compress)

    done = 0
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(OutputFile(path, compress)) for path in paths]
        for (number, _, numbers), part in in_order(make_part, make_jobs(), num_workers):
            files[number].write(part)
            done += len(numbers)
            writing(done / len(rows.order))
