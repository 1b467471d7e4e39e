"""Ten minutes of every protocol at once, right requests and wrong ones: the server goes on answering, and its memory
does not grow.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

import numpy as np
import openai
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
import urllib3
from memory import anonymous_memory

from official_bert.config import Config, TokenizerConfig
from official_bert.models.encoder import make_encoder
from official_bert.serving import export
from official_bert.serving.served_embeddings import ServedEmbeddings

pytestmark = pytest.mark.slow
MINUTES = float(os.environ.get("PROTOCOLS_LOAD_MINUTES", "10"))
WARM_UP = 0.15  # of the time
MOST_GROWTH = 0.02
WORDS = ["the", "surveyor", "met", "three", "youngest", "apprentices", "in", "a", "greenhouse", "while", "it", "rained"]
WRONG = (
    ("/v1/embeddings", {"model": "gone", "input": "a"}),
    ("/v1/embeddings", {"model": "text", "input": []}),
    ("/embed", {"inputs": 1}),
    ("/v1/embeddings", {"model": "text", "input": "a", "dimensions": 999}),
    ("/rerank", {"query": "a", "texts": ["b"]}),
    ("/embed_sparse", {"inputs": "a"}),
    ("/v2/models/text/infer", {"inputs": [{"name": "text", "shape": [1 << 40], "datatype": "BYTES"}]}),
    ("/v2/models/gone/infer", {}),
    ("/v2/models/text/infer", {"inputs": [{"name": "text", "shape": [2], "datatype": "INT32"}]}),
)


class Loads:
    """Threads that send until the time is over; counts answers, and keeps what was not as documented."""

    def __init__(self, url, target, seconds):
        self.url, self.target, self.end = url, target, time.monotonic() + seconds
        self.counts, self.faults = {}, []

    def run(self):
        loops = (self.openai, self.tei, self.tf_serving, self.triton, self.triton_grpc, self.wrong)
        threads = [threading.Thread(target=self.repeat, args=(loop,)) for loop in loops]
        for thread in threads:
            thread.start()
        return threads

    def repeat(self, loop):
        draw = np.random.default_rng(len(loop.__name__))
        try:
            for _ in loop(
                lambda: [
                    " ".join(draw.choice(WORDS, draw.integers(1, 20))) for _text in range(draw.choice([1, 1, 3, 8]))
                ]
            ):
                self.counts[loop.__name__] = self.counts.get(loop.__name__, 0) + 1
                if time.monotonic() > self.end:
                    return
        except Exception as error:
            self.faults.append(f"{loop.__name__}: {error!r}")

    def openai(self, texts):
        with openai.OpenAI(base_url=f"{self.url}/v1", api_key="none") as client:
            while True:
                some = [text[:60] for text in texts()]  # longer ones would be refused: the model takes 32 tokens
                assert len(client.embeddings.create(model="text", input=some).data) == len(some)
                yield
                client.embeddings.create(model="text", input=[[2, 7, 8, 3], [2, 3]], encoding_format="float")
                yield

    def tei(self, texts):
        for pool in [urllib3.PoolManager()]:
            while True:
                some = texts()
                answer = pool.request("POST", f"{self.url}/embed", json={"inputs": some, "truncate": True})
                assert answer.status == 200 and len(answer.json()) == len(some)
                yield

    def tf_serving(self, texts):
        for pool in [urllib3.PoolManager()]:
            while True:
                assert (
                    pool.request("POST", f"{self.url}/v1/models/text:predict", json={"instances": texts()}).status
                    == 200
                )
                yield

    def triton(self, texts):
        with triton_http.InferenceServerClient(self.url.removeprefix("http://")) as client:
            yield from self.infer(triton_http, client, texts)

    def triton_grpc(self, texts):
        with triton_grpc.InferenceServerClient(self.target) as client:
            yield from self.infer(triton_grpc, client, texts)

    def infer(self, module, client, texts):
        while True:
            some = np.array([text.encode() for text in texts()], object)
            value = module.InferInput("text", list(some.shape), "BYTES")
            value.set_data_from_numpy(some)
            assert client.infer("text", [value]).as_numpy("embedding").shape == (len(some), 16)
            yield

    def wrong(self, _):
        for pool in [urllib3.PoolManager()]:
            while True:
                for path, body in WRONG:
                    answer = pool.request("POST", self.url + path, json=body)
                    assert 400 <= answer.status < 500 and answer.json()["error"], (path, body, answer.status)
                    yield
                headers = {"Content-Type": "application/json"}
                assert pool.request("POST", f"{self.url}/embed", body=b"[" * 40_000, headers=headers).status == 400
                yield


@pytest.mark.speed
def test_memory_stays_what_it_is_under_every_protocol(graph_tokenizer, small_config, golden, tmp_path):
    served = ServedEmbeddings(make_encoder(small_config), graph_tokenizer, 32)
    config = Config(model=small_config, tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt")))
    export.export(served, config, export.ExportOptions(output=str(tmp_path / "model"), batch_sizes=(1, 8)))
    (tmp_path / "models.config").write_text(
        "model_config_list {"
        + "".join(
            f'config {{ name: "{form}" base_path: "{tmp_path}/model/{form}" model_platform: "tensorflow" }}'
            for form in ("text", "ids")
        )
        + "}"
    )
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "official_bert.serve",
            f"--model_config_file={tmp_path}/models.config",
            "--default_model=text",
            "--rest_api_port=0",
            "--port=0",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        url, target = re.search(
            r"(http://127\.0\.0\.1:\d+); gRPC: (127\.0\.0\.1:\d+)", server.stdout.readline()
        ).groups()
        loads = Loads(url, target, 60 * MINUTES)
        threads, began, samples = loads.run(), time.monotonic(), []
        while any(thread.is_alive() for thread in threads):
            samples.append((time.monotonic() - began, anonymous_memory(server.pid)))
            time.sleep(2)
        total = samples[-1][0]
        early = statistics.median(size for when, size in samples if WARM_UP * total < when <= 2 * WARM_UP * total)
        late = statistics.median(size for when, size in samples if when > (1 - WARM_UP) * total)
        part = max(1, len(samples) // 8)
        parts = [
            statistics.median(size for _, size in samples[place : place + part]) / 1024
            for place in range(0, len(samples), part)
        ]
        print(
            f"\n{json.dumps(loads.counts)}\nRssAnon {early / 1024:.1f} MB, then {late / 1024:.1f} MB: "
            f"{late / early - 1:+.2%}; over time {', '.join(f'{size:.1f}' for size in parts)}"
        )
        assert not loads.faults and len(loads.counts) == 6, loads.faults
        assert late / early - 1 < MOST_GROWTH
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.communicate()
