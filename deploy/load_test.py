"""Sends texts of mixed lengths to a server on this machine for a while, and prints the latencies.

    python deploy/load_test.py --url=http://127.0.0.1:8501 --model=small --seconds=30 --concurrency=8
    python deploy/load_test.py --grpc=127.0.0.1:8500 --model=small --rows=8
    # a fixed number of requests per second, however fast the server is
    python deploy/load_test.py --model=small --rate=40 --concurrency=64

It sends to loopback addresses only, and ends after --seconds or --requests, whichever comes first.
"""

from official_bert.command_line import run_main

import collections
import ipaddress
import json
import random
import socket
import threading
import time
import urllib.parse

import urllib3
from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string("url", "http://127.0.0.1:8501", "The server's REST address.")
flags.DEFINE_string("grpc", "", "The server's gRPC address; if given, the load is sent there.")
flags.DEFINE_string("api_token_file", "", "The server's file of tokens; the first one is sent.")
flags.DEFINE_string("model", "default", "The model's name.")
flags.DEFINE_string("signature", "", "The signature; empty: serving_default.")
flags.DEFINE_string("texts", "", "File of texts, one per line; empty: random sentences of 1 to 200 words.")
flags.DEFINE_list("rows", ["1"], "Rows per request; several sizes are mixed.")
flags.DEFINE_float("seconds", 30.0, "Most seconds that the test runs.", 0.1, 4 * 3600.0)
flags.DEFINE_integer("requests", 1_000_000, "Most requests to send.", 1, 100_000_000)
flags.DEFINE_integer("concurrency", 8, "Requests running at once; with --rate, the maximum.", 1, 256)
flags.DEFINE_float(
    "rate",
    0.0,
    "Requests per second, at random times; latencies then count from the time when a request was due. "
    "0: each of --concurrency clients sends its next request when it has its answer.",
    0.0,
)
flags.DEFINE_float(
    "mistakes", 0.0, "Share of requests that are invalid on purpose (REST); the server must refuse them.", 0.0, 1.0
)
flags.DEFINE_integer("seed", 1, "The seed of texts, sizes and mistakes.")

WORDS = [
    "the",
    "a",
    "of",
    "river",
    "mountain",
    "paper",
    "engine",
    "teacher",
    "walked",
    "writes",
    "between",
    "never",
    "quickly",
    "bright",
    "Zürich",
    "naïve",
    "北京",
    "and",
    "because",
    "window,",
    "garden.",
    "music?",
    "winter;",
    "unbelievable",
]
MOST_LATENCIES = 1_000_000
MISTAKES = (
    b"",
    b"{",
    b"[]",
    b"\xff\xfe",
    b'{"instances": []}',
    b'{"instances": [1, [2]]}',
    b'{"instances": [{"nobody": 1}]}',
    b'{"inputs": "x", "instances": ["x"]}',
    b'{"instances": ["\\ud800"]}',
    b"[" * 50_000,
    b'{"signature_name": "nobody", "instances": ["x"]}',
)


class Tally:
    """Counts results from several threads."""

    def __init__(self, rate: float = 0.0, seed: int = 0):
        self._rate, self._draw, self._due = rate, random.Random(seed), 0.0
        self.lock = threading.Lock()
        self.latencies = collections.deque(maxlen=MOST_LATENCIES)
        self.statuses = collections.Counter()
        self.sent = self.rows = 0

    def may_send(self, most: int) -> bool:
        """Reserves one of the remaining requests; returns False if there is none."""
        with self.lock:
            self.sent += 1
            return self.sent <= most

    def wait_until_due(self) -> float:
        """Waits until the next request is due, and returns that time (of `time.perf_counter`).

        Without a rate, it is due now.
        """
        now = time.perf_counter()
        if not self._rate:
            return now
        with self.lock:
            self._due = (self._due or now) + self._draw.expovariate(self._rate)
            due = self._due
        time.sleep(max(0.0, due - now))
        return due

    def add(self, status: str, seconds: float, rows: int) -> None:
        """Counts an answer."""
        with self.lock:
            self.statuses[status] += 1
            if status == "OK":
                self.latencies.append(seconds)
                self.rows += rows


def check_loopback(host: str) -> None:
    """Raises ValueError for a host that is not this machine."""
    addresses = {entry[4][0] for entry in socket.getaddrinfo(host, None)}
    if not addresses or not all(ipaddress.ip_address(str(address)).is_loopback for address in addresses):
        raise ValueError(
            f"{host}: expected an address of this machine (127.0.0.1 or localhost); load is sent to no other"
        )


