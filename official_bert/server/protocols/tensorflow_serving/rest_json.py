"""Converts TF Serving's JSON to arrays and back: rows (`instances` -> `predictions`), columns (`inputs` -> `outputs`).

Source: TF Serving's api_rest.md. Binary strings are `{"b64": "..."}`. A request may contain NaN and Infinity without
quotes; an answer never does. Outputs whose names end in `_bytes` are binary.
"""

import base64
import binascii
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import orjson

from official_bert.server.statuses import RequestError, answer_too_large, invalid
from official_bert.server.tensors import MOST_DIMENSIONS, NUMPY_TYPES, Arrays, Specs, TensorSpec, object_array

# By NumPy's kind of type (V: bfloat16). Exact types: True is an int for Python.
KINDS = {"b": (bool,), "i": (int,), "u": (int,), "f": (int, float), "V": (int, float)}
PIECE = 16_384  # values of an answer that are written at once
SHOWN = 80  # characters of a wrong value in a message


def parse_body(body: bytes) -> dict[str, Any]:
    """Returns the JSON object of a request. Raises RequestError if the body is no JSON object."""
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
    """Returns the name of the signature that a request asks for; "" for the default."""
    name = request.get("signature_name", "")
    if not isinstance(name, str):
        raise invalid(
            f"JSON Value: {_shown(name)} not formatted correctly. 'signature_name' key must be a string value."
        )
    return name


def read_inputs(request: Mapping[str, Any], specs: Specs) -> tuple[dict[str, np.ndarray], bool]:
    """Returns the inputs of a request, and whether it is in row form.

    Raises RequestError if they do not fit `specs`.
    """
    if ("instances" in request) == ("inputs" in request):
        raise invalid(
            "Missing 'inputs' or 'instances' key"
            if "inputs" not in request
            else "Not formatted correctly expecting only one of 'inputs' or 'instances' keys to exist"
        )
    is_rows = "instances" in request
    columns = _columns_of_rows(request["instances"], specs) if is_rows else _columns(request["inputs"], specs)
    return {name: to_array(columns[name], spec, name) for name, spec in specs.items()}, is_rows


def _columns_of_rows(rows: Any, specs: Specs) -> dict[str, list]:
    """Returns the values of each input, from a list of values (one input) or of objects."""
    if not isinstance(rows, list):
        raise invalid(f"JSON Value: {_shown(rows)} Expecting 'instances' to be an list/array")
    if not rows:
        raise invalid("No values in 'instances' array")
    are_objects = [isinstance(row, dict) and not _is_binary(row) for row in rows]
    if any(are_objects) != all(are_objects):
        raise invalid(
            f"Expecting {'object' if are_objects[0] else 'value/list'} but got "
            f"{'list' if are_objects[0] else 'object'} at item {are_objects.index(not are_objects[0])} of input list"
        )
    if not are_objects[0]:
        if len(specs) != 1:
            raise invalid(
                "instances is a plain list, but expecting list of objects as multiple input tensors required "
                f"as per tensorinfo_map: {', '.join(specs)}"
            )
        return {next(iter(specs)): rows}
    for index, row in enumerate(rows):
        if set(row) != set(specs):
            raise invalid(
                f"Failed to process element: {index} of 'instances' list. JSON object: {_shown(row)} "
                f"keys must be equal to: {','.join(specs)}"
            )
    return {name: [row[name] for row in rows] for name in specs}


def _columns(inputs: Any, specs: Specs) -> dict[str, Any]:
    """Returns the values of each input, from an object of columns or, for one input, from the column itself."""
    if isinstance(inputs, dict) and not _is_binary(inputs):
        if missing := [name for name in specs if name not in inputs]:
            raise invalid(f"Missing named input: {missing[0]} in 'inputs' object.")
        return inputs
    if len(specs) != 1:
        raise invalid(
            "inputs is a plain value/list, but expecting an object as multiple input tensors required "
            f"as per tensorinfo_map: {', '.join(specs)}"
        )
    return {next(iter(specs)): inputs}


