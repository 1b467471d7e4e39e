"""TFRecord framing and `tf.train.Example` bytes, compiled, so that writing records is cheap and their bytes are fixed.

The bytes are those of protobuf's deterministic serialization (map keys in ascending order), so that the same values
give the same file on every run; the 2018 files differed from run to run. No TensorFlow is imported here.

The kernels of this file call only each other: Numba's cache notices changes in a function's own file only.
"""

import functools
from collections.abc import Mapping, Sequence

import numpy as np
from numba import njit

from official_bert.text.compiling import compiled

CRC32C_POLYNOMIAL = np.uint32(0x82F63B78)  # reflected Castagnoli polynomial
CRC_MASK_DELTA = np.uint64(0xA282EAD8)  # TFRecord stores rotated CRCs, so that a CRC of CRCs stays useful
FRAME_BYTES = 16  # length (8), its CRC (4), the record's CRC (4)
FRAME_HEADER_BYTES, FRAME_FOOTER_BYTES = 12, 4
MAP_ENTRY, KEY, VALUE, VALUES = 0x0A, 0x0A, 0x12, 0x0A  # protobuf tags: field number and "length follows"
FLOAT_LIST, INT64_LIST = 0x12, 0x1A


@functools.cache
def crc_tables() -> np.ndarray:
    """Returns the [8,256] tables of CRC-32C for eight bytes at a time."""
    tables = np.zeros((8, 256), np.uint32)
    values = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        values = np.where(values & 1, (values >> 1) ^ CRC32C_POLYNOMIAL, values >> 1).astype(np.uint32)
    tables[0] = values
    for row in range(1, 8):
        tables[row] = (tables[row - 1] >> 8) ^ tables[0][tables[row - 1] & 0xFF]
    return tables


@compiled(nogil=True)
def masked_crc(data: np.ndarray, start: int, stop: int, tables: np.ndarray) -> np.uint64:
    """Returns the rotated CRC-32C of `data[start:stop]` (uint8), as in TFRecord files."""
    crc = np.uint64(0xFFFFFFFF)
    byte = np.uint64(0xFF)
    position = np.uintp(start)
    while position + np.uintp(8) <= np.uintp(stop):
        before, crc = crc, np.uint64(0)
        for place in range(8):  # the compiler writes it out
            value = (np.uint64(data[position + np.uintp(place)]) ^ before >> np.uint64(8 * place)) & byte
            crc ^= np.uint64(tables[7 - place, value])
        position += np.uintp(8)
    while position < np.uintp(stop):
        crc = np.uint64(tables[0, (crc ^ data[position]) & byte]) ^ crc >> np.uint64(8)
        position += np.uintp(1)
    crc ^= np.uint64(0xFFFFFFFF)
    rotated = crc >> np.uint64(15) | crc << np.uint64(17)
    return rotated + CRC_MASK_DELTA & np.uint64(0xFFFFFFFF)


@njit(forceinline=True)
def _little_endian(data: np.ndarray, position: int, size: int) -> np.uint64:
    value = np.uint64(0)
    for place in range(size):
        value |= np.uint64(data[position + place]) << np.uint64(8 * place)
    return value


@compiled(nogil=True)
def find_frames(
    data: np.ndarray, first: int, size: int, tables: np.ndarray, starts: np.ndarray
) -> tuple[int, np.int64]:
    """Walks over the records of a file of `size` bytes, whose bytes from `first` on are in `data` (uint8).

    Writes the places of records to `starts` and returns (their number, the place after the last of them). It ends
    before the first record whose header is not wholly in `data`, has a wrong checksum, or whose end is beyond the file.
    """
    position, count = np.int64(first), 0
    while position - first + FRAME_HEADER_BYTES <= len(data):
        header = position - first
        length = _little_endian(data, header, 8)
        if masked_crc(data, header, header + 8, tables) != _little_endian(data, header + 8, 4):
            break
        if length > np.uint64(size - position) or position + FRAME_BYTES + np.int64(length) > size:
            break
        starts[count] = position
        position += FRAME_BYTES + np.int64(length)
        count += 1
    return count, position


