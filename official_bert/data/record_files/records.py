"""The records of pre-training: one table of features for writing and parsing `tf.train.Example`.

Files are TFRecord files, plain or gzip. TensorFlow is imported by the functions that parse, not by those that write.
"""

import dataclasses
import gzip
import itertools
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, TYPE_CHECKING

import numpy as np

from official_bert.data.record_files.record_encoding import (
    FRAME_FOOTER_BYTES,
    FRAME_HEADER_BYTES,
    ExampleEncoder,
    crc_tables,
    masked_crc,
)
from official_bert.limits import MOST_PACKED_RECORD
from official_bert.storage.files import open_bytes, size_of

if TYPE_CHECKING:
    import tensorflow as tf

SCHEMA_VERSION = 1  # of the unmasked records, in each of them
GZIP_MAGIC = b"\x1f\x8b\x08"  # a plain file that begins so would have a record longer than half a megabyte


@dataclasses.dataclass(frozen=True)
class Feature:
    """One feature of every record: name, number of values, and whether they are floats or integers."""

    name: str
    length: int
    is_float: bool = False


def pretraining_features(max_seq_length: int, max_predictions_per_seq: int) -> tuple[Feature, ...]:
    """Returns the seven features of 2018's `write_instance_to_example_files`.

    `next_sentence_labels` is 1 for a random second segment; positions, ids and weights of unused predictions are 0.
    """
    S, P = max_seq_length, max_predictions_per_seq
    return (
        Feature("input_ids", S),
        Feature("input_mask", S),
        Feature("segment_ids", S),
        Feature("masked_lm_positions", P),
        Feature("masked_lm_ids", P),
        Feature("masked_lm_weights", P, is_float=True),
        Feature("next_sentence_labels", 1),
    )


def unmasked_features(max_seq_length: int) -> tuple[Feature, ...]:
    """Returns the features of records that are masked while they are read (`data/pretraining/dynamic_masking`).

    `word_starts` is 1 at the first piece of a word and 0 at its other pieces, at [CLS], [SEP] and padding;
    `schema_version` is SCHEMA_VERSION.
    """
    S = max_seq_length
    return (
        Feature("input_ids", S),
        Feature("input_mask", S),
        Feature("segment_ids", S),
        Feature("word_starts", S),
        Feature("next_sentence_labels", 1),
        Feature("schema_version", 1),
    )


def packed_features(
    max_seq_length: int, max_predictions_per_row: int, max_instances_per_row: int
) -> tuple[Feature, ...]:
    """Returns the features of rows of several instances (`data/pretraining/packing`): S tokens, Q predictions, K
    instances.

    `instance_ids` are 1 to K, 0 for padding; `position_ids` begin anew with each instance; `cls_positions` are the
    places of [CLS]; `instance_weights` is 1 for each of the K that is there.
    """
    S, Q, K = max_seq_length, max_predictions_per_row, max_instances_per_row
    return (
        *pretraining_features(S, Q)[:-1],
        Feature("next_sentence_labels", K),
        Feature("position_ids", S),
        Feature("instance_ids", S),
        Feature("cls_positions", K),
        Feature("instance_weights", K, is_float=True),
    )


def make_example_encoder(features: Sequence[Feature]) -> ExampleEncoder:
    """Makes the compiled encoder of records with these features."""
    return ExampleEncoder(
        [feature.name for feature in features],
        [feature.length for feature in features],
        [feature.is_float for feature in features],
    )


def parse_examples(serialized: "tf.Tensor", features: Sequence[Feature]) -> dict[str, "tf.Tensor"]:
    """Parses a batch of records in the graph: [B] strings -> int32 or float32 [B,length] by feature name.

    Integers beyond int32 are clipped rather than wrapped to small ones: no table has such an id. TensorFlow raises
    InvalidArgumentError, naming the feature, if a record has other lengths.
    """
    import tensorflow as tf

    spec = {
        feature.name: tf.io.FixedLenFeature([feature.length], tf.float32 if feature.is_float else tf.int64)
        for feature in features
    }
    parsed = tf.io.parse_example(serialized, spec)
    return {
        name: tf.cast(tf.clip_by_value(value, tf.int32.min, tf.int32.max), tf.int32)
        if value.dtype == tf.int64
        else value
        for name, value in parsed.items()
    }


def feature_lengths(path: str) -> dict[str, int]:
    """Counts the values of each feature in a file's first record. Raises ValueError if there is no such record."""
    import tensorflow as tf

    first = next(read_records(path), None)
    if first is None:
        raise ValueError(f"{path}: expected records, the file holds none")
    try:
        example = tf.train.Example.FromString(first)
    except Exception:  # protobuf's DecodeError has no public home
        raise ValueError(f"{path}: record 0 is not a tf.train.Example") from None
    return {
        name: len(getattr(value, value.WhichOneof("kind") or "int64_list").value)
        for name, value in sorted(example.features.feature.items())
    }