def to_array(value: Any, spec: TensorSpec, name: str) -> np.ndarray:
    """Returns nested lists as an array of the input's type.

    Raises RequestError for ragged lists and values of other types.
    """
    shape: list[int] = []
    leaves = [value]
    while leaves and isinstance(leaves[0], list):
        if len(shape) == MOST_DIMENSIONS:
            raise invalid(f"input {name!r}: expected at most {MOST_DIMENSIONS} levels of lists, got more")
        size = len(leaves[0])
        if wrong := [item for item in leaves if not isinstance(item, list) or len(item) != size]:
            got = f"of {len(wrong[0])}" if isinstance(wrong[0], list) else f"but got {_shown(wrong[0])}"
            raise invalid(
                f"input {name!r}: expected lists of equal length {size} at level {len(shape)}, found one {got}"
            )
        shape.append(size)
        leaves = [leaf for item in leaves for leaf in item]
    if not leaves and spec.shape is not None and len(shape) < len(spec.shape):
        shape += [0] * (len(spec.shape) - len(shape))  # [] says nothing of the sizes behind it
    return object_array(_leaves(leaves, spec.dtype, name)).astype(NUMPY_TYPES[spec.dtype]).reshape(shape)


def _leaves(leaves: list, dtype: str, name: str) -> list:
    """Returns the values, checked for the type and range of the input; strings as bytes."""
    if dtype == "string":
        return [_string(leaf, name) for leaf in leaves]
    kind = NUMPY_TYPES[dtype].kind if dtype in NUMPY_TYPES else "none"
    if kind not in KINDS:
        raise invalid(f"input {name!r}: JSON cannot represent {dtype}")
    accepted, (lowest, highest) = KINDS[kind], _range(dtype)
    for leaf in leaves:
        if type(leaf) not in accepted:
            raise _type_error(leaf, dtype, name)
        # NaN compares with nothing, and a written infinity is meant.
        if not lowest <= leaf <= highest and not (type(leaf) is float and not math.isfinite(leaf)):
            raise invalid(f"input {name!r}: {_shown(leaf)} is out of the range of {dtype}")
    return leaves


def _range(dtype: str) -> tuple[float, float]:
    """Returns the lowest and the highest value of a numeric type."""
    kind = NUMPY_TYPES[dtype].kind
    if kind == "b":
        return 0, 1
    if kind in "iu":
        return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    highest = float(ml_dtypes.finfo(NUMPY_TYPES[dtype]).max)
    return -highest, highest


def _string(leaf: Any, name: str) -> bytes:
    """Returns a JSON string, or binary data, as bytes."""
    if isinstance(leaf, str):
        try:
            return leaf.encode("utf-8")
        except UnicodeEncodeError:  # "\ud800" is JSON, and no text
            raise invalid(f"input {name!r}: a lone surrogate is not text") from None
    if not _is_binary(leaf):
        raise _type_error(leaf, "string", name)
    # as in TF Serving, spaces and line ends mean nothing, and padding may be missing
    encoded = "".join(leaf["b64"].split())
    padding = "" if "=" in encoded else "=" * (-len(encoded) % 4)
    try:
        return base64.b64decode(encoded + padding, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"input {name!r}: Unable to base64 decode") from None


