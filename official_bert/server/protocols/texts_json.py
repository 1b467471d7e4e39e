"""Reads the JSON of protocols that send texts: OpenAI's embeddings and text-embeddings-inference (TEI).

The texts become inputs of our models: `text`, `text_pair`, or rows of ids. Unknown keys are errors, as in these
protocols' own servers, because a key without effect would be a silent mistake.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.server.protocols.json_fields import check_keys, describe_type, field
from official_bert.server.protocols.tensorflow_serving.rest_json import parse_body
from official_bert.server.requests.reading import ModelAddress, Reading
from official_bert.server.requests.request_checks import Limits, check_declared, check_strings
from official_bert.server.statuses import invalid
from official_bert.server.tensors import Arrays

MOST_ID = (1 << 31) - 1


def read_openai(body: bytes, limits: Limits) -> Reading:
    """Reads a request for `/v1/embeddings`. Raises RequestError if it is invalid."""
    request = parse_body(body)
    check_keys(request, ("input", "model", "encoding_format", "dimensions", "user"))
    encoding = field(request, "encoding_format", str, "float")
    if encoding not in ("float", "base64"):
        raise invalid(f"'encoding_format': expected 'float' or 'base64', got {encoding!r:.60}")
    field(request, "user", str, "")
    return Reading(
        inputs=_texts_or_ids(request, "input", limits),
        address=ModelAddress(field(request, "model", str, "")),
        more={"encoding": encoding, "dimensions": _dimensions(request)},
    )


def read_embed(body: bytes, limits: Limits) -> Reading:
    """Reads a request for TEI's `/embed` or `/embed_sparse`. Raises RequestError if it is invalid."""
    request = parse_body(body)
    check_keys(request, ("inputs", "normalize", "truncate", "truncation_direction", "dimensions", "prompt_name"))
    prompt = field(request, "prompt_name", str, "")
    inputs = _texts_or_ids(request, "inputs", limits)
    if prompt and "input_ids" in inputs:
        raise invalid("'prompt_name': expected texts beside it, got token ids")
    return Reading(
        signature=prompt,
        inputs=inputs,
        more={
            "normalize": field(request, "normalize", bool, True),
            "truncate": _truncate(request),
            "dimensions": _dimensions(request),
        },
    )


def read_rerank(body: bytes, limits: Limits) -> Reading:
    """Reads a request for TEI's `/rerank`: each row is the query and a text. Raises RequestError if it is invalid."""
    request = parse_body(body)
    check_keys(request, ("query", "texts", "raw_scores", "return_text", "truncate", "truncation_direction"))
    query, texts = field(request, "query", str), field(request, "texts", list)
    if not texts:
        raise invalid("'texts': expected at least one text, got none")
    _check_size({"text": ("string", (len(texts),)), "text_pair": ("string", (len(texts),))}, limits)
    return Reading(
        inputs={
            "text": _strings("query", [query], limits).repeat(len(texts)),
            "text_pair": _strings("texts", texts, limits),
        },
        more={
            "raw_scores": field(request, "raw_scores", bool, False),
            "return_text": field(request, "return_text", bool, False),
            "truncate": _truncate(request),
        },
    )


def _texts_or_ids(request: Mapping[str, Any], key: str, limits: Limits) -> Arrays:
    """Returns the inputs, texts or rows of ids. A single text or row needs no list around it."""
    value = request.get(key)
    if isinstance(value, str):
        return {"text": _strings(key, [value], limits)}
    if not isinstance(value, list):
        raise invalid(
            f"{key!r}: expected a string, a list of strings, or lists of token ids, got {describe_type(value)}"
        )
    if not value:
        raise invalid(f"{key!r}: expected at least one text, got an empty list")
    if isinstance(value[0], str):
        _check_size({"text": ("string", (len(value),))}, limits)
        return {"text": _strings(key, value, limits)}
    return _rows_of_ids(key, value if isinstance(value[0], list) else [value], limits)


def _rows_of_ids(key: str, rows: list, limits: Limits) -> Arrays:
    """Returns rows of ids, padded with 0 to the longest row, their mask, and segment ids 0."""
    for place, row in enumerate(rows):
        if not isinstance(row, list) or not row:
            raise invalid(
                f"{key!r}, item {place}: expected a list of token ids, got "
                f"{describe_type(row) if row != [] else 'an empty one'}"
            )
    shape = (len(rows), max(map(len, rows)))
    _check_size(dict.fromkeys(("input_ids", "input_mask", "segment_ids"), ("int32", shape)), limits)
    ids, mask = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for place, row in enumerate(rows):
        for number in row:
            if type(number) is not int or not 0 <= number <= MOST_ID:
                raise invalid(f"{key!r}, item {place}: expected token ids of at least 0, got {number!r:.60}")
        ids[place, : len(row)], mask[place, : len(row)] = row, 1
    return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}


def _strings(key: str, values: list, limits: Limits) -> np.ndarray:
    """Returns texts as an array of bytes, checked against the limits."""
    array = np.empty(len(values), object)
    for place, value in enumerate(values):
        if not isinstance(value, str):
            raise invalid(f"{key!r}, item {place}: expected a string, got {describe_type(value)}")
        try:
            array[place] = value.encode("utf-8")
        except UnicodeEncodeError:
            raise invalid(f"{key!r}, item {place}: a lone surrogate is not text") from None
    check_strings(key, array, limits)
    return array


def _check_size(shapes: Mapping[str, tuple[str, tuple[int, ...]]], limits: Limits) -> None:
    """Raises RequestError for too many rows or elements, before their array is made."""
    rows = next(iter(shapes.values()))[1][0]
    if rows > limits.max_request_rows:
        raise invalid(f"expected at most {limits.max_request_rows} texts in a request, got {rows}")
    check_declared(shapes, limits)


def _dimensions(request: Mapping[str, Any]) -> int:
    """Returns the length of the vectors to return; 0: their full length."""
    if request.get("dimensions") is None:
        return 0
    dimensions = field(request, "dimensions", int)
    if dimensions < 1:
        raise invalid(f"'dimensions': expected at least 1, got {dimensions}")
    return dimensions


def _truncate(request: Mapping[str, Any]) -> bool:
    """Returns whether texts may be truncated, which the models here do at the end."""
    direction = field(request, "truncation_direction", str, "right")
    if direction.lower() != "right":
        raise invalid(
            f"'truncation_direction': expected 'right', because models here cut the end of a text, got "
            f"{direction!r:.60}"
        )
    return field(request, "truncate", bool, False)
