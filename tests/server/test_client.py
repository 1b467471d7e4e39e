"""The clients: the same answers over both protocols, in order, and again after what passes."""

import asyncio
import concurrent.futures
import contextlib
import datetime
import email.utils
import http.server
import json
import socket
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest
import tensorflow as tf
from local_ports import free_ports
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from official_bert.server.client import AsyncGrpcClient, AsyncRestClient, GrpcClient, RestClient, ServingError
from official_bert.server.client.attempts import read_retry_after


@pytest.fixture(scope="module", params=["rest", "grpc"])
def connect(request, server):
    """Makes a client of a model on the running server."""
    def make(model="demo", **options):
        if request.param == "rest":
            return RestClient(server.url, model, **options)
        return GrpcClient(server.target, model, **options)
    return make


def test_rows_go_in_and_rows_come_out(connect):
    with connect() as client:
        answers = client.predict(["abc", "Äé"])
        assert [(row["length"], row["upper"], row["version"]) for row in answers] == [(3, "ABC", 2), (2, "ÄÉ", 2)]
        assert answers[0]["score"] == pytest.approx(0.3, rel=1e-6)
        assert client.predict([]) == []


def test_several_inputs_other_signatures_and_versions(connect):
    with connect("labelled", version=1) as client:
        rows = [{"text": "a", "text_pair": "bb"}, {"text": "c", "text_pair": "c"}]
        assert client.predict(rows, "pair") == [{"joined": "a|bb", "equal": False, "vector": [1.0, 2.0]},
                                                {"joined": "c|c", "equal": True, "vector": [1.0, 1.0]}]
        assert client.predict(["x"])[0]["version"] == 1
    with connect("labelled", label="canary") as client:
        assert client.predict(["x"])[0]["version"] == 2


def test_binary_data_numbers_and_single_outputs(connect):
    with connect() as client:
        data = bytes(range(256))
        assert client.predict([data, b""], "binary") == [{"copy_bytes": data, "size": 256}, {"copy_bytes": b"", "size": 0}]
        assert client.predict(["a b", "c"], "words") == [{"words": ["a", "b"]}, {"words": ["c", ""]}]
        rows = [{"input_ids": np.array([1, 2], np.int32), "input_mask": [1, 0]}]
        assert client.predict(rows, "ids") == [{"sum": 1, "row": [2, 4]}]


def test_long_lists_are_sent_in_batches_and_come_back_in_order(connect):
    texts = ["x" * (index % 50) + str(index) for index in range(203)]
    with connect(batch_size=7, concurrency=3) as client:
        assert [row["upper"] for row in client.predict(texts)] == [text.upper() for text in texts]


def test_signatures_and_versions_are_told(connect):
    with connect("labelled") as client:
        assert client.versions() == {1: "AVAILABLE", 2: "AVAILABLE"}
        found = client.signatures()
        assert found["pair"]["inputs"] == {"text": "DT_STRING", "text_pair": "DT_STRING"}
        assert found["numbers"]["outputs"]["half"] == "DT_BFLOAT16"


@pytest.mark.parametrize(("model", "rows", "signature", "code"), [
    ("nowhere", [{"text": "a"}], "", "NOT_FOUND"),
    ("demo", [{"text": "a", "more": "b"}], "", "INVALID_ARGUMENT"),
    ("demo", [{"input_ids": [1] * 12, "input_mask": [1] * 12}], "ids", "INVALID_ARGUMENT"),
])
def test_the_servers_refusals_are_errors_with_its_status(connect, model, rows, signature, code):
    with connect(model) as client, pytest.raises(ServingError) as caught:
        client.predict(rows, signature)
    assert caught.value.code == code and caught.value.message
    assert isinstance(caught.value, OSError)  # one line in a command


def test_an_unknown_signature_is_refused(connect):
    with connect() as client, pytest.raises(ServingError, match="none"):
        client.predict(["a"], "none")


def test_wrong_options_are_refused():
    for options in ({"version": 1, "label": "x"}, {"batch_size": 0}, {"concurrency": 0}, {"attempts": 9}, {"timeout": 0}):
        with pytest.raises(ValueError, match="expected"):
            RestClient("http://127.0.0.1:1", "m", **options)


