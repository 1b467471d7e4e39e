"""The clients: the same answers over both protocols, in order, and again after what passes."""

import http.server
import json
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest
from local_ports import free_ports
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from official_bert.server.client import GrpcClient, RestClient, ServingError


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
    for options in ({"version": 1, "label": "x"}, {"batch_size": 0}, {"concurrency": 0}, {"attempts": 9}):
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
    from concurrent import futures
    service, server = FlakyGrpc(), grpc.server(futures.ThreadPoolExecutor(2))
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


def test_the_rest_client_needs_neither_tensorflow_nor_grpc(server):
    script = ("import sys; from official_bert.server.client import RestClient\n"
              f"print(RestClient({server.url!r}, 'demo').predict(['abc'])[0]['upper'])\n"
              "print([name for name in ('tensorflow', 'grpc', 'keras') if name in sys.modules])")
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.stdout.split("\n")[:2] == ["ABC", "[]"], finished.stderr
