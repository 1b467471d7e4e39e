"""KServe's V2 protocol, asked by Triton's clients and by hand, over REST and gRPC."""

import gzip
import json
import struct

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from official_bert.server.protocols.kserve import tensors
from official_bert.server.protocols.kserve.messages import message_class
from official_bert.server.requests.request_checks import Limits
from official_bert.server.statuses import RequestError
from official_bert.server.tensors import NUMPY_TYPES, from_bytes, to_bytes

INFER = "/v2/models/demo/infer"
TEXTS = np.array([b"abc", "Äb".encode(), b""], object)


@pytest.fixture(scope="module")
def server(serve):
    return serve("demo", "vectors-ids", "work")


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(request, server):
    module, address = (
        (triton_http, server.url.removeprefix("http://")) if request.param == "http" else (triton_grpc, server.target)
    )
    client = module.InferenceServerClient(address)
    client.module = module
    yield client
    client.close()


def tensor(module, name, array, **options):
    datatype = {"O": "BYTES", "i": "INT32", "f": "FP32"}[array.dtype.kind]
    value = module.InferInput(name, list(array.shape), datatype)
    value.set_data_from_numpy(array, **options)
    return value


def test_the_clients_get_health_and_metadata(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("demo") and client.is_model_ready("demo", "2") and not client.is_model_ready("gone")
    as_dict = {} if client.module is triton_http else {"as_json": True}
    assert "binary_tensor_data" in client.get_server_metadata(**as_dict)["extensions"]
    found = client.get_model_metadata("vectors-ids", **as_dict)
    assert (
        found["name"] == "vectors-ids" and found["versions"] == ["1"] and found["platform"] == "tensorflow_savedmodel"
    )
    assert [
        (entry["name"], entry["datatype"], [int(size) for size in entry["shape"]]) for entry in found["inputs"]
    ] == [(name, "INT32", [-1, -1]) for name in ("input_ids", "input_mask", "segment_ids")]
    assert [entry["datatype"] for entry in found["outputs"]] == ["FP32"]


def test_the_clients_get_answers_in_the_form_that_they_use_by_default(client):
    result = client.infer("demo", [tensor(client.module, "text", TEXTS)], request_id="mine")
    np.testing.assert_array_equal(result.as_numpy("length"), [3, 2, 0])
    assert result.as_numpy("upper").tolist() == [b"ABC", "ÄB".encode(), b""]
    np.testing.assert_allclose(result.as_numpy("score"), [0.3, 0.2, 0], rtol=1e-6)
    response = result.get_response() if client.module is triton_http else result.get_response(as_json=True)
    assert (response["model_name"], response["model_version"], response["id"]) == ("demo", "2", "mine")


def test_the_clients_choose_outputs_and_send_ids(client):
    rows = np.array([[1, 2, 3], [4, 5, 0]], np.int32)
    inputs = [
        tensor(client.module, name, array)
        for name, array in (("input_ids", rows), ("input_mask", (rows > 0).astype(np.int32)), ("segment_ids", rows * 0))
    ]
    result = client.infer(
        "vectors-ids", inputs, outputs=[client.module.InferRequestedOutput("embedding")], model_version="1"
    )
    np.testing.assert_array_equal(result.as_numpy("embedding"), [[6, 1, 1, 1], [9, 1, 1, 1]])
    with pytest.raises(InferenceServerException, match="output tensor alias not found in signature: size"):
        client.infer(
            "demo", [tensor(client.module, "text", TEXTS)], outputs=[client.module.InferRequestedOutput("size")]
        )


def test_the_http_client_may_send_and_get_json(server):
    with triton_http.InferenceServerClient(server.url.removeprefix("http://")) as client:
        outputs = [
            triton_http.InferRequestedOutput("length", binary_data=False),
            triton_http.InferRequestedOutput("upper"),
        ]
        result = client.infer("demo", [tensor(triton_http, "text", TEXTS, binary_data=False)], outputs=outputs)
        assert result.as_numpy("length").tolist() == [3, 2, 0] and result.as_numpy("upper").tolist()[0] == b"ABC"


def test_large_requests_are_read_elsewhere_and_answered_alike(client):
    texts = np.array([b"a" * (place % 90) for place in range(900)], object)
    result = client.infer("demo", [tensor(client.module, "text", texts)])
    assert result.as_numpy("length").tolist() == [place % 90 for place in range(900)]
    rows = np.arange(900 * 20, dtype=np.int32).reshape(900, 20)
    inputs = [
        tensor(client.module, name, array)
        for name, array in (("input_ids", rows), ("input_mask", np.ones_like(rows)), ("segment_ids", rows * 0))
    ]
    np.testing.assert_array_equal(client.infer("vectors-ids", inputs).as_numpy("embedding")[:, 0], rows.sum(1))
    with pytest.raises(InferenceServerException, match="at most 1024 rows"):
        client.infer("demo", [tensor(client.module, "text", np.full(1025, b"a", object))])


def test_bodies_may_be_gzip(server):
    body = gzip.compress(json.dumps(of()).encode())
    assert server.ask(INFER, body, headers={"Content-Encoding": "gzip"})[0] == 200
    assert server.ask(INFER, body[:-3], headers={"Content-Encoding": "gzip"})[0] == 400
    assert server.ask(INFER, gzip.compress(b" " * (9 << 20)), headers={"Content-Encoding": "gzip"})[0] == 413


def test_a_deadline_of_the_client_is_kept(server):
    """The model has work for minutes, so no machine is quick enough to answer."""
    steps = tensor(triton_grpc, "steps", np.array([200_000_000], np.int32))
    for timeout in (1e-6, 0.3):
        with (
            triton_grpc.InferenceServerClient(server.target) as client,
            pytest.raises(InferenceServerException) as caught,
        ):
            client.infer("work", [steps], client_timeout=timeout)
        assert "DEADLINE_EXCEEDED" in str(caught.value.status())


def test_the_clients_are_told_what_is_wrong(client):
    with pytest.raises(InferenceServerException, match="Servable not found for request: Latest\\(gone\\)"):
        client.infer("gone", [tensor(client.module, "text", TEXTS)])
    with pytest.raises(InferenceServerException, match="expected a number, got 'x'"):
        client.infer("demo", [tensor(client.module, "text", TEXTS)], model_version="x")
    with pytest.raises(InferenceServerException, match=r"input 'text': expected string \[\?\], got int32"):
        client.infer("demo", [tensor(client.module, "text", np.zeros(2, np.int32))])
    with pytest.raises(InferenceServerException, match="Missing but required: \\{text\\}"):
        client.infer("demo", [tensor(client.module, "texts", TEXTS)])


def test_the_messages_are_those_of_the_protocol():
    """Compared field by field with the definitions that Triton's client was generated from."""
    messages = message_class("ModelInferRequest").DESCRIPTOR.file.message_types_by_name
    assert len(messages) == 18
    for name, ours in messages.items():
        parent, _, inner = {
            "InferInputTensor": "ModelInferRequest.InferInputTensor",
            "TensorMetadata": "ModelMetadataResponse.TensorMetadata",
            "InferOutputTensor": "ModelInferResponse.InferOutputTensor",
            "InferRequestedOutputTensor": "ModelInferRequest.InferRequestedOutputTensor",
        }.get(name, name).partition(".")
        theirs = getattr(service_pb2, parent).DESCRIPTOR
        theirs = theirs.nested_types_by_name[inner] if inner else theirs
        for field, one in ours.fields_by_name.items():
            other = theirs.fields_by_name[field]
            assert (one.number, one.type, one.label) == (other.number, other.type, other.label), (name, field)


def test_contents_may_be_listed_instead_of_raw(server):
    request = message_class("ModelInferRequest")(model_name="demo", id="7")
    request.inputs.add(name="text", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"ab", b"c"])
    request.outputs.add(name="length")
    with grpc.insecure_channel(server.target) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            message_class("ModelInferRequest").SerializeToString,
            message_class("ModelInferResponse").FromString,
        )
        answer = call(request, timeout=30)
        assert (
            answer.id == "7"
            and not answer.raw_output_contents
            and list(answer.outputs[0].contents.int_contents) == [2, 1]
        )
        request.raw_input_contents.append(b"\1\0\0\0a")
        with pytest.raises(grpc.RpcError) as caught:
            call(request, timeout=30)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "got both" in caught.value.details()
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff\xff\xff", timeout=30)
        assert caught.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)