@compiled(nogil=True)
def first_broken_frame(data: np.ndarray, bounds: np.ndarray, tables: np.ndarray) -> tuple[int, int]:
    """Checks whole frames, the k-th in `data[bounds[k]:bounds[k + 1]]` (uint8).

    Returns (k, 0) if the first broken frame has a wrong length, (k, 1) if its data do not match its checksum, and (-1,
    0) if all frames are right.
    """
    for k in range(len(bounds) - 1):
        start, stop = bounds[k], bounds[k + 1]
        if _little_endian(data, start, 8) != np.uint64(stop - start - FRAME_BYTES):
            return k, 0
        if masked_crc(data, start + FRAME_HEADER_BYTES, stop - FRAME_FOOTER_BYTES, tables) != _little_endian(
            data, stop - FRAME_FOOTER_BYTES, FRAME_FOOTER_BYTES
        ):
            return k, 1
    return -1, 0


@njit(forceinline=True)
def _varint_size(value: int) -> int:
    """Bytes of a varint below 2**28."""
    return 1 + (value >= 1 << 7) + (value >= 1 << 14) + (value >= 1 << 21)


@njit(forceinline=True)
def _put_varint(out: np.ndarray, position: int, value: int) -> int:
    while value >= 128:
        out[position] = np.uint8((value & 127) | 128)
        value >>= 7
        position += 1
    out[position] = np.uint8(value)
    return position + 1


@njit(forceinline=True)
def _put_header(out: np.ndarray, position: int, tag: int, size: int) -> int:
    """Writes the tag of a field with a length, and the length."""
    out[position] = tag
    return _put_varint(out, position + 1, size)


@njit(forceinline=True)
def _put_little_endian(out: np.ndarray, position: int, value: int, size: int) -> int:
    for shift in range(size):
        out[position + shift] = np.uint8((value >> (8 * shift)) & 255)
    return position + size


@njit(forceinline=True)
def _values_size(rows: np.ndarray, n: int, first: np.int64, last: np.int64, is_float: bool) -> np.int64:
    """Bytes of a feature's values."""
    if is_float:
        return 4 * (last - first)
    size = last - first
    for column in range(first, last):
        value = rows[n, column]
        size += np.int64(value >= 1 << 7) + np.int64(value >= 1 << 14)
        size += np.int64(value >= 1 << 21) + np.int64(value >= 1 << 28)
    return size


@njit(forceinline=True)
def _put_values(
    out: np.ndarray, position: int, rows: np.ndarray, n: int, first: int, last: int, is_float: bool, size: int
) -> int:
    if is_float:
        for column in range(first, last):
            position = _put_little_endian(out, position, rows[n, column], 4)
    elif size == last - first:  # a byte each
        for index in range(size):
            out[position + index] = np.uint8(rows[n, first + index])
        position += size
    else:
        for column in range(first, last):
            position = _put_id(out, position, np.int64(rows[n, column]))
    return position


@njit(forceinline=True)
def _put_id(out: np.ndarray, position: int, value: int) -> int:
    """Writes a varint; for values below 2**21 without a branch, which could not be predicted: the next value overwrites
    surplus bytes."""
    if value >= 1 << 21:
        return _put_varint(out, position, value)
    two, three = value >= 1 << 7, value >= 1 << 14
    out[position] = np.uint8((value & 127) | (two << 7))
    out[position + 1] = np.uint8(((value >> 7) & 127) | (three << 7))
    out[position + 2] = np.uint8(value >> 14)
    return position + 1 + two + three


