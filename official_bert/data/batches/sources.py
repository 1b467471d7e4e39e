"""Global batches, bucketed by length, as a function of (seed, batch number), the resume position: from records, or
examples in memory.

A run's position in the data is one integer, the number of its next batch. So a resumed run continues with the very next
example, workers and replicas take rows of the same global batch, and no iterator is ever saved.

Both sources have `batches_per_epoch`, `batch_size`, `rows` (the number that an epoch counts: for windows over texts,
the texts), `made_of` (the rows behind examples in memory; () for records on disk), `content` (a description of the data
in JSON types, equal for the same files or examples), `dataset` (batches as dicts of tensors; with `num_shards` only
block `shard` of their rows) and `explain` (names the data that caused a TensorFlow error while reading; None if the
data did not cause it). Every batch has the global batch size in rows and a key `example_weights`, float32 [B]: 0 for
rows that fill up an epoch's last batch.
"""

import copy
import dataclasses
import functools
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from official_bert.data.batches.feature_rows import WiderRows
from official_bert.data.batches.record_order import RecordOrder
from official_bert.data.record_files.indexed_records import BrokenRecordError, IndexedRecords
from official_bert.storage.files import size_of

# Training sorts this many batches by length at a time, and at most a quarter of an epoch. Of more, the texts of a batch
# are too much alike: on STS-B, a model learns less from chunks of 50 than from random order, and as much from chunks of
# 10 (docs/results/finetuning.md).
SORTED_BATCHES = 10
REFUSED = "refused"  # the key of `refuse_rows`
T = TypeVar("T")
Batch = dict[str, tf.Tensor]
Examples = Sequence[Mapping[str, np.ndarray]]
ParseFunction = Callable[..., Batch]


