"""Converts a dense pass to a file of ONNX (tf2onnx), OpenVINO (from the ONNX file), or LiteRT (TensorFlow's converter,
builtin operations only).
"""

import base64
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.runtimes.quiet import hidden_output
from official_bert.serving.formats.companions import write_companions
from official_bert.serving.formats.dense import Dense, installed
from official_bert.serving.formats.onnx_operations import use_own_operations
from official_bert.text import loading

__all__ = ["to_litert", "to_onnx", "to_openvino", "write_companions"]
OPSETS = range(13, 19)  # of ONNX, that tf2onnx writes and every current runtime reads
DIMENSIONS = {
    "input_ids": ("batch", "length"),
    "input_mask": ("batch", "length"),
    "segment_ids": ("batch", "length"),
    "masked_lm_positions": ("batch", "positions"),
}
OF_CHOICES = ("batch", "choices", "length")
# of a constant that is taken out: small ones may say shapes, and belong to operations that are rewritten
LEAST_BYTES = 1 << 16


def to_onnx(path: str, dense: Dense, where: str, description: Mapping[str, Any], vocab_file: str, opset: int) -> None:
    """Writes an ONNX file. Raises ValueError that names `where` and the layer for operations without an ONNX
    counterpart.
    """
    with installed(where, "onnx"):
        import onnx
        import tf2onnx
    if opset not in OPSETS:
        raise ValueError(f"--opset: expected {OPSETS[0]} to {OPSETS[-1]}, got {opset}")
    function = dense.function
    names = {
        tensor.name: name
        for tensor, name in zip([*function.inputs, *function.outputs], [*dense.inputs, *dense.outputs])
    }
    definition = function.graph.as_graph_def()
    weights = take_weights(definition)
    with hidden_output():
        model, _ = tf2onnx.convert.from_graph_def(
            definition,
            name="official_bert",
            opset=opset,
            input_names=[*(tensor.name for tensor in function.inputs), *weights],
            output_names=[tensor.name for tensor in function.outputs],
            tensors_to_rename=names,
        )
    put_weights(model.graph, weights)
    use_own_operations(model, opset)
    for node in model.graph.node:
        if not node.domain and not onnx.defs.has(node.op_type):
            raise _lacks(where, "ONNX", node.op_type, node.name)
    for value in model.graph.input:
        sizes = OF_CHOICES if len(value.type.tensor_type.shape.dim) == 3 else DIMENSIONS[value.name]
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes):
            dim.dim_param = size
    for value in model.graph.output:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    model.producer_name, model.doc_string = "official_bert", "rows of token ids -> numbers; see metadata_props"
    onnx.helper.set_model_props(
        model,
        {
            "opset": str(opset),
            **_tokenizer_in(vocab_file),
            **{
                key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                for key, value in description.items()
            },
        },
    )
    content = model.SerializeToString()
    onnx.checker.check_model(content)
    pathlib.Path(path).write_bytes(content)


def to_openvino(path: str, dense: Dense, where: str, *about: Any) -> None:
    """Writes the two files of an OpenVINO model, float32, from an ONNX file. Raises ValueError as `to_onnx` does."""
    with installed(where, "openvino"):
        import openvino
    with tempfile.TemporaryDirectory() as folder:
        to_onnx(source := os.path.join(folder, "model.onnx"), dense, where, *about)
        openvino.save_model(openvino.Core().read_model(source), path, compress_to_fp16=False)


def to_litert(path: str, dense: Dense, where: str, *_: Any, weights: tf.DType = tf.float32) -> None:
    """Writes a LiteRT file with weights of a type. int8 means dynamic-range quantization, which also quantizes the rows
    of each product at run time.

    Raises ValueError that names `where` and the layer for an operation that is not built into LiteRT.
    """
    with tempfile.TemporaryDirectory() as folder, hidden_output() as log:
        dense.save(folder)
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if weights != tf.float32:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
        if weights == tf.float16:
            converter.target_spec.supported_types = [tf.float16]
        try:
            content = converter.convert()
        except Exception as error:  # ConverterError is in a private module
            log.seek(0)
            message = f"{log.read()}\n{error}"
            # The line that names an operation which is not built in, or else the first that names one.
            line = next((line for line in message.splitlines() if "op is neither" in line), message)
            if place := re.search(r'fused\["(\w+):", "([\w/.]+)@', line):
                raise _lacks(where, "LiteRT", place[1], place[2]) from None
            raise ValueError(f"{where}: the LiteRT converter fails: {str(error).splitlines()[0][:200]}") from None
    pathlib.Path(path).write_bytes(content)


def _lacks(where: str, runtime: str, operation: str, node: str) -> ValueError:
    place = f" in {layer}" if (layer := os.path.dirname(node)) else ""
    return ValueError(f"{where}: {runtime} lacks the operation {operation}{place}; --format=saved_model has it")


def _tokenizer_in(vocab_file: str) -> dict[str, str]:
    """Returns a tokenizer as metadata under the name of its file: the list of WordPieces, or other tokenizers' files in
    a zip as base64.
    """
    name, content = loading.stored_name(vocab_file), loading.content_of(vocab_file)
    return {"vocab": content.decode()} if name == loading.VOCAB_FILE else {name: base64.b64encode(content).decode()}


def take_weights(definition: Any) -> dict[str, np.ndarray]:
    """Turns large constants of a `GraphDef` into inputs; returns their values by tensor name.

    So tf2onnx converts a graph without its weights. Otherwise each of its 24 optimization passes copies a graph's
    constants about three times, and Python frees most copies late, because they are parts of cycles.

    Only constants that products and gathers use directly become inputs. Others stay, so that tf2onnx can fold
    operations on them, such as transpositions.
    """
    takers = dict[str, list[tuple[Any, int]]]()
    for node in definition.node:
        for place, name in enumerate(node.input):
            if not name.startswith("^"):  # who waits for a constant does not take it
                takers.setdefault(name.partition(":")[0], []).append((node, place))

    def is_plain(name: str) -> bool:
        return all(
            (node.op == "Identity" and is_plain(node.name))
            or (node.op == "GatherV2" and place == 0)
            or (node.op == "MatMul" and place == 1 and not node.attr["transpose_b"].b)
            for node, place in takers.get(name, [])
        )

    weights = dict[str, np.ndarray]()
    for node in definition.node:
        if (
            node.op == "Const"
            and len((tensor := node.attr["value"].tensor).tensor_content) >= LEAST_BYTES
            and is_plain(node.name)
        ):
            weights[f"{node.name}:0"] = tf.make_ndarray(tensor)
            node.op = "Placeholder"
            node.attr["shape"].shape.CopyFrom(tensor.tensor_shape)
            del node.attr["value"]
    return weights


def put_weights(graph: Any, weights: dict[str, np.ndarray]) -> None:
    """Turns the inputs of `take_weights` back into constants of an ONNX graph; empties `weights`."""
    from onnx import numpy_helper

    inputs = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)
    while weights:
        name, value = weights.popitem()
        graph.initializer.append(numpy_helper.from_array(value, name))
