"""Checks that an accelerator computes the same as this machine's CPU, and measures its speed: one command, a table and
a JSON report.

    python tools/check_accelerator.py --strategy=mirrored --report=report.json
    python tools/check_accelerator.py --strategy=tpu --tpu_name=local --model=base --rows=64 --report=report.json

It needs no data. First it kills and continues a run of pre-training. Then it compares with the CPU in float32: outputs,
losses and gradients of every head and kind of layer in each precision, and trainings on all replicas, with and without
accumulation. Then an exported model answers, and speed is measured. If an error is above its tolerance, the exit status
is 1 and the last line names the first such tensor. If TensorFlow fails in a check, for lack of memory or of an
operation, the report says so, and the other checks still run.
"""

from official_bert.command_line import run_main

import dataclasses
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from absl import flags

from official_bert import command_line
from official_bert.config import Config, load_config, save_config
from official_bert.long_work import interruption, preflight
from official_bert.run_folder import LOG_FILE
from official_bert.storage.files import read_log, write_json
from official_bert.text.loading import VOCAB_FILE
from official_bert.tools.accelerator.small_heads import (
    HEADS,
    ONE_LAYER,
    STEPS,
    WORDS,
    B,
    Head,
    V,
    head_config,
    write_records,
)
from official_bert.training.machines import cluster

FLAGS = flags.FLAGS
command_line.define_placement()
flags.DEFINE_list("precision", ["float32", "bfloat16", "float16"], "Precisions of the products in the compared heads.")
flags.DEFINE_string("model", "tiny", "The model whose speed is measured, by the name of a file in configs/model.")
flags.DEFINE_integer("rows", 64, "Rows of 128 tokens per replica in the steps whose speed is measured.", lower_bound=1)
flags.DEFINE_float("seconds", 3.0, "Seconds of each measurement of speed, approximately.", lower_bound=0.1)
flags.DEFINE_string("report", "accelerator_report.json", "Where to write the report.")

# The error of a tensor against the CPU's float32 values, as `tools/accelerator/self_check` measures it; of 16 bits,
# also what rounding does there.
TOLERANCES: Mapping[str, float] = {"float32": 1e-3, "bfloat16": 0.02, "float16": 5e-3}
TRAINED = 1e-2  # of losses, and of weights in units of the learning rate, after a training in float32
# Dense operations a second of one device, in 10^12, from the vendors' data sheets; float32 without TF32.
PEAKS: Mapping[str, Mapping[str, float]] = {
    "H200": {"float32": 67, "bfloat16": 989},
    "H100": {"float32": 67, "bfloat16": 989},
    "A100": {"float32": 19.5, "bfloat16": 312},
    "L40S": {"float32": 91.6, "bfloat16": 362},
    "L4": {"float32": 30.3, "bfloat16": 121},
    "V100": {"float32": 15.7},
    "T4": {"float32": 8.1},
    "v2-": {"bfloat16": 22.5},
    "v3-": {"bfloat16": 61.5},
    "v4-": {"bfloat16": 137.5},
    # of TPUs v2 to v5p: of a core, half a chip
    "v5litepod": {"bfloat16": 197},
    "v5p": {"bfloat16": 229.5},
    "v6e": {"bfloat16": 918},
}
KILLED_AFTER = 7
MODELS = pathlib.Path(__file__).parent.parent / "configs" / "model"
SPEED = "speed"  # the name of the check that compares nothing


