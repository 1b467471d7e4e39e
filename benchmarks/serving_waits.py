"""Measures how long the first requests to a server wait: from its start to the first answer, and after idle seconds.

    python -m official_bert.run_export --checkpoint=MODEL_FOLDER --head=embeddings --output=models/mini
    python benchmarks/serving_waits.py --model_base_path=models/mini/text

Prints seconds from the command to /readyz and to the first answer, milliseconds of requests that follow each other and
of those that come after idle seconds, and the server's memory. Exit status 1 if the slowest of the latter takes more
than twice their median.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time

import urllib3
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("model_base_path", None, "An exported model's text folder.", required=True)
flags.DEFINE_string("text", "The quick brown fox jumps over the lazy dog.", "What is asked.")
flags.DEFINE_integer("count", 20, "Requests of each kind.", 1)
flags.DEFINE_float("idle_seconds", 6.0, "Seconds without a request before each of the second kind.", 0.0)
flags.DEFINE_multi_string("flag", [], "Further flags of serve, such as --flag=--engine=onnx.")


def main(_) -> None:
    """Starts the server, asks it, and prints a line for each figure."""
    began = time.perf_counter()
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "official_bert.serve",
            f"--model_base_path={FLAGS.model_base_path}",
            "--rest_api_port=0",
            *FLAGS.flag,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url = re.search(r"http://[^;\s]+", server.stdout.readline())[0]
        with urllib3.PoolManager(retries=False, timeout=120) as http:
            assert http.request("GET", f"{url}/readyz").status == 200
            ready = time.perf_counter() - began
            ask(http, url)
            print(f"ready after {ready:.2f} s, first answer after {time.perf_counter() - began:.2f} s")
            show("one after the other", [ask(http, url) for _ in range(FLAGS.count)])
            memory = resident(server.pid)
            late = []
            for _ in range(FLAGS.count):
                time.sleep(FLAGS.idle_seconds)
                late.append(ask(http, url))
            show(f"each after {FLAGS.idle_seconds:g} idle seconds", late)
            print(f"memory {memory / 1e6:.0f} MB, at the end {resident(server.pid) / 1e6:.0f} MB")
    finally:
        server.kill()
        server.wait()
    sys.exit(max(late) > 2 * statistics.median(late))


def ask(http: urllib3.PoolManager, url: str) -> float:
    """Returns the milliseconds of a request."""
    began = time.perf_counter()
    response = http.request("POST", f"{url}/v1/models/default:predict", body=json.dumps({"instances": [FLAGS.text]}))
    assert response.status == 200, response.data
    return 1000 * (time.perf_counter() - began)


def show(name: str, times: list[float]) -> None:
    """Prints the middle and the longest time."""
    print(f"{name}: median {statistics.median(times):.1f} ms, longest {max(times):.1f} ms")


def resident(pid: int) -> int:
    """Returns the bytes of a process in memory."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    app.run(main)
