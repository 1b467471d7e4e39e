"""Ctrl-C is answered at once, also while compiled code runs; two of TensorFlow's own messages are shown at most."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

# Compiled code (here a key derivation, of some seconds) keeps the main thread from handling signals.
DEAF = """
from official_bert.command_line import run_main
import hashlib, sys, time
def main(_):
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", ITERATIONS)
    time.sleep(60)
run_main(main)
"""
TOLD, STOPPED = "SIGINT: stops after the current computation\n", "error: stopped by SIGINT\n"


@pytest.mark.slow
@pytest.mark.speed
@pytest.mark.parametrize(
    ("iterations", "errors"), [(1, STOPPED), (6_000_000, TOLD + STOPPED)], ids=["idle", "in compiled code"]
)
def test_ctrl_c_is_answered_within_a_second(root, iterations, errors):
    process = subprocess.Popen(
        [sys.executable, "-c", DEAF.replace("ITERATIONS", str(iterations))],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.2)
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    first = process.stderr.readline()
    assert time.monotonic() - begin < 1
    assert first + process.communicate(timeout=60)[1] == errors and process.returncode == 1


def test_a_command_whose_output_nobody_reads_any_more_ends_without_a_message(root):
    program = """
from official_bert.command_line import run_main
def main(_):
    for number in range(100_000):
        print("line", number)
run_main(main)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert process.stdout.readline() == "line 0\n"
    process.stdout.close()
    assert process.stderr.read() == "" and process.wait(60) == 1


@pytest.mark.slow
def test_xla_writes_two_lines_at_most_among_ours(root):
    program = """
from official_bert.command_line import run_main
def main(_):
    import tensorflow as tf
    function = tf.function(lambda x: tf.nn.softmax(tf.matmul(x, x)), jit_compile=True)
    print("sum", float(tf.reduce_sum(function(tf.ones([64, 64])))))
run_main(main)
"""

    def run(**environment):
        own = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
        done = subprocess.run(
            [sys.executable, "-c", program],
            text=True,
            capture_output=True,
            check=True,
            timeout=300,
            env={**own, "PYTHONPATH": str(root), **environment},
        )
        return done.stdout, done.stderr

    output, errors = run()
    assert output == "sum 64.0\n"
    # Abseil's level has no public setting: its warning, and XLA's line, which is logged once in a process.
    lines, known = errors.splitlines(), re.compile(r"WARNING: All log messages before absl::|I\d{4} .*XLA")
    assert len(lines) <= 2 and all(known.match(line) for line in lines)
    # as a person who looks for a reason asks for
    assert re.search(r"^I\d{4} .*XLA", run(TF_CPP_MIN_LOG_LEVEL="0")[1], re.MULTILINE)
