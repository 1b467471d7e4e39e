"""Registers the operations of tokenizers that a SavedModel may need: TensorFlow lacks them, TF Serving has them."""

import contextlib
import os
from typing import Any

from google.protobuf.message import DecodeError

from official_bert.storage.files import read_bytes

FILE = "saved_model.pb"


def register_operations(folder: str) -> Any:
    """Imports tensorflow-text if the SavedModel in a folder of this machine needs it; returns the model's definition.

    The definition is empty if the file is missing or damaged, which the loader reports. Raises ValueError if
    tensorflow-text is not installed.
    """
    import tensorflow as tf
    from tensorflow.core.protobuf import saved_model_pb2

    definition, path = saved_model_pb2.SavedModel(), os.path.join(folder, FILE)
    with contextlib.suppress(OSError, DecodeError):
        definition.ParseFromString(read_bytes(path))
    graphs = [meta_graph.graph_def for meta_graph in definition.meta_graphs]
    parts = [part for graph in graphs for part in (graph.node, *(body.node_def for body in graph.library.function))]
    operations = {node.op for nodes in parts for node in nodes}
    functions = {body.signature.name for graph in graphs for body in graph.library.function}
    known = {name for name in operations if name.startswith("_") or hasattr(tf.raw_ops, name)}
    if foreign := sorted(operations - functions - known):
        try:
            import tensorflow_text  # noqa: F401
        except ImportError:
            raise ValueError(
                f"{path}: expected only TensorFlow's operations, because tensorflow-text is not installed, got "
                f"{foreign[0]}"
            ) from None
    return definition
