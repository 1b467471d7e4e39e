"""deploy/nginx.conf, run by nginx in front of two servers: protocols, TLS, limits, rolling updates, bad clients."""

import concurrent.futures
import contextlib
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import grpc
import made_serving
import numpy as np
import pytest
import tensorflow as tf
import urllib3
from commands import ROOT
from local_ports import free_ports
from needed_tools import need
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc
from test_hostile_load import REQUESTS, ask_rightly, send_grpc, send_rest

need("nginx")
pytestmark = pytest.mark.slow
PREDICT = "/v1/models/demo:predict"
MAIN = (
    "daemon off;\nworker_processes 1;\npid {0}/pid;\nerror_log {0}/error.log;\nevents {{ worker_connections 1024; }}\n"
)
HTTP = "http {{\naccess_log off;\n{1}include {0}/official_bert.conf;\n}}\n"
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def start_server(demo_root, ports):
    """Starts a server at ports for REST and gRPC."""
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "official_bert.serve",
            f"--model_base_path={demo_root}/demo",
            "--model_name=demo",
            f"--rest_api_port={ports[0]}",
            f"--port={ports[1]}",
            "--allowed_hosts=models.example.org",
            "--lame_duck_seconds=1",
            "--drain_seconds=10",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )


def is_ready(port):
    with contextlib.suppress(OSError, urllib3.exceptions.HTTPError):
        return urllib3.request("GET", f"http://127.0.0.1:{port}/readyz", retries=False, timeout=5).status == 200
    return False


@pytest.fixture(scope="module")
def behind(demo_root, certificate, tmp_path_factory):
    """Two servers behind nginx with TLS, and again without: (their ports, their processes, port, plain ports)."""
    servers, (tls, plain, http2) = (free_ports(2), free_ports(2)), free_ports(3)
    folder = tmp_path_factory.mktemp("nginx")
    folder.chmod(0o755)
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    for old, new in (
        ("127.0.0.1:8501", f"127.0.0.1:{servers[0][0]}"),
        ("127.0.0.1:8601", f"127.0.0.1:{servers[1][0]}"),
        ("127.0.0.1:8500", f"127.0.0.1:{servers[0][1]}"),
        ("127.0.0.1:8600", f"127.0.0.1:{servers[1][1]}"),
        ("listen 443 ssl http2;", f"listen 127.0.0.1:{tls} ssl http2;"),
        ("/etc/ssl/certs/models.example.org.pem", certificate[0]),
        ("/etc/ssl/private/models.example.org.key", certificate[1]),
    ):
        assert old in text, old
        text = text.replace(old, new)
    server = text[text.index("server {\n") :]
    unencrypted = re.sub(
        r"    listen .*\n", f"    listen 127.0.0.1:{plain};\n    listen 127.0.0.1:{http2} http2;\n", server
    )
    (folder / "official_bert.conf").write_text(text + re.sub(r"    ssl_.*\n", "", unencrypted))
    paths = "".join(f"{name}_temp_path {folder}/{name};\n" for name in TEMPORARY)
    (folder / "nginx.conf").write_text((MAIN + HTTP).format(folder, paths))
    processes = [start_server(demo_root, ports) for ports in servers]
    nginx = subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")])
    try:
        made_serving.wait_for(lambda: all(is_ready(ports[0]) for ports in servers))
        made_serving.wait_for(lambda: is_ready(plain))
        yield servers, processes, tls, (plain, http2)
    finally:
        nginx.terminate()
        for process in (*processes, nginx):
            process.kill() if process is not nginx else process.wait(20)
            process.wait(20)