@dataclasses.dataclass(frozen=True)
class Progress:
    """How far a training is at each batch, for masks and objectives that ask for it: the share of its steps that are
    done.

    It is a function of the batch's number alone, so that a resumed run reads what the undisturbed one does.
    """

    total: int = 0  # steps of the training; 0: batches have no `progress`
    before: int = 0  # steps before batch 0 of the data

    def column(self, batch: tf.Tensor, rows: int | tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `progress` of the batch with this number: float32 [rows], all alike, from 0 to 1; or {}."""
        if not self.total:
            return {}
        share = tf.minimum((batch + self.before) / self.total, 1.0)
        return {"progress": tf.fill([rows], tf.cast(share, tf.float32))}


@dataclasses.dataclass(frozen=True)
class RowGroups:
    """The records that share each row of a batch: row r has the records `members[starts[r]:starts[r + 1]]`; `counts`
    are the rows per file.
    """

    counts: Sequence[int]
    starts: np.ndarray
    members: np.ndarray

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the records of some rows, one row after another, and the start of each row's records, with the end:
        [rows + 1].
        """
        sizes = self.starts[rows + 1] - self.starts[rows]
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        return self.members[np.repeat(self.starts[rows] - bounds[:-1], sizes) + np.arange(bounds[-1])], bounds


class RecordSource:
    """Batches of TFRecord files, plain or gzip, on this machine or elsewhere.

    `parse(serialized [B], indices [B])` makes the batch; `indices` are epoch * records + the record's number, for masks
    that change every epoch; `progress` [B] is a third argument if batches have it. Training (`shuffle`) takes the
    records of every epoch in the order of `RecordOrder` and drops the remainder of an epoch; evaluation keeps the order
    of the files and fills the last batch up with rows of `example_weights` 0. Any batch can be read without reading
    those before it, and each worker reads only its own rows. `cache_dir` is that of `IndexedRecords`.

    With a `packer` (a `data.pretraining.packing.Packing`), a row holds several records: the order is then that of rows,
    and `parse` gets all records of a batch, of any number.

    Raises ValueError for files that are broken or hold no record.
    """

    progress = Progress()

    def __init__(
        self,
        paths: Sequence[str],
        batch_size: int,
        parse: ParseFunction,
        seed: int = 0,
        shuffle: bool = True,
        cache_dir: str = "",
        packer: Any = None,
    ):
        self.paths, self.batch_size, self.parse, self.shuffle = list(paths), batch_size, parse, shuffle
        self.cache_dir = cache_dir
        self.records = IndexedRecords(self.paths, cache_dir)
        self.counts = self.records.counts
        self.size = sum(self.counts)
        if not self.size:
            raise ValueError(f"{', '.join(self.paths)}: no record in these files")
        # file, record and reason of each bad row, by the beginning of its error message
        self._refused: dict[str, str] = {}
        self._packer, self._groups = packer, packer.groups(self.records) if packer else None
        self._order = RecordOrder(self._groups.counts if self._groups else self.counts, seed, shuffle)
        self._window = functools.lru_cache(maxsize=4)(
            functools.partial(_read_window, self.records, self._order, self._groups)
        )
        rows = self._order.size
        keeps_remainder = not shuffle or rows < batch_size
        self.batches_per_epoch = -(-rows // batch_size) if keeps_remainder else rows // batch_size
        self.rows, self.made_of = self.batches_per_epoch * batch_size, ()

    def dataset(self, start: int = 0, num_shards: int = 1, shard: int = 0) -> tf.data.Dataset:
        """Returns batches start, start + 1, ...: endless if shuffled, else one epoch."""
        numbers = (
            tf.data.Dataset.counter(start) if self.shuffle else tf.data.Dataset.range(start, self.batches_per_epoch)
        )
        rows = self.batch_size // num_shards

        # nothing here needs its source rewritten, which takes time at each start
        @tf.autograph.experimental.do_not_convert
        def make_batch(number: tf.Tensor) -> dict[str, tf.Tensor]:
            values = tf.numpy_function(
                lambda batch: self._rows(int(batch), shard * rows, rows),
                [number],
                [tf.string, tf.int64, tf.float32, tf.string, tf.int32],
                stateful=False,
            )
            count = rows if self._packer is None else None
            with tf.control_dependencies([tf.debugging.Assert(tf.equal(values[3], ""), [values[3]])]):
                serialized, indices, row = (tf.ensure_shape(values[number], [count]) for number in (0, 1, 4))
                weights = tf.ensure_shape(values[2], [rows])
            progress = self.progress.column(number, tf.size(indices))
            batch = self._checked(self.parse(serialized, indices, **progress), indices)
            if self._packer is not None:
                batch = self._packer.arrange(batch, row, rows)
            return batch | {"example_weights": weights} | self.progress.column(number, rows)

        return prefetched(numbers.map(make_batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True))

    def _rows(
        self, batch: int, skipped: int, count: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, bytes, np.ndarray]:
        """Reads `count` rows of a batch after the first `skipped`.

        Returns the records, their indices, the weights of the rows, what is wrong with a record or "", and the row of
        each record.
        """
        epoch, number = divmod(batch, self.batches_per_epoch)
        begin = number * self.batch_size
        first, last = (min(begin + row, self._order.size) for row in (skipped, skipped + count))
        parts = self._order.windows(epoch, first, last) if last > first else []
        filler = self._order.windows(epoch, begin, begin + 1) * (count - (last - first))
        weights = (np.arange(count) < last - first).astype(np.float32)
        try:
            found = [_part(self._window(epoch, window), part) for window, part in parts + filler]
            numbers, sizes, places = (np.concatenate(values, axis=-1) for values in zip(*found))
            serialized = np.empty(len(numbers), object)
            serialized[:] = self.records.read(numbers, places)
        except BrokenRecordError as error:
            nothing = np.zeros(0, np.int64)
            return (
                nothing.astype(object),
                nothing,
                weights,
                self._refuse(error.number, f" {error.reason}"),
                nothing.astype(np.int32),
            )
        return serialized, epoch * self.size + numbers, weights, b"", np.repeat(np.arange(count, dtype=np.int32), sizes)

    @property
    def packs(self) -> bool:
        """Whether a row holds several records."""
        return self._packer is not None

    def windows(self, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields the records of each window of an epoch, in order: their numbers [n] and `places` [3,n]."""
        for window, _ in self._order.windows(epoch, 0, self._order.size):
            numbers, _, places = self._window(epoch, window)
            yield numbers, places

    def place(self, batch: int) -> tuple[int, int]:
        """Returns the window of its epoch in which a batch begins, and its first row's place there."""
        epoch, number = divmod(batch, self.batches_per_epoch)
        ((window, rows),) = self._order.windows(epoch, first := number * self.batch_size, first + 1)
        return window, rows.start

    @functools.cached_property
    def digest(self) -> str:
        """A checksum of the files, as they are now, and of the order in which their records are read."""
        files = [
            [path, index.key["size"], index.key["modified"], index.count]
            for path, index in zip(self.paths, self.records.indices)
        ]
        return f"{zlib.crc32(json.dumps([files, self._order.seed, self.shuffle]).encode()):08x}"

    @property
    def content(self) -> list[list]:
        """Name, bytes and records of each file, and the number of rows if these hold several records."""
        files = [[os.path.basename(path), size_of(path), count] for path, count in zip(self.paths, self.counts)]
        return files + [["packed", self._order.size]] * (self._groups is not None)

    def locate(self, index: int) -> str:
        """Returns `file: record number` of the row with this index."""
        return self.records.locate(index % self.size)

    def _checked(self, batch: Batch, indices: tf.Tensor) -> Batch:
        """Returns a parsed batch, which fails if one of its rows is refused."""
        if (reasons := batch.pop(REFUSED, None)) is None:
            return batch

        def first_refused(numbers: np.ndarray, reasons: np.ndarray) -> bytes:
            return next(
                (
                    self._refuse(int(number), f": {reason.decode()}")
                    for number, reason in zip(numbers, reasons)
                    if reason
                ),
                b"",
            )

        told = tf.numpy_function(first_refused, [indices, reasons], tf.string)
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(told, ""), [told])]):
            return {name: tf.identity(value) for name, value in batch.items()}

    def _refuse(self, index: int, reason: str) -> bytes:
        """Notes a bad row for `explain`; returns the text of the error to raise, all that TensorFlow carries."""
        self._refused[f"[bad row {index}{reason[0]}"] = f"{self.locate(index)}{reason}"
        return f"[bad row {index}{reason}]".encode()

    @property
    def bad_row(self) -> str:
        """The file, the record and the reason of a row that has been refused so far; "" if none has."""
        return next(iter(self._refused.values()), "")

    def explain(self, message: str) -> str | None:
        """Names the file and record that caused an error of the pipeline; None if no record did."""
        return next((row for told, row in self._refused.items() if told in message), None)


