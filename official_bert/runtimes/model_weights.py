"""Checks that the weights of an exported model, of any format, are finite when the model is loaded."""

import itertools
import os
import struct
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from google.protobuf.message import Message

from official_bert.runtimes.finite import require_finite, require_finite_constants

VARIABLES = os.path.join("variables", "variables")  # in a SavedModel
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"  # behind the name of a variable in a checkpoint
LITERT_TYPES = {
    "FLOAT32": np.float32,
    "FLOAT16": np.float16,
    "FLOAT64": np.float64,
    "BFLOAT16": ml_dtypes.bfloat16,
    "COMPLEX64": np.complex64,
    "COMPLEX128": np.complex128,
}


def check_saved_model(folder: str, graph: Any, origin: str) -> None:
    """Raises ValueError that names the first variable or constant of a SavedModel with NaN or infinity.

    `graph` is its GraphDef. Raises TensorFlow's errors for damaged files.
    """
    import tensorflow as tf

    if os.path.exists(f"{(prefix := os.path.join(folder, VARIABLES))}.index"):
        reader = tf.train.load_checkpoint(prefix)
        for key, dtype in sorted(reader.get_variable_to_dtype_map().items()):
            if dtype.is_floating or dtype.is_complex:
                require_finite({key.removesuffix(VALUE): reader.get_tensor(key)}, origin)

    def array_of(tensor: Any) -> np.ndarray | None:
        dtype = tf.dtypes.as_dtype(tensor.dtype)
        return tf.make_ndarray(tensor) if dtype.is_floating or dtype.is_complex else None

    # Functions of gradients, which nobody asks of a served model, hold NaN where there is none.
    gradients = {registered.gradient_func for registered in graph.library.registered_gradients}
    functions = [function for function in graph.library.function if function.signature.name not in gradients]
    parts = (_constants(part, array_of) for part in (*graph.node, *functions))
    require_finite_constants(itertools.chain.from_iterable(parts), origin)


def check_onnx(path: str, origin: str) -> None:
    """Raises ValueError that names the first weight of an ONNX file, or of its external data, with NaN or infinity."""
    import onnx

    def array_of(tensor: Any) -> np.ndarray | None:
        is_text = tensor.data_type == onnx.TensorProto.STRING
        return None if is_text else onnx.numpy_helper.to_array(tensor, os.path.dirname(path))

    require_finite_constants(_constants(onnx.load(path, load_external_data=False), array_of), origin)


def check_litert(path: str, origin: str) -> None:
    """Raises ValueError that names the first weight, or scale of quantized weights, of a LiteRT file with NaN or
    infinity.
    """
    from tensorflow.lite.python.schema_py_generated import Model, TensorType

    types = {getattr(TensorType, name): kind for name, kind in LITERT_TYPES.items()}
    data = np.memmap(path, np.uint8, "r")
    try:
        require_finite_constants(_litert_constants(Model.GetRootAs(data), data, types), origin)
    except (struct.error, IndexError) as error:  # flatbuffers trusts its file
        raise ValueError(f"{origin}: expected a model of LiteRT: {error}") from None


def check_openvino(path: str, origin: str) -> None:
    """Raises ValueError that names the first weight of an OpenVINO file with NaN or infinity."""
    import openvino

    nodes = openvino.Core().read_model(path).get_ordered_ops()
    require_finite_constants(
        (
            (node.get_friendly_name(), np.asarray(node.get_data()))
            for node in nodes
            if node.get_type_name() == "Constant"
        ),
        origin,
    )


def _constants(message: Any, array_of: Any, name: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Yields all tensors and floats in a graph of TensorFlow or ONNX, each with the name of its node or tensor.

    That includes functions, branches and loops. `array_of` returns a tensor's values, or None if they are no floats.
    """
    name = getattr(message, "name", "") or name
    if message.DESCRIPTOR.name == "TensorProto":
        if (values := array_of(message)) is not None:
            yield name, values
        return
    for field, value in message.ListFields():
        if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
            yield name, np.array(value, np.float64)
        elif field.cpp_type == field.CPPTYPE_MESSAGE:
            parts = [value] if isinstance(value, Message) else value.values() if hasattr(value, "values") else value
            for part in parts:
                if isinstance(part, Message):
                    yield from _constants(part, array_of, name)


def _litert_constants(model: Any, data: np.ndarray, types: dict[int, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the floats that a LiteRT file stores, and the scales of its quantized weights."""
    for graph in map(model.Subgraphs, range(model.SubgraphsLength())):
        for tensor in map(graph.Tensors, range(graph.TensorsLength())):
            name, buffer = tensor.Name().decode("utf-8", "replace"), model.Buffers(tensor.Buffer())
            if (quantization := tensor.Quantization()) is not None and quantization.ScaleLength():
                yield name, quantization.ScaleAsNumpy()
            if tensor.Type() not in types:
                continue
            content = buffer.DataAsNumpy()  # 0 for no data: the tensor is computed, or its data stand behind the model
            if buffer.Offset() > 1:
                content = data[buffer.Offset() : buffer.Offset() + buffer.Size()]
            if isinstance(content, np.ndarray) and content.size:
                values = np.frombuffer(content.tobytes(), types[tensor.Type()])
                yield name, values if tensor.ShapeLength() else values.reshape(())
