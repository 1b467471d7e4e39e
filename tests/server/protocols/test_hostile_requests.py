"""Requests that nobody meant, in every protocol: each is read within the limits, or refused with a message that can
travel.
"""

import json
import struct

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tensorflow_serving.apis import predict_pb2

from official_bert.server.protocols.kserve import tensors
from official_bert.server.protocols.kserve.messages import message_class
from official_bert.server.requests.readers import readers
from official_bert.server.requests.request_checks import Limits
from official_bert.server.statuses import HTTP_STATUS, RequestError

READERS = readers(predict_pb2.PredictRequest)
LIMITS = Limits(max_request_bytes=1 << 16, max_request_elements=64, max_request_rows=8, max_text_bytes=20)
KEYS = {
    "openai": ["input", "model", "encoding_format", "dimensions", "user"],
    "embed": ["inputs", "normalize", "truncate", "truncation_direction", "dimensions", "prompt_name"],
    "rerank": ["query", "texts", "raw_scores", "return_text", "truncate", "truncation_direction"],
    "kserve_rest": ["inputs", "outputs", "id", "parameters"],
}
GOOD = {
    "openai": {"model": "m", "input": ["a", "b"]},
    "embed": {"inputs": [[1, 2], [3]]},
    "rerank": {"query": "a", "texts": ["b"]},
    "kserve_rest": {"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}]},
}
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-3, 300)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["\ud800", "a\0b", "a" * 30, "float", "right", "BYTES", "INT8", "FP32", "BOOL"])
)
tensor = st.fixed_dictionaries(
    {},
    optional={
        "name": leaves,
        "datatype": leaves | st.sampled_from([*tensors.NAMES, "TEXT"]),
        "shape": leaves | st.lists(st.integers(-1, 5), max_size=3),
        "data": st.lists(leaves, max_size=6) | st.lists(st.lists(leaves, max_size=3), max_size=3),
        "parameters": leaves
        | st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 20) | leaves, "binary_data": leaves}),
    },
)
values = (
    leaves
    | st.lists(leaves, max_size=12)
    | st.lists(st.lists(leaves, max_size=4), max_size=4)
    | st.lists(tensor, max_size=3)
    | tensor
)


def read_or_refuse(name, body, **task):
    """Returns what a reader gives, None for a proper refusal; anything else that it raises is a failure."""
    try:
        reading = READERS[name](body, LIMITS, **task)
    except RequestError as error:
        assert error.code in HTTP_STATUS and 0 < len(error.message) < 1100
        error.message.encode("utf-8")
        return None
    for array in reading.inputs.values():
        assert array.size <= LIMITS.max_request_elements
        if array.dtype == object:
            assert all(isinstance(value, bytes) and len(value) <= LIMITS.max_text_bytes for value in array.ravel())
    json.dumps(reading.more)  # another process may read it
    return reading


@pytest.mark.slow
@pytest.mark.parametrize("name", KEYS)
def test_any_json_is_read_within_the_limits_or_refused(name):
    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        change=st.dictionaries(st.sampled_from([*KEYS[name], "more"]), values, max_size=4),
        tail=st.binary(max_size=24),
        header=st.none() | st.integers(-1, 300),
    )
    @example(change={}, tail=b"", header=None)
    def check(change, tail, header):
        body = json.dumps(GOOD[name] | change).encode("utf-8", "surrogatepass")
        task = {"header": len(body) if header is None else header} if name == "kserve_rest" else {}
        reading = read_or_refuse(name, body + (tail if task else b""), **task)
        assert reading is not None or change or tail or header is not None

    check()


@pytest.mark.parametrize("name", READERS)
def test_bytes_without_sense_end_or_measure_are_refused(name):
    for body in (
        b"",
        b"[]",
        b"null",
        b"{",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"inputs": ' * 20_000,
        b'{"inputs": [' + b"9" * 50_000 + b"]}",
        b"\x0a" * 40_000,
        b"\xff" * 4_000,
    ):
        task = {"signatures": {"serving_default": {"text": ("", "string", [None])}}} if name == "predict_rest" else {}
        reading = read_or_refuse(name, body, **task)
        assert reading is None or (name, body) == ("kserve_grpc", b""), body[:20]  # a message without any field


