import collections
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from commands import run_here

# The tool with one head and nothing else, on devices whose attention is 5 % too strong, under an explicit strategy
# alone.
WRONG_KERNEL = """
import tensorflow as tf
from official_bert.command_line import run_main
from official_bert.layers import attention
from tools import check_accelerator as tool
tool.HEADS = tool.HEADS[:1]
tool.kill_and_continue = lambda _: ("", 0)
tool.check_resumed = tool.check_trainings = tool.check_export = tool.speeds = lambda *_: iter(())
right = attention.attention_weights
attention.attention_weights = lambda *given, training: (
    right(*given, training=training) * (1.05 if tf.distribute.has_strategy() else 1.0))
run_main(tool.main)
"""


def check(root, *arguments, code=None):
    program = ["-c", code] if code else [str(root / "tools/check_accelerator.py")]
    return subprocess.run(
        [sys.executable, *program, *arguments], check=False, capture_output=True, text=True, timeout=1500, cwd=root
    )


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_cpu_devices_agree_with_the_cpu(root, tmp_path, devices):
    places = ["--strategy=mirrored", f"--num_cpu_devices={devices}"] if devices > 1 else []
    done = check(root, *places, "--rows=4", "--seconds=0.5", f"--report={tmp_path}/report.json")
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["replicas"] == devices and all(
        row["agrees"] and row["error"] < row["tolerance"] for row in report["checks"]
    )
    counts = collections.Counter(row["check"] for row in report["checks"])
    assert counts == {"killed and continued": 1, "head": 17 * (devices + 2) + devices, "training": 2, "export": 1}
    assert [rate["precision"] for rate in report["speed"]] == ["float32", "bfloat16"] and report["speed"][0][
        "share_of_peak"
    ] is None
    assert "| killed and continued | 20 steps, killed after " in done.stdout and "agrees |" in done.stdout


@pytest.mark.slow
def test_a_wrong_kernel_ends_the_command_with_the_first_tensor(root, tmp_path):
    done = check(
        root,
        "--strategy=mirrored",
        "--num_cpu_devices=2",
        "--precision=float32",
        f"--report={tmp_path}/report.json",
        code=WRONG_KERNEL,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert (
        done.stderr.strip()
        .splitlines()[-1]
        .startswith("error: head: masked words and sentences, float32, replica 0 (CPU:0): output mlm_logits: ")
    )
    assert "2 of 2 comparisons disagree; worst in this one: " in done.stderr and ", error 0.05" in done.stderr
    assert [row["agrees"] for row in json.loads((tmp_path / "report.json").read_text())["checks"]] == [False, False]


@pytest.mark.slow
def test_a_check_that_fails_is_in_the_report_and_the_others_go_on(root, tmp_path):
    code = WRONG_KERNEL.replace(
        "tool.HEADS[:1]", "(tool.Head('no head', 'ner', {'labels': []}), tool.HEADS[0])"
    ).replace("1.05", "1.0")
    done = check(root, "--precision=float32", f"--report={tmp_path}/report.json", code=code)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: head: no head: ValueError: config.options.labels: ")
    assert done.stderr.strip().endswith("; checks that failed with an error: 1, comparisons that agree: 1")
    report = json.loads((tmp_path / "report.json").read_text())
    assert len(report["failed"]) == 1 and [row["agrees"] for row in report["checks"]] == [True]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model=huge"], "--model: expected one of base, base_cased, "),
        (["--report="], "an output: expected the name of a file to write"),
        (["--report=."], ".: expected the name of a file to write, got a folder"),
        (["--report=/proc/no/r.json"], "/proc/no: cannot be written"),
    ],
)
def test_a_mistake_that_the_end_would_tell_is_told_before_the_work(root, tmp_path, arguments, told):
    done = run_here("tools/check_accelerator.py", f"--report={tmp_path}/report.json", *arguments)
    assert done.returncode == 1 and done.stderr.startswith(f"error: {told}") and not done.stdout


@pytest.mark.slow
def test_a_stopped_check_leaves_no_run_no_folder_and_no_report(root, tmp_path):
    running = subprocess.Popen(
        [sys.executable, str(root / "tools/check_accelerator.py"), f"--report={tmp_path}/report.json"],
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )

    def runs():
        texts = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                texts.append(path.read_bytes())
        return [text for text in texts if b"run_pretraining" in text and str(tmp_path).encode() in text]

    deadline = time.monotonic() + 60
    while not runs():
        assert time.monotonic() < deadline and running.poll() is None
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    _, errors = running.communicate(timeout=30)
    assert running.returncode == 1 and errors == "error: stopped by SIGTERM; no report was written\n"
    assert not runs() and not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--strategy=mirrored"], "--strategy=mirrored: no GPU found"),
        (["--strategy=tpu", "--tpu_name=nowhere"], "no TPU could be reached with --tpu_name=nowhere"),
        (
            ["--strategy=multi_worker", "--worker_hosts=127.0.0.1:47301,host-that-is-not-there:1"],
            "host-that-is-not-there:1 does not answer",
        ),
        (["--precision=float64"], "--precision: expected some of float32, bfloat16, float16, got 'float64'"),
    ],
)
def test_an_accelerator_or_a_host_that_is_not_there_is_told(root, tmp_path, arguments, told):
    began = time.monotonic()
    done = check(root, *arguments, f"--report={tmp_path}/report.json")
    assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1
    assert time.monotonic() - began < 30 and not (tmp_path / "report.json").exists()
