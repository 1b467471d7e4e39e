"""Reads batches of records in a pure TensorFlow graph, for hosts that cannot run our Python code: the other machines of
a TPU slice.

`RecordSource` reads each record from its own place, in Python. Here the same order is written down, epoch by epoch, as
lists of places, in files that every host can read; a `tf.data` graph reads these lists, then the records. Both give the
same batches.

A list has an entry for each window of `RecordOrder`: its records as runs of neighbours of a file, and how to put them
in order. A run is read at once, so every host reads all records and keeps its own rows: a few megabytes a step.
"""

import os

import numpy as np
import tensorflow as tf

from official_bert.data.batches.sources import REFUSED, RecordSource, prefetched
from official_bert.data.record_files import records
from official_bert.storage.files import exists, make_folder, written_beside

LONGEST_RUN = 256  # records; several runs are read at a time
LOOKED_AT = 16  # record files that each host is asked for: on a bucket, a question takes some hundredths of a second
READ_AHEAD = 1 << 20  # bytes of a run
FEATURES = {"paths": tf.string, "offsets": tf.int64, "counts": tf.int64, "numbers": tf.int64, "order": tf.int64}


def write_order(source: RecordSource, epoch: int, path: str) -> None:
    """Writes the places of an epoch's records, a `tf.train.Example` a window.

    `paths`, `offsets` (the first byte), `counts` and `numbers` (the first record's, through all files) describe runs of
    neighbouring records; the window's k-th record is number `order[k]` of all runs one after another.
    """
    with written_beside(path) as temporary, tf.io.TFRecordWriter(temporary) as writer:
        for numbers, places in source.windows(epoch):
            by_number = np.argsort(numbers)
            ascending, files = numbers[by_number], places[0][by_number]
            breaks = np.flatnonzero((np.diff(ascending) != 1) | (np.diff(files) != 0)) + 1
            begins = np.concatenate(
                [np.arange(begin, end, LONGEST_RUN) for begin, end in zip([0, *breaks], [*breaks, len(numbers)])]
            )
            columns = {
                "offsets": places[1][by_number][begins],
                "counts": np.diff([*begins, len(numbers)]),
                "numbers": ascending[begins],
                "order": np.argsort(by_number),
            }
            features = {
                name: tf.train.Feature(int64_list=tf.train.Int64List(value=values)) for name, values in columns.items()
            }
            paths = [source.paths[file].encode() for file in files[begins]]
            features["paths"] = tf.train.Feature(bytes_list=tf.train.BytesList(value=paths))
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


