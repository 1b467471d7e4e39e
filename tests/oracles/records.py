"""Records with given values, encoded one by one and written to TFRecord files."""

import contextlib
import gzip
import struct

import numpy as np

from official_bert.data.record_files.record_encoding import (
    FRAME_FOOTER_BYTES,
    FRAME_HEADER_BYTES,
    crc_tables,
    masked_crc,
)
from official_bert.data.record_files.records import make_example_encoder
from official_bert.storage.files import written_beside


def encode_example(features, values):
    """One record's `tf.train.Example`, by the product's encoder; ValueError for a wrong number of values."""
    encoder = make_example_encoder(features)
    row = np.zeros((1, encoder.width), np.int32)
    for feature in features:
        value = np.asarray(values[feature.name], np.float32 if feature.is_float else np.int32).reshape(-1)
        if len(value) != feature.length or (not feature.is_float and value.min(initial=0) < 0):
            raise ValueError(f"{feature.name}: expected {feature.length} values, none negative, got {value.tolist()}")
        row[0, encoder.columns[feature.name]] = value.view(np.int32)
    out = np.empty(encoder.most_bytes, np.uint8)
    return out[FRAME_HEADER_BYTES : encoder.encode(row, out) - FRAME_FOOTER_BYTES].tobytes()


def write_tfrecords(path, records, compress=False):
    """Writes records, plain or gzip; returns how many."""
    count = 0
    with (
        written_beside(path) as temporary,
        open(temporary, "wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if compress else contextlib.nullcontext(raw) as file,
    ):
        for record in records:
            header = struct.pack("<Q", len(record))
            file.write(header + crc(header) + record + crc(record))
            count += 1
    return count


def crc(data):
    return struct.pack("<I", int(masked_crc(np.frombuffer(data, np.uint8), 0, len(data), crc_tables())))
