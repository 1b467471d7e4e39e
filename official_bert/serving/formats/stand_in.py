"""Puts a model of another runtime in the place of a served model's own computation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.runtimes.engines import PortableModel


def as_model(engine: PortableModel, description: Mapping[str, Any]) -> Any:
    """Returns an engine as `ServedModel.engine`: a function of tensors, in graphs too."""
    outputs = {name: (tf.as_dtype(dtype), shape) for name, (dtype, shape) in sorted(description["outputs"].items())}

    def compute(inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        names = list(description["inputs"])

        def call(*values: np.ndarray) -> list[np.ndarray]:
            answer = engine(dict(zip(names, values)))
            return [answer[name] for name in outputs]
        results = tf.numpy_function(call, [tf.cast(inputs[name], tf.int32) for name in names], [dtype for dtype, _ in outputs.values()])
        for value, (_, shape) in zip(results, outputs.values()):
            value.set_shape(shape)
        return dict(zip(outputs, results))
    return compute
