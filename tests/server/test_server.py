"""The command as a user starts and stops it, and versions that change under load."""

import concurrent.futures
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import grpc
import made_serving
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver
from commands import imported_tool, run_here
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from official_bert.server.requests.request_checks import Limits
from official_bert.server.server import ServerOptions
from official_bert.server.server_config import ServedModelConfig
from official_bert.storage import files
from official_bert.storage.temporaries import temporary_folder
from official_bert.tools.client import GrpcClient, RestClient, ServingError


@contextlib.contextmanager
def command(*arguments, **options):
    """`python -m official_bert.serve` on free ports: (process, url, gRPC target)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "official_bert.serve", "--rest_api_port=0", "--port=0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"(http://127\.0\.0\.1:\d+); gRPC: (127\.0\.0\.1:\d+)", line)
        assert found, line + process.stderr.read()
        yield process, found[1], found[2]
    finally:
        process.kill()
        process.communicate()


def options_for(base, **options):
    return ServerOptions(
        models=[ServedModelConfig(name="demo", base_path=str(base))],
        rest_port=0,
        grpc_port=0,
        **{"poll_seconds": 0.1, "drain_seconds": 10, **options},
    )


@pytest.mark.slow
def test_the_command_serves_and_stops_after_its_last_answer(demo_root):
    with command(
        f"--model_config_file={demo_root}/models.config",
        f"--batching_parameters_file={demo_root}/batching.config",
        f"--monitoring_config_file={demo_root}/monitoring.config",
    ) as (process, url, target):
        with RestClient(url, "labelled", label="stable") as rest, GrpcClient(target, "demo") as grpc_client:
            assert rest.predict(["abc"])[0]["version"] == 1
            assert grpc_client.predict(["abc"])[0]["version"] == 2
            grpc_client.predict([{"steps": 10}], "work")
            with concurrent.futures.ThreadPoolExecutor() as pool:
                slow = pool.submit(grpc_client.predict, [{"steps": 100_000}], "work")
                time.sleep(0.3)
                assert not slow.done(), "too quick to be under way when the server is stopped"
                process.send_signal(signal.SIGTERM)
                assert slow.result(60) == [{"total": 100_000.0}]
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()
        with pytest.raises(OSError):
            urllib.request.urlopen(f"{url}/healthz", timeout=5)


@pytest.mark.parametrize("scheme", ["memory", "ram"])
def test_a_model_on_another_store_is_watched_like_one_on_this_machine(scheme, demo_root, tmp_path):
    base = f"{scheme}://{tmp_path.name}-{os.getpid()}/demo"

    def publish(version):
        folder = shutil.copytree(demo_root / "demo" / str(version), tmp_path / str(version))
        files.publish(str(folder), f"{base}/{version}")

    publish(1)
    with made_serving.embedded(options_for(base)) as running, RestClient(running.url, "demo") as client:
        made_serving.wait_for(lambda: running.ask("/readyz")[0] == 200)
        assert client.predict(["abc"])[0]["version"] == 1
        publish(2)
        made_serving.wait_for(lambda: client.predict(["abc"])[0]["version"] == 2)
        files.remove(f"{base}/2")
        made_serving.wait_for(lambda: client.predict(["abc"])[0]["version"] == 1)
        made_serving.wait_for(lambda: running.server.services.manager.statuses("demo", 2)[0].state == "END")
        # else the disk fills
        copies = os.path.join(temporary_folder(), base.replace("://", "/"))
        assert os.listdir(copies) == ["1"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: expected one of --model_base_path, --models, --model_config_file, got none"),
        (["--model_base_path=x", "--model_name=a/b"], "error: --model_name: expected a name without / and :"),
        (["--model_base_path=nowhere"], "nowhere: no such folder"),
        (["--model_base_path=ROOT"], "ROOT/demo?"),
        (["--model_base_path=ROOT/demo/1"], "it is itself a version: give the folder above it"),
        (["--model_config_file=nowhere"], "error: --model_config_file=nowhere: no such file"),
        (
            ["--model_base_path=ROOT/demo", "--rest_api_port=TAKEN"],
            "--rest_api_port=TAKEN: cannot listen on 127.0.0.1:TAKEN: Address already in use; 0 takes a free port",
        ),
        (
            ["--model_base_path=ROOT/demo", "--rest_api_port=0", "--port=TAKEN"],
            "--port=TAKEN: cannot listen on 127.0.0.1:TAKEN: Address already in use; 0 takes a free port",
        ),
        (
            ["--model_base_path=ROOT/demo", "--access_log=memory://log"],
            "--access_log=memory://log: expected a path on this machine",
        ),
    ],
)
def test_mistakes_give_one_line(demo_root, arguments, message):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        places = {"ROOT": str(demo_root), "TAKEN": str(listener.getsockname()[1])}
        for word, value in places.items():
            arguments = [argument.replace(word, value) for argument in arguments]
            message = message.replace(word, value)
        finished = run_here("-m", "official_bert.serve", "--port=0", *arguments)
    lines = finished.stderr.strip().split("\n")
    told = [line for line in lines if line.startswith("error: ")]
    assert finished.returncode == 1 and len(told) == 1 and message in told[0], finished.stderr
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--rest_api_port=-1", "--rest_api_port, --port: expected a port from 0"),  # gRPC is off unless it is asked for
        ("--rest_api_port=-1 --port=-1", "--rest_api_port, --port: expected a port from 0"),
        ("--model_name=mine --model_config_file=x", "--model_name: expected --model_base_path"),
        ("--model_name=mine --models=x", "--model_name: expected --model_base_path"),
        (
            "--batching_parameters_file=x --enable_batching=false",
            "--batching_parameters_file: expected --enable_batching with it",
        ),
        (
            "--enable_per_model_batching_parameters --noenable_batching",
            "--enable_per_model_batching_parameters: expected",
        ),
        ("--run_cost=0 --enable_batching=false", "--run_cost: expected --enable_batching"),
        ("--monitoring_config_file=x --rest_api_port=-1 --port=0", "--monitoring_config_file: expected REST"),
        ("--allowed_origins=https://example.org --rest_api_port=-1 --port=0", "--allowed_origins: expected REST"),
        (
            "--run_cost=512 --model_name=mine --model_base_path=x --enable_batching=false --rest_api_port=-1 --port=0",
            "",
        ),
    ],
)
def test_flags_that_would_do_nothing_are_refused(given, message):
    refused = pytest.raises(ValueError, match=f"^{message}") if message else contextlib.nullcontext()
    with imported_tool("serve", "official_bert/commands") as serve, flagsaver.flagsaver(), refused:
        flags.FLAGS(["serve", *given.split()])
        serve.check_flags(flags.FLAGS)


def test_it_listens_on_this_machine_only_unless_told():
    assert ServerOptions(models=[]).host == "127.0.0.1"


def test_a_new_version_takes_over_without_one_lost_answer(tmp_path):
    made_serving.write_model(tmp_path, 1)
    with made_serving.embedded(options_for(tmp_path)) as running:
        seen, stop = [], threading.Event()

        def ask():
            with RestClient(running.url, "demo", attempts=1) as client:
                while not stop.is_set():
                    seen.append(client.predict(["a"])[0]["version"])

        with concurrent.futures.ThreadPoolExecutor() as pool:
            asking = [pool.submit(ask) for _ in range(3)]
            made_serving.write_model(tmp_path, 2)
            deadline = time.time() + 60
            while not seen or seen[-1] != 2:
                assert time.time() < deadline, seen[-3:]
                time.sleep(0.05)
            stop.set()
            for future in asking:
                future.result()  # raises what was refused
        assert set(seen) == {1, 2}
        while running.server.services.manager.statuses("demo", 1)[0].state != "END":
            time.sleep(0.05)
        assert running.ask("/v1/models/demo/versions/1:predict", b'{"instances": ["a"]}')[0] == 404


def test_a_version_that_cannot_be_read_is_reported_and_not_served(tmp_path):
    made_serving.write_model(tmp_path, 1)
    with made_serving.embedded(options_for(tmp_path)) as running:
        broken = made_serving.write_model(tmp_path, 2, name="x")
        data = next(broken.glob("variables/*.data*"))
        data.write_bytes(b"")
        os.rename(broken, tmp_path / "2")
        deadline = time.time() + 30
        while time.time() < deadline:
            found = json.loads(running.ask("/v1/models/demo")[1])["model_version_status"]
            if found[0]["version"] == "2" and found[0]["state"] == "END":
                break
            time.sleep(0.05)
        assert found[0]["status"]["error_code"] != "OK" and found[0]["status"]["error_message"]
        assert found[1]["state"] == "AVAILABLE"
        assert (
            json.loads(running.ask("/v1/models/demo:predict", b'{"instances": ["a"]}')[1])["predictions"][0]["version"]
            == 1
        )
        assert running.ask("/healthz")[0] == 200


def write_warmup(folder, requests):
    """Writes warm-up requests: pairs of a signature and its inputs."""
    (folder / "assets.extra").mkdir()
    with tf.io.TFRecordWriter(str(folder / "assets.extra" / "tf_serving_warmup_requests")) as writer:
        for signature, inputs in requests:
            request = predict_pb2.PredictRequest(
                inputs={name: tf.make_tensor_proto(value) for name, value in inputs.items()}
            )
            request.model_spec.signature_name = signature
            log = prediction_log_pb2.PredictionLog(predict_log=prediction_log_pb2.PredictLog(request=request))
            writer.write(log.SerializeToString())


def test_warm_up_requests_are_run_and_a_failing_one_keeps_its_version_out(tmp_path):
    write_warmup(made_serving.write_model(tmp_path, 1), [("", {"text": ["a"]})])
    with made_serving.embedded(options_for(tmp_path)) as running:
        assert running.ask("/healthz")[0] == 200
    (tmp_path / "other").mkdir()
    write_warmup(made_serving.write_model(tmp_path / "other", 1), [("", {"txt": ["a"]})])
    with (
        pytest.raises(ValueError, match=r"tf_serving_warmup_requests: request 1: .*Missing but required: \{text\}"),
        made_serving.embedded(options_for(tmp_path / "other")),
    ):
        pass


@pytest.fixture(scope="module")
def narrow(demo_root):
    """A server with small bounds."""
    limits = Limits(max_request_bytes=2000, max_request_rows=4, max_text_bytes=50, max_concurrent_requests=2)
    with made_serving.embedded(options_for(demo_root / "demo", limits=limits, timeout_seconds=2.0)) as running:
        yield running


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"instances": ["x" * 3000]}, 413, "at most 2000 bytes"),
        ({"instances": ["x"] * 5}, 400, "expected at most 4 rows in a request, got 5"),
        ({"instances": ["x", "é" * 26]}, 400, "string 1: expected at most 50 bytes, got 52"),
        ({"instances": [{"steps": 5_000_000}], "signature_name": "work"}, 504, "no answer in time"),
    ],
)
def test_bounds_have_their_status(narrow, body, status, message):
    found, answer = narrow.ask("/v1/models/demo:predict", json.dumps(body).encode())
    assert found == status and message in json.loads(answer)["error"]
    assert narrow.ask("/v1/models/demo:predict", b'{"instances": ["a"]}')[0] == 200


def test_a_compressed_body_counts_as_large_as_it_is(narrow):
    import gzip

    bomb = gzip.compress(b'{"instances": ["' + b"x" * 10_000_000 + b'"]}')
    assert narrow.ask("/v1/models/demo:predict", bomb, headers={"Content-Encoding": "gzip"})[0] == 413


def test_a_client_that_does_not_finish_its_request_is_let_go(narrow):
    host, port = narrow.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(b"POST /v1/models/demo:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert b" 504 " in connection.recv(1000).split(b"\r\n")[0]
    assert narrow.ask("/v1/models/demo:predict", b'{"instances": ["a"]}')[0] == 200


def test_too_many_requests_at_once_are_told_to_come_again(demo_root):
    def ask(_):
        return running.ask("/v1/models/demo:predict", b'{"signature_name": "work", "instances": [{"steps": 100000}]}')[
            0
        ]

    limits = Limits(max_concurrent_requests=2)
    with made_serving.embedded(options_for(demo_root / "demo", limits=limits, timeout_seconds=100.0)) as running:
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            found = list(pool.map(ask, range(12)))
        assert set(found) == {200, 503} and found.count(200) >= 2
        assert running.ask("/v1/models/demo:predict", b'{"instances": ["a"]}')[0] == 200


def test_while_it_stops_it_is_unhealthy_and_refuses(demo_root):
    with made_serving.embedded(options_for(demo_root / "demo")) as running:
        running.server.services.handler.is_draining = True
        status, body = running.ask("/readyz")
        assert status == 503 and json.loads(body)["error"] == "the server is stopping"
        assert running.ask("/healthz")[0] == 200  # alive, as long as it answers at all
        with grpc.insecure_channel(running.target) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            states = health_pb2.HealthCheckResponse
            assert health.Check(health_pb2.HealthCheckRequest(), timeout=60).status == states.NOT_SERVING
            assert [state.status for state in health.Watch(health_pb2.HealthCheckRequest(), timeout=60)] == [
                states.NOT_SERVING
            ]
        with RestClient(running.url, "demo", attempts=1) as client, pytest.raises(ServingError, match="UNAVAILABLE"):
            client.predict(["a"])
        with GrpcClient(running.target, "demo", attempts=1) as client, pytest.raises(ServingError, match="UNAVAILABLE"):
            client.predict(["a"])


def test_requests_share_batches_and_metrics_tell(demo_root):
    from official_bert.server.queue.batching import BatchingParameters

    batching = BatchingParameters(max_batch_size=8, batch_timeout_micros=300_000)
    with made_serving.embedded(options_for(demo_root / "demo", batching=batching)) as running:
        with GrpcClient(running.target, "demo", batch_size=1, concurrency=8) as client:
            client.signatures()
            assert [row["length"] for row in client.predict(["x" * size for size in range(8)])] == list(range(8))
        page = running.ask("/monitoring/prometheus/metrics")[1].decode()
    batches = re.search(r"^:tensorflow:serving:batching_session:processed_batch_size_count (\S+)", page, re.MULTILINE)
    rows = re.search(r"^:tensorflow:serving:batching_session:processed_batch_size_sum (\S+)", page, re.MULTILINE)
    assert float(rows[1]) == 8 and float(batches[1]) < 8
    assert 'official_bert_model_version_available{model_name="demo",version="2"} 1.0' in page


def test_batching_can_be_off(demo_root):
    with (
        made_serving.embedded(options_for(demo_root / "demo", batching=None)) as running,
        RestClient(running.url, "demo") as client,
    ):
        assert client.predict(["abc"])[0]["length"] == 3
