"""A server from its first moment: the ports are bound at once, and health is told while models load."""

import asyncio
import concurrent.futures
import contextlib
import http.client
import json
import logging
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import grpc
import made_serving
import pytest
from commands import ROOT, imported_tool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from official_bert.server.listeners.ports import Ports
from official_bert.server.models.servable import Servable
from official_bert.server.server import Server
from official_bert.server.server_config import ServedModelConfig, ServerOptions
from official_bert.tools.client import RestClient

STATES = health_pb2.HealthCheckResponse
PREDICT = ("/v1/models/demo:predict", b'{"instances": ["a"]}')


def options_for(base, **options):
    return ServerOptions(
        **{
            "models": [ServedModelConfig(name="demo", base_path=str(base))],
            "rest_port": 0,
            "grpc_port": 0,
            "poll_seconds": 0.1,
            "drain_seconds": 5,
            **options,
        }
    )


@contextlib.contextmanager
def event_loop():
    """Gives what runs a coroutine in the loop of another thread, and returns its future."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def health(target):
    """Returns the state of the whole server, and the status of a prediction."""
    with grpc.insecure_channel(target) as channel:
        state = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60).status
        request = predict_pb2.PredictRequest()
        request.model_spec.name = "demo"
        with pytest.raises(grpc.RpcError) as refused:
            prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=60)
        return state, refused.value.code(), refused.value.details()


def test_both_ports_answer_before_tensorflow_is_there(tmp_path):
    async def opened():
        ports = Ports(options_for(tmp_path))
        await ports.open()
        return ports

    with event_loop() as run:
        ports = run(opened()).result(60)
        asked = made_serving.Running(ports.rest_port, ports.grpc_port, True)
        assert asked.ask("/healthz")[0] == 200 and json.loads(asked.ask("/v2/health/live")[1]) == {"live": True}
        for path, *body in (("/readyz",), ("/v2/health/ready",), ("/health",), ("/v1/models",), PREDICT):
            status, answer = asked.ask(path, *body)
            assert status == 503 and "starting" in json.loads(answer)["error"], path
        assert b"<!doctype html>" in asked.ask("/")[1] and asked.ask("/", b"{}")[0] == 503
        assert health(asked.target)[:2] == (STATES.NOT_SERVING, grpc.StatusCode.UNAVAILABLE)
        run(ports.close()).result(60)
        with pytest.raises(OSError):
            asked.ask("/healthz")


def test_nothing_that_binds_the_ports_imports_tensorflow():
    code = "import sys, official_bert.server.server; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_a_server_tells_what_it_loads_and_answers_when_it_is_loaded(demo_root, monkeypatch, caplog):
    loading, may_end = threading.Event(), threading.Event()

    def warm_up(*_):
        loading.set()
        assert may_end.wait(60)
        return 0

    monkeypatch.setattr(Servable, "warm_up", warm_up)
    caplog.set_level(logging.INFO, "official_bert.server")
    options = options_for(
        "", models=[ServedModelConfig(name=name, base_path=str(demo_root / "demo")) for name in ("demo", "next")]
    )
    time.sleep(2 * options.poll_seconds)  # the folders may have been written a moment ago
    with event_loop() as run:
        server = Server(options)
        starting = run(server.start())
        assert loading.wait(60)
        asked = made_serving.Running(server.ports.rest_port, server.ports.grpc_port, True)
        status, answer = asked.ask("/readyz")
        told = r"0 of 2 models answer; model demo: version 2 is being loaded, for \d+ s so far; model next: waits for "
        assert status == 503 and re.match(told, json.loads(answer)["error"]), answer
        assert asked.ask("/healthz")[0] == 200 and b"<!doctype html>" in asked.ask("/")[1]
        assert asked.ask("/v1/models")[0] == 200
        status, answer = asked.ask(*PREDICT)
        assert status == 503 and "model demo: version 2 is being loaded" in json.loads(answer)["error"]
        assert asked.ask("/v1/models/next")[0] == asked.ask("/v1/models/next/metadata")[0] == 503
        assert asked.ask("/v1/models/none/metadata")[0] == 404
        state, code, details = health(asked.target)
        assert (state, code) == (STATES.NOT_SERVING, grpc.StatusCode.UNAVAILABLE) and "being loaded" in details
        with RestClient(asked.url, "demo") as client, concurrent.futures.ThreadPoolExecutor() as pool:
            patient = pool.submit(client.predict, ["abc"])  # tries again by itself
            may_end.set()
            assert patient.result(60)[0]["length"] == 3
        starting.result(60)
        assert asked.ask("/readyz")[0] == asked.ask("/v2/models/next/ready")[0] == 200
        run(server.stop()).result(60)
    for name in ("demo", "next"):
        (line,) = [message for message in caplog.messages if message.startswith(f"{name} version 2: loaded")]
        assert re.fullmatch(r"\w+ version 2: loaded in \d+\.\d s, 0 warm-up requests in \d+\.\d s", line)


def test_a_model_that_does_not_load_ends_the_start_and_frees_the_ports(tmp_path):
    folder = made_serving.write_model(tmp_path, 1)
    next(folder.glob("variables/*.data*")).write_bytes(b"")
    with event_loop() as run:
        server = Server(options_for(tmp_path, poll_seconds=0.05))
        with pytest.raises(ValueError, match="^model demo: "):
            run(server.start()).result(60)
        for port in (server.ports.rest_port, server.ports.grpc_port):
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                other.bind(("127.0.0.1", port))


@pytest.mark.parametrize(("port", "flag"), [("rest_port", "rest_api_port"), ("grpc_port", "port")])
def test_a_taken_port_is_known_at_once_by_its_flag(port, flag):
    with socket.create_server(("127.0.0.1", 0)) as other, event_loop() as run:
        number = other.getsockname()[1]
        with pytest.raises(OSError, match=f"^--{flag}={number}: cannot listen on 127.0.0.1:{number}: Address already"):
            run(Server(options_for("nowhere", **{port: number})).start()).result(60)


def test_a_host_that_does_not_exist_is_named():
    with event_loop() as run, pytest.raises(OSError, match=r"^--host=no\.invalid: cannot listen there: ."):
        run(Server(options_for("nowhere", host="no.invalid")).start()).result(60)


@pytest.fixture
def both_forms(tmp_path):
    """An export in two forms, as `--models` finds it: the options of its server."""
    for form in ("text", "ids"):
        (tmp_path / "pair" / form).mkdir(parents=True)
        made_serving.write_model(tmp_path / "pair" / form, 1)
    with imported_tool("serve", "official_bert/commands") as serve:
        return options_for(tmp_path, models=serve.read_served("default", "", "", "", str(tmp_path)))


def test_the_ids_of_an_export_are_loaded_by_the_first_request_for_them(both_forms, monkeypatch):
    loads, load = [], Servable.__init__

    def counted(self, name, *arguments):
        loads.append(name)
        load(self, name, *arguments)

    monkeypatch.setattr(Servable, "__init__", counted)
    with made_serving.embedded(both_forms) as running:
        assert running.ask("/readyz")[0] == 200 and loads == ["pair"]
        assert json.loads(running.ask("/v1/models")[1])["models"] == ["pair", "pair_ids"]
        assert json.loads(running.ask("/v1/models/pair_ids")[1])["model_version_status"][0]["state"] == "START"
        time.sleep(0.5)  # some looks at the folders
        assert loads == ["pair"]
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            asked = pool.map(lambda _: running.ask("/v1/models/pair_ids:predict", PREDICT[1])[0], range(20))
            assert set(asked) == {200}
        assert loads == ["pair", "pair_ids"] and running.ask("/readyz")[0] == 200
        assert json.loads(running.ask("/info")[1])["model_id"] == "pair"  # one export has no choice


def test_ids_that_do_not_load_leave_the_server_ready_and_say_why(both_forms):
    next(pathlib.Path(both_forms.models[1].base_path).glob("1/variables/*.data*")).write_bytes(b"")
    with made_serving.embedded(both_forms) as running:
        made_serving.wait_for(lambda: running.ask("/v1/models/pair_ids:predict", PREDICT[1])[0] == 404)
        assert running.ask("/readyz")[0] == 200 and running.ask("/v1/models/pair:predict", PREDICT[1])[0] == 200


def test_a_server_is_ready_when_all_signatures_are_warm(tmp_path, monkeypatch):
    from test_server import write_warmup

    folder, ready = made_serving.write_model(tmp_path, 1), []
    write_warmup(folder, [("serving_default", {"text": ["a"]}), ("pair", {"text": ["a"], "text_pair": ["b"]})])
    time.sleep(0.2)
    warm_up = Servable._warm_up_by

    def watched(self, place, request):
        state = server.services.manager.statuses("demo")[0].state
        ready.append((request.model_spec.signature_name, state, server.services.handler.why_not_ready() == ""))
        warm_up(self, place, request)

    monkeypatch.setattr(Servable, "_warm_up_by", watched)
    with event_loop() as run:
        server = Server(options_for(tmp_path))
        run(server.start()).result(60)
        assert server.services.handler.why_not_ready() == ""
        run(server.stop()).result(60)
    assert ready == [("serving_default", "LOADING", False), ("pair", "LOADING", False)]


@pytest.mark.slow
def test_after_sigterm_it_answers_and_says_that_it_is_not_ready(demo_root):
    """Over both protocols, for the time it was given; a second signal ends that."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "official_bert.serve",
            "--rest_api_port=0",
            "--port=0",
            "--lame_duck_seconds=60",
            "--drain_seconds=1",
            f"--model_base_path={demo_root}/demo",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        url, target = re.search(r"(http://\S+); gRPC: (\S+)", process.stdout.readline()).groups()
        asked = made_serving.Running(url.rpartition(":")[2], target.rpartition(":")[2], True)
        predict = "/v1/models/default:predict", PREDICT[1]
        assert asked.ask("/readyz")[0] == asked.ask(*predict)[0] == 200
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]))) as kept:
            kept.request("POST", *predict)
            assert kept.getresponse().read()
            process.send_signal(signal.SIGTERM)
            made_serving.wait_for(lambda: asked.ask("/readyz")[0] == 503)
            assert asked.ask("/healthz")[0] == asked.ask(*predict)[0] == 200
            kept.request("POST", *predict)
            assert kept.getresponse().headers["Connection"] == "close"  # its next request goes elsewhere
        with grpc.insecure_channel(target) as channel:
            checked = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60)
            assert checked.status == STATES.NOT_SERVING
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        assert "Traceback" not in process.communicate()[1]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("seconds", [0.0, 3.0])
def test_a_signal_ends_a_server_that_is_still_loading(demo_root, number, seconds):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "official_bert.serve",
            "--rest_api_port=0",
            f"--model_base_path={demo_root}/demo",
            "--file_system_poll_wait_seconds=600",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        os.utime(demo_root / "demo" / "2" / "saved_model.pb")  # fresh: it waits, as if it still loaded
        line = process.stderr.readline()
        assert "listening, with default" in line
        url = re.search(r"http://\S+", line)[0]
        asked = made_serving.Running(url.rpartition(":")[2], 0, True)
        assert asked.ask("/healthz")[0] == 200 and asked.ask("/readyz")[0] == 503
        time.sleep(seconds)
        process.send_signal(number)
        assert process.wait(20) == 0
        assert "Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()
