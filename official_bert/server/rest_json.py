"""TF Serving's JSON as arrays and back: rows (`instances` -> `predictions`) and columns (`inputs` -> `outputs`).

Source: TF Serving's api_rest.md. Binary strings are `{"b64": "..."}`; NaN and Infinity stand without quotes; outputs
whose names end in `_bytes` are binary.
"""

import base64
import binascii
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
import tensorflow as tf

from official_bert.server.request_checks import MOST_DIMENSIONS
from official_bert.server.servable import Arrays, Signature, TensorSpec
from official_bert.server.statuses import invalid

KINDS = {"bool": (bool,), "integer": (int,), "float": (int, float)}  # exact types: True is an int for Python
SHOWN = 80  # characters of a wrong value in a message


def parse_body(body: bytes) -> dict[str, Any]:
    """The JSON object of a request. Raises RequestError for whatever is none."""
    try:
        value = json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise invalid(f"JSON Parse error: not valid UTF-8 at offset: {error.start}") from None
    except json.JSONDecodeError as error:
        raise invalid(f"JSON Parse error: {error.msg} at offset: {error.pos}") from None
    except (RecursionError, ValueError):  # lists in lists; a number of more than 4,300 digits
        raise invalid("JSON Parse error: nested too deeply, or a number that is too long") from None
    if not isinstance(value, dict):
        raise invalid(f"JSON Value: {_shown(value)} Is not object")
    return value


def signature_name(request: Mapping[str, Any]) -> str:
    """Which signature a request asks for; empty for the default."""
    name = request.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(f"JSON Value: {_shown(name)} not formatted correctly. 'signature_name' key must be a string value.")
    return name


def read_inputs(request: Mapping[str, Any], signature: Signature) -> tuple[dict[str, np.ndarray], bool]:
    """The inputs of a request, and whether it is in row form."""
    if ("instances" in request) == ("inputs" in request):
        raise invalid("Missing 'inputs' or 'instances' key" if "inputs" not in request else
                      "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist")
    is_rows = "instances" in request
    columns = _columns_of_rows(request["instances"], signature) if is_rows else _columns(request["inputs"], signature)
    return {name: to_array(columns[name], spec, name) for name, spec in signature.inputs.items()}, is_rows


def _columns_of_rows(rows: Any, signature: Signature) -> dict[str, list]:
    """The values of each input, from a list of values (one input) or of objects."""
    if not isinstance(rows, list):
        raise invalid(f"JSON Value: {_shown(rows)} Expecting 'instances' to be an list/array")
    if not rows:
        raise invalid("No values in 'instances' array")
    named = [isinstance(row, dict) and not _is_binary(row) for row in rows]
    if any(named) != all(named):
        raise invalid(f"Expecting {'object' if named[0] else 'value/list'} but got {'list' if named[0] else 'object'} "
                      f"at item {named.index(not named[0])} of input list")
    if not named[0]:
        if len(signature.inputs) != 1:
            raise invalid("instances is a plain list, but expecting list of objects as multiple input tensors required "
                          f"as per tensorinfo_map: {', '.join(signature.inputs)}")
        return {next(iter(signature.inputs)): rows}
    for index, row in enumerate(rows):
        if set(row) != set(signature.inputs):
            raise invalid(f"Failed to process element: {index} of 'instances' list. JSON object: {_shown(row)} "
                          f"keys must be equal to: {','.join(signature.inputs)}")
    return {name: [row[name] for row in rows] for name in signature.inputs}


def _columns(inputs: Any, signature: Signature) -> dict[str, Any]:
    """Returns the values of each input, from an object of columns or (one input) the column itself.

    As in TF Serving, columns of other names are ignored; in rows they are not.
    """
    if isinstance(inputs, dict) and not _is_binary(inputs):
        if missing := [name for name in signature.inputs if name not in inputs]:
            raise invalid(f"Missing named input: {missing[0]} in 'inputs' object.")
        return inputs
    if len(signature.inputs) != 1:
        raise invalid("inputs is a plain value/list, but expecting an object as multiple input tensors required "
                      f"as per tensorinfo_map: {', '.join(signature.inputs)}")
    return {next(iter(signature.inputs)): inputs}


