"""Takes the weights out of a graph while tf2onnx converts it: each of its 24 passes of optimization copies a graph's constants about three
times, and Python finds most of the copies only later, because they are parts of cycles.
"""

from typing import Any

import numpy as np
import tensorflow as tf

LEAST_BYTES = 1 << 16  # of a constant that is taken out: small ones may say shapes, and belong to operations that are rewritten


def take_weights(definition: Any) -> dict[str, np.ndarray]:
    """Makes large constants of a `GraphDef` inputs of it; returns their values by the names of their tensors.

    These are constants that products and gathers take as they are. Others stay: tf2onnx computes what is made of them, as a transposition.
    """
    takers = dict[str, list[tuple[Any, int]]]()
    for node in definition.node:
        for place, name in enumerate(node.input):
            if not name.startswith("^"):  # who waits for a constant does not take it
                takers.setdefault(name.partition(":")[0], []).append((node, place))

    def is_plain(name: str) -> bool:
        return all((node.op == "Identity" and is_plain(node.name)) or (node.op == "GatherV2" and place == 0)
                   or (node.op == "MatMul" and place == 1 and not node.attr["transpose_b"].b) for node, place in takers.get(name, []))
    weights = dict[str, np.ndarray]()
    for node in definition.node:
        if node.op == "Const" and len((tensor := node.attr["value"].tensor).tensor_content) >= LEAST_BYTES and is_plain(node.name):
            weights[f"{node.name}:0"] = tf.make_ndarray(tensor)
            node.op = "Placeholder"
            node.attr["shape"].shape.CopyFrom(tensor.tensor_shape)
            del node.attr["value"]
    return weights


def put_weights(graph: Any, weights: dict[str, np.ndarray]) -> None:
    """Makes inputs of an ONNX graph constants again; `weights` are empty then."""
    from onnx import numpy_helper
    inputs = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)
    while weights:
        name, value = weights.popitem()
        graph.initializer.append(numpy_helper.from_array(value, name))
