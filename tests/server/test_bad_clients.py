"""One bad client, and innocent ones beside it, whose answers are checked: errors, sizes, slowness, clients that go."""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import signal
import socket
import threading
import time

import grpc
import made_serving
import numpy as np
import pytest
import tensorflow as tf
from http2_floods import PREFACE, SETTINGS, frame
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from official_bert.server.queue.batching import BatchingParameters
from official_bert.server.requests import process
from official_bert.server.requests.request_checks import Limits
from official_bert.server.server import ServerOptions
from official_bert.server.server_config import ServedModelConfig
from official_bert.tools.client import GrpcClient, ServingError

PREDICT = "/v1/models/demo:predict"
SMALL = b'{"instances": ["abc"]}'


def options_for(demo_root, limits=None, **options):
    return ServerOptions(
        models=[ServedModelConfig(name="demo", base_path=str(demo_root / "demo"))],
        rest_port=0,
        grpc_port=0,
        limits=limits or Limits(),
        **{"poll_seconds": 5.0, "drain_seconds": 5, **options},
    )


@pytest.fixture(scope="module")
def running(demo_root):
    batching = BatchingParameters(max_batch_size=1024, max_execution_batch_size=64, batch_timeout_micros=5000)
    with made_serving.embedded(options_for(demo_root, batching=batching)) as running:
        yield running


@contextlib.contextmanager
def innocent(running, clients=2):
    """Clients that ask until the block ends; each of their answers must be right."""
    stop, counts = threading.Event(), []

    def ask(number):
        count = 0
        while not stop.is_set():
            text = "x" * (1 + (7 * count + number) % 30)
            status, body = running.ask(PREDICT, json.dumps({"instances": [text]}).encode())
            assert status == 200 and json.loads(body)["predictions"][0]["length"] == len(text), (status, body)
            count += 1
        counts.append(count)

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        asking = [pool.submit(ask, number) for number in range(clients)]
        try:
            yield counts
        finally:
            stop.set()
        for future in asking:
            future.result()
    assert len(counts) == clients and min(counts) > 0


def connect(running):
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def header(length, path=PREDICT):
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def post(running, **body):
    status, answer = running.ask(PREDICT, json.dumps(body).encode())
    return status, json.loads(answer)


def refused(running, data):
    """(code, details) that gRPC gives for the bytes of a request."""
    with grpc.insecure_channel(running.target) as channel:
        send = channel.unary_unary("/tensorflow.serving.PredictionService/Predict", bytes, bytes)
        with pytest.raises(grpc.RpcError) as caught:
            send(data, timeout=60)
    return caught.value.code(), caught.value.details()


def declared(name, dtype, shape, **values):
    """A gRPC request for a tensor of a declared shape, its values not all given; as bytes."""
    proto = tf.make_tensor_proto(0).__class__(dtype=dtype, **values)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    request = predict_pb2.PredictRequest(inputs={name: proto})
    request.model_spec.name, request.model_spec.signature_name = "demo", "ids"
    return request.SerializeToString()


def test_a_request_whose_error_cannot_even_be_decoded_fails_alone(running):
    """TensorFlow's message quotes the bytes 0xff, over which its own Python raises UnicodeDecodeError."""
    bad = {"signature_name": "number", "instances": [{"b64": "/w=="}]}

    def ask(number):
        if number % 4 == 0:
            return post(running, **bad)
        return post(running, signature_name="number", instances=[{"b64": "MTI="}])

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(64)))
    for number, (status, answer) in enumerate(answers):
        if number % 4 == 0:
            assert status == 400 and answer["error"] == "TensorFlow cannot run this request: UnicodeDecodeError"
        else:
            assert (status, answer) == (200, {"predictions": [{"number": 12.0, "size": 2}]})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (declared("input_ids", 3, [1, 1 << 23], int_val=[1]), "elements in a request"),
        (declared("input_ids", 3, [1 << 23], int_val=[1]), "elements in a request"),
        (declared("input_ids", 7, [1024, 1024], string_val=[b"x" * 100]), "elements in a request"),
        (declared("input_ids", 3, [2, 5000], int_val=[1]), "whose square is at most"),
        (declared("input_ids", 3, [1, 1 << 62, 1 << 62], int_val=[1]), "elements in a request"),
        (declared("input_ids", 3, [1 << 62, 1 << 20, 0]), "elements in a request"),
        (declared("input_ids", 3, [-1]), "of known shape"),
        (declared("input_ids", 21, [1]), "type 21 cannot be sent"),
        (b"\x12\x00" * 5000, "Missing ModelSpec"),
        (b"\x1a\x00" * 4_000_000, "at most 1000 names of outputs, got 4000000"),
    ],
    ids=range(10),
)
def test_a_few_bytes_of_grpc_are_refused_before_they_become_many(running, data, message):
    before = memory()
    with innocent(running):
        code, details = refused(running, data)
    assert code == grpc.StatusCode.INVALID_ARGUMENT and message in details, details
    assert memory() - before < 100 << 20


