"""What clients do with answers that fail, come late or never: attempts, deadlines, cut calls."""

import concurrent.futures
import contextlib
import datetime
import email.utils
import http.server
import json
import socket
import threading
import time

import grpc
import pytest
from local_ports import free_ports
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from official_bert.tools.client import GrpcClient, RestClient, ServingError
from official_bert.tools.client.retries import read_retry_after


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
        client.known_signatures = {"serving_default": {"inputs": {"x": "DT_INT32"}, "outputs": {}}}
        assert client.predict([{"x": 1}]) == [{}] and service.seen == 3
    with GrpcClient(f"127.0.0.1:{port}", "m", attempts=1) as client:
        service.seen = 0
        client.known_signatures = {"serving_default": {"inputs": {"x": "DT_INT32"}, "outputs": {}}}
        with pytest.raises(ServingError, match="UNAVAILABLE"):
            client.predict([{"x": 1}])
    server.stop(None)


def test_a_server_that_is_not_there_is_unavailable():
    port = free_ports(1)[0]
    with (
        RestClient(f"http://127.0.0.1:{port}", "m", attempts=2) as client,
        pytest.raises(ServingError, match="UNAVAILABLE"),
    ):
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
    scripted.script = lambda handler: (
        handler.answer(503, b'{"error": "full"}') if len(scripted.times) < 3 else drip(handler)
    )
    started = time.perf_counter()
    with (
        RestClient(scripted.url, "m", timeout=1.5) as client,
        pytest.raises(ServingError, match=r"DEADLINE_EXCEEDED: .* 1\.5 s"),
    ):
        client.predict([{"x": 1}])
    assert 1.4 < time.perf_counter() - started < 8 and len(scripted.times) == 3


def test_a_request_whose_connection_breaks_is_sent_again(scripted):
    # it closes without an answer
    scripted.script = lambda handler: handler.answer(200) if len(scripted.times) > 1 else None
    with RestClient(scripted.url, "m") as client:
        assert client.predict([{"x": 1}]) == [{"y": 1}] and len(scripted.times) == 2
    scripted.script = lambda handler: None
    with RestClient(scripted.url, "m", attempts=1) as client, pytest.raises(ServingError, match="UNAVAILABLE"):
        client.predict([{"x": 1}])
    assert len(scripted.times) == 3


def test_retry_after_is_obeyed_within_the_deadline(scripted):
    scripted.script = lambda handler: (
        handler.answer(200) if len(scripted.times) > 1 else handler.answer(503, b'{"error": "full"}', Retry_After="1")
    )
    with RestClient(scripted.url, "m") as client:
        assert client.predict([{"x": 1}]) == [{"y": 1}]
    assert 1 <= scripted.times[1] - scripted.times[0] < 10
    scripted.times.clear()
    scripted.script = lambda handler: handler.answer(503, b'{"error": "full"}', Retry_After="30")
    started = time.perf_counter()
    with (
        RestClient(scripted.url, "m", timeout=20) as client,
        pytest.raises(ServingError, match="UNAVAILABLE: full") as caught,
    ):
        client.predict([{"x": 1}])  # the next attempt could not begin in time: no use in waiting
    assert caught.value.retry_after == 30 and len(scripted.times) == 1 and time.perf_counter() - started < 10


def test_retry_after_may_be_a_date():
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=100)
    assert 97 < read_retry_after(email.utils.format_datetime(soon, usegmt=True)) <= 100
    assert read_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0 and read_retry_after(" 7 ") == 7
    assert read_retry_after("soon") == read_retry_after("") == read_retry_after("-1") == 0


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


@pytest.mark.parametrize("attempts", [1, 2])
def test_a_call_that_is_cut_is_sent_again_if_there_are_attempts_left(attempts):
    cut = Cut()
    with GrpcClient(f"127.0.0.1:{cut.listener.getsockname()[1]}", "m", attempts=attempts) as client:
        client.known_signatures = {"serving_default": {"inputs": {"x": "DT_INT32"}, "outputs": {}}}
        if attempts > 1:
            assert client.predict([{"x": 1}]) == [{}]
        else:
            with pytest.raises(ServingError, match="UNAVAILABLE"):
                client.predict([{"x": 1}])
        assert cut.seen == attempts
    cut.listener.close()
    cut.server.stop(None)
