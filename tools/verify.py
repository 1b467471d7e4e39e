"""Checks on this machine that the installed package computes the same as the 2018 code: one command, no network, one to
two minutes.

    official-bert verify
    official-bert verify --output_file=report.json

It recomputes tokens, training instances of a seed, SQuAD's features, answers and metric, outputs, gradients and
optimizer steps of a tiny checkpoint, exported models, and the pieces that are compiled for this processor. The expected
values are recorded results of the 2018 code, formulas in float64, or values worked out by hand; none was computed by
this package. A line shows the largest difference of each check and its bound. The exit status is 1 if anything differs.
A check whose extra is not installed is left out, with the command that installs it.
"""

from official_bert.command_line import run_main

import importlib.metadata
import pathlib
import platform
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from official_bert.command_names import DISTRIBUTION
from official_bert.runtimes.processor import processor
from official_bert.storage.files import write_json
from official_bert.tools.verification import export_checks, model_checks, text_checks
from official_bert.tools.verification.check import Check, unpack

FLAGS = flags.FLAGS
flags.DEFINE_string("output_file", "", "Where to write the report as JSON, to paste into an issue.")

CHECKS: Sequence[Check] = (*text_checks.CHECKS, *model_checks.CHECKS, *export_checks.CHECKS)
PACKAGES = (DISTRIBUTION, "tensorflow", "tensorflow-text", "keras", "numpy", "numba")


def main(_: list[str]) -> None:
    """Runs all checks, prints a table, writes the report, and ends with status 1 if anything differs."""
    report: dict[str, Any] = {"versions": versions(), "processor": processor() or platform.machine(), "checks": []}
    print(", ".join(f"{name} {version}" for name, version in report["versions"].items()))
    print(report["processor"])
    print(f"\n{'check':30} {'largest difference':>18} {'bound':>8}  of", flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        unpack(folder)
        for check in CHECKS:
            report["checks"].append(check.row(folder))
            print(line(report["checks"][-1]), flush=True)
    report["seconds"] = round(time.monotonic() - begin, 1)
    counts = {kind: [row["check"] for row in report["checks"] if row["result"] == kind] for kind in RESULTS}
    if FLAGS.output_file:
        write_json(FLAGS.output_file, report, "\n", indent=1, ensure_ascii=False)
    print(f"\n{'; '.join(f'{len(names)} {kind}' for kind, names in counts.items() if names)}; {report['seconds']} s")
    if counts["differs"]:
        sys.exit(f"error: not as expected: {', '.join(counts['differs'])}")


RESULTS = ("passed", "differs", "left out")


def versions() -> dict[str, str]:
    """Returns the versions of Python, the system and the packages on which results depend."""
    found = {name: importlib.metadata.version(name) for name in PACKAGES}
    return {"Python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"} | found


def line(row: Mapping[str, Any]) -> str:
    """Returns the printed line of a check."""
    if row["result"] == "left out":
        return f"{row['check']:30} left out: {row['reason']}"
    if "reason" in row:
        return f"{row['check']:30} DIFFERS: {row['reason']}"
    difference, bound = row["difference"], row["bound"]
    shown = f"{difference:.3g}" if isinstance(difference, float) else difference
    mark = "  DIFFERS" if row["result"] == "differs" else ""
    return f"{row['check']:30} {shown:>18} {bound:>8g}  {row['unit']}{mark}"


if __name__ == "__main__":
    run_main(main)