def ask(server, body, path=INFER, **headers):
    status, answer = server.ask(
        path,
        body if isinstance(body, bytes) else json.dumps(body).encode(),
        headers={key.replace("_", "-"): value for key, value in headers.items()},
    )
    return status, json.loads(answer)


def of(**change):
    return {"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a", "bc"], **change}]}


def test_json_by_hand(server):
    status, answer = ask(server, {**of(), "id": "x", "outputs": [{"name": "length"}]})
    assert (status, answer) == (
        200,
        {
            "model_name": "demo",
            "model_version": "2",
            "id": "x",
            "outputs": [{"name": "length", "datatype": "INT32", "shape": [2], "data": [1, 2]}],
        },
    )
    status, answer = ask(server, of(shape=[1], data=["a"]), "/v2/models/demo/versions/2/infer")
    assert status == 200 and {entry["name"] for entry in answer["outputs"]} == {"length", "upper", "score", "version"}


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "at least one tensor"),
        ({"inputs": {}}, "a list of objects"),
        ({"inputs": [1]}, "a list of objects"),
        (of(name=1), "'name' of a tensor"),
        (of(shape=[3]), "3 values for the shape [3], got 2"),
        (of(shape=[-1]), "sizes from 0"),
        (of(shape="2"), "sizes from 0"),
        (of(shape=[True]), "sizes from 0"),
        (of(shape=[1] * 9), "at most 8 sizes"),
        (of(shape=[1 << 40]), "at most 2097152 elements"),
        (of(datatype="TEXT"), "datatype: expected one of BOOL"),
        (of(datatype="FP16"), "JSON cannot represent FP16"),
        (of(data="ab"), "expected data"),
        (of(data=[["a"], ["b", "c"]]), "lists of equal length"),
        (of(data=[1, 2]), "not of expected type: string"),
        (of(parameters=[]), "an object"),
        (of(parameters={"binary_data_size": 1}), "at most the 0 bytes that are left"),
        ({**of(), "id": 1}, "'id'"),
        ({**of(), "outputs": [{"name": "length"}] * 2}, "each name once"),
        ({**of(), "outputs": "length"}, "a list of objects"),
        ({"inputs": of()["inputs"] * 2}, "expected once, got twice"),
    ],
)
def test_requests_of_another_shape_are_refused(server, body, told):
    status, answer = ask(server, body)
    assert status == 400 and set(answer) == {"error"} and told in answer["error"]


