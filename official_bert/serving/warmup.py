"""Requests that TF Serving runs before it serves a model: `assets.extra/tf_serving_warmup_requests`.

Without them the first user of each signature and batch size waits for TensorFlow's lazy set-up.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
MOST_RECORDS = 1000  # TF Serving reads no more
TEXT = "The quick brown fox, it is said, jumps over the lazy dog near Zürich ([MASK] km from here)."


def write_requests(folder: str, model_name: str, requests: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Writes requests to the SavedModel in `folder`. Each is the name of a signature and its inputs.

    Raises ValueError if the message classes of TF Serving (extra `serving`) are not installed.
    """
    try:
        from tensorflow_serving.apis import model_pb2, predict_pb2, prediction_log_pb2
    except ImportError:
        raise ValueError(
            "warm-up requests need tensorflow-serving-api: install official-bert[serving], "
            "or export with --warmup_batch_sizes= for none"
        ) from None
    records = []
    for signature, values in requests:
        request = predict_pb2.PredictRequest(
            model_spec=model_pb2.ModelSpec(name=model_name, signature_name=signature),
            inputs={name: tf.make_tensor_proto(value) for name, value in values.items()},
        )
        log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
        records.append(log.SerializeToString(deterministic=True))
    if len(records) > MOST_RECORDS:
        raise ValueError(f"--warmup_batch_sizes: expected at most {MOST_RECORDS} requests, got {len(records)}")
    os.makedirs(os.path.join(folder, "assets.extra"))
    with tf.io.TFRecordWriter(os.path.join(folder, FILE)) as writer:
        for record in records:
            writer.write(record)


def sample_inputs(
    inputs: Mapping[str, tf.TensorSpec], size: int, num_choices: int, max_seq_length: int
) -> dict[str, np.ndarray]:
    """Returns a plausible request of `size` texts for a signature."""
    length = min(32, max_seq_length)
    shapes = {1: (size,), 2: (size, length), 3: (size, num_choices, length)}
    sample = {}
    for name, spec in inputs.items():
        if spec.dtype == tf.string:
            shape = (size,) if spec.shape.rank == 1 else (size, num_choices)
            sample[name] = np.full(shape, TEXT.encode(), object)
        elif name == "masked_lm_positions":
            sample[name] = np.full((size, 1), 1, np.int32)
        else:
            sample[name] = np.full(shapes[spec.shape.rank], int(name == "input_mask"), np.int32)
    return sample


def to_examples(sample: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns a request as serialized `tf.train.Example`s [B]."""

    def feature(value: np.ndarray) -> tf.train.Feature:
        if value.dtype == object:
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=value.ravel().tolist()))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=value.ravel().tolist()))

    size = len(next(iter(sample.values())))
    rows = [
        {name: feature(np.asarray(values[index : index + 1])) for name, values in sample.items()}
        for index in range(size)
    ]
    return np.array(
        [
            tf.train.Example(features=tf.train.Features(feature=row)).SerializeToString(deterministic=True)
            for row in rows
        ],
        object,
    )
