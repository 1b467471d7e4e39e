"""Compares TensorFlow Serving in Docker with the embedded server: every head, over REST and gRPC, in small and large
requests.

    python deploy/check_tf_serving.py
    python deploy/check_tf_serving.py --image=tensorflow/serving:2.20.0

It makes a small model of each head with random weights, serves all of them in both servers, sends both the same
requests, and prints a line for each model. Status 0: all answers are equal. 1: some differ. 2: nothing was compared,
because Docker, its daemon or the image is missing.
"""

from official_bert.command_line import run_main

import contextlib
import dataclasses
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from absl import flags

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "image", "tensorflow/serving:2.20.0", "The image of TensorFlow Serving; deploy/docker-compose.yml has the same."
)
flags.DEFINE_float("seconds", 180.0, "Seconds that a server may take to load the models.", 1.0)

DEPLOY = os.path.dirname(os.path.abspath(__file__))
TOLERANCE = 1e-5  # relative above 1
SIZES = (1, 3, 40)  # texts of a request: warmed up, not warmed up, more than run at once
WORDS = ("the", "river", "between", "a", "Zürich", "naïve", "mountain", "[MASK]", "中国", "window,", "writes")
HEADS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # name: task, its options, options of the export
    "fill_mask": ("pretraining", {}, {"top_k": 3}),
    "classifier": ("classification", {"kind": "classifier", "labels": ["no", "ja", "être"]}, {}),
    "windows": (
        "classification",
        {"kind": "classifier", "labels": ["x", "y"], "truncate": "windows", "max_seq_length": 16, "doc_stride": 4},
        {},
    ),
    "several_labels": ("classification", {"kind": "multi_label", "labels": ["a", "b", "c"]}, {}),
    "pairs": ("glue", {"dataset": "rte", "labels": ["entailment", "not_entailment"]}, {}),
    "regression": ("glue", {"dataset": "stsb"}, {}),
    "choice": ("swag", {}, {}),
    "question_answering": ("squad", {"doc_stride": 8, "max_query_length": 12}, {}),
    "tagger": ("ner", {"labels": ["O", "B-PER", "I-PER"], "doc_stride": 8}, {}),
    "tagger_crf": ("ner", {"labels": ["O", "B-PER", "I-PER"], "doc_stride": 8, "crf": True}, {}),
    "embeddings": ("retrieval", {}, {}),
    "sparse_vectors": ("splade", {}, {"top_k": 24}),
    "reranker": ("reranking", {}, {}),
}


@dataclasses.dataclass(frozen=True)
class Address:
    """The ports of a server on this machine."""

    rest: int
    grpc: int


def why_no_docker(image: str) -> str:
    """Returns why Docker cannot run an image; "" if it can. Downloads the image if it is missing."""
    if shutil.which("docker") is None:
        return "the command docker is not installed"
    for commands in ([["info"]], [["image", "inspect", image], ["pull", "--quiet", image]]):  # one of each must succeed
        for command in commands:
            done = subprocess.run(["docker", *command], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
        else:
            return (done.stderr.strip().splitlines() or [f"docker {' '.join(command)} fails"])[-1]
    return ""


def write_models(folder: str, heads: Iterable[str] = HEADS) -> list[str]:
    """Exports a small model of each head; returns the names of the served models."""
    from official_bert.config import Config, ModelConfig, TokenizerConfig
    from official_bert.serving import export
    from official_bert.serving.served_embeddings import make_served_model
    from official_bert.serving.served_model import ServingOptions
    from official_bert.tasks.loading import load_task

    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *(f"##{letter}" for letter in letters),
        *".,?中国",
        "the",
    ]
    vocab_file = os.path.join(folder, "vocab.txt")
    with open(vocab_file, "w", encoding="utf-8") as file:
        file.writelines(f"{token}\n" for token in vocabulary)
    size = ModelConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=48,
        initializer_range=0.5,
    )
    names = []
    for head in heads:
        task_name, options, choices = HEADS[head]
        config = Config(
            task=task_name,
            model=size,
            options={"max_seq_length": 48, **options},
            tokenizer=TokenizerConfig(vocab_file=vocab_file),
        )
        task = load_task(config)
        export.export(
            make_served_model(task, task.build_model(), ServingOptions(**choices)),
            config,
            export.ExportOptions(output=os.path.join(folder, head), batch_sizes=(1, 8)),
        )
        names += [f"{head}/{form}" for form in export.FORMS]
    return names