def memory():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_tensor_that_declares_what_it_may_is_filled_with_its_last_value(running):
    request = predict_pb2.PredictRequest.FromString(declared("input_ids", 3, [3, 4], int_val=[1, 2, 3]))
    request.inputs["input_mask"].CopyFrom(tf.make_tensor_proto(np.ones((3, 4), np.int32)))
    with grpc.insecure_channel(running.target) as channel:
        answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=60)
    assert tf.make_ndarray(answer.outputs["sum"]).tolist() == [9, 12, 12]  # 1 2 3 3, then 3 3 3 3 twice


@pytest.mark.parametrize("signature", ["long", "scalar"])
def test_an_answer_that_is_too_large_is_refused_and_a_large_one_is_whole(demo_root, signature):
    limits = Limits(max_answer_bytes=1 << 20)
    with made_serving.embedded(options_for(demo_root, limits)) as running, innocent(running):
        for rows in (1, 100):
            status, answer = post(running, signature_name="long", instances=[{"sizes": (1 << 22) // rows}] * rows)
            assert status == 400 and "more than 1048576 bytes" in answer["error"]
        status, answer = post(running, signature_name="long", instances=[{"sizes": 40_000}] * 2)
        assert status == 200 and [row["numbers"] for row in answer["predictions"]] == [[0.0] * 40_000] * 2
        status, answer = post(running, signature_name="long", inputs={"sizes": [40_000, 1]})
        assert status == 200 and answer["outputs"] == {"numbers": [[0.0] * 40_000] * 2, "sizes": [40_000, 1]}


def test_requests_run_in_parts_that_are_within_the_bounds_of_a_batch(demo_root):
    limits = Limits(max_batch_elements=100, max_batch_squares=64)
    with made_serving.embedded(options_for(demo_root, limits)) as running, innocent(running):
        texts = ["ab" * size for size in range(1, 41)]
        status, answer = post(running, instances=texts)
        assert status == 200 and [row["length"] for row in answer["predictions"]] == [len(text) for text in texts]
        ids = [[number] * 4 for number in range(30)]
        status, answer = post(running, signature_name="ids", inputs={"input_ids": ids, "input_mask": ids})
        assert answer["outputs"]["sum"] == [4 * number * number for number in range(30)]
        status, answer = post(running, signature_name="ids", inputs={"input_ids": [[1] * 9], "input_mask": [[1] * 9]})
        assert status == 400 and "whose square is at most 64" in answer["error"]
        page = running.ask("/monitoring/prometheus/metrics")[1].decode()
    assert ':processed_batch_size_bucket{le="2.0"}' in page


def test_requests_that_are_not_batched_have_the_same_bounds(demo_root):
    limits = Limits(max_batch_elements=100, max_answer_bytes=1 << 20)
    options = options_for(demo_root, limits, batching=None, poll_seconds=0.1)
    with made_serving.embedded(options) as running, GrpcClient(running.target, "demo", batch_size=100) as client:
        texts = ["ab" * size for size in range(1, 41)]  # of 80 bytes at most: one at a time
        assert [row["length"] for row in client.predict(texts)] == [len(text) for text in texts]
        assert (
            'runtime_latency_count{model_name="demo"} 40.0' in running.ask("/monitoring/prometheus/metrics")[1].decode()
        )
        with pytest.raises(ServingError, match="INVALID_ARGUMENT: the answer would take more than 1048576 bytes"):
            client.predict([{"sizes": 40_000}] * 10, "long")


def test_a_large_body_that_is_being_read_holds_up_nobody(running):
    """The process that reads is stopped, which is the slowest that a body can be read."""
    large = json.dumps({"instances": ["x" * 1000] * 100}).encode()
    assert running.ask(PREDICT, large)[0] == 200
    process = running.server.services.handler.reader._process
    process.send_signal(signal.SIGSTOP)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(running.ask, PREDICT, large)
            with innocent(running):
                assert running.ask("/healthz")[0] == 200
                time.sleep(0.1)
            assert not waiting.done()
            process.send_signal(signal.SIGCONT)
            status, body = waiting.result()
    finally:
        process.send_signal(signal.SIGCONT)
    assert status == 200 and [row["length"] for row in json.loads(body)["predictions"]] == [1000] * 100


def test_a_process_that_dies_over_a_body_is_replaced(running):
    large = json.dumps({"instances": ["x" * 1000] * 100}).encode()
    assert running.ask(PREDICT, large)[0] == 200
    process = running.server.services.handler.reader._process
    process.send_signal(signal.SIGSTOP)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(running.ask, PREDICT, large)
        time.sleep(0.2)
        process.kill()
        status, body = waiting.result()
    assert status == 429 and "could not be read" in json.loads(body)["error"]
    assert running.ask(PREDICT, large)[0] == 200


# What a process runs that holds too much after its second body, and ends slowly.
FULL = """import atexit, time
from official_bert.server.requests import child
atexit.register(time.sleep, 0.3)
child.resident = iter([0, 1 << 40]).__next__
child.main()"""


def test_a_process_that_ends_because_it_is_full_takes_no_request_with_it(monkeypatch):
    started, start = [], process.subprocess.Popen
    monkeypatch.setattr(
        process.subprocess,
        "Popen",
        lambda arguments, **options: (
            started.append(arguments) or start([arguments[0], "-c", FULL, arguments[-1]], **options)
        ),
    )
    reader = process.RequestReader(Limits(), predict_pb2.PredictRequest)
    request = predict_pb2.PredictRequest(inputs={"text": tf.make_tensor_proto(["x" * 20_000])})
    request.model_spec.name = "demo"

    async def ask():
        return [(await reader.read("predict_grpc", request.SerializeToString())).inputs["text"][0] for _ in range(4)]

    try:
        assert asyncio.run(ask()) == [b"x" * 20_000] * 4
    finally:
        reader.close()
    assert len(started) == 2


@pytest.fixture(scope="module")
def impatient(demo_root):
    """A server with short times and few places."""
    limits = Limits(
        keepalive_seconds=0.5,
        body_seconds=0.5,
        max_connections=8,
        max_concurrent_requests=4,
        max_unfinished_bytes=1 << 20,
    )
    with made_serving.embedded(options_for(demo_root, limits)) as running:
        yield running


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/mod", header(10)[:-2], b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"]
)
def test_a_silent_connection_is_closed(impatient, sent):
    with connect(impatient) as connection, innocent(impatient):
        connection.sendall(sent)
        connection.settimeout(10)
        began = time.monotonic()
        while connection.recv(1000):
            pass
        assert time.monotonic() - began < 9  # a second or two; 15 by default


def test_half_sent_bodies_take_no_places_and_end(impatient):
    connections = [connect(impatient) for _ in range(6)]
    for connection in connections:
        connection.sendall(header(100) + b'{"instances"')
    with innocent(impatient):
        for connection in connections:
            assert b" 504 " in connection.recv(1000).split(b"\r\n")[0]
            connection.close()


def test_many_open_connections_give_way_to_one_that_asks(impatient):
    with innocent(impatient), contextlib.ExitStack() as stack:
        for number in range(40):
            connection = stack.enter_context(connect(impatient))
            with contextlib.suppress(OSError):
                connection.sendall((b"", b"GET /", header(50) + b"{")[number % 3])
            time.sleep(0.01)  # as many in one moment could push out one that was about to ask
        assert impatient.ask(PREDICT, SMALL)[0] == 200


def test_large_bodies_that_stay_unfinished_give_way(impatient):
    with innocent(impatient), contextlib.ExitStack() as stack:
        for _ in range(3):  # more bytes than are allowed, and fewer connections
            connection = stack.enter_context(connect(impatient))
            with contextlib.suppress(OSError):
                connection.sendall(header(700_000) + b" " * 600_000)
        assert impatient.ask(PREDICT, SMALL)[0] == 200


def test_a_client_that_does_not_take_its_answer_is_let_go(impatient):
    body = json.dumps({"signature_name": "long", "instances": [{"sizes": 1_000_000}] * 3}).encode()
    with connect(impatient) as connection, innocent(impatient):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        connection.sendall(header(len(body)) + body)
        time.sleep(1.5)
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := connection.recv(1 << 20):
                received += len(data)
        assert received < 12_000_000


def test_work_of_clients_that_have_gone_is_dropped(demo_root):
    """One thread for batches, held by a first request; what queues behind it is left alone if its clients go."""
    batching = BatchingParameters(max_batch_size=1, num_batch_threads=1, max_enqueued_batches=8)
    work = json.dumps({"signature_name": "work", "instances": [{"steps": 200_000}]}).encode()
    with made_serving.embedded(options_for(demo_root, batching=batching)) as running:
        running.ask(PREDICT, json.dumps({"signature_name": "work", "instances": [{"steps": 1}]}).encode())
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            first = pool.submit(running.ask, PREDICT, work)
            made_serving.wait_for(lambda: running.server.services.handler.in_flight == 1)
            gone = [connect(running) for _ in range(4)]
            for connection in gone:
                connection.sendall(header(len(work)) + work)
            with grpc.insecure_channel(running.target) as channel:
                request = predict_pb2.PredictRequest(
                    inputs={"steps": tf.make_tensor_proto(np.full(1, 200_000, np.int32))}
                )
                request.model_spec.name, request.model_spec.signature_name = "demo", "work"
                calls = [
                    prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict.future(request) for _ in range(4)
                ]
                made_serving.wait_for(lambda: running.server.services.handler.in_flight == 9)
                for connection in gone:
                    connection.close()
                for call in calls:
                    call.cancel()
                made_serving.wait_for(lambda: running.server.services.handler.in_flight <= 1)
                (queue,) = running.server.services.handler.batcher._queues.values() or (None,)
                assert queue is None or not queue.tasks
            assert first.result()[0] == 200
        assert running.ask(PREDICT, SMALL)[0] == 200
        page = running.ask("/monitoring/prometheus/metrics")[1].decode()
    assert ':tensorflow:serving:request_count{model_name="demo",status="CANCELLED"} 8.0' in page
    assert ":tensorflow:serving:batching_session:processed_batch_size_count 3.0" in page


def test_it_stops_in_time_whatever_clients_do(demo_root):
    with contextlib.ExitStack() as stack:
        with made_serving.embedded(options_for(demo_root, drain_seconds=1.0)) as running:
            for sent in (b"", header(10)[:-3], header(100) + b"{"):
                stack.enter_context(connect(running)).sendall(sent)
            work = json.dumps({"signature_name": "work", "instances": [{"steps": 200_000_000}]}).encode()
            stack.enter_context(connect(running)).sendall(header(len(work)) + work)
            made_serving.wait_for(lambda: running.server.services.handler.in_flight == 1)
            began = time.monotonic()
        assert time.monotonic() - began < 10  # the model has work for minutes


def test_grpc_connections_must_say_something(impatient):
    host, port = impatient.target.split(":")
    with innocent(impatient), contextlib.ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((host, int(port)), timeout=10)) for _ in range(12)]
        for connection in connections[::2]:  # these agree upon HTTP/2, and ask for nothing
            connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
        began = time.monotonic()
        for connection in connections:
            with contextlib.suppress(ConnectionError):
                while connection.recv(1000):
                    pass
        assert time.monotonic() - began < 9
    with grpc.insecure_channel(impatient.target) as channel:
        request = predict_pb2.PredictRequest(inputs={"text": tf.make_tensor_proto(["abc"])})
        request.model_spec.name = "demo"
        answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(
            request, timeout=60, wait_for_ready=True
        )
    assert tf.make_ndarray(answer.outputs["length"]).tolist() == [3]
