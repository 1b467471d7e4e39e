"""Runs that are killed, and go on, beside the run that was not."""

import json
import signal
import subprocess
import sys

import numpy as np
from commands import run_here

from official_bert.models.interchange import formats

STEPS = 24


def losses_by_step(output):
    """Returns the loss of each step; a step done twice, before and after a kill, must have the same loss."""
    found = {}
    for line in (output / "log.jsonl").read_text().splitlines() if (output / "log.jsonl").exists() else ():
        if '"train/loss"' in line:
            row = json.loads(line)
            assert found.setdefault(row["step"], row["train/loss"]) == row["train/loss"], row
    return found


def check_killed_run(folder, command):
    """Checks that a run of 24 steps that is killed three times ends with the losses and the weights of a whole one.

    `command(output)` are the arguments behind `python`; the run logs each step.
    """
    whole = run_here(*command(folder / "whole"))
    assert whole.returncode == 0, whole.stderr
    for kill in range(3):
        process = subprocess.Popen(
            [sys.executable, *command(folder / "killed")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        wanted = max(losses_by_step(folder / "killed"), default=0) + 3 + kill
        for line in process.stdout:
            if line.startswith("step ") and int(line.split()[1].split("/")[0]) >= min(wanted, STEPS - 2):
                break
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = run_here(*command(folder / "killed"))
    assert done.returncode == 0 and "resumed: " in done.stdout, done.stderr
    losses = losses_by_step(folder / "whole")
    assert losses_by_step(folder / "killed") == losses and len(losses) == STEPS
    one, other = (formats.read(str(folder / name)) for name in ("whole", "killed"))
    for mine, theirs in ((one, other), (one.generator or one, other.generator or other)):
        assert all(np.array_equal(weight, theirs.weights[name]) for name, weight in mine.weights.items())