class Flaky(http.server.BaseHTTPRequestHandler):
    """Answers 503 until `server.failures` are used up; `server.seen` counts requests."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen += 1
        failing = self.server.seen <= self.server.failures
        body = json.dumps({"error": "full"} if failing else {"predictions": [{"y": 1}]}).encode()
        self.send_response(self.server.status if failing else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def flaky():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Flaky)
    server.seen, server.failures, server.status = 0, 0, 503
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_503_is_tried_again_and_other_errors_are_not(flaky):
    url = f"http://127.0.0.1:{flaky.server_port}"
    flaky.failures = 2
    with RestClient(url, "m") as client:
        assert client.predict([{"x": 1}]) == [{"y": 1}] and flaky.seen == 3
    flaky.seen, flaky.failures = 0, 99
    with RestClient(url, "m", attempts=2) as client, pytest.raises(ServingError, match="UNAVAILABLE: full"):
        client.predict([{"x": 1}])
    assert flaky.seen == 2
    flaky.seen, flaky.status = 0, 400
    with RestClient(url, "m") as client, pytest.raises(ServingError, match="INVALID_ARGUMENT: full"):
        client.predict([{"x": 1}])
    assert flaky.seen == 1


def test_attempts_wait_longer_and_longer(flaky):
    flaky.failures = 3
    started = time.perf_counter()
    with RestClient(f"http://127.0.0.1:{flaky.server_port}", "m") as client:
        client.predict([{"x": 1}])
    assert 0.5 < time.perf_counter() - started < 10  # 0 + 0.2 + 0.4


class FlakyGrpc(prediction_service_pb2_grpc.PredictionServiceServicer):
    """UNAVAILABLE twice, then an empty answer."""

    def __init__(self):
        self.seen = 0

    def Predict(self, request, context):  # noqa: N802
        self.seen += 1
        if self.seen <= 2:
            context.abort(grpc.StatusCode.UNAVAILABLE, "full")
        return predict_pb2.PredictResponse()


def test_grpc_unavailable_is_tried_again():
    service, server = FlakyGrpc(), grpc.server(concurrent.futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with GrpcClient(f"127.0.0.1:{port}", "m") as client:
        client.client.known_signatures = {"serving_default": {"inputs": {"x": "DT_INT32"}, "outputs": {}}}
        assert client.predict([{"x": 1}]) == [{}] and service.seen == 3
    with GrpcClient(f"127.0.0.1:{port}", "m", attempts=1) as client:
        service.seen = 0
        client.client.known_signatures = {"serving_default": {"inputs": {"x": "DT_INT32"}, "outputs": {}}}
        with pytest.raises(ServingError, match="UNAVAILABLE"):
            client.predict([{"x": 1}])
    server.stop(None)


def test_a_server_that_is_not_there_is_unavailable():
    port = free_ports(1)[0]
    with RestClient(f"http://127.0.0.1:{port}", "m", attempts=2) as client, pytest.raises(ServingError, match="UNAVAILABLE"):
        client.predict(["a"])
    with GrpcClient(f"127.0.0.1:{port}", "m", attempts=2) as client, pytest.raises(ServingError, match="UNAVAILABLE"):
        client.predict(["a"])

class Scripted(http.server.BaseHTTPRequestHandler):
    """Answers as `server.script` says, a function of this handler; `server.times` has the moments of requests."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.times.append(time.perf_counter())
        self.server.script(self)
        self.close_connection = True

    def answer(self, status, body=b'{"predictions": [{"y": 1}]}', **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def scripted():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.times, server.daemon_threads, server.block_on_close = [], True, False
    server.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def drip(handler):
    """A byte now and then, so that no single wait is long."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Drip: ")
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b"x")
            time.sleep(0.1)


def test_one_deadline_holds_over_all_attempts_and_for_an_answer_that_drips(scripted):
    scripted.script = lambda handler: handler.answer(503, b'{"error": "full"}') if len(scripted.times) < 3 else drip(handler)
    started = time.perf_counter()
    with RestClient(scripted.url, "m", timeout=1.0) as client, pytest.raises(ServingError, match="DEADLINE_EXCEEDED: .* 1 s"):
        client.predict([{"x": 1}])
    assert 0.9 < time.perf_counter() - started < 2 and len(scripted.times) == 3


@pytest.mark.parametrize("make", [lambda: {"repeat_lost": False}, lambda: {"repeat_lost": True}])
def test_what_may_have_run_is_repeated_only_on_demand(scripted, make):
    scripted.script = lambda handler: handler.answer(200) if len(scripted.times) > 1 else None  # it closes without an answer
    with RestClient(scripted.url, "m", **make()) as client:
        if make()["repeat_lost"]:
            assert client.predict([{"x": 1}]) == [{"y": 1}] and len(scripted.times) == 2
        else:
            with pytest.raises(ServingError, match="UNAVAILABLE") as caught:
                client.predict([{"x": 1}])
            assert caught.value.is_lost and len(scripted.times) == 1


def test_retry_after_is_obeyed_within_the_deadline(scripted):
    scripted.script = lambda handler: (handler.answer(200) if len(scripted.times) > 1 else
                                       handler.answer(503, b'{"error": "full"}', Retry_After="1"))
    with RestClient(scripted.url, "m") as client:
        assert client.predict([{"x": 1}]) == [{"y": 1}]
    assert 1 <= scripted.times[1] - scripted.times[0] < 3
    scripted.times.clear()
    started = time.perf_counter()
    with RestClient(scripted.url, "m", timeout=0.9) as client, pytest.raises(ServingError, match="UNAVAILABLE: full") as caught:
        client.predict([{"x": 1}])  # the next attempt could not begin in time: no use in waiting
    assert caught.value.retry_after == 1 and len(scripted.times) == 1 and time.perf_counter() - started < 0.8


def test_retry_after_may_be_a_date():
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100)
    assert 97 < read_retry_after(email.utils.format_datetime(soon, usegmt=True)) <= 100
    assert read_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0 and read_retry_after(" 7 ") == 7
    assert read_retry_after(None) is read_retry_after("soon") is read_retry_after("") is read_retry_after("-1") is None


class Cut:
    """A gRPC server behind a relay whose connection breaks while a request is under way."""

    def __init__(self):
        self.seen = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(self, self.server)
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()
        self.connections = []
        threading.Thread(target=self.relay, daemon=True).start()

    def Predict(self, request, context):  # noqa: N802
        self.seen += 1
        if self.seen == 1:
            for connection in self.connections:  # gRPC may have tried more than one
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            time.sleep(0.3)
        return predict_pb2.PredictResponse()

    def relay(self):
        while True:
            try:
                ends = (self.listener.accept()[0], socket.create_connection(("127.0.0.1", self.port)))
            except OSError:
                return
            self.connections.append(ends[0])
            for source, target in (ends, ends[::-1]):
                threading.Thread(target=self.pump, args=(source, target), daemon=True).start()

    @staticmethod
    def pump(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    # The other methods of the service.
    Classify = Regress = MultiInference = GetModelMetadata = None


@pytest.mark.parametrize("repeat_lost", [False, True])
def test_a_call_that_is_cut_may_have_run(repeat_lost):
    cut = Cut()
    with GrpcClient(f"127.0.0.1:{cut.listener.getsockname()[1]}", "m", repeat_lost=repeat_lost) as client:
        client.client.known_signatures = {"serving_default": {"inputs": {"x": "DT_INT32"}, "outputs": {}}}
        if repeat_lost:
            assert client.predict([{"x": 1}]) == [{}] and cut.seen == 2
        else:
            with pytest.raises(ServingError, match="UNAVAILABLE") as caught:
                client.predict([{"x": 1}])
            assert caught.value.is_lost and cut.seen == 1
    cut.listener.close()
    cut.server.stop(None)


@pytest.mark.parametrize("protocol", ["rest", "grpc"])
def test_asynchronous_clients_give_the_same_answers_and_can_be_cancelled(server, protocol):
    def make(**options):
        return AsyncRestClient(server.url, "demo", **options) if protocol == "rest" else (
            AsyncGrpcClient(server.target, "demo", **options))

    async def main():
        async with make(batch_size=3, concurrency=2) as client:
            texts = ["x" * (index % 5) + str(index) for index in range(20)]
            both = await asyncio.gather(client.predict(texts), client.predict(texts[::-1]))
            assert [row["upper"] for row in both[0]] == [text.upper() for text in texts]
            assert both[1] == both[0][::-1]
            assert await client.versions() == {2: "AVAILABLE"}
            assert (await client.signatures())["pair"]["inputs"] == {"text": "DT_STRING", "text_pair": "DT_STRING"}
            assert await client.predict(["a b"], "words") == [{"words": ["a", "b"]}]
            with pytest.raises(ServingError, match="INVALID_ARGUMENT"):
                await client.predict([{"more": "b"}] * 8)
            waiting = asyncio.ensure_future(client.predict([{"steps": 400_000}], "work"))
            await asyncio.sleep(0.2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await client.predict(["abc"]))[0]["length"] == 3  # and the client goes on
        async with make(timeout=0.3) as hasty:
            with pytest.raises(ServingError, match="DEADLINE_EXCEEDED"):
                await hasty.predict([{"steps": 2_000_000}], "work")
    asyncio.run(main())


def signatures_with(dtype, output):
    return {"serving_default": {"inputs": {"x": {"dtype": dtype}}, "outputs": {output: {"dtype": "DT_FLOAT"}}}}


def test_a_newer_version_with_another_output_is_not_answered_under_the_name_of_the_former(monkeypatch):
    outputs = iter(["score", "chance"])

    async def ask(self, method, path, body=None):
        return {"predictions": [0.5]} if method == "POST" else {
            "metadata": {"signature_def": {"signature_def": signatures_with("DT_INT32", next(outputs))}}}

    monkeypatch.setattr(AsyncRestClient, "_ask", ask)
    with RestClient("http://127.0.0.1:1", "m") as client:
        assert client.predict([1]) == [{"score": 0.5}]
        assert client.predict([1]) == [{"chance": 0.5}]
    outputs = iter(["score"])
    with RestClient("http://127.0.0.1:1", "m", version=1) as client:  # which stays what it is
        assert client.predict([1]) == client.predict([1]) == [{"score": 0.5}]


def test_a_newer_version_with_another_type_gets_that_type(monkeypatch):
    types = ["DT_INT32"]

    async def signatures(self):
        return {"serving_default": {"inputs": {"x": types[-1]}, "outputs": {"y": "DT_FLOAT"}}}

    async def call(self, service, method, request):
        if types_pb2.DataType.Name(request.inputs["x"].dtype) != types[-1]:
            raise ServingError("INVALID_ARGUMENT", f"input 'x': expected {types[-1]}")
        return predict_pb2.PredictResponse(outputs={"y": tf.make_tensor_proto(np.array([0.5], np.float32))})

    monkeypatch.setattr(AsyncGrpcClient, "signatures", signatures)
    monkeypatch.setattr(AsyncGrpcClient, "_call", call)
    with GrpcClient("127.0.0.1:1", "m") as client:
        assert client.predict([1]) == [{"y": 0.5}]
        types.append("DT_INT64")
        assert client.predict([1]) == [{"y": 0.5}]
        with pytest.raises(ServingError, match="expected an answer for each of 2 rows, got y of the shape"):
            client.predict([1, 2])


@pytest.mark.parametrize("number", [(1 << 32) + 101, 1 << 70])
def test_numbers_beyond_the_range_of_an_input_are_refused_and_not_wrapped_around(connect, number):
    refused = pytest.raises((ServingError, ValueError), match="out of the range of int32|expected numbers of int32|too large")
    with connect() as client, refused:
        client.predict([{"input_ids": [number], "input_mask": [1]}], "ids")


@pytest.mark.parametrize("row", ["abc", b"abc", {"text": "abc"}])
def test_a_single_row_is_not_taken_for_a_list_of_its_letters_or_names(connect, row):
    with connect() as client, pytest.raises(ValueError, match="rows: expected a list of rows, got a single one"):
        client.predict(row)


def test_a_closed_client_says_so_and_may_be_closed_twice(server):
    client = RestClient(server.url, "demo")
    client.predict(["a"])
    client.close()
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.predict(["a"])


def test_the_rest_client_needs_neither_tensorflow_nor_grpc(server):
    script = ("import sys; from official_bert.server.client import RestClient\n"
              f"print(RestClient({server.url!r}, 'demo').predict(['abc'])[0]['upper'])\n"
              "print([name for name in ('tensorflow', 'grpc', 'keras') if name in sys.modules])")
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.stdout.split("\n")[:2] == ["ABC", "[]"], finished.stderr
