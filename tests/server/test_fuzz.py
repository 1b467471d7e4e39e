"""Requests that nobody meant: whatever comes, the parsers refuse or read it, and the server goes on."""

import json
import types

import numpy as np
import tensorflow as tf
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from official_bert.server.protocols.tensorflow_serving import rest_json
from official_bert.server.requests import reading
from official_bert.server.requests.request_checks import Limits, check_declared, check_inputs, check_strings
from official_bert.server.statuses import HTTP_STATUS, RequestError
from official_bert.server.tensors import NUMPY_TYPES, TensorSpec, declared_shape, read_tensor

DTYPES = [
    "string",
    "int32",
    "int64",
    "uint8",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "bool",
    "complex64",
]
LIMITS = Limits(max_request_bytes=1 << 16, max_request_elements=1 << 16, max_request_rows=8, max_text_bytes=20)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-300, 300)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["text", "\ud800", "a\0b"])
    | st.just({"b64": "YQ=="})
    | st.builds(lambda x: {"b64": x}, st.text())
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["text", "text_pair", "x", "b64", ""]), inner, max_size=3)
    ),
    max_leaves=20,
)
specs = st.builds(
    lambda dtype, shape: TensorSpec("t:0", dtype, shape),
    st.sampled_from(DTYPES),
    st.none() | st.lists(st.none() | st.integers(0, 3), max_size=3).map(tuple),
)
signatures = st.dictionaries(st.sampled_from(["text", "text_pair", "x"]), specs, min_size=1, max_size=3).map(
    lambda inputs: types.SimpleNamespace(inputs=inputs, is_batched=all(spec.has_rows for spec in inputs.values()))
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "instances": values | st.lists(values, max_size=4),
        "inputs": values,
        "signature_name": st.text(max_size=3) | leaves,
        "more": values,
    },
)


def refuses(call, *arguments):
    """What a call gives; None where it refuses properly. Any other exception is a failure."""
    try:
        return call(*arguments)
    except RequestError as error:
        assert error.code in HTTP_STATUS and error.message and len(error.message) < 1100
        error.message.encode("utf-8")  # it must travel
        return None


@settings(max_examples=400, deadline=None)
@given(body=st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_an_object_or_refused(body):
    parsed = refuses(rest_json.parse_body, body)
    assert parsed is None or isinstance(parsed, dict)


def test_nesting_and_digits_without_end_are_refused():
    for body in (b"[" * 1_000_000, b'{"a":' * 200_000, b'{"instances": [' + b"9" * 100_000 + b"]}"):
        assert refuses(rest_json.parse_body, body) is None


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(request=requests, signature=signatures)
def test_any_json_gives_inputs_that_fit_the_signature_or_is_refused(request, signature):
    body = json.dumps(request).encode("utf-8", "surrogatepass")
    read = refuses(reading.read_rest, body, LIMITS, dict.fromkeys(("serving_default", "a"), signature.inputs))
    if read is None:
        return
    for name, array in read.inputs.items():
        assert array.dtype == NUMPY_TYPES[signature.inputs[name].dtype]
        if array.dtype == object:
            assert all(isinstance(value, bytes) and len(value) <= LIMITS.max_text_bytes for value in array.ravel())
    refuses(check_inputs, signature, read.inputs, LIMITS)


@settings(max_examples=500, deadline=None)
@given(
    array=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=6).map(
        lambda x: np.array(x, np.float32)
    )
)
def test_floats_survive_json(array):
    for as_rows in (True, False):
        answer = json.loads(rest_json.format_outputs({"x": array}, as_rows, 1 << 20))
        found = np.array(answer["predictions" if as_rows else "outputs"]).astype(np.float32)
        np.testing.assert_array_equal(found, array)


@settings(max_examples=200, deadline=None)
@given(value=st.lists(st.text(max_size=4).filter(lambda text: text.isprintable()), min_size=1, max_size=4))
def test_text_survives_json(value):
    spec = TensorSpec("t:0", "string", (None,))
    array = rest_json.to_array(json.loads(json.dumps(value)), spec, "text")
    assert json.loads(rest_json.format_outputs({"text": array}, True, 1 << 20))["predictions"] == value


tensors = st.builds(
    lambda dtype, sizes, unknown, content, numbers, strings: tf.make_tensor_proto(0).__class__(
        dtype=dtype,
        tensor_content=content,
        float_val=numbers,
        int_val=[int(x) for x in numbers if x == x and abs(x) < 1e9],
        string_val=strings,
        tensor_shape={"dim": [{"size": size} for size in sizes], "unknown_rank": unknown},
    ),
    st.integers(0, 30) | st.integers(100, 130),
    st.lists(st.integers(-2, 5) | st.integers(-(1 << 62), 1 << 62), max_size=4),
    st.booleans(),
    st.binary(max_size=12),
    st.lists(st.floats(width=32), max_size=3),
    st.lists(st.binary(max_size=30), max_size=3),
)


@settings(max_examples=800, deadline=None)
@given(proto=tensors, spec=specs)
def test_any_tensor_is_an_array_or_refused(proto, spec):
    declared = refuses(declared_shape, "text", proto)
    if declared is None:
        return
    admitted = refuses(lambda: check_declared({"text": declared}, LIMITS) or True)
    if not admitted:
        return
    assert np.prod([float(size) for size in declared[1]]) <= LIMITS.max_request_elements
    refuses(check_strings, "text", proto.string_val, LIMITS)
    array = refuses(read_tensor, "text", proto)
    if array is not None:
        assert isinstance(array, np.ndarray) and array.shape == declared[1]
        signature = types.SimpleNamespace(inputs={"text": spec}, is_batched=spec.has_rows)
        refuses(check_inputs, signature, {"text": array}, LIMITS)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["demo:predict", "demo/versions/2:predict", "labelled/labels/stable:predict", "demo/metadata"])
    | st.text("abcd/:.%{}0123 é", max_size=20).map(lambda text: "demo" + text),
    body=st.none()
    | st.binary(max_size=40)
    | requests.map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass")),
)
@example(path="demo%0a", body=None)  # once answered in plain text
def test_a_running_server_answers_whatever_it_is_asked(server, path, body):
    from urllib.parse import quote

    status, answer = server.ask("/v1/models/" + quote(path, safe="/:%{}"), body)
    assert status in {200, 400, 404, 413, 501}
    assert status == 200 or json.loads(answer)["error"]


def test_after_all_that_the_server_answers(server):
    assert server.ask("/v1/models/demo:predict", b'{"instances": ["abc"]}')[0] == 200