def write_configuration(folder: str, names: Sequence[str], root: str) -> str:
    """Writes a configuration of models under the folder `root` on the server's machine; returns its path."""
    path = os.path.join(folder, f"{os.path.basename(root)}.config")
    entries = (
        f'  config {{ name: "{model_name(name)}" base_path: "{root}/{name}" model_platform: "tensorflow" }}\n'
        for name in names
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write("model_config_list {\n" + "".join(entries) + "}\n")
    return path


def model_name(folder: str) -> str:
    """Returns the name under which models/HEAD/FORM is served."""
    return folder.replace("/", "_")


@contextlib.contextmanager
def tf_serving(folder: str, names: Sequence[str]) -> Iterator[Address]:
    """Runs TensorFlow Serving with the models of `folder` and this folder's batching parameters."""
    address = Address(*free_ports(2))
    config = os.path.basename(write_configuration(folder, names, "/models"))
    container = f"check_tf_serving_{os.getpid()}"
    subprocess.run(
        [
            "docker",
            "run",
            "--detach",
            "--rm",
            "--init",
            "--name",
            container,
            "--publish",
            f"127.0.0.1:{address.grpc}:8500",
            "--publish",
            f"127.0.0.1:{address.rest}:8501",
            "--volume",
            f"{folder}:/models:ro",
            "--volume",
            f"{DEPLOY}:/config:ro",
            "--entrypoint",
            "tensorflow_model_server",
            FLAGS.image,
            "--port=8500",
            "--rest_api_port=8501",
            f"--model_config_file=/models/{config}",
            "--enable_batching",
            "--enable_per_model_batching_parameters",
            "--batching_parameters_file=/config/batching.config",
            "--enable_model_warmup",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for(
            address,
            names,
            lambda: subprocess.run(["docker", "inspect", container], capture_output=True, check=False).returncode == 0,
        )
        logs = subprocess.run(["docker", "logs", container], capture_output=True, text=True, check=False)
        print(
            f"{FLAGS.image}: {(logs.stdout + logs.stderr).count('Finished reading warmup data')} of {len(names)} "
            f"models were warmed up"
        )
        yield address
    finally:
        subprocess.run(["docker", "stop", container], capture_output=True, check=False)


@contextlib.contextmanager
def embedded(folder: str, names: Sequence[str]) -> Iterator[Address]:
    """Runs the embedded server with the same models and batching parameters."""
    address = Address(*free_ports(2))
    config = write_configuration(folder, names, folder)
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "official_bert.serve",
            f"--rest_api_port={address.rest}",
            f"--port={address.grpc}",
            f"--model_config_file={config}",
            "--enable_per_model_batching_parameters",
            f"--batching_parameters_file={DEPLOY}/batching.config",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(address, names, lambda: server.poll() is None)
        yield address
    finally:
        server.terminate()
        server.wait()


def wait_for(address: Address, names: Sequence[str], runs: Any) -> None:
    """Waits until all models are available. Raises ValueError if the server ends, or takes longer than --seconds."""
    deadline = time.monotonic() + FLAGS.seconds
    for name in names:
        while True:
            url = f"http://127.0.0.1:{address.rest}/v1/models/{model_name(name)}"
            with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
                if b'"AVAILABLE"' in answer.read():
                    break
            if not runs() or time.monotonic() > deadline:
                raise ValueError(f"the server on port {address.rest} does not serve {model_name(name)}; see its log")
            time.sleep(0.5)


def free_ports(count: int) -> list[int]:
    """Returns ports on which nothing listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return [listener.getsockname()[1] for listener in sockets]


def rows_for(signature: dict[str, str], head: str, count: int, draw: random.Random) -> list[dict[str, Any]]:
    """Returns rows for a signature: texts of mixed lengths, or ids padded with 0."""

    def text() -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.choice([0, 1, 4, 12])))

    def ids(length: int) -> dict[str, list[int]]:
        real = draw.randint(2, length)
        return {
            "input_ids": [2, *(draw.randint(5, 60) for _ in range(real - 2)), 3] + [0] * (length - real),
            "input_mask": [1] * real + [0] * (length - real),
            "segment_ids": [0] * length,
        }

    rows = []
    for _ in range(count):
        if "input_ids" not in signature:
            rows.append({name: [text(), text()] if name == "choices" else text() for name in signature})
        elif head == "choice":
            first, second = ids(14), ids(14)
            rows.append({name: [first[name], second[name]] for name in first})
        else:
            rows.append(ids(14) | ({"masked_lm_positions": [1, 0]} if "masked_lm_positions" in signature else {}))
    return rows


def compare(first: Address, second: Address, names: Sequence[str]) -> int:
    """Sends both servers the same requests and prints a line for each model; returns how many models answer
    differently.
    """
    from official_bert.tools.client import GrpcClient, RestClient

    wrong, draw = 0, random.Random(0)
    for folder in names:
        name, head = model_name(folder), folder.split("/")[0]
        differences, largest = [], 0.0
        with contextlib.ExitStack() as stack:
            clients = {
                protocol: [stack.enter_context(make(place)) for place in (first, second)]
                for protocol, make in (
                    (
                        "REST",
                        lambda place, name=name: RestClient(
                            f"http://127.0.0.1:{place.rest}", name, batch_size=max(SIZES)
                        ),
                    ),
                    (
                        "gRPC",
                        lambda place, name=name: GrpcClient(f"127.0.0.1:{place.grpc}", name, batch_size=max(SIZES)),
                    ),
                )
            }
            inputs = clients["REST"][1].signatures()["serving_default"]["inputs"]
            for size in SIZES:
                rows = rows_for(inputs, head, size, draw)
                for protocol, (first_client, second_client) in clients.items():
                    pairs = zip(first_client.predict(rows), second_client.predict(rows), strict=True)
                    worst = max(difference(a, b) for a, b in pairs)
                    largest = max(largest, worst)
                    if worst > TOLERANCE:
                        differences.append(f"{protocol}, {size} rows")
        wrong += bool(differences)
        print(
            f"{name}: {'DIFFERENT in ' + '; '.join(differences) if differences else 'equal'}, at most {largest:.1e}",
            flush=True,
        )
    return wrong


def difference(first: Any, second: Any) -> float:
    """Returns the largest difference between the numbers of two answers; infinity if anything else differs, also
    padding.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        return (
            max((difference(first[key], second[key]) for key in first), default=0.0)
            if first.keys() == second.keys()
            else float("inf")
        )
    if hasattr(first, "tolist") or hasattr(second, "tolist"):
        first, second = (value.tolist() if hasattr(value, "tolist") else value for value in (first, second))
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return (
            max((difference(a, b) for a, b in zip(first, second)), default=0.0)
            if len(first) == len(second)
            else float("inf")
        )
    if isinstance(first, float) or isinstance(second, float):
        return abs(first - second) / max(1.0, abs(first))
    return 0.0 if first == second else float("inf")


def main(_) -> None:
    """Compares the two servers and ends with the documented status."""
    if reason := why_no_docker(FLAGS.image):
        print(f"docker: {reason}; nothing was compared", file=sys.stderr)
        sys.exit(2)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # the container's user reads it
        names = write_models(folder)
        with embedded(folder, names) as ours, tf_serving(folder, names) as theirs:
            wrong = compare(theirs, ours, names)
    print(f"{len(names) - wrong} of {len(names)} models give equal answers in {FLAGS.image} and in the embedded server")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    run_main(main)
