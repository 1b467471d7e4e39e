"""The gRPC services through the official stubs."""

import asyncio
import contextlib
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

PREDICT = "/tensorflow.serving.PredictionService/Predict"


@pytest.fixture(scope="module")
def channel(server):
    with grpc.insecure_channel(server.target) as channel:
        yield channel


@pytest.fixture(scope="module")
def stub(channel):
    return prediction_service_pb2_grpc.PredictionServiceStub(channel)


def make_request(signature="", model="demo", version=None, wanted=(), **inputs):
    """A PredictRequest; inputs are arrays, lists or TensorProtos."""
    request = predict_pb2.PredictRequest(output_filter=wanted)
    request.model_spec.name, request.model_spec.signature_name = model, signature
    if version is not None:
        request.model_spec.version.value = version
    for name, value in inputs.items():
        is_proto = isinstance(value, tf.TensorProto if hasattr(tf, "TensorProto") else type(tf.make_tensor_proto(0)))
        request.inputs[name].CopyFrom(value if is_proto else tf.make_tensor_proto(value))
    return request


def predict(stub, *arguments, **inputs):
    """The outputs as arrays."""
    response = stub.Predict(make_request(*arguments, **inputs), timeout=60)
    return {name: tf.make_ndarray(value) for name, value in response.outputs.items()}