def make_row(inputs, texts, rng: random.Random):
    """Returns a row of random texts for a signature's inputs. Raises ValueError for an input that is no text."""
    row = {}
    for name, dtype in inputs.items():
        if dtype != "DT_STRING":
            raise ValueError(f"--signature: input {name} is {dtype}: expected a signature of texts")
        text = rng.choice(texts) if texts else " ".join(rng.choices(WORDS, k=int(200 ** rng.random())))
        row[name] = [text, text] if name == "choices" else text
    return row


def send(client, tally: Tally, texts, sizes, deadline: float, seed: int) -> None:
    """Sends the requests of one thread, one after another."""
    from official_bert.tools.client import ServingError

    rng = random.Random(seed)
    http = urllib3.PoolManager(retries=False, timeout=60)
    inputs = client.signatures()[FLAGS.signature or "serving_default"]["inputs"]
    while time.monotonic() < deadline and tally.may_send(FLAGS.requests):
        started = tally.wait_until_due()
        if rng.random() < FLAGS.mistakes:
            answer = http.request(
                "POST",
                f"{FLAGS.url}/v1/models/{FLAGS.model}:predict",
                body=rng.choice(MISTAKES),
                headers=client.headers,
            )
            refused = answer.status == 400 and "error" in json.loads(answer.data)
            tally.add("refused as documented" if refused else f"MISTAKE ANSWERED {answer.status}", 0, 0)
            continue
        rows = [make_row(inputs, texts, rng) for _ in range(rng.choice(sizes))]
        try:
            client.predict(rows, FLAGS.signature)
            tally.add("OK", time.perf_counter() - started, len(rows))
        except ServingError as error:
            tally.add(error.code, 0, 0)


def main(_) -> None:
    """Sends the requests from several threads and prints the report."""
    from official_bert.server.listeners.access import read_tokens
    from official_bert.tools.client import GrpcClient, RestClient

    host = FLAGS.grpc.rpartition(":")[0].strip("[]") if FLAGS.grpc else urllib.parse.urlsplit(FLAGS.url).hostname or ""
    check_loopback(host)
    check_loopback(urllib.parse.urlsplit(FLAGS.url).hostname or "")
    sizes = [int(size) for size in FLAGS.rows]
    texts = None
    if FLAGS.texts:
        with open(FLAGS.texts, encoding="utf-8") as file:
            texts = [line.strip() for line in file if line.strip()][:100_000]
    token = read_tokens(FLAGS.api_token_file)[0] if FLAGS.api_token_file else ""
    options = {
        "batch_size": max(sizes),
        "concurrency": FLAGS.concurrency,
        "attempts": 1,
        "timeout": 60.0,
        "token": token,
    }
    client = (
        GrpcClient(FLAGS.grpc, FLAGS.model, **options) if FLAGS.grpc else RestClient(FLAGS.url, FLAGS.model, **options)
    )
    tally = Tally(FLAGS.rate, FLAGS.seed)
    with client:
        client.signatures()  # over gRPC this imports TensorFlow, which is no part of the load
        started = time.monotonic()
        threads = [
            threading.Thread(
                target=send, args=(client, tally, texts, sizes, started + FLAGS.seconds, FLAGS.seed * 1000 + number)
            )
            for number in range(FLAGS.concurrency)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    report(tally, time.monotonic() - started)


def report(tally: Tally, seconds: float) -> None:
    """Prints statuses, throughput and latencies. Raises ValueError if no request was answered."""
    latencies = sorted(tally.latencies)
    at_once = (
        f"{FLAGS.rate:g} requests per second, at most {FLAGS.concurrency} at once"
        if FLAGS.rate
        else f"{FLAGS.concurrency} at once"
    )
    print(f"{seconds:.1f} s, {at_once}, rows per request: {', '.join(FLAGS.rows)}")
    print("answers: " + ", ".join(f"{status} {count}" for status, count in sorted(tally.statuses.items())))
    if not latencies:
        raise ValueError("no request was answered")
    print(f"{len(latencies) / seconds:.1f} requests/s, {tally.rows / seconds:.1f} rows/s")
    print(
        "latency: "
        + ", ".join(
            f"p{share} {1000 * latencies[min(len(latencies) - 1, len(latencies) * share // 100)]:.1f} ms"
            for share in (50, 90, 99)
        )
    )


if __name__ == "__main__":
    run_main(main)
