"""Compares one pre-training step with those of keras-hub, tf-models-official and Hugging Face's PyTorch, at equal sizes
and batches.

    make venv-torch
    python benchmarks/pretraining_step.py                                     # all sizes, float32 and bfloat16
    python benchmarks/pretraining_step.py --sizes=tiny:64x128 --precisions=float32 --contenders=ours,keras_hub
    python benchmarks/pretraining_step.py --profile                           # instead, where the time of our step goes
    python benchmarks/pretraining_step.py --sizes=electra_small:32x128    # replaced tokens
    # instead, our step in the last checkout beside the others
    python benchmarks/pretraining_step.py --checkouts=../before,.

Each contender lives in a process of its own (`step_contenders.py`); they take turns of a few steps, and a figure is the
median over all turns. Tokens are all real. The share of the ceiling is the model's operations a second, counted alike
for everybody, over those of a large matrix product in the same precision, measured between the turns. Memory is the
peak of the process beyond what it held before its first step, so weights are not in it and moments are for those who
make them in the first step.
"""

import dataclasses
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

from absl import app, flags
from step_contenders import CONTENDERS

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "sizes",
    ["tiny:64x128", "small:16x128", "base:8x128", "small:4x512", "base:2x512"],
    "MODEL:ROWSxTOKENS, MODEL a file of configs/model, or electra_small of configs/pretrain (of ours and PyTorch "
    "alone).",
)
flags.DEFINE_list("precisions", ["float32", "bfloat16"], "Of all contenders.")
flags.DEFINE_list("contenders", list(CONTENDERS), "Names.")
flags.DEFINE_list(
    "checkouts",
    [],
    "Instead of libraries: folders of checkouts of this project; the last one is compared with the others.",
)
flags.DEFINE_integer("turns", 5, "Turns of each contender.", lower_bound=1)
flags.DEFINE_float("turn_seconds", 4.0, "A turn lasts about so long.", lower_bound=0.1)
flags.DEFINE_float("least_ratio", 0.0, "Fail if ours, relative to the best peer, is below it in any row.")
flags.DEFINE_bool("profile", False, "Instead, print the processor time of our step by kind of operation.")
flags.DEFINE_string(
    "torch_python", str(pathlib.Path(__file__).parent.parent / ".venv-torch/bin/python"), "Python with PyTorch."
)
PRODUCT = 2048  # the side of the matrices that tell the ceiling
SCRIPT = pathlib.Path(__file__).with_name("step_contenders.py")
NO_GENERATOR = ("keras_hub", "tf_models")  # they have no step of replaced tokens