def test_binary_bodies_that_lie_about_their_sizes_are_refused(server):
    head = json.dumps(
        {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 7}}]}
    ).encode()
    good = head + struct.pack("<I", 3) + b"abc"
    status, body = server.ask(INFER, good, headers={"Inference-Header-Content-Length": str(len(head))})
    assert status == 200 and json.loads(body)["outputs"]
    for body, length, told in (
        (good, len(head) + 100, "expected at most the"),
        (good + b"x", len(head), "expected 7 bytes of binary tensors, got 8"),
        (head + b"\xff\xff\xff\x7fabc", len(head), "expected a string of"),
        (head + b"\0\0\0\0abc", len(head), "at the end"),
        (good[:-1], len(head), "that are left"),
        (good, "-1", "a number of bytes"),
        (good, "x", "a number of bytes"),
        (good, "9" * 40, "a number of bytes"),
        (good, 0, "JSON Parse error"),
    ):
        status, answer = ask(server, body, Inference_Header_Content_Length=str(length))
        assert status == 400 and told in answer["error"], (length, answer)
    for path, wanted in (
        ("/v2/models/demo/versions/x/infer", 400),
        ("/v2/models/demo/versions/99/infer", 404),
        ("/v2/models/gone", 404),
        ("/v2/models/demo/versions/" + "9" * 5000, 400),
        ("/v2/nothing", 404),
    ):
        assert server.ask(path, json.dumps(of()).encode() if path.endswith("infer") else None)[0] == wanted, path


@pytest.mark.parametrize("kind", [name for name in tensors.DATATYPES if name != "string"])
def test_every_type_survives_as_bytes(kind):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(NUMPY_TYPES[kind])
    found = from_bytes("x", kind, (2, 3), memoryview(to_bytes(array)))
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found.astype(np.float64), array.astype(np.float64))


def test_any_bytes_are_a_request_or_refused():
    rng = np.random.default_rng(0)
    request = message_class("ModelInferRequest")(model_name="demo")
    request.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"a")
    good_json, good_proto = json.dumps(of()).encode(), request.SerializeToString()
    for good, read in ((good_json, tensors.read_rest), (good_proto, tensors.read_grpc)):
        refused = 0
        for _ in range(400):
            data = bytearray(good)
            for _ in range(rng.integers(1, 4)):
                data[rng.integers(len(data))] = rng.integers(256)
            try:
                read(bytes(data[: rng.integers(1, len(data) + 1)]), Limits())
            except RequestError as error:
                refused += 1
                assert error.message
        assert refused > 100


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"id": "\ud800"}, "'id': a lone surrogate is not text"),
        ({"id": "a\udfff"}, "'id': a lone surrogate is not text"),
        ({"shape": [10**3999]}, "shape: expected a list of at most 8 sizes from 0 to 9223372036854775807"),
        ({"shape": [10**3999] * 8}, "shape: expected a list"),
        ({"shape": [1 << 63]}, "shape: expected a list"),
        ({"shape": [(1 << 63) - 1] * 8}, "elements in a request"),
        ({"shape": [10**4299]}, "shape: expected a list"),
        ({"name": "\ud800"}, "'name' of a tensor: a lone surrogate"),
        ({"datatype": "\ud800"}, "'datatype' of a tensor: a lone surrogate"),
        ({"data": ["\ud800"]}, "a lone surrogate is not text"),
        ({"outputs": [{"name": "\udc00"}]}, "'name' of a tensor: a lone surrogate"),
        ({"parameters": {"binary_data_size": 10**4000}}, "binary_data_size: expected at most"),
    ],
)
def test_half_characters_and_thousands_of_digits_are_the_clients_mistake(server, changes, told):
    tensor_of_text = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["abc"]}
    inner = {key: value for key, value in changes.items() if key not in ("id", "outputs")}
    status, answer = ask(
        server, {"inputs": [tensor_of_text | inner], **{key: changes[key] for key in changes if key not in inner}}
    )
    assert status == 400 and told in json.dumps(answer), answer