def _is_binary(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"} and isinstance(value["b64"], str)


def _type_error(value: Any, dtype: str, name: str) -> RequestError:
    type_names = {str: "String", bool: "Bool", int: "Number", float: "Number", list: "Array", dict: "Object"}
    return invalid(
        f"input {name!r}: JSON Value: {_shown(value)} Type: {type_names.get(type(value), 'Null')} "
        f"is not of expected type: {dtype}"
    )


def _shown(value: Any) -> str:
    """Returns the beginning of a value for a message."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object with the keys " + str(sorted(value)[:8])[:SHOWN]
    text = json.dumps(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


def format_outputs(outputs: Arrays, as_rows: bool, most_bytes: int) -> bytes:
    """Returns the body of an answer: a single output as its value, several as objects.

    The body is written in short pieces, so that other threads may run between them. Raises RequestError if row form is
    asked for outputs without a common batch size, and for more than `most_bytes`.
    """
    if as_rows:
        sizes = {name: array.shape[0] if array.ndim else None for name, array in outputs.items()}
        if len(set(sizes.values())) > 1 or None in sizes.values():
            raise invalid(f"outputs without a common batch size cannot be given as rows: {sizes}; ask in column form")
        pieces = itertools.chain([b'{"predictions":'], _rows(outputs), [b"}"])
    else:
        pieces = itertools.chain([b'{"outputs":'], _columns_out(outputs), [b"}"])
    body, total = [], 0
    for piece in pieces:
        total += len(piece)
        if total > most_bytes:
            raise answer_too_large(most_bytes)
        body.append(piece)
    return b"".join(body)


def flat_json(name: str, array: np.ndarray) -> bytes:
    """Returns an array's values as a flat JSON list. Strings that are not UTF-8 are `{"b64": ...}`."""
    return b"".join(_array(name, array.ravel()))


def _columns_out(outputs: Arrays) -> Iterator[bytes]:
    if len(outputs) == 1:
        yield from _array(*next(iter(outputs.items())))
        return
    yield b"{"
    for index, (name, array) in enumerate(outputs.items()):
        yield (b"," if index else b"") + orjson.dumps(name) + b":"
        yield from _array(name, array)
    yield b"}"


def _rows(outputs: Arrays) -> Iterator[bytes]:
    """Yields the JSON of the rows: each is a value, or an object of the outputs."""

    def write(rows: slice) -> bytes:
        part = {name: array[rows] for name, array in outputs.items()}
        values = {name: _plain(array, name) for name, array in part.items()}
        return _dump(
            [dict(zip(values, row)) for row in zip(*values.values())]
            if len(values) > 1
            else next(iter(values.values()))
        )

    yield from _list_pieces(
        len(next(iter(outputs.values()))),
        sum(array.size for array in outputs.values()),
        write,
        lambda row: _columns_out({name: array[row] for name, array in outputs.items()}),
    )


def _array(name: str, array: np.ndarray) -> Iterator[bytes]:
    """Yields the JSON of an array in pieces."""

    def write(part: Any) -> bytes:
        return _dump(_plain(array[part], name))

    if array.size <= PIECE or not array.ndim:
        yield write(...)
    else:
        yield from _list_pieces(len(array), array.size, write, lambda index: _array(name, array[index]))


def _list_pieces(
    count: int, size: int, write: Callable[[slice], bytes], write_item: Callable[[int], Iterator[bytes]]
) -> Iterator[bytes]:
    """Yields the JSON of a list of `count` items with `size` values: several items per piece; a large item in its own
    pieces.
    """
    step = PIECE * count // max(1, size)
    yield b"["
    for start in range(0, count, max(1, step)):
        if start:
            yield b","
        if step < 1:
            yield from write_item(start)
        else:
            yield write(slice(start, start + step))[1:-1]
    yield b"]"


def _plain(array: np.ndarray, name: str) -> Any:
    """Returns an array as a value that orjson encodes."""
    if array.dtype == object:
        return _strings(array.tolist(), name.endswith("_bytes"))
    if array.dtype.kind not in "biuf":  # bfloat16 has a kind of its own
        array = array.astype(np.float32)
    return np.ascontiguousarray(array) if array.ndim else array[()]


def _strings(value: Any, binary: bool) -> Any:
    """Returns bytes as text, or as `b64` if `binary` or if they are not UTF-8."""
    if isinstance(value, list):
        return [_strings(item, binary) for item in value]
    if not binary:
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            pass
    return {"b64": base64.b64encode(value).decode("ascii")}


def _dump(answer: Any) -> bytes:
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