def file_features(path: str) -> tuple[Feature, ...]:
    """Returns the table that the file's first record follows, with its lengths. Raises ValueError if there is none."""
    lengths = feature_lengths(path)
    S = lengths.get("input_ids", 0)
    predictions = lengths.get("masked_lm_ids", 0)
    tables = (
        unmasked_features(S),
        pretraining_features(S, predictions),
        packed_features(S, predictions, lengths.get("cls_positions", 0)),
    )
    for table in tables:
        if lengths == {feature.name: feature.length for feature in table}:
            return table
    wanted = " or ".join(str(sorted(feature.name for feature in table)) for table in tables)
    raise ValueError(f"{path}: expected records with {wanted}, got {lengths}")


def read_batches(
    path: str, features: Sequence[Feature], size: int = 1024, every: int = 1
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields (number of the first record, arrays [B,length] by feature name) of each batch of a file.

    With `every`, reads only records 0, every, 2 * every, ... Raises ValueError, naming the file and the number of the
    record, for a record that is broken or has other features.
    """
    records, first = read_records(path, every), 0
    while batch := list(itertools.islice(records, size)):
        yield first, _parse_named(path, first, batch, features, every)
        first += len(batch) * every


def read_instances(paths: Iterable[str]) -> Iterator[dict[str, np.ndarray]]:
    """Yields every record of the files as arrays by feature name; raises what `read_batches` raises."""
    for path in paths:
        for _, values in read_batches(path, file_features(path)):
            for row in zip(*values.values()):
                yield dict(zip(values, row))


def _parse_named(
    path: str, first: int, batch: list[bytes], features: Sequence[Feature], every: int = 1
) -> dict[str, np.ndarray]:
    """`parse_examples` in NumPy. Raises ValueError with the number of the first record that does not fit."""
    import tensorflow as tf

    try:
        return {name: value.numpy() for name, value in parse_examples(tf.constant(batch), features).items()}
    except (tf.errors.InvalidArgumentError, tf.errors.DataLossError) as error:
        if len(batch) > 1:
            for row, record in enumerate(batch):
                _parse_named(path, first + row * every, [record], features)
        raise ValueError(
            f"{path}: record {first}: expected {[(f.name, f.length) for f in features]}: {error.message}"
        ) from None


def holds_records(path: str) -> bool:
    """Returns whether a file has a record: the file of a shard without documents has none."""
    with _open_any(path) as file:
        return bool(file.read(1))


def read_records(path: str, every: int = 1) -> Iterator[bytes]:
    """Yields the records of a TFRecord file, plain or gzip, each checked against its CRC; with `every`, only every so
    many.

    Raises ValueError, naming the file and the number (from 0), for a truncated or corrupted record.
    """
    with _open_any(path) as file:
        number = 0
        while header := _read(file, FRAME_HEADER_BYTES, path, number):
            where = f"{path}: record {number}"
            if len(header) < FRAME_HEADER_BYTES:
                raise ValueError(f"{where} is truncated: {len(header)} bytes of its header are left")
            length, crc = struct.unpack("<QI", header)
            if crc != _crc(header[:8]):
                raise ValueError(f"{where} is corrupted: its length does not match its checksum (is it a TFRecord?)")
            _check_length(file, path, where, length)
            if number % every:
                file.seek(length + FRAME_FOOTER_BYTES, os.SEEK_CUR)
                number += 1
                continue
            body = _read(file, length + FRAME_FOOTER_BYTES, path, number)
            if len(body) < length + FRAME_FOOTER_BYTES:
                raise ValueError(
                    f"{where} is truncated: expected {length + FRAME_FOOTER_BYTES} bytes, {len(body)} are left"
                )
            if struct.unpack_from("<I", body, length)[0] != _crc(body[:length]):
                raise ValueError(f"{where} is corrupted: its bytes do not match their checksum")
            yield body[:length]
            number += 1


def _check_length(file: IO[bytes] | gzip.GzipFile, path: str, where: str, length: int) -> None:
    """Raises ValueError for a record that claims more than the file holds: room for it would be made before reading."""
    if isinstance(file, gzip.GzipFile):
        if length > MOST_PACKED_RECORD:
            raise ValueError(
                f"{where} claims {length:,} bytes; a record of a packed file has at most {MOST_PACKED_RECORD:,}"
            )
    elif length > (left := size_of(path) - file.tell()):
        raise ValueError(f"{where} is truncated: it claims {length:,} bytes, {left:,} are left")


def is_gzip(path: str) -> bool:
    """Returns whether a file begins as gzip files do."""
    with open_bytes(path) as file:
        return file.read(len(GZIP_MAGIC)) == GZIP_MAGIC


def _open_any(path: str) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(open_bytes(path), "rb") if is_gzip(path) else open_bytes(path)


def _read(file: IO[bytes] | gzip.GzipFile, size: int, path: str, number: int) -> bytes:
    """Reads up to `size` bytes. Raises ValueError, naming the record, for a broken gzip stream."""
    try:
        return file.read(size)
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: record {number} is truncated or corrupted: {error}") from None


def _crc(data: bytes) -> int:
    return int(masked_crc(np.frombuffer(data, np.uint8), 0, len(data), crc_tables()))
