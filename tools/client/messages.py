"""Rows as the two protocols' messages, and their answers as rows. Imports TensorFlow and the protocol only for gRPC."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.tools.client.retries import ServingError

Signatures = dict[str, dict[str, dict[str, str]]]  # {signature: {"inputs" or "outputs": {name: dtype}}}


def to_json(value: Any) -> Any:
    """Turns a value into TF Serving's JSON: bytes into b64, arrays into lists."""
    if isinstance(value, Mapping):
        return {name: to_json(item) for name, item in value.items()}
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray):
        return to_json(value.tolist())
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def from_json(value: Any) -> Any:
    """Turns TF Serving's JSON into values: b64 into bytes."""
    if isinstance(value, dict):
        return (
            base64.b64decode(value["b64"])
            if value.keys() == {"b64"}
            else {name: from_json(item) for name, item in value.items()}
        )
    return [from_json(item) for item in value] if isinstance(value, list) else value


def signatures_of_json(metadata: Mapping[str, Any]) -> Signatures:
    """Reads the signatures in the JSON of a model's metadata."""
    definitions = metadata["metadata"]["signature_def"]["signature_def"]
    return {
        key: {side: {name: info["dtype"] for name, info in definition[side].items()} for side in ("inputs", "outputs")}
        for key, definition in definitions.items()
    }


def signatures_of_proto(response: Any) -> Signatures:
    """Reads the signatures in a `GetModelMetadataResponse`."""
    from tensorflow.core.framework import types_pb2
    from tensorflow_serving.apis import get_model_metadata_pb2

    message = get_model_metadata_pb2.SignatureDefMap()
    response.metadata["signature_def"].Unpack(message)
    return {
        key: {
            side: {name: types_pb2.DataType.Name(info.dtype) for name, info in getattr(definition, side).items()}
            for side in ("inputs", "outputs")
        }
        for key, definition in message.signature_def.items()
    }


def fill_inputs(request: Any, rows: Sequence[Any], inputs: Mapping[str, str]) -> None:
    """Fills a `PredictRequest` with rows. Raises ValueError for values of several types or lengths."""
    if not all(isinstance(row, Mapping) for row in rows):
        if len(inputs) != 1:
            raise ValueError(f"rows: expected mappings with the inputs {sorted(inputs)}")
        rows = [{next(iter(inputs)): row} for row in rows]
    for name in dict.fromkeys(name for row in rows for name in row):
        request.inputs[name].CopyFrom(_column(name, [row.get(name) for row in rows], inputs))


def _column(name: str, values: Sequence[Any], inputs: Mapping[str, str]) -> Any:
    """Makes a `TensorProto` of a column; a name that the model does not know is left for it to refuse."""
    import tensorflow as tf

    dtype = tf.as_dtype(inputs[name].removeprefix("DT_").lower()) if name in inputs else None
    lists = [_lists(value) for value in values]
    try:
        proto = tf.make_tensor_proto(lists, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"rows: {name}: expected values of one type and length in a batch: {str(error).splitlines()[0]}"
        ) from None
    if dtype is not None and (dtype.is_integer or dtype.is_floating):
        _check_range(name, np.asarray(lists), dtype)
    return proto


def _check_range(name: str, numbers: np.ndarray, dtype: Any) -> None:
    """Refuses numbers beyond a type's range, which `make_tensor_proto` wraps around or makes infinite; a given infinity
    is meant.
    """
    finite = numbers[np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers
    for number in (finite.min(), finite.max()) if finite.size else ():
        if not dtype.min <= number <= dtype.max:
            raise ValueError(
                f"rows: {name}: expected numbers of {dtype.name}, from {dtype.min} to {dtype.max}, got {number}"
            )


def rows_of_proto(response: Any, count: int) -> list[dict[str, Any]]:
    """Reads the rows of a `PredictResponse`. Raises ServingError if an output has not one row for each of `count`."""
    import tensorflow as tf

    arrays = {name: tf.make_ndarray(response.outputs[name]) for name in sorted(response.outputs)}
    for name, array in arrays.items():
        if array.shape[:1] != (count,):
            raise wrong_number_of_rows(count, f"{name} of the shape {list(array.shape)}")
    return [{name: _plain(array[index], name) for name, array in arrays.items()} for index in range(count)]


def wrong_number_of_rows(count: int, got: str) -> ServingError:
    """Returns the error for an answer that cannot be given as the rows of its request."""
    return ServingError("INVALID_ARGUMENT", f"expected an answer for each of {count} rows, got {got}")


def _lists(value: Any) -> Any:
    """Turns arrays into lists, whose values are checked one by one."""
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _plain(value: Any, name: str) -> Any:
    """Turns a tensor's part into Python's values, as REST gives them: strings decoded unless their name or nature is
    binary.
    """
    if isinstance(value, bytes):
        try:
            return value if name.endswith("_bytes") else value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    if isinstance(value, np.ndarray):
        return [_plain(item, name) for item in value] if value.dtype == object else value.tolist()
    return value.item() if isinstance(value, np.generic) else value
