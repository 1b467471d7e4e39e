"""Records: what is written is what TensorFlow parses, and broken files are named."""

import gzip

import numpy as np
import pytest
import tensorflow as tf
from oracles.records import encode_example, write_tfrecords

from official_bert.data.record_files import records
from official_bert.data.record_files.record_index import make_index

FEATURES = records.pretraining_features(8, 3)


def some_values(seed, features=FEATURES):
    rng = np.random.default_rng(seed)
    edges = np.array([0, 1, 127, 128, 16383, 16384, 2097151, 2097152, 2**31 - 1])
    return {
        feature.name: rng.random(feature.length, np.float32)
        if feature.is_float
        else rng.choice(edges, feature.length).astype(np.int32)
        for feature in features
    }


def some_file(path, count=5, compress=False):
    values = [some_values(seed) for seed in range(count)]
    write_tfrecords(str(path), [encode_example(FEATURES, value) for value in values], compress)
    return values


@pytest.mark.parametrize("features", [FEATURES, records.unmasked_features(300)], ids=["masked", "unmasked"])
def test_an_encoded_example_has_the_bytes_of_protobuf_s_deterministic_serialization(features):
    for seed in range(20):
        values = some_values(seed, features)
        example = tf.train.Example()
        for name, value in values.items():
            kind = "float_list" if value.dtype == np.float32 else "int64_list"
            getattr(example.features.feature[name], kind).value.extend(value.tolist())
        assert encode_example(features, values) == example.SerializeToString(deterministic=True)


@pytest.mark.parametrize("compress", [False, True])
def test_tensorflow_reads_back_every_feature(tmp_path, compress):
    wanted = some_file(tmp_path / "a", compress=compress)
    dataset = tf.data.TFRecordDataset(str(tmp_path / "a"), compression_type="GZIP" if compress else "")
    parsed = next(iter(dataset.batch(5).map(lambda rows: records.parse_examples(rows, FEATURES))))
    for name in wanted[0]:
        assert parsed[name].dtype == (tf.float32 if name == "masked_lm_weights" else tf.int32)
        np.testing.assert_array_equal(parsed[name], [row[name] for row in wanted])


def test_our_reader_reads_what_tensorflow_wrote(tmp_path):
    path = str(tmp_path / "a")
    values = [some_values(seed) for seed in range(3)]
    with tf.io.TFRecordWriter(path) as writer:
        for value in values:
            writer.write(encode_example(FEATURES, value))
    for got, wanted in zip(records.read_instances([path]), values, strict=True):
        assert sorted(got) == sorted(wanted)
        for name in wanted:
            np.testing.assert_array_equal(got[name], wanted[name])
    assert records.feature_lengths(path)["masked_lm_ids"] == 3
    assert records.file_features(path) == FEATURES


def test_the_unmasked_schema_keeps_word_starts_and_its_version(tmp_path):
    features = records.unmasked_features(8)
    values = some_values(0, features)
    write_tfrecords(str(tmp_path / "a"), [encode_example(features, values)])
    assert records.file_features(str(tmp_path / "a")) == features
    row = next(records.read_instances([str(tmp_path / "a")]))
    assert {"word_starts", "schema_version"} <= set(row)
    np.testing.assert_array_equal(row["word_starts"], values["word_starts"])


@pytest.mark.parametrize("compress", [False, True])
def test_the_bytes_of_a_file_are_the_same_each_time(tmp_path, compress):
    some_file(tmp_path / "a", compress=compress)
    some_file(tmp_path / "b", compress=compress)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 60, 300])
def test_a_truncated_file_is_named_with_its_record(tmp_path, cut):
    path = tmp_path / "a"
    some_file(path)
    data = path.read_bytes()
    size = len(data) // 5 if cut < 60 else 0
    path.write_bytes(data[:-cut])
    number = 4 if size else None
    with pytest.raises(ValueError, match=rf"a: record {number if number else '[0-9]'} is truncated"):
        list(records.read_records(str(path)))
    with pytest.raises(ValueError, match=rf"a: record {number if number else '[0-9]'} is truncated"):
        make_index(str(path), str(tmp_path / "cache"))
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]


def test_a_flipped_bit_is_named_with_its_record(tmp_path):
    path = tmp_path / "a"
    some_file(path)
    data = bytearray(path.read_bytes())
    second = 16 + int.from_bytes(data[:8], "little")
    data[second + 40] ^= 4
    path.write_bytes(data)
    with pytest.raises(ValueError, match="a: record 1 is corrupted: its bytes"):
        list(records.read_records(str(path)))
    data[second] ^= 4
    path.write_bytes(data)
    with pytest.raises(ValueError, match="a: record 1 is corrupted: its length"):
        list(records.read_records(str(path)))


def test_a_truncated_gzip_file_is_named(tmp_path):
    path = tmp_path / "a"
    some_file(path, compress=True)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"a: record [0-9] is truncated"):
        list(records.read_records(str(path)))


def test_a_damaged_gzip_file_is_named(tmp_path):
    path = tmp_path / "a"
    some_file(path, compress=True)
    data = bytearray(path.read_bytes())
    data[40:80] = bytes(40)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"a: record [0-9] is (truncated or )?corrupted"):
        list(records.read_records(str(path)))


def test_records_of_another_length_are_named(tmp_path):
    path = str(tmp_path / "a")
    other = records.pretraining_features(9, 3)
    write_tfrecords(path, [encode_example(FEATURES, some_values(0)), encode_example(other, some_values(1, other))])
    with pytest.raises(ValueError, match="a: record 1: expected"):
        list(records.read_instances([path]))


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(gzip.compress(b"hello, this is no record at all"))
    with pytest.raises(ValueError, match="record 0 is corrupted"):
        list(records.read_instances([str(tmp_path / "a")]))
    (tmp_path / "b").write_bytes(b"")
    with pytest.raises(ValueError, match="holds none"):
        list(records.read_instances([str(tmp_path / "b")]))


def test_a_failed_write_leaves_nothing(tmp_path):
    def records_then_error():
        yield b"one"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError):
        write_tfrecords(str(tmp_path / "a"), records_then_error())
    assert not list(tmp_path.iterdir())