def grpc_request(raw=(), outputs=(), version="", **tensor_of):
    request = message_class("ModelInferRequest")(model_name="demo", model_version=version)
    for values_of in (tensor_of,) if tensor_of else ():
        contents = values_of.pop("contents", {})
        entry = request.inputs.add(**{"name": "text", "datatype": "BYTES", "shape": [1], **values_of})
        for field, listed in contents.items():
            getattr(entry.contents, field).extend(listed)
    request.raw_input_contents.extend(raw)
    for name in outputs:
        request.outputs.add(name=name)
    return request


HOSTILE_MESSAGES = [
    (grpc_request(shape=[1 << 62], contents={"bytes_contents": [b"a"]}), "elements"),
    (grpc_request(shape=[-1]), "sizes from 0"),
    (grpc_request(shape=[1] * 9), "at most 8 sizes"),
    (grpc_request(datatype="TEXT"), "datatype"),
    (grpc_request(shape=[2], contents={"bytes_contents": [b"a"]}), "expected 2 values in bytes_contents, got 1"),
    (grpc_request(datatype="INT32", contents={"bytes_contents": [b"a"]}), "expected 1 values in int_contents, got 0"),
    (grpc_request(datatype="INT8", contents={"int_contents": [300]}), "INT8: expected numbers of -128 to 127, got 300"),
    (grpc_request(datatype="UINT16", contents={"uint_contents": [1 << 16]}), "0 to 65535, got 65536"),
    (grpc_request(datatype="FP16"), "expected raw_input_contents"),
    (grpc_request(raw=[b"a", b"b"], shape=[1]), "one for each of the 1 inputs"),
    (grpc_request(raw=[struct.pack("<I", 1 << 31) + b"a"], shape=[1]), "expected a string of"),
    (grpc_request(raw=[b"\0\0"], shape=[1]), "the length of a string"),
    (grpc_request(raw=[struct.pack("<I", 1) + b"ab" + struct.pack("<I", 0)], shape=[1]), "input 'text'"),
    (grpc_request(raw=[b"abc"], datatype="INT32"), "expected 4 bytes"),
    (grpc_request(contents={"bytes_contents": [b"a" * 21]}), "at most 20 bytes"),
    (grpc_request(shape=[9]), "elements"),
    (grpc_request(version="x", contents={"bytes_contents": [b"a"]}), "version: expected a number"),
]


@pytest.mark.parametrize(("request_message", "told"), HOSTILE_MESSAGES)
def test_messages_that_lie_are_refused(request_message, told):
    with pytest.raises(RequestError) as caught:
        tensors.read_grpc(request_message.SerializeToString(), LIMITS)
    assert told in caught.value.message and caught.value.code in HTTP_STATUS


def test_the_server_goes_on_after_hostile_messages(serve):
    server = serve("demo", "vectors-ids")
    with grpc.insecure_channel(server.target) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        flood = grpc_request(raw=[b""] * 5000).SerializeToString()
        many = grpc_request(shape=[1], contents={"bytes_contents": [b"a"]}, outputs=["length"] * 2).SerializeToString()
        hostile = [message.SerializeToString() for message, told in HOSTILE_MESSAGES if told != "at most 20 bytes"]
        for data in (b"\xff\xff\xff", flood, many, *hostile):
            with pytest.raises(grpc.RpcError) as caught:
                call(data, timeout=30)
            assert caught.value.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL), data[:20]
        good = grpc_request(contents={"bytes_contents": [b"abc"]}).SerializeToString()
        answer = message_class("ModelInferResponse").FromString(call(good, timeout=30))
        assert [list(entry.contents.int_contents) for entry in answer.outputs if entry.name == "length"] == [[3]]
    for path in ("/v1/embeddings", "/embed", "/embed_sparse", "/rerank", "/v2/models/demo/infer"):
        for body in (b"[" * 100_000, b"\0" * 1000, json.dumps({"inputs": np.zeros((9, 9)).tolist()}).encode()):
            assert server.ask(path, body)[0] == 400, path
    assert server.ask("/v2/health/ready")[0] == 200