def test_both_protocols_come_through_encrypted_and_within_the_limits(behind, certificate):
    with urllib3.PoolManager(ca_certs=certificate[0], retries=False) as http:
        url, headers = f"https://localhost:{behind[2]}", {"Content-Type": "application/json"}
        answer = http.request("POST", url + PREDICT, body=b'{"instances": ["abc"]}', headers=headers)
        assert answer.status == 200 and answer.json()["predictions"][0]["upper"] == "ABC"
        assert re.fullmatch("[0-9a-f]{32}", answer.headers["X-Request-Id"])
        named = {**headers, "Host": "models.example.org"}
        assert http.request("POST", url + PREDICT, body=b'{"instances": ["abc"]}', headers=named).status == 200
        strange = {**headers, "Host": "attacker.example"}  # checked behind nginx too
        assert http.request("POST", url + PREDICT, body=b'{"instances": ["abc"]}', headers=strange).status == 403
        assert http.request("POST", url + PREDICT, body=b" " * (9 << 20), headers=headers).status == 413
    credentials = grpc.ssl_channel_credentials(pathlib.Path(certificate[0]).read_bytes())
    with grpc.secure_channel(f"localhost:{behind[2]}", credentials) as channel:
        request = predict_pb2.PredictRequest(inputs={"text": tf.make_tensor_proto(["abc"])})
        request.model_spec.name = "demo"
        answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=60)
        assert tf.make_ndarray(answer.outputs["length"]).tolist() == [3]
        numbers = np.zeros([1, 3 << 20], np.float32)
        request.inputs["text"].CopyFrom(tf.make_tensor_proto(numbers))
        with pytest.raises(grpc.RpcError):
            prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=60)


def test_a_rolling_update_under_load_fails_no_request(behind, demo_root):
    """Each server is stopped by SIGTERM and started again, while four clients ask without trying again."""
    servers, processes, _, (plain, _) = behind
    stop, counts = threading.Event(), []

    def ask(number):
        count = 0
        with urllib3.PoolManager(retries=False, timeout=60) as http:
            while not stop.is_set():
                text = "x" * (1 + (count + number) % 40)
                answer = http.request("POST", f"http://127.0.0.1:{plain}{PREDICT}", json={"instances": [text]})
                assert answer.status == 200 and answer.json()["predictions"][0]["length"] == len(text), answer.data
                count += 1
        counts.append(count)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask, number) for number in range(4)]
        try:
            for place, ports in enumerate(servers):
                processes[place].send_signal(signal.SIGTERM)
                assert processes[place].wait(60) == 0
                time.sleep(0.5)
                processes[place] = start_server(demo_root, ports)
                made_serving.wait_for(lambda ports=ports: is_ready(ports[0]))
        finally:
            stop.set()
        for future in asking:
            future.result()
    print(f"{sum(counts)} requests during the update, none failed")
    assert min(counts) > 10


def test_bad_clients_hurt_no_innocent_one(behind):
    """Thousands of broken requests, and connections that say nothing or half of a request."""
    *_, (plain, http2) = behind
    tallies, latencies, stop = [{} for _ in range(4)], [], threading.Event()

    def attack(number):
        rng = random.Random(number)
        with grpc.insecure_channel(f"127.0.0.1:{http2}") as channel:
            for _ in range(REQUESTS // 40):
                if number % 2:
                    send_grpc(channel, rng, tallies[number])
                else:
                    send_rest(("127.0.0.1", plain), rng, tallies[number])

    with concurrent.futures.ThreadPoolExecutor(6) as pool, contextlib.ExitStack() as stack:
        asking = pool.submit(ask_rightly, f"http://127.0.0.1:{plain}", f"127.0.0.1:{http2}", stop, latencies)
        for number in range(40):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", plain)))
            connection.sendall((b"", b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{")[number % 2])
        attacking = [pool.submit(attack, number) for number in range(4)]
        try:
            for future in attacking:
                future.result()
        finally:
            stop.set()
        asking.result()
    together = {key: sum(tally.get(key, 0) for tally in tallies) for key in {key for tally in tallies for key in tally}}
    latencies.sort()
    print(f"{together}; {len(latencies)} innocent requests, longest {1000 * latencies[-1]:.0f} ms")
    assert len(latencies) > 10 and together["200"] > 0 and together["400"] > 0
    assert all(process.poll() is None for process in behind[1])
