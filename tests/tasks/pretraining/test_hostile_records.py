"""Records with values that no generator writes are refused with their file and number; none of them turns into another
value.
"""

import numpy as np
import pytest
import tensorflow as tf
from made_pretraining import P, S, make_config, resolve
from oracles.records import write_tfrecords

from official_bert.data.record_files import records

USUAL = {
    "input_ids": [7] * S,
    "input_mask": [1] * S,
    "segment_ids": [0] * S,
    "masked_lm_positions": [1, 2, 0],
    "masked_lm_ids": [8, 9, 0],
    "masked_lm_weights": [1.0, 1.0, 0.0],
    "next_sentence_labels": [1],
}


def example(**changes):
    """A record as protobuf writes it: our own encoder refuses or wraps what is tried here."""

    def feature(values):
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    values = {name: feature(value) for name, value in (USUAL | changes).items()}
    return tf.train.Example(features=tf.train.Features(feature=values)).SerializeToString()


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"input_ids": [7] * (S - 1) + [2**32 + 7]}, "token id beyond"),
        ({"masked_lm_ids": [2**32 + 7, 8, 9]}, "token id beyond"),
        ({"input_ids": [-(2**32) + 7] * S}, "token id beyond"),
        ({"segment_ids": [2**32] * S}, "segment id beyond"),
        ({"masked_lm_positions": [2**32 + 1, 2, 0]}, "masked position outside"),
        ({"next_sentence_labels": [2**40]}, "next-sentence label"),
        ({"masked_lm_weights": [1.0, -1.0, 0.0]}, "negative or no number"),
        ({"masked_lm_weights": [1.0, float("nan"), 0.0]}, "negative or no"),
        ({"masked_lm_weights": [float("inf"), 1.0, 0.0]}, "negative or no number"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_the_record(tmp_path, changes, told):
    write_tfrecords(path := str(tmp_path / "bad.tfrecord"), [example(), example(**changes), *[example()] * 30])
    source = resolve(make_config(), path).train
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        next(iter(source.dataset()))
    assert source.explain(raised.value.message).startswith(f"{path}: record 1: ") and told in source.explain(
        raised.value.message
    )


def test_tools_see_the_same(tmp_path):
    write_tfrecords(path := str(tmp_path / "bad.tfrecord"), [example(input_ids=[2**32 + 7, -(2**40)] + [7] * (S - 2))])
    [(_, values)] = records.read_batches(path, records.pretraining_features(S, P))
    assert values["input_ids"][0, :3].tolist() == [2**31 - 1, -(2**31), 7] and values["input_ids"].dtype == np.int32
