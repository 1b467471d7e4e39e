"""Compares ways to choose the server's batches: latencies under requests that arrive whether or not others are
answered.

    python benchmarks/batching.py --vocab_file=vocab.txt
    python benchmarks/batching.py --model=models/small/text --servers=0,512,0:deploy/batching.config

A server process for each RUN_COST or RUN_COST:BATCHING_PARAMETERS_FILE (0: the oldest requests share a batch, by rows
alone). First the capacity of each, with --clients requests under way all the time; then, for each share of the first
one's capacity, the same texts at the same random times (Poisson) to each of them in turn. Without --model, the model
has the size of MiniLM and random weights. Texts have 1 to 200 words as in serving.py; --long makes one in ten 200 words
long and the others 8. The client, one event loop with prepared bodies, shares the cores with the server; the last
columns say how much of one core it took, and how late it sent requests.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_string("model", "", "A text model's folder of versions; empty: MiniLM's size with random weights.")
flags.DEFINE_string("vocab_file", "", "The vocabulary, without --model.")
flags.DEFINE_list(
    "servers", ["0", "512"], "--run_cost of each server, and its file of parameters; the first one's capacity counts."
)
flags.DEFINE_list("loads", ["0.5", "0.8", "0.95"], "Shares of the capacity.")
flags.DEFINE_float("seconds", 10.0, "Time of arrivals in a turn.", 0.1)
flags.DEFINE_float("capacity_seconds", 10.0, "Time to measure each capacity.", 0.1)
flags.DEFINE_integer("clients", 64, "Requests under way while capacity is measured.", 1)
flags.DEFINE_integer(
    "rounds", 3, "Turns of each server at each load, with other arrivals each time; medians are printed.", 1
)
flags.DEFINE_integer("seed", 1, "The seed of texts and arrivals.")
flags.DEFINE_bool("long", False, "One text of 200 words among nine of 8.")
SIZE = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
    "vocab_size": 30522,
}
WORDS = (
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
    "and",
    "because",
    "window",
    "garden",
    "music",
    "winter",
    "unbelievable",
    "neighbourhood",
    "thermometer",
)
HEADER = (
    "POST /v1/models/default:predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
    "application/json\r\nContent-Length: {}\r\n\r\n"
)


@dataclasses.dataclass
class Result:
    """Seconds of the requests answered, how many were refused, how late each was sent, all in `wall` seconds."""

    latencies: list[float] = dataclasses.field(default_factory=list)
    late: list[float] = dataclasses.field(default_factory=list)
    refused: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    def figures(self) -> list[float]:
        """Returns p50, p99 (ms), answers per second, refusals, and the client's share of a core (%) and p99 of its
        lateness (ms).
        """
        return [
            *(1000 * np.percentile(self.latencies, share) for share in (50, 99)),
            len(self.latencies) / self.wall,
            self.refused,
            100 * self.cpu / self.wall,
            1000 * np.percentile(self.late, 99),
        ]


class Connections:
    """Connections to one server that are used again."""

    def __init__(self, port: int):
        self.port, self.free = port, []

    async def ask(self, request: bytes) -> int:
        """Sends a prepared request and returns the status when the answer is complete."""
        reader, writer = self.free.pop() if self.free else await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        await reader.readexactly(int(length[1]))
        if b"connection: close" in head.lower():
            writer.close()
        else:
            self.free.append((reader, writer))
        return int(head.split(b" ", 2)[1])


def make_model(folder: str) -> str:
    """Writes a classifier with random weights; returns the folder of its text model."""
    from official_bert.config import load_config
    from official_bert.runs.configuration import run_config
    from official_bert.serving import export
    from official_bert.serving.served_embeddings import make_served_model
    from official_bert.serving.served_model import ServingOptions
    from official_bert.tasks.loading import load_task

    settings = [
        "task=classification",
        "options.max_seq_length=256",
        "options.labels=[no, yes]",
        f"tokenizer.vocab_file={FLAGS.vocab_file}",
    ]
    config = load_config(
        None,
        overrides=[*settings, *(f"model.{name}={value}" for name, value in SIZE.items())],
        defaults=run_config.DEFAULTS,
    )
    task = load_task(config)
    served = make_served_model(task, task.build_model(), ServingOptions())
    export.export(served, config, export.ExportOptions(output=folder, batch_sizes=()))
    return os.path.join(folder, "text")


@contextlib.contextmanager
def serve(model: str, options: str):
    """Starts a server; gives its connections."""
    run_cost, _, file = options.partition(":")
    command = [
        sys.executable,
        "-m",
        "official_bert.serve",
        f"--model_base_path={model}",
        f"--run_cost={run_cost}",
        "--rest_api_port=0",
        # connections wait for their server's next turn
        "--port=-1",
        "--drain_seconds=0",
        "--keepalive_seconds=600",
        f"--batching_parameters_file={file}",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        started = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
        if not started:
            sys.exit(f"error: {' '.join(command)}: status {process.wait()}")
        yield Connections(int(started[1]))
    finally:
        process.kill()
        process.wait()


def make_requests(draw: random.Random, count: int) -> list[bytes]:
    """Returns requests of one text each."""
    requests = []
    for _ in range(count):
        words = (200 if draw.random() < 0.1 else 8) if FLAGS.long else int(200 ** draw.random())
        body = json.dumps({"instances": [" ".join(draw.choices(WORDS, k=words))]})
        requests.append((HEADER.format(len(body)) + body).encode())
    return requests


async def send(connections: Connections, request: bytes, result: Result) -> None:
    """Sends one request and notes how it went."""
    began = time.perf_counter()
    status = await connections.ask(request)
    if status == 200:
        result.latencies.append(time.perf_counter() - began)
    elif status == 503:
        result.refused += 1
    else:
        sys.exit(f"error: the server answered {status}")


async def capacity(connections: Connections, seconds: float, clients: int) -> float:
    """Returns answers per second while a number of requests is always under way."""
    requests, result = iter(make_requests(random.Random(FLAGS.seed), 20_000)), Result()
    until = time.perf_counter() + seconds

    async def client():
        while time.perf_counter() < until:
            await send(connections, next(requests), result)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return len(result.latencies) / (time.perf_counter() - began)


async def play(connections: Connections, arrivals: list[float], requests: list[bytes]) -> Result:
    """Sends each request at its time."""
    result, sending, cpu, began = Result(), [], time.process_time(), time.perf_counter()
    for when, request in zip(arrivals, requests):
        if (wait := began + when - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        result.late.append(max(0.0, time.perf_counter() - began - when))
        sending.append(asyncio.ensure_future(send(connections, request, result)))
    await asyncio.gather(*sending)
    result.wall, result.cpu = time.perf_counter() - began, time.process_time() - cpu
    return result


def record(rate: float, seed: int) -> tuple[list[float], list[bytes]]:
    """Returns times of arrival (s), exponentially distributed, and the requests."""
    draw, arrivals, now = random.Random(seed), [], 0.0
    while (now := now + draw.expovariate(rate)) < FLAGS.seconds:
        arrivals.append(now)
    return arrivals, make_requests(draw, len(arrivals))


async def measure(servers: dict[str, Connections]) -> None:
    """Measures and prints."""
    for connections in servers.values():
        await capacity(connections, 2.0, 2)  # warms up
    capacities = {
        name: await capacity(connections, FLAGS.capacity_seconds, FLAGS.clients)
        for name, connections in servers.items()
    }
    print("capacity, texts/s: " + ", ".join(f"{name} {rate:.1f}" for name, rate in capacities.items()), flush=True)
    first = next(iter(capacities.values()))
    columns = (
        "load",
        "run cost",
        "p50 (ms)",
        "p99 (ms)",
        "answered/s",
        "refused",
        "client: % of a core",
        "its lateness, p99 (ms)",
    )
    print(f"| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|", flush=True)
    for load in map(float, FLAGS.loads):
        rounds: dict[str, list[list[float]]] = {name: [] for name in servers}
        for turn in range(FLAGS.rounds):
            arrivals, requests = record(load * first, FLAGS.seed * 1000 + turn)
            for name, connections in servers.items():
                rounds[name].append((await play(connections, arrivals, requests)).figures())
        for name, figures in rounds.items():
            print(
                f"| {load:.0%} | {name} | " + " | ".join(f"{value:.1f}" for value in np.median(figures, axis=0)) + " |",
                flush=True,
            )


def main(_) -> None:
    """Makes the model, starts the servers, measures."""
    if bool(FLAGS.model) == bool(FLAGS.vocab_file):
        sys.exit("error: expected --model or --vocab_file")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        model = FLAGS.model or make_model(folder)
        asyncio.run(measure({name: stack.enter_context(serve(model, name)) for name in FLAGS.servers}))


if __name__ == "__main__":
    app.run(main)