@compiled(nogil=True)
def put_examples(
    out: np.ndarray,
    rows: np.ndarray,
    columns: np.ndarray,
    is_float: np.ndarray,
    keys: np.ndarray,
    key_ends: np.ndarray,
    tables: np.ndarray,
) -> int:
    """Writes `rows` [n, W] (int32; floats as their bits) to `out` (uint8) as framed Examples; returns the bytes
    written.
    """
    sizes = np.empty((len(is_float), 4), np.int64)  # of each feature: values, list, feature, map entry
    position = 0
    for n in range(len(rows)):
        features = 0
        for f in range(len(is_float)):
            key_size = key_ends[f + 1] - key_ends[f]
            sizes[f, 0] = _values_size(rows, n, columns[f], columns[f + 1], is_float[f])
            sizes[f, 1] = 1 + _varint_size(sizes[f, 0]) + sizes[f, 0]
            sizes[f, 2] = 1 + _varint_size(sizes[f, 1]) + sizes[f, 1]
            sizes[f, 3] = 2 + _varint_size(key_size) + key_size + _varint_size(sizes[f, 2]) + sizes[f, 2]
            features += 1 + _varint_size(sizes[f, 3]) + sizes[f, 3]
        length = 1 + _varint_size(features) + features
        _put_little_endian(out, position, length, 8)
        _put_little_endian(out, position + 8, masked_crc(out, position, position + 8, tables), 4)
        position += FRAME_HEADER_BYTES
        start = position
        position = _put_header(out, position, MAP_ENTRY, features)
        for f in range(len(is_float)):
            position = _put_header(out, position, MAP_ENTRY, sizes[f, 3])
            position = _put_header(out, position, KEY, key_ends[f + 1] - key_ends[f])
            for index in range(key_ends[f], key_ends[f + 1]):
                out[position] = keys[index]
                position += 1
            position = _put_header(out, position, VALUE, sizes[f, 2])
            position = _put_header(out, position, FLOAT_LIST if is_float[f] else INT64_LIST, sizes[f, 1])
            position = _put_header(out, position, VALUES, sizes[f, 0])
            position = _put_values(out, position, rows, n, columns[f], columns[f + 1], is_float[f], sizes[f, 0])
        position = _put_little_endian(out, position, masked_crc(out, start, position, tables), 4)
    return position


class ExampleEncoder:
    """Encodes rows of values as Examples, for one table of features.

    A row holds the values of all features in ascending order of their names; `columns[name]` is the slice of each. Rows
    are int32; a float feature's columns hold the bits of its float32 values.
    """

    def __init__(self, names: Sequence[str], lengths: Sequence[int], are_float: Sequence[bool]):
        table = sorted(zip(names, lengths, are_float))
        ends = np.cumsum([0] + [length for _, length, _ in table]).astype(np.int64)
        encoded = [name.encode() for name, _, _ in table]
        self.columns = {name: slice(int(first), int(last)) for (name, _, _), first, last in zip(table, ends, ends[1:])}
        self.width = int(ends[-1])
        self._key_ends = np.cumsum([0] + [len(key) for key in encoded]).astype(np.int64)
        self._keys = np.frombuffer(b"".join(encoded), np.uint8)
        self._ends = ends
        self._is_float = np.array([is_float for _, _, is_float in table], np.bool_)

    @property
    def most_bytes(self) -> int:
        """An upper bound of one framed record's size: five bytes a value, and the messages around the values."""
        return FRAME_BYTES + 6 + 5 * self.width + len(self._keys) + 26 * len(self._is_float)

    def encode(self, rows: np.ndarray, out: np.ndarray) -> int:
        """Writes `rows` [n, width] into `out` (uint8, at least n * most_bytes) as records; returns the bytes written.

        Values of integer features must not be negative.
        """
        assert rows.shape[1] == self.width and len(out) >= len(rows) * self.most_bytes
        return put_examples(out, rows, self._ends, self._is_float, self._keys, self._key_ends, crc_tables())

    def encode_values(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns framed records with `values` [n, at most the feature's length], int32 or float32; others are 0."""
        rows = np.zeros((len(next(iter(values.values()))), self.width), np.int32)
        for name, value in values.items():
            first = self.columns[name].start
            rows[:, first : first + value.shape[1]] = value.view(np.int32)
        out = np.empty(len(rows) * self.most_bytes, np.uint8)
        return out[: self.encode(rows, out)]
