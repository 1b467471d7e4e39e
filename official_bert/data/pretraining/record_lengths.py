"""How many tokens and predictions each pre-training record has: counted once, and kept beside the index of its file.

`.train.tfrecord.record_lengths` lies beside `.train.tfrecord.record_index` and is used as long as that index is.
"""

import contextlib
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.data import record_index, records
from official_bert.data.indexed_records import BrokenRecordError, IndexedRecords
from official_bert.data.long_work.progress import Reporter
from official_bert.data.record_index import RecordIndex

SUFFIX = ".record_lengths"
AT_ONCE = 2048  # records
SHOWN_FROM = 200_000  # records: fewer take about a second
ROW = np.dtype("<i4")


def record_lengths(indexed: IndexedRecords, features: tuple[records.Feature, ...]) -> np.ndarray:
    """Returns tokens and predictions of each record, all files one after another: int32 [records,2].

    `features` is the table that the records follow; without masks there are 0 predictions. Raises ValueError for broken records.
    """
    measured = tuple(feature for feature in features if feature.name in ("input_mask", "masked_lm_weights"))
    lengths_of_files = {number: lengths for number, index in enumerate(indexed.indices)
                        if (lengths := _known(index)) is not None}
    missing = [number for number in range(len(indexed.counts)) if number not in lengths_of_files]
    total, done = sum(indexed.counts[number] for number in missing), 0
    with contextlib.ExitStack() as stack:
        show = stack.enter_context(Reporter()).show if total >= SHOWN_FROM else lambda *_: None
        for number in missing:
            counted = [np.zeros((0, 2), ROW)]
            for part in _count(indexed, number, measured):
                counted.append(part)
                done += len(part)
                show("measuring records", done / total)
            lengths_of_files[number] = np.concatenate(counted)
            _keep(indexed.indices[number], lengths_of_files[number])
    return np.concatenate([lengths_of_files[number] for number in range(len(indexed.counts))])


def _path(index: RecordIndex) -> str:
    return index.index_path.removesuffix(record_index.SUFFIX) + SUFFIX


def _known(index: RecordIndex) -> np.ndarray | None:
    """Reads the lengths beside an index; None if there are none that fit."""
    try:
        count = record_index.read_facts(_path(index), index.key, 2 * ROW.itemsize)
        return np.fromfile(_path(index), ROW, 2 * count, offset=record_index.HEADER_BYTES).reshape(-1, 2)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        logging.warning("%s: %s; its records are measured again", index.path, error)
        return None


def _keep(index: RecordIndex, lengths: np.ndarray) -> None:
    """Writes the lengths beside an index, if that can be written."""
    with contextlib.suppress(OSError):
        record_index.write_facts(_path(index), index.key, [lengths.astype(ROW)])


def _count(indexed: IndexedRecords, file: int, features: tuple[records.Feature, ...]) -> Iterator[np.ndarray]:
    """Yields the lengths of a file's records, part by part."""
    first, stop = sum(indexed.counts[:file]), sum(indexed.counts[:file + 1])
    for start in range(first, stop, AT_ONCE):
        numbers = np.arange(start, min(start + AT_ONCE, stop))
        try:
            values = records.parse_examples(tf.constant(indexed.read(numbers, indexed.places(numbers))), features)
        except BrokenRecordError as error:
            raise ValueError(f"{indexed.locate(error.number)} {error.reason}") from None
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(f"{indexed.locate(start)} or one of the {len(numbers) - 1} after it: {error.message}") from None
        tokens = tf.reduce_sum(values["input_mask"], axis=1)
        predictions = tf.math.count_nonzero(values["masked_lm_weights"], axis=1) if len(features) > 1 else tf.zeros_like(tokens)
        yield np.stack([tokens.numpy(), predictions.numpy()], axis=1).astype(ROW)