class Contender:
    """A process that takes steps when told: those of a library, or ours of a checkout."""

    def __init__(self, name: str, size: dict):
        library, environment, script = name, None, SCRIPT
        if name in FLAGS.checkouts:  # whose own script knows its interface
            library, environment = "ours", os.environ | {"PYTHONPATH": os.path.abspath(name)}
            script = pathlib.Path(name).absolute() / "benchmarks" / SCRIPT.name
        python = FLAGS.torch_python if library.startswith("pytorch") else sys.executable
        self.name, self.seconds = name, []
        self.process = subprocess.Popen(
            [python, str(script), library, json.dumps(size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        while (line := self.process.stdout.readline()) not in ("ready\n", ""):
            pass
        self.steps = 0
        if line:
            first = self._ask(2)[1]
            self.steps = max(1, round(FLAGS.turn_seconds / first))

    def _ask(self, steps: int) -> list[float]:
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def take_turn(self) -> None:
        """Takes its steps."""
        self.seconds += self._ask(self.steps)

    def end(self) -> dict:
        """Ends the process; returns its memory, and whether its losses were finite."""
        output, errors = self.process.communicate("\n" if self.steps else None)
        if not self.steps or self.process.returncode:
            raise ValueError((errors.strip().splitlines() or ["no error was printed"])[-1])
        return json.loads(output)


def parse_size(text: str) -> tuple[str, int, int]:
    """MODEL:ROWSxTOKENS -> (model, rows, tokens)."""
    model, shape = text.split(":")
    rows, length = map(int, shape.split("x"))
    return model, rows, length


def size_of(model: str, rows: int, length: int, precision: str) -> dict:
    """Returns a contender's argument."""
    from official_bert.config import build, load_config
    from official_bert.models.replaced_tokens import generator_config
    from official_bert.tasks.pretraining.options import Options, with_defaults

    folder = "pretrain" if model.startswith("electra") else "model"
    config = load_config(f"{SCRIPT.parent.parent}/configs/{folder}/{model}.yaml")
    size = {**vars(config.model), "batch_size": rows, "length": length, "precision": precision}
    if folder == "model":
        return size
    options = build(Options, with_defaults(config.options), "options")
    small = generator_config(config.model, options.generator_width, options.generator_layers)
    names = ("hidden_size", "num_attention_heads", "intermediate_size")
    return size | {
        "generator_width": options.generator_width,
        "generator": {name: getattr(small, name) for name in names},
    }


def operations(size: dict) -> float:
    """Returns the operations of the model's products in a step, forward and backward."""
    import tensorflow as tf

    from official_bert.config import ModelConfig, build
    from official_bert.training.flops import training_flops

    fields = {name: value for name, value in size.items() if name in ModelConfig.__dataclass_fields__}
    rows, length = size["batch_size"], size["length"]
    batch = {
        "input_ids": tf.zeros((rows, length), tf.int32),
        "masked_lm_positions": tf.zeros((rows, length * 15 // 100), tf.int32),
    }
    config = build(ModelConfig, fields)
    if "generator" not in size:
        return float(training_flops(config, batch))
    small = dataclasses.replace(config, **size["generator"])
    return float(training_flops(config, {"input_ids": batch["input_ids"]}) + training_flops(small, batch))


def ceiling(precision: str) -> float:
    """Measures the operations a second of a large matrix product."""
    import tensorflow as tf

    one = tf.cast(tf.random.normal([PRODUCT, PRODUCT]), precision)
    product = tf.function(lambda: tf.reduce_sum(tf.cast(tf.matmul(one, one)[:1], tf.float32)))
    product()
    seconds = []
    for _ in range(10):
        began = time.perf_counter()
        product().numpy()
        seconds.append(time.perf_counter() - began)
    return 2 * PRODUCT**3 / min(seconds)


def compare(model: str, rows: int, length: int, precision: str) -> float:
    """Measures one row of settings and prints its lines of the table; returns our ratio to the best other contender."""
    size, results, best_product = size_of(model, rows, length, precision), {}, 0.0
    ours = (FLAGS.checkouts or ["ours"])[-1]
    names = FLAGS.checkouts or [
        name for name in FLAGS.contenders if "generator" not in size or name not in NO_GENERATOR
    ]
    contenders = [Contender(name, size) for name in names]
    try:
        for turn in range(FLAGS.turns):
            for contender in contenders:
                if contender.steps:
                    contender.take_turn()
            best_product = max(best_product, ceiling(precision))
            print(
                f"{model} {rows} x {length} {precision}: turn {turn + 1} of {FLAGS.turns}", file=sys.stderr, flush=True
            )
        for contender in contenders:
            try:
                results[contender.name] = contender.end() | {"rate": rows / statistics.median(contender.seconds or [1])}
            except ValueError as error:
                print(f"{contender.name}: {error}", file=sys.stderr, flush=True)
    finally:
        for contender in contenders:
            contender.process.kill()
    peers = [figures["rate"] for name, figures in results.items() if name != ours]
    for name, figures in results.items():
        rate, ratio = figures["rate"], "" if name != ours or not peers else f"{figures['rate'] / max(peers):.2f}"
        share = operations(size) / rows * rate / best_product
        print(
            f"| {model}, {rows} x {length}, {precision} | {name} | {rate:.2f} | {rate * length:,.0f} | {share:.0%} | "
            f"{figures['memory'] / 1e6:,.0f} | {ratio} |{'' if figures['finite'] else ' losses not finite'}",
            flush=True,
        )
    return results[ours]["rate"] / max(peers) if ours in results and peers else float("inf")


def profile(model: str, rows: int, length: int, precision: str) -> None:
    """Prints the processor time of our step by kind of operation."""
    from operation_times import operation_times

    step, count, seconds = CONTENDERS["ours"](size_of(model, rows, length, precision)), 4, []
    for _ in range(3 + count):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    times = operation_times(lambda: [step() for _ in range(count)])
    print(f"{model}, {rows} x {length}, {precision}: {1e3 * statistics.median(seconds[3:]):.0f} ms a step")
    for kind, value in times.most_common(12):
        print(f"{1e3 * value / count:9.1f} ms  {kind}")


def main(_) -> None:
    """Prints a table in Markdown."""
    if FLAGS.profile:
        for precision, text in itertools.product(FLAGS.precisions, FLAGS.sizes):
            profile(*parse_size(text), precision)
        return
    if unknown := set(FLAGS.contenders) - set(CONTENDERS):
        sys.exit(f"error: --contenders: expected some of {', '.join(CONTENDERS)}, got {', '.join(sorted(unknown))}")
    for folder in FLAGS.checkouts:
        if not pathlib.Path(folder, "official_bert").is_dir():
            sys.exit(f"error: --checkouts: expected folders that hold official_bert/, got {folder!r}")
    if (
        not FLAGS.checkouts
        and not pathlib.Path(FLAGS.torch_python).exists()
        and any(name.startswith("pytorch") for name in FLAGS.contenders)
    ):
        sys.exit(f"error: --torch_python={FLAGS.torch_python}: not there; `make venv-torch` makes it")
    columns = (
        "model, rows x tokens, precision",
        "contender",
        "sequences/s",
        "real tokens/s",
        "share of the ceiling",
        "peak memory, MB",
        "ours / best peer",
    )
    print(f"| {' | '.join(columns)} |\n" + "|---" * len(columns) + "|")
    ratios = []
    for precision in FLAGS.precisions:
        for text in FLAGS.sizes:
            ratios.append(compare(*parse_size(text), precision))
    if min(ratios) < FLAGS.least_ratio:
        sys.exit(
            f"error: ours has {min(ratios):.2f} times the speed of the best peer, expected at least {FLAGS.least_ratio}"
        )


if __name__ == "__main__":
    app.run(main)