Window = tuple[np.ndarray, np.ndarray, np.ndarray]


def _read_window(
    indexed: IndexedRecords, order: RecordOrder, groups: RowGroups | None, epoch: int, window: int
) -> Window:
    """Returns the records of a window, where those of each row begin, with the end, and their `places`. Raises
    BrokenRecordError.
    """
    rows = order.window(epoch, window)
    numbers, bounds = groups.of(rows) if groups else (rows, np.arange(len(rows) + 1))
    return numbers, bounds, indexed.places(numbers)


def _part(window: Window, rows: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the records of some rows of a window, how many each row has, and their places."""
    numbers, bounds, places = window
    bounds = bounds[rows.start : rows.stop + 1]
    return numbers[bounds[0] : bounds[-1]], np.diff(bounds), places[:, bounds[0] : bounds[-1]]


def refuse_rows(batch: Batch, checks: Mapping[str, tf.Tensor]) -> Batch:
    """Adds to a parsed batch the reason why each row is refused, "" if it is not; `checks` maps reasons to bool [B]."""
    reasons = tf.constant("")
    for reason, bad in checks.items():
        reasons = tf.where(bad, reason, reasons)
    return batch | {REFUSED: reasons}


def prefetched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with prefetching and without TensorFlow's automatic sharding."""
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(tf.data.AUTOTUNE).with_options(options)


class ExampleSource:
    """Batches of examples in memory, the unpadded features of one row each, bucketed by length.

    Each batch's sequences (arrays named in `sequence_keys`) are padded with 0 to the smallest of `buckets` that holds
    them all (default: to the longest of the batch, after `round_lengths` to the next multiple of 8); other values are
    stacked. Every epoch of training permutes the examples by (seed, epoch), sorts chunks of `SORTED_BATCHES` by length,
    and shuffles the batches; evaluation keeps the order of the examples, or sorts them all by length (`by_length`). The
    last batch is filled up with rows of `example_weights` 0. `rows` is the number that an epoch counts, if that is not
    the number of examples. `content` reads the rows `made_of`, if they are given, and not the examples, whose values
    may wait for the weights of a model.

    Raises ValueError if there is no example.
    """

    progress = Progress()

    def __init__(
        self,
        examples: Examples,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        buckets: Sequence[int] = (),
        length_key: str = "input_ids",
        sequence_keys: Sequence[str] = ("input_ids", "input_mask", "segment_ids"),
        by_length: bool = False,
        rows: int = 0,
        made_of: Examples = (),
    ):
        if not examples:
            raise ValueError("no examples in the data")
        self.by_length, self.rows, self.made_of = by_length, rows or len(examples), made_of or examples
        self.examples, self.batch_size, self.seed, self.shuffle = examples, batch_size, seed, shuffle
        self.buckets, self.sequence_keys = sorted(buckets), frozenset(sequence_keys)
        self.lengths = np.array([np.shape(example[length_key])[-1] for example in examples])
        if self.buckets and self.lengths.max() > self.buckets[-1]:
            raise ValueError(
                f"an example of {self.lengths.max()} tokens is longer than the largest bucket, {self.buckets[-1]}"
            )
        self._multiple = 1  # of which lengths are, without buckets
        self._plan: tuple[int, list[np.ndarray]] = (-1, [])

    @property
    def batches_per_epoch(self) -> int:
        """The batches of an epoch; the last one is filled up."""
        return -(-len(self.examples) // self.batch_size)

    def in_turn(self, batch_size: int) -> "ExampleSource":
        """Returns a source that yields each example once an epoch, together with others of similar length."""
        source = copy.copy(self)
        source.batch_size, source.shuffle, source.by_length = batch_size, False, True
        source._plan = (-1, [])
        return source

    def with_columns(self, columns: Examples, sequence_keys: Iterable[str] = ()) -> "ExampleSource":
        """Returns a source whose examples also have the values of `columns`; `sequence_keys` names those that are
        sequences. Its `content` stays the same.
        """
        source = copy.copy(self)
        source.examples = WiderRows(self.examples, columns)
        source.sequence_keys = self.sequence_keys | set(sequence_keys)
        return source

    @functools.cached_property
    def content(self) -> list:
        """The number of examples, and a checksum of the features that they are made of."""
        checksum = 0
        for row in self.made_of:
            for name, value in sorted(row.items()):
                array = np.ascontiguousarray(value)
                checksum = zlib.crc32(
                    array.tobytes(), zlib.crc32(f"{name} {array.dtype} {array.shape}".encode(), checksum)
                )
        return [len(self.examples), f"{checksum:08x}"]

    def fix_lengths(self) -> None:
        """Sets `buckets`, if unset, to the longest example's length and 32, 64, 128, ... below it."""
        longest = int(self.lengths.max())
        if not self.buckets:
            self.buckets = [32 << doubled for doubled in range(longest.bit_length()) if 32 << doubled < longest] + [
                longest
            ]

    def round_lengths(self) -> None:
        """Makes batches pad to multiples of 8 if there are no `buckets`, for steps that are compiled once per
        length.
        """
        self._multiple = 8

    def plan(self, epoch: int) -> list[np.ndarray]:
        """Returns the indices of each batch of an epoch; the last may be short."""
        if self._plan[0] != epoch:
            self._plan = (epoch, self._make_plan(epoch))
        return self._plan[1]

    def _make_plan(self, epoch: int) -> list[np.ndarray]:
        count, size = len(self.examples), self.batch_size
        if not self.shuffle and not self.by_length:
            return [np.arange(start, min(start + size, count)) for start in range(0, count, size)]
        rng = np.random.default_rng((self.seed, epoch))
        order = rng.permutation(count) if self.shuffle else np.arange(count)
        chunk = size * max(1, min(SORTED_BATCHES, self.batches_per_epoch // 4)) if self.shuffle else count
        batches = []
        for start in range(0, count, chunk):
            part = order[start : start + chunk]
            part = part[np.argsort(self.lengths[part], kind="stable")]
            batches += [part[first : first + size] for first in range(0, len(part), size)]
        return [batches[index] for index in rng.permutation(len(batches))] if self.shuffle else batches

    def in_order(self, rows: Sequence[T]) -> list[T | None]:
        """Returns an evaluation's results, which come batch by batch, in the order of the examples; None for examples
        that were not evaluated.
        """
        ordered: list[T | None] = [None] * len(self.examples)
        for index, row in zip(np.concatenate(self.plan(0)), rows):
            ordered[index] = row
        return ordered

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """Makes batch `number`, counted over all epochs."""
        epoch, index = divmod(number, self.batches_per_epoch)
        numbers = self.plan(epoch)[index]
        weights = np.zeros(self.batch_size, np.float32)
        weights[: len(numbers)] = 1.0
        padded = np.concatenate([numbers, np.repeat(numbers[:1], self.batch_size - len(numbers))])
        length = self._padded_length(int(self.lengths[padded].max()))
        rows = [self.examples[index] for index in padded]
        batch = {
            key: self._stack([row[key] for row in rows], length if key in self.sequence_keys else None)
            for key in rows[0]
        }
        return batch | {"example_weights": weights}

    def _padded_length(self, longest: int) -> int:
        rounded = min(-(-longest // self._multiple) * self._multiple, int(self.lengths.max()))
        return next((bucket for bucket in self.buckets if bucket >= longest), rounded)

    @staticmethod
    def _stack(values: list, length: int | None) -> np.ndarray:
        arrays = list(map(np.asarray, values))
        if length is None:
            return np.stack(arrays)
        stacked = np.zeros((len(arrays), *arrays[0].shape[:-1], length), arrays[0].dtype)
        for row, array in zip(stacked, arrays):
            row[..., : array.shape[-1]] = array
        return stacked

    def explain(self, message: str) -> None:
        """Returns None: examples in memory were checked when they were made."""

    def dataset(self, start: int = 0, num_shards: int = 1, shard: int = 0) -> tf.data.Dataset:
        """Returns batches start, start + 1, ...: endless if shuffled, else one epoch."""
        rows = self.batch_size // num_shards
        first = self.batch(start)

        def batches() -> Iterator[dict[str, np.ndarray]]:
            for number in itertools.count(start) if self.shuffle else range(start, self.batches_per_epoch):
                yield {key: value[shard * rows : (shard + 1) * rows] for key, value in self.batch(number).items()}

        def spec(key: str, value: np.ndarray) -> tf.TensorSpec:
            varies = key in self.sequence_keys and len(self.buckets) != 1
            return tf.TensorSpec((rows, *value.shape[1:-1], None) if varies else (rows, *value.shape[1:]), value.dtype)

        dataset = tf.data.Dataset.from_generator(
            batches, output_signature={key: spec(key, value) for key, value in first.items()}
        )
        if self.progress.total:
            dataset = dataset.enumerate(start).map(lambda number, batch: batch | self.progress.column(number, rows))
        return prefetched(dataset)


BatchSource = RecordSource | ExampleSource


def incomplete(rows: Sequence[object], texts: Sequence[int] | np.ndarray) -> set[int]:
    """Returns the numbers of the texts that were not completely evaluated: at least one of their rows is None. `texts`
    has the number of each row's text.

    Raises ValueError if no text is complete.
    """
    missing = {text for text, row in zip(texts, rows, strict=True) if row is None}
    if missing.issuperset(texts):
        raise ValueError(
            "config.training.eval_steps: expected enough batches for all rows of at least one text, got "
            f"{sum(row is not None for row in rows)} of {len(rows)} rows and no text whole"
        )
    return missing