class Runs:
    """Runs of pre-training in separate processes, because an accelerator may belong to one process at a time."""

    def __init__(self, folder: str, placement: Mapping[str, Any]):
        self.folder = folder
        save_config(head_config("pretraining", {}, ONE_LAYER, folder, batch_size=32), os.path.join(folder, "run.yaml"))
        self.flags = [f"--{name}={value}" for name, value in placement.items() if value]

    def start(self, name: str) -> subprocess.Popen:
        """Starts or continues a run."""
        return subprocess.Popen(
            [
                sys.executable,
                "-m",
                "official_bert.run_pretraining",
                f"--config={self.folder}/run.yaml",
                "--cache_dir=",
                f"--input_file={self.folder}/train.tfrecord",
                f"--output_dir={self.folder}/{name}",
                *self.flags,
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def kill_within(self, name: str) -> int:
        """Kills a run after some steps; returns its last logged step, or 0 if it ended before."""
        process = self.start(name)
        try:
            while process.poll() is None and max(self.losses(name), default=0) < KILLED_AFTER:
                time.sleep(0.002)
            ended = process.poll() is not None
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        return 0 if ended else max(self.losses(name), default=0)

    def losses(self, name: str) -> dict[int, float]:
        """Returns the loss by step; for steps that ran twice, the second loss."""
        rows = read_log(os.path.join(self.folder, name, LOG_FILE))
        return {row["step"]: row["train/loss"] for row in rows if "train/loss" in row}


def finish(process: subprocess.Popen) -> None:
    """Waits for the end of a command. Raises ValueError with its last line if it fails."""
    try:
        errors = process.communicate()[1]
    finally:
        process.kill()  # if a signal ends this command; one that has ended is not touched
        process.wait()
    if process.returncode:
        raise ValueError(
            (errors.strip().splitlines() or [f"ended with status {process.returncode}"])[-1].removeprefix("error: ")
        )


def kill_and_continue(runs: Runs) -> tuple[str, int]:
    """Makes a whole run, and one that is killed and continued. Returns the latter's name and the step after which it
    was killed, 0 if it was not.
    """
    finish(runs.start("whole"))
    killed = next((step for number in range(3) if (step := runs.kill_within(name := f"killed-{number}"))), 0)
    if killed:
        finish(runs.start(name))
    return name, killed


def check_resumed(runs: Runs, name: str, killed: int) -> Iterator[Any]:
    """Compares the run that was killed and continued with the whole one.

    It reads weights, so devices must be chosen before.
    """
    if not killed:
        raise ValueError(f"three runs finished all {STEPS} steps before they were killed")
    from official_bert.tasks.loading import restore_for_inference
    from official_bert.tools.accelerator.self_check import compare

    def losses_and_weights(run: str) -> dict[str, np.ndarray]:
        losses, (_, model) = runs.losses(run), restore_for_inference(os.path.join(runs.folder, run))
        return {"loss of every step": np.array([losses[step] for step in sorted(losses)])} | {
            f"weight {variable.path.partition('/')[2]}": variable.numpy() for variable in model.trainable_variables
        }

    case = f"{STEPS} steps, killed after {killed}"
    yield compare("killed and continued", case, losses_and_weights(name), losses_and_weights("whole"), TRAINED)


def check_head(folder: str, strategy: Any, precisions: list[str], head: Head) -> Iterator[Any]:
    """Compares outputs, losses and gradients of a head with the CPU's: float32 on each replica, other precisions on the
    first device.
    """
    import tensorflow as tf

    from official_bert.tasks.loading import load_task
    from official_bert.tools.accelerator import self_check
    from official_bert.training.machines.distribution import set_precision

    # which all cores of a TPU run
    one_program = strategy.num_replicas_in_sync == 1 or isinstance(strategy, tf.distribute.TPUStrategy)
    first = strategy if one_program else tf.distribute.OneDeviceStrategy(strategy.extended.worker_devices[0])
    precisions = [precision for precision in precisions if precision == "float32" or head.in_16_bits]
    tasks = {
        precision: load_task(head_config(head.task, head.options, head.sizes, folder, precision=precision))
        for precision in ("float32", *precisions)
    }
    set_precision("float32", tf32=False)
    weights = self_check.draw_weights(tasks["float32"])
    batch = self_check.made_batch(tasks["float32"].data.batch_spec(B), V, max(2, len(tasks["float32"].answers.labels)))
    expected = self_check.passes(tasks["float32"], weights, batch)["CPU"]
    for precision in precisions:
        set_precision(precision, tf32=False)
        used = strategy if precision == "float32" else first
        rounded = expected if precision == "float32" else self_check.passes(tasks[precision], weights, batch)["CPU"]
        for place, got in self_check.passes(tasks[precision], weights, batch, used).items():
            yield self_check.compare(
                "head", f"{head.name}, {precision}, {place}", got, expected, TOLERANCES[precision], rounded
            )


def check_trainings(folder: str, strategy: Any) -> Iterator[Any]:
    """Compares trainings on all replicas, with and without accumulation, with a training on the CPU."""
    import tensorflow as tf

    from official_bert.tasks.data import TRAIN_AND_EVALUATE, DataFiles
    from official_bert.tasks.loading import load_task
    from official_bert.tools.accelerator import self_check
    from official_bert.training.machines.distribution import set_precision

    set_precision("float32", tf32=False)
    replicas, files = strategy.num_replicas_in_sync, DataFiles(train_file=os.path.join(folder, "train.tfrecord"))

    def trained(place: Any, accumulation: int) -> dict[str, np.ndarray]:
        task = load_task(
            head_config("pretraining", {}, ONE_LAYER, folder, batch_size=4 * replicas, accumulation_steps=accumulation)
        )
        source = task.data.resolve(files, TRAIN_AND_EVALUATE).train
        assert source is not None  # training was asked for
        return self_check.in_rates(self_check.training(task, source, place, STEPS), task.config.optimizer.learning_rate)

    expected = trained(tf.distribute.OneDeviceStrategy("/cpu:0"), 1)
    for accumulation in (1, 4):
        case = f"{STEPS} steps, {replicas} replicas, {accumulation} micro-batches"
        yield self_check.compare("training", case, trained(strategy, accumulation), expected, TRAINED)


def check_export(folder: str) -> Iterator[Any]:
    """Compares the answers of the exported run with those of its model on the CPU."""
    import tensorflow as tf

    from official_bert.serving.loading import load_exported
    from official_bert.tasks.loading import restore_for_inference
    from official_bert.tools.accelerator import self_check
    from official_bert.training.machines.distribution import set_precision

    set_precision("float32", tf32=False)
    run, output = os.path.join(folder, "whole"), os.path.join(folder, "model")
    finish(
        subprocess.Popen(
            [sys.executable, "-m", "official_bert.run_export", f"--checkpoint={run}", f"--output={output}"],
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )
    )
    with tf.device("CPU:0"):
        task, model = restore_for_inference(run)
        batch = self_check.made_batch(task.data.batch_spec(B), V, 2)
        inputs = {name: batch[name] for name in ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")}
        logits = model(inputs)["mlm_logits"].numpy()
    answered = load_exported(output, "ids")(**{name: tf.constant(value) for name, value in inputs.items()})
    yield self_check.compare(
        "export",
        "answers of the exported model",
        {"output logits": np.asarray(answered["logits"])},
        {"output logits": logits},
        TOLERANCES["float32"],
    )


def device_kind() -> str:
    """Returns the name of the accelerator, or of this machine's processor."""
    import tensorflow as tf

    if gpus := tf.config.list_physical_devices("GPU"):
        return tf.config.experimental.get_device_details(gpus[0]).get("device_name", "GPU")
    if tf.config.list_logical_devices("TPU"):
        return f"TPU {os.environ.get('TPU_ACCELERATOR_TYPE', '')}".strip()
    return f"CPU {platform.machine()}"


def speeds(model: str, source: Config, rows: int, seconds: float, strategy: Any, kind: str) -> Iterator[dict[str, Any]]:
    """Measures the pre-training step on all replicas and on the CPU, and a large matrix product on one device."""
    import tensorflow as tf

    from official_bert.tasks.loading import load_task
    from official_bert.tools.accelerator import self_check
    from official_bert.training.machines.distribution import set_precision

    cpu, replicas = tf.distribute.OneDeviceStrategy("/cpu:0"), strategy.num_replicas_in_sync
    for precision in ("float32", "bfloat16"):
        settings = dataclasses.replace(source.training, precision=precision, batch_size=rows)
        task = load_task(dataclasses.replace(source, task="pretraining", training=settings))
        set_precision(precision)
        batch = self_check.made_batch(task.data.batch_spec(rows), source.model.vocab_size, 2)
        step, on_cpu = (self_check.step_rate(task, batch, place, seconds) for place in (strategy, cpu))
        product = self_check.product_rate(strategy, precision)
        peak = next((figures.get(precision, 0.0) for name, figures in PEAKS.items() if name in kind), 0.0) * 1e12
        a_replica = step["operations"] / replicas
        yield {
            "precision": precision,
            "model": model,
            "rows": rows,
            "replicas": replicas,
            "sequences_per_second": step["sequences"],
            "cpu_sequences_per_second": on_cpu["sequences"],
            "times_the_cpu": step["sequences"] / on_cpu["sequences"],
            "operations_per_second": step["operations"],
            "share_of_product": a_replica / product,
            "share_of_peak": a_replica / peak if peak else None,
        }


class Report:
    """The results of the checks: comparisons, speeds, checks that failed with an error, and omitted checks."""

    def __init__(self, goes_on: bool):
        self.goes_on = goes_on  # after a check that ends with an error; workers wait for each other at every check
        self.findings: list[Any] = []
        self.speeds: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.left_out: list[str] = [] if goes_on else ["killed and continued, export: several workers"]

    def add(self, name: str, results: Iterator[Any]) -> None:
        """Runs a check and adds its results. An error is recorded as a failure if the other checks can still run."""
        try:
            for result in results:
                (self.speeds if name == SPEED else self.findings).append(result)
                if name != SPEED:
                    print(
                        f"{result.check}: {result.case}: {result.error:.1e}{'' if result.agrees else ' DISAGREES'}",
                        flush=True,
                    )
        except Exception as error:  # a device may lack memory, an operation or a type, and each has another exception
            if not self.goes_on:
                raise
            self.failures.append(f"{name}: {type(error).__name__}: {command_line.error_in_one_line(error)[:500]}")
            print(f"{name}: FAILED: {self.failures[-1][len(name) + 2 :]}", flush=True)

    def table(self) -> str:
        """Returns the report in Markdown."""
        lines = ["| check | case | tensors | largest error | of | tolerance | |", "|---" * 7 + "|"]
        lines += [
            f"| {one.check} | {one.case} | {one.tensors} | {one.error:.1e} | {one.worst} | {one.tolerance:g} | "
            f"{'agrees' if one.agrees else f'DISAGREES, first: {one.first}'} |"
            for one in self.findings
        ]
        lines += [
            "",
            "| step of | precision | sequences/s | on the CPU | times the CPU | share of a large product's rate | "
            "share of the peak |",
            "|---" * 7 + "|",
        ]
        for rate in self.speeds:
            peak = "not known" if rate["share_of_peak"] is None else f"{rate['share_of_peak']:.0%}"
            lines.append(
                "| {model}, {rows} x 128 x {replicas} replicas | {precision} | {sequences_per_second:.1f} | "
                "{cpu_sequences_per_second:.1f} | {times_the_cpu:.2f} | {share_of_product:.0%} | ".format(**rate)
                + f"{peak} |"
            )
        return "\n".join(
            [*lines, *([""] if self.failures else []), *(f"FAILED: {failure}" for failure in self.failures)]
        )

    def write(self, path: str, strategy: Any, name: str, device: str) -> None:
        """Writes the report as JSON and prints it as a table."""
        import keras
        import tensorflow as tf

        report = {
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "python": platform.python_version(),
            "device": device,
            "processor": platform.machine(),
            "cores": os.cpu_count(),
            "strategy": name,
            "replicas": strategy.num_replicas_in_sync,
            "left_out": self.left_out,
            "failed": self.failures,
            "speed": self.speeds,
            "checks": [dataclasses.asdict(finding) | {"agrees": finding.agrees} for finding in self.findings],
        }
        write_json(path, report, indent=1)
        print(f"\n{self.table()}\n\nreport: {path}")

    def require_agreement(self) -> None:
        """Raises ValueError for the first tensor that disagrees, or the first check that failed with an error."""
        bad, count, failures = (
            [finding for finding in self.findings if not finding.agrees],
            len(self.findings),
            self.failures,
        )
        if one := next(iter(bad), None):
            raise ValueError(
                f"{one.check}: {one.case}: {one.first}: its error is too large; {len(bad)} of {count} comparisons "
                f"disagree; worst in this one: {one.worst}, error {one.error:.2g}, tolerance {one.tolerance:g}"
            )
        if failures:
            raise ValueError(
                f"{failures[0]}; checks that failed with an error: {len(failures)}, comparisons that agree: {count}"
            )


def make_checks(
    folder: str, placement: cluster.Placement, values: Mapping[str, Any], precisions: list[str], report: Report
) -> Any:
    """Runs all checks except that of speed, in a temporary folder; returns the strategy."""
    pathlib.Path(folder, VOCAB_FILE).write_text("".join(f"{word}\n" for word in WORDS), encoding="utf-8")
    write_records(f"{folder}/train.tfrecord", 40 * STEPS)
    if report.goes_on:
        print("killed and continued: three runs, each in a process of its own", flush=True)
        resumed = kill_and_continue(runs := Runs(folder, values))
    import tensorflow as tf  # not before, so that a device that is not there is told soon

    from official_bert.training.machines import distribution

    tf.get_logger().setLevel("ERROR")  # it warns of functions that are traced for each head
    strategy = distribution.make_strategy(placement)
    if report.goes_on:
        report.add("killed and continued", check_resumed(runs, *resumed))
    if placement.strategy == "tpu" and "float16" in precisions:
        precisions = [name for name in precisions if name != "float16"]
        report.left_out.append("float16: TPUs compute in bfloat16")
    for head in HEADS:
        report.add(f"head: {head.name}", check_head(folder, strategy, precisions, head))
    report.add("training", check_trainings(folder, strategy))
    if report.goes_on:
        report.add("export", check_export(folder))
    return strategy


def main(_: list[str]) -> None:
    """Runs all checks, writes the report and prints the table. Raises ValueError if a check disagrees or fails."""
    interruption.end_on_signals("no report was written")
    if wrong := [name for name in FLAGS.precision if name not in TOLERANCES]:
        raise ValueError(f"--precision: expected some of {', '.join(TOLERANCES)}, got {wrong[0]!r}")
    if FLAGS.model not in (models := sorted(path.stem for path in MODELS.glob("*.yaml"))):
        raise ValueError(f"--model: expected one of {', '.join(models)}, got {FLAGS.model!r}")
    preflight.check_outputs([FLAGS.report])
    values = command_line.placement_values(FLAGS)
    placement = cluster.Placement(**values)
    cluster.meet(placement)
    report = Report(goes_on=placement.strategy != "multi_worker")
    with tempfile.TemporaryDirectory() as folder:
        strategy = make_checks(folder, placement, values, FLAGS.precision, report)
    from official_bert.training.machines.distribution import is_chief

    source, device = load_config(str(MODELS / f"{FLAGS.model}.yaml")), device_kind()
    report.add(SPEED, speeds(FLAGS.model, source, FLAGS.rows, FLAGS.seconds, strategy, device))
    if is_chief(strategy):
        report.write(FLAGS.report, strategy, placement.strategy, device)
    report.require_agreement()


if __name__ == "__main__":
    run_main(main)
