"""Describes a model of another runtime (names, limits, packing of texts), and makes such a model the engine of a served
model.

`model.json` is beside the file, and `assets/` is as in a SavedModel (vocabulary, labels, configuration). An ONNX file
also contains all of it, because such files are copied alone.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.config import Config
from official_bert.runtimes.engines import PortableModel
from official_bert.serving.formats.dense import Dense
from official_bert.serving.served_model import ServedModel


def describe(served: ServedModel, config: Config, dense: Dense, *, form: str, version: int) -> dict[str, Any]:
    """Returns the description of a model as JSON values."""
    return {
        "format": form,
        "version": version,
        "task": config.task,
        "inputs": {name: [spec.dtype.name, spec.shape.as_list()] for name, spec in dense.inputs.items()},
        "outputs": {name: [spec.dtype.name, spec.shape.as_list()] for name, spec in dense.outputs.items()},
        "labels": list(served.labels),
        "do_lower_case": bool(served.tokenizer.do_lower_case),
        "limits": {
            "vocab_size": served.encoder.config.vocab_size,
            "type_vocab_size": served.encoder.config.type_vocab_size,
            "max_seq_length": served.max_seq_length,
            **{
                f"max_{name}": most
                for name, most in served.longest.items()
                if name in ("choices", "masked_lm_positions")
            },
        },
        "special_ids": {name: int(number) for name, number in served.special.items()},
        "packing": {"separators": served.template.separators, "second_segment": served.template.second_segment},
        "options": {
            name: value for name, value in dataclasses.asdict(served.options).items() if value not in (None, "", 0)
        },
    }


def as_model(engine: PortableModel, description: Mapping[str, Any]) -> Any:
    """Returns an engine as a function for `ServedModel.engine`, which takes and returns tensors, also in graphs."""
    outputs = {name: (tf.as_dtype(dtype), shape) for name, (dtype, shape) in sorted(description["outputs"].items())}

    def compute(inputs: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        names = list(description["inputs"])

        def call(*values: np.ndarray) -> list[np.ndarray]:
            answer = engine(dict(zip(names, values)))
            return [answer[name] for name in outputs]

        results = tf.numpy_function(
            call, [tf.cast(inputs[name], tf.int32) for name in names], [dtype for dtype, _ in outputs.values()]
        )
        for value, (_, shape) in zip(results, outputs.values()):
            value.set_shape(shape)
        return dict(zip(outputs, results))

    return compute