def refused(call):
    """(code, details) of a call that must fail."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details()


def test_predict_gives_what_the_model_gives(stub):
    outputs = predict(stub, text=["abc", "Äb", ""])
    assert outputs["length"].tolist() == [3, 2, 0] and outputs["upper"].tolist() == [b"ABC", "ÄB".encode(), b""]
    np.testing.assert_array_equal(outputs["score"], np.array([3, 2, 0], np.float32) / np.float32(10))
    assert sorted(outputs) == ["length", "score", "upper", "version"]


def test_the_answer_names_model_version_and_signature(stub):
    response = stub.Predict(make_request("pair", "labelled", 1, text=["a"], text_pair=["b"]), timeout=60)
    spec = response.model_spec
    assert (spec.name, spec.version.value, spec.signature_name) == ("labelled", 1, "pair")
    request = make_request(model="labelled", text=["a"])
    request.model_spec.version_label = "stable"
    assert stub.Predict(request, timeout=60).model_spec.version.value == 1


def test_every_type_of_number_crosses(stub):
    x = np.array([[1, -2], [0.5, 0.25]], np.float32)
    outputs = predict(stub, "numbers", x=x)
    np.testing.assert_array_equal(outputs["same"], x)
    np.testing.assert_array_equal(outputs["double"], x.astype(np.float64))
    np.testing.assert_array_equal(outputs["half"].astype(np.float32), x)
    assert outputs["positive"].tolist() == [[True, False], [True, True]]
    assert predict(stub, "scalar", x=np.float32(3))["y"] == 6


def test_no_rows_and_no_columns(stub, server):
    if server.embedded:
        assert refused(lambda: predict(stub, text=np.array([], object)))[0] == grpc.StatusCode.INVALID_ARGUMENT
    outputs = predict(stub, "ids", input_ids=np.zeros((2, 0), np.int32), input_mask=np.zeros((2, 0), np.int32))
    assert outputs["sum"].tolist() == [0, 0] and outputs["row"].shape == (2, 0)


def test_an_output_filter_chooses(stub):
    assert list(predict(stub, text=["a"], wanted=["length"])) == ["length"]
    code, details = refused(lambda: predict(stub, text=["a"], wanted=["size"]))
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "output tensor alias not found in signature: size" in details
    assert refused(lambda: predict(stub, text=["a"], wanted=["length"] * 2))[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_strings_that_are_declared_and_not_given_are_empty(stub):
    proto = tf.make_tensor_proto(np.array([b"x", b"y"], object))
    del proto.string_val[:]
    assert predict(stub, text=proto)["length"].tolist() == [0, 0]
    proto.string_val.append(b"abc")  # the last one stands for those that are missing
    assert predict(stub, text=proto)["length"].tolist() == [3, 3]


def test_a_request_without_a_model_is_refused(stub, channel):
    """As in predict_impl.cc, get_model_metadata_impl.cc, get_model_status_impl.cc and server_core.cc."""
    invalid, text = grpc.StatusCode.INVALID_ARGUMENT, {"text": tf.make_tensor_proto(["a"])}
    statuses = model_service_pb2_grpc.ModelServiceStub(channel)
    metadata = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    assert refused(lambda: stub.Predict(predict_pb2.PredictRequest(inputs=text))) == (invalid, "Missing ModelSpec")
    assert refused(lambda: stub.GetModelMetadata(metadata)) == (invalid, "Missing ModelSpec")
    assert refused(lambda: statuses.GetModelStatus(get_model_status_pb2.GetModelStatusRequest())) == (
        invalid,
        "Missing ModelSpec",
    )
    assert refused(lambda: predict(stub, "", "", text=["a"])) == (invalid, "ModelSpec has no name specified.")
    metadata.model_spec.signature_name = "x"
    assert refused(lambda: stub.GetModelMetadata(metadata)) == (invalid, "ModelSpec has no name specified.")
    unnamed = get_model_status_pb2.GetModelStatusRequest()
    unnamed.model_spec.signature_name = "x"
    assert refused(lambda: statuses.GetModelStatus(unnamed))[0] == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("label", ["old", ""])
def test_an_unknown_label_is_an_invalid_argument(stub, label):
    request = make_request(model="labelled", text=["a"])
    request.model_spec.version_label = label
    assert refused(lambda: stub.Predict(request)) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        f"Unrecognized servable version label: {label}",
    )


def test_health_is_grpcs_own(server, channel):
    if not server.embedded:
        pytest.skip("TF Serving has it behind --enable_grpc_healthcheck_service")
    stub = health_pb2_grpc.HealthStub(channel)
    for service in ("", "tensorflow.serving.PredictionService"):
        request = health_pb2.HealthCheckRequest(service=service)
        assert stub.Check(request, timeout=60).status == health_pb2.HealthCheckResponse.SERVING
        watch = stub.Watch(request, timeout=60)
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()
    assert refused(lambda: stub.Check(health_pb2.HealthCheckRequest(service="none")))[0] == grpc.StatusCode.NOT_FOUND


def test_metadata_holds_the_signatures(stub):
    request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
    request.model_spec.name = "demo"
    response = stub.GetModelMetadata(request, timeout=60)
    signatures = get_model_metadata_pb2.SignatureDefMap()
    assert response.metadata["signature_def"].Unpack(signatures)
    assert response.model_spec.version.value == 2
    assert sorted(signatures.signature_def["pair"].inputs) == ["text", "text_pair"]
    del request.metadata_field[:]
    assert refused(lambda: stub.GetModelMetadata(request, timeout=60))[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_status_of_versions(channel):
    request = get_model_status_pb2.GetModelStatusRequest()
    request.model_spec.name = "labelled"
    stub = model_service_pb2_grpc.ModelServiceStub(channel)
    found = stub.GetModelStatus(request, timeout=60).model_version_status
    assert [(entry.version, entry.State.Name(entry.state)) for entry in found] == [(2, "AVAILABLE"), (1, "AVAILABLE")]
    request.model_spec.name = "nowhere"
    assert refused(lambda: stub.GetModelStatus(request, timeout=60))[0] == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("arguments", "inputs", "code", "message"),
    [
        (["", "nowhere"], {"text": ["a"]}, "NOT_FOUND", "Servable not found for request: Latest(nowhere)"),
        (["", "demo", 7], {"text": ["a"]}, "NOT_FOUND", "Specific(demo, 7)"),
        (["none"], {"text": ["a"]}, "FAILED_PRECONDITION", 'Serving signature key "none" not found.'),
        ([], {}, "INVALID_ARGUMENT", "Missing but required: {text}"),
        ([], {"text": ["a"], "more": ["b"]}, "INVALID_ARGUMENT", "Sent extra: {more}"),
        ([], {"text": [1]}, "INVALID_ARGUMENT", None),
        ([], {"text": [["a"]]}, "INVALID_ARGUMENT", None),
        (["numbers"], {"x": [[1.0, 2.0, 3.0]]}, "INVALID_ARGUMENT", None),
        (["pair"], {"text": ["a"], "text_pair": ["a", "b"]}, "INVALID_ARGUMENT", None),
        (
            ["ids"],
            {"input_ids": [[1] * 12], "input_mask": [[1] * 12]},
            "INVALID_ARGUMENT",
            "input_ids: expected fewer than 10",
        ),
    ],
)
def test_mistakes_get_their_code_and_the_server_goes_on(stub, arguments, inputs, code, message):
    found, details = refused(lambda: predict(stub, *arguments, **inputs))
    assert found == grpc.StatusCode[code], details
    assert message is None or message in details
    assert predict(stub, text=["a"])["length"].tolist() == [1]


def test_text_must_be_utf8_and_binary_inputs_need_not(stub, server):
    if not server.embedded:
        pytest.skip("TF Serving leaves strings to the model")
    code, details = refused(lambda: predict(stub, text=[b"fine", b"ab\xffc"]))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert details == "input 'text', string 1: not valid UTF-8 at byte 2"
    assert predict(stub, "binary", inputs=[b"ab\xffc"])["copy_bytes"].tolist() == [b"ab\xffc"]


@pytest.mark.parametrize("shape", [[1 << 40], [-1], [1 << 31, 1 << 31], [1] * 20])
def test_a_few_bytes_cannot_declare_a_huge_tensor(stub, server, shape):
    if not server.embedded:
        pytest.skip("bounds of the embedded server")
    proto = tf.make_tensor_proto([1.0])
    del proto.tensor_shape.dim[:]
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    code, details = refused(lambda: predict(stub, "numbers", x=proto))
    assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED) and "input 'x'" in details


def test_bytes_that_are_no_message_and_messages_that_are_too_large(stub, channel, server):
    send = channel.unary_unary(PREDICT, request_serializer=bytes, response_deserializer=bytes)
    assert refused(lambda: send(b"\xff" * 40, timeout=60))[0] == grpc.StatusCode.INTERNAL
    assert refused(lambda: channel.unary_unary("/tensorflow.serving.PredictionService/Explain")(b"", timeout=60))[
        0
    ] == (grpc.StatusCode.UNIMPLEMENTED)
    if server.embedded:
        assert refused(lambda: send(bytes(9 << 20), timeout=60))[0] == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert predict(stub, text=["a"])["length"].tolist() == [1]


@pytest.mark.parametrize(
    ("seconds", "wait", "code"),
    [
        (0.0, 0, "DEADLINE_EXCEEDED"),
        (-1.0, 0, "DEADLINE_EXCEEDED"),  # over at its arrival: nothing is begun
        (0.01, 0.02, "DEADLINE_EXCEEDED"),  # over in the queue: as the client's own clock tells it
        (600.0, 0, "RESOURCE_EXHAUSTED"),
        (None, 0, "RESOURCE_EXHAUSTED"),
    ],
)
def test_the_status_of_a_late_request_does_not_depend_on_whose_clock_is_quicker(seconds, wait, code):
    from official_bert.server.protocols.tensorflow_serving.grpc_service import answering
    from official_bert.server.statuses import RequestError

    begun = []

    class Context:
        def time_remaining(self):
            return seconds

    class Handler:
        @contextlib.contextmanager
        def admitted(self, *_):
            yield

    async def main():
        async with answering(Handler(), Context(), "Predict"):
            begun.append(True)
            time.sleep(wait)
            raise RequestError("RESOURCE_EXHAUSTED", "Run() timeout exceeded while waiting in batching queue")

    with pytest.raises(RequestError) as caught:
        asyncio.run(main())
    assert caught.value.code == code and bool(begun) == (seconds is None or seconds > 0)