def to_array(value: Any, spec: TensorSpec, name: str) -> np.ndarray:
    """Nested lists as an array of the input's type. Raises RequestError for ragged lists and values of another type."""
    shape: list[int] = []
    leaves = [value]
    while leaves and isinstance(leaves[0], list):
        if len(shape) == MOST_DIMENSIONS:
            raise invalid(f"input {name!r}: lists nested more than {MOST_DIMENSIONS} deep")
        size = len(leaves[0])
        if wrong := [item for item in leaves if not isinstance(item, list) or len(item) != size]:
            got = f"of {len(wrong[0])}" if isinstance(wrong[0], list) else f"but got {_shown(wrong[0])}"
            raise invalid(f"input {name!r}: expected lists of equal length {size} at level {len(shape)}, found one {got}")
        shape.append(size)
        leaves = [part for item in leaves for part in item]
    if not leaves and spec.shape is not None and len(shape) < len(spec.shape):
        shape += [0] * (len(spec.shape) - len(shape))  # [] says nothing of the sizes behind it
    array = np.empty(len(leaves), object)
    array[:] = _leaves(leaves, spec.dtype, name)
    return array.astype(spec.dtype.as_numpy_dtype).reshape(shape)


def _leaves(leaves: list, dtype: tf.DType, name: str) -> list:
    """The values themselves, each of the type that TensorFlow's type takes and within its range; strings as bytes."""
    if dtype == tf.string:
        return [_string(leaf, name) for leaf in leaves]
    kinds = KINDS.get("bool" if dtype == tf.bool else "integer" if dtype.is_integer else "float" if dtype.is_floating else "")
    if kinds is None:
        raise invalid(f"input {name!r}: JSON cannot stand for {dtype.name}")
    number = int if dtype.is_integer else float
    lowest, highest = (0, 1) if dtype == tf.bool else (number(dtype.min), number(dtype.max))
    for leaf in leaves:
        if type(leaf) not in kinds:
            raise _type_error(leaf, dtype, name)
        # NaN compares with nothing, and infinity is meant where it is written.
        if not lowest <= leaf <= highest and not (type(leaf) is float and not math.isfinite(leaf)):
            raise invalid(f"input {name!r}: {_shown(leaf)} is out of the range of {dtype.name}")
    return leaves


def _string(leaf: Any, name: str) -> bytes:
    """A JSON string, or binary data, as bytes."""
    if isinstance(leaf, str):
        try:
            return leaf.encode("utf-8")
        except UnicodeEncodeError:  # "\ud800" is JSON, and no text
            raise invalid(f"input {name!r}: a lone surrogate is not text") from None
    if not _is_binary(leaf):
        raise _type_error(leaf, tf.string, name)
    try:
        return base64.b64decode(leaf["b64"], validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"input {name!r}: Unable to base64 decode") from None


def _is_binary(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def _type_error(value: Any, dtype: tf.DType, name: str):
    kinds = {str: "String", bool: "Bool", int: "Number", float: "Number", list: "Array", dict: "Object"}
    return invalid(f"input {name!r}: JSON Value: {_shown(value)} Type: {kinds.get(type(value), 'Null')} "
                   f"is not of expected type: {dtype.name}")


def _shown(value: Any) -> str:
    """The beginning of a value, for messages."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object with the keys " + str(sorted(value)[:8])[:SHOWN]
    text = json.dumps(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def format_outputs(outputs: Arrays, as_rows: bool) -> bytes:
    """The body of an answer: one output stands alone, several are objects. Raises RequestError for outputs without rows."""
    finite = all(array.dtype == object or np.isfinite(array).all() for array in outputs.values())
    values = {name: _plain(array, name, finite) for name, array in outputs.items()}
    first = next(iter(values.values()))
    if not as_rows:
        return _dump({"outputs": values if len(values) > 1 else first}, finite)
    sizes = {name: array.shape[0] if array.ndim else None for name, array in outputs.items()}
    if len(set(sizes.values())) > 1 or None in sizes.values():
        raise invalid(f"outputs without a common batch size cannot be given as rows: {sizes}; ask in column form")
    rows = [dict(zip(values, row)) for row in zip(*values.values())]
    return _dump({"predictions": rows if len(values) > 1 else first}, finite)


def _plain(array: np.ndarray, name: str, finite: bool) -> Any:
    """An array as what the encoder takes: orjson arrays of numbers as they are, Python's encoder lists."""
    if array.dtype == object:
        return _strings(array.tolist(), name.endswith("_bytes"))
    if array.dtype.kind not in "biuf":  # bfloat16 has a kind of its own
        array = array.astype(np.float32)
    if finite:
        return np.ascontiguousarray(array) if array.ndim else array[()]
    # The shortest digits that give a float32 again, which its value as a double does not have.
    return (array.astype("U32").astype(np.float64) if array.dtype.kind == "f" else array).tolist()


def _strings(value: Any, binary: bool) -> Any:
    """Bytes as text; as `b64` where the name says so, or where they are no UTF-8."""
    if isinstance(value, list):
        return [_strings(item, binary) for item in value]
    if not binary:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(value).decode("ascii")}


def _dump(answer: dict, finite: bool) -> bytes:
    """JSON; NaN and Infinity, which orjson writes as null, are left to Python's encoder."""
    if finite:
        return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    return json.dumps(answer, ensure_ascii=False).encode("utf-8")
