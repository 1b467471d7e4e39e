"""SavedModels without BERT, and servers of them."""

import asyncio
import contextlib
import os
import pathlib
import subprocess
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import tensorflow as tf
from local_ports import free_ports

MODELS = """
model_config_list {
  config { name: 'demo' base_path: 'ROOT/demo' model_platform: 'tensorflow' }
  config { name: 'labelled' base_path: 'ROOT/demo' model_platform: 'tensorflow'
           model_version_policy { specific { versions: 1 versions: 2 } }
           version_labels { key: 'stable' value: 1 } version_labels { key: 'canary' value: 2 } }
}
"""
BATCHING = """
max_batch_size { value: 1024 }
enable_large_batch_splitting { value: true }
max_execution_batch_size { value: 16 }
batch_timeout_micros { value: 1000 }
max_enqueued_batches { value: 100 }
num_batch_threads { value: 2 }
"""
MONITORING = 'prometheus_config { enable: true path: "/monitoring/prometheus/metrics" }'


# Has a session run a graph as it was written: TensorFlow's optimizer of graphs takes longer than a few answers.
AS_WRITTEN = tf.compat.v1.ConfigProto()
AS_WRITTEN.graph_options.rewrite_options.disable_meta_optimizer = True


def texts(*names):
    return [tf.TensorSpec([None], tf.string, name) for name in names]


class Demo(tf.Module):
    """Signatures of every kind that a client may meet."""

    def __init__(self, version):
        super().__init__()
        self.version = tf.Variable(version)

    @tf.function(input_signature=texts("text"), autograph=False)
    def text(self, text):
        length = tf.strings.length(text, unit="UTF8_CHAR")
        return {
            "length": length,
            "upper": tf.strings.upper(text, encoding="utf-8"),
            "score": tf.cast(length, tf.float32) / 10,
            "version": tf.fill(tf.shape(text), self.version),
        }

    @tf.function(input_signature=texts("text", "text_pair"), autograph=False)
    def pair(self, text, text_pair):
        return {
            "joined": text + "|" + text_pair,
            "equal": text == text_pair,
            "vector": tf.stack([tf.cast(tf.strings.length(value), tf.float32) for value in (text, text_pair)], 1),
        }

    @tf.function(input_signature=texts("inputs"), autograph=False)
    def binary(self, inputs):
        return {"copy_bytes": inputs, "size": tf.strings.length(inputs)}

    @tf.function(input_signature=texts("inputs"), autograph=False)
    def number(self, inputs):
        """Fails on a text that is not a number, and quotes it in the message."""
        return {"number": tf.strings.to_number(inputs), "size": tf.strings.length(inputs)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, "sizes")], autograph=False)
    def long(self, sizes):
        """Returns as many numbers as the request wants."""
        return {"numbers": tf.zeros([tf.size(sizes), tf.reduce_max(sizes)]), "sizes": sizes}

    @tf.function(input_signature=texts("text"), autograph=False)
    def words(self, text):
        return {"words": tf.strings.split(text).to_tensor()}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None], tf.int32, "input_ids"),
            tf.TensorSpec([None, None], tf.int32, "input_mask"),
        ],
        autograph=False,
    )
    def ids(self, input_ids, input_mask):
        tf.debugging.assert_less(tf.shape(input_ids)[1], 10, "input_ids: expected fewer than 10")
        return {"sum": tf.reduce_sum(tf.cast(input_ids * input_mask, tf.int64), 1), "row": input_ids * 2}

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")], autograph=False)
    def numbers(self, x):
        return {
            "same": x,
            "log": tf.math.log(tf.abs(x) + 1),
            "half": tf.cast(x, tf.bfloat16),
            "double": tf.cast(x, tf.float64),
            "positive": x > 0,
        }

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32, "x")], autograph=False)
    def scalar(self, x):
        return {"y": 2 * x}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int32, "steps")], autograph=False)
    def work(self, steps):
        """Takes about a microsecond a step."""
        _, total = tf.while_loop(
            lambda step, _: step < tf.reduce_max(steps),
            lambda step, total: (step + 1, total + 1.0),
            [0, 0.0],
            parallel_iterations=1,
        )
        return {"total": tf.fill(tf.shape(steps), total)}


def write_model(folder, version, name=None):
    """Writes version `version` of the demo model to folder/version, by way of a temporary folder."""
    model = Demo(version)
    temporary, target = pathlib.Path(folder) / f".writing-{version}", pathlib.Path(folder) / str(name or version)
    signatures = {
        "serving_default": model.text,
        **{
            key: getattr(model, key)
            for key in ("pair", "binary", "number", "long", "words", "ids", "numbers", "scalar", "work")
        },
    }
    tf.saved_model.save(model, str(temporary), signatures=signatures)
    os.replace(temporary, target)
    return target


def write_configs(root):
    """Writes models.config, batching.config and monitoring.config for models in `root`."""
    for name, text in (
        ("models", MODELS.replace("ROOT", str(root))),
        ("batching", BATCHING),
        ("monitoring", MONITORING),
    ):
        (pathlib.Path(root) / f"{name}.config").write_text(text)


class Running:
    """A server's addresses; `embedded` is true for our own server."""

    def __init__(self, rest_port, grpc_port, embedded, server=None):
        self.url, self.target = f"http://127.0.0.1:{rest_port}", f"127.0.0.1:{grpc_port}"
        self.embedded, self.server = embedded, server

    def ask(self, path, body=None, method=None, headers=None):
        """Returns (status, body) of an HTTP request, also for an error."""
        request = urllib.request.Request(self.url + path, body, headers or {}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()


@contextlib.contextmanager
def embedded(options):
    """Runs the embedded server in a thread of this process."""
    from official_bert.server.server import Server

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(120)

    async def make():
        return Server(options)

    server = run(make())
    run(server.start())
    try:
        yield Running(server.ports.rest_port, server.ports.grpc_port, True, server)
    finally:
        run(server.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def wait_for(condition, seconds=120):
    """Waits until a condition holds; fails if it takes longer."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextlib.contextmanager
def tf_serving(binary, root):
    """Runs TensorFlow Serving's binary with the configuration files in `root`."""
    ports = free_ports(2)
    process = subprocess.Popen(
        [
            binary,
            f"--rest_api_port={ports[0]}",
            f"--port={ports[1]}",
            f"--model_config_file={root}/models.config",
            "--enable_batching",
            f"--batching_parameters_file={root}/batching.config",
            f"--monitoring_config_file={root}/monitoring.config",
            "--file_system_poll_wait_seconds=1",
        ]
    )
    running = Running(*ports, False)
    try:
        deadline = time.time() + 120
        while True:
            try:
                if running.ask("/v1/models/demo")[0] == 200:
                    break
            except OSError:
                pass
            assert process.poll() is None and time.time() < deadline, "tensorflow_model_server does not answer"
            time.sleep(0.5)
        yield running
    finally:
        process.terminate()
        process.wait(60)


def unit(*numbers):
    """Returns a vector of length 1."""
    return np.array(numbers) / np.linalg.norm(numbers)