class GraphReader:
    """Reads the batches of a `RecordSource` in the graph; `folder` keeps the orders of its epochs, for all hosts.

    Raises ValueError for compressed files, and for rows that are packed while they are read: only Python can read
    those.
    """

    def __init__(self, source: RecordSource, folder: str):
        self.source, self.folder = source, folder
        self.paths, self.firsts = tf.constant(source.paths), tf.constant(np.cumsum([0, *source.counts[:-1]]), tf.int64)
        if source.packs:
            raise ValueError(
                "config.options.pack: several hosts read records that are packed already: use tools/pack_records.py "
                "before"
            )
        if packed := next(filter(records.is_gzip, source.paths), None):
            raise ValueError(f"{packed}: expected a plain file, got gzip: several hosts read records from their places")

    def write_orders(self, start: int, stop: int) -> None:
        """Writes the missing orders for the epochs of batches start to stop - 1: about 3 bytes per record and epoch."""
        make_folder(self.folder)
        for epoch in range(start // self.source.batches_per_epoch, -(-stop // self.source.batches_per_epoch)):
            path = self._path(str(epoch))
            if not exists(path):
                write_order(self.source, epoch, path)

    def find_unread(self, host: str) -> str:
        """Returns a file (of a sample of record files, and the orders) that a host cannot see; "" if it sees all of
        them.
        """
        paths = [
            self.source.paths[number]
            for number in np.unique(np.linspace(0, len(self.source.paths) - 1, LOOKED_AT, dtype=int))
        ]
        with tf.device(host):
            return next(
                (path for path in (*paths, self._path("*")) if not len(tf.raw_ops.MatchingFiles(pattern=path))), ""
            )

    def _path(self, epoch: str) -> str:
        return f"{os.path.join(self.folder, f'order-{self.source.digest}-')}{epoch}"

    def dataset(self, start: int, stop: int, num_shards: int = 1, shard: int = 0) -> tf.data.Dataset:
        """Returns the same batches start to stop - 1 as `RecordSource.dataset`; their orders must have been written."""
        source, rows = self.source, self.source.batch_size // num_shards
        first_epoch, begun = divmod(start, source.batches_per_epoch)
        window, within = source.place(start)

        def epoch_batches(epoch: tf.Tensor) -> tf.data.Dataset:
            begins, skipped, done = (
                tf.where(tf.equal(epoch, first_epoch), tf.constant(number, tf.int64), 0)
                for number in (window, within, begun)
            )
            entries = tf.data.TFRecordDataset(tf.strings.join([self._path(""), tf.strings.as_string(epoch)])).skip(
                begins
            )
            read = entries.map(_window, num_parallel_calls=2, deterministic=True).unbatch().skip(skipped)
            batches = read.batch(source.batch_size).take(source.batches_per_epoch - done)
            return batches.enumerate(epoch * source.batches_per_epoch + done).map(
                lambda number, batch: part(epoch, number, *batch),
                num_parallel_calls=tf.data.AUTOTUNE,
                deterministic=True,
            )

        def part(
            epoch: tf.Tensor, number: tf.Tensor, serialized: tf.Tensor, numbers: tf.Tensor
        ) -> dict[str, tf.Tensor]:
            places = shard * rows + tf.range(rows)
            real = places < tf.size(numbers)
            places = tf.where(real, places, 0)  # filler is the batch's first row, of weight 0
            serialized, numbers = (
                tf.ensure_shape(tf.gather(values, places), [rows]) for values in (serialized, numbers)
            )
            progress = source.progress.column(number, rows)
            batch = self._checked(source.parse(serialized, epoch * source.size + numbers, **progress), numbers)
            return batch | {"example_weights": tf.cast(real, tf.float32)} | progress

        epochs = tf.data.Dataset.range(first_epoch, -(-stop // source.batches_per_epoch))
        return prefetched(epochs.flat_map(epoch_batches).take(stop - start))

    def _checked(self, batch: dict[str, tf.Tensor], numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns a parsed batch, which fails, naming file and record, if one of its rows is refused."""
        if (reasons := batch.pop(REFUSED, None)) is None:
            return batch
        bad = tf.not_equal(reasons, "")
        row = tf.argmax(tf.cast(bad, tf.int32))
        file = tf.searchsorted(self.firsts, numbers[row][None], side="right")[0] - 1
        record = tf.strings.as_string(numbers[row] - self.firsts[file])
        message = [self.paths[file], ": record ", record, ": ", reasons[row]]
        with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(bad), [tf.strings.join(message)])]):
            return {name: tf.identity(value) for name, value in batch.items()}


def _window(entry: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Reads the records of a window: their bytes and numbers, in order."""
    window = tf.io.parse_single_example(
        entry, {name: tf.io.FixedLenSequenceFeature([], kind, allow_missing=True) for name, kind in FEATURES.items()}
    )
    runs = tf.data.Dataset.from_tensor_slices((window["paths"], window["offsets"], window["counts"]))
    records = runs.interleave(
        _run, cycle_length=16, block_length=LONGEST_RUN, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True
    )
    serialized = records.batch(tf.size(window["order"], tf.int64)).get_single_element()
    before = tf.cumsum(window["counts"], exclusive=True)
    numbers = tf.repeat(window["numbers"] - before, window["counts"]) + tf.range(tf.size(window["order"], tf.int64))
    return tf.gather(serialized, window["order"]), tf.gather(numbers, window["order"])


def _run(path: tf.Tensor, offset: tf.Tensor, count: tf.Tensor) -> tf.data.Dataset:
    """The records of a file from a byte on; `tf.data.TFRecordDataset` has no argument for it, its operation does."""
    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=path[None],
        compression_type="",
        buffer_size=tf.constant(READ_AHEAD, tf.int64),
        byte_offsets=offset[None],
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string)).take(count)
