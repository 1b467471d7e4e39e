"""Converts rows to the messages of the two protocols, and answers to rows. Imports TensorFlow only for gRPC."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.tools.client.retries import ServingError

Signatures = dict[str, dict[str, dict[str, str]]]  # {signature: {"inputs" or "outputs": {name: dtype}}}


def to_json(value: Any) -> Any:
    """Returns a value as TF Serving's JSON: bytes as b64, arrays as lists."""
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
    """Returns the value of TF Serving's JSON: b64 as bytes."""
    if isinstance(value, dict):
        return (
            base64.b64decode(value["b64"])
            if value.keys() == {"b64"}
            else {name: from_json(item) for name, item in value.items()}
        )
    return [from_json(item) for item in value] if isinstance(value, list) else value


def signatures_of_json(metadata: Mapping[str, Any]) -> Signatures:
    """Returns the signatures in the JSON of a model's metadata."""
    definitions = metadata["metadata"]["signature_def"]["signature_def"]
    return {
        key: {side: {name: info["dtype"] for name, info in definition[side].items()} for side in ("inputs", "outputs")}
        for key, definition in definitions.items()
    }


def signatures_of_proto(response: Any) -> Signatures:
    """Returns the signatures in a `GetModelMetadataResponse`."""
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
    """Returns a column as a `TensorProto`.

    A name that the model does not know is sent too, so that the server refuses it.
    """
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
    """Raises ValueError for numbers beyond a type's range, which `make_tensor_proto` would wrap or make infinite. Given
    infinities are allowed.
    """
    finite = numbers[np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers
    for number in (finite.min(), finite.max()) if finite.size else ():
        if not dtype.min <= number <= dtype.max:
            raise ValueError(
                f"rows: {name}: expected numbers of {dtype.name}, from {dtype.min} to {dtype.max}, got {number}"
            )


def rows_of_proto(response: Any, count: int) -> list[dict[str, Any]]:
    """Returns the rows of a `PredictResponse`. Raises ServingError unless every output has `count` rows."""
    import tensorflow as tf

    arrays = {name: tf.make_ndarray(response.outputs[name]) for name in sorted(response.outputs)}
    for name, array in arrays.items():
        if array.shape[:1] != (count,):
            raise wrong_number_of_rows(count, f"{name} of the shape {list(array.shape)}")
    return [{name: _plain(array[index], name) for name, array in arrays.items()} for index in range(count)]


def wrong_number_of_rows(count: int, got: str) -> ServingError:
    """Returns the error for an answer whose number of rows differs from that of its request."""
    return ServingError("INVALID_ARGUMENT", f"expected an answer for each of {count} rows, got {got}")


def _lists(value: Any) -> Any:
    """Returns arrays as lists, whose values are then checked one by one."""
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _plain(value: Any, name: str) -> Any:
    """Returns a part of a tensor as Python values, as REST returns them. Strings are decoded unless their output's name
    ends in `_bytes` or they are not UTF-8.
    """
    if isinstance(value, bytes):
        try:
            return value if name.endswith("_bytes") else value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    if isinstance(value, np.ndarray):
        return [_plain(item, name) for item in value] if value.dtype == object else value.tolist()
    return value.item() if isinstance(value, np.generic) else value
