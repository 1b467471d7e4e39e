"""Compiles a train step for all cores of a TPU slice, without a TPU, and reports its memory and its best possible
speed.

    make venv-tpu venv-tpu-compiler
    python tools/compile_for_tpu.py --config=configs/pretrain/tiny.yaml --topology=v5e:2x2 --report_file=report.json
    python tools/compile_for_tpu.py --config=configs/pretrain/base.yaml --topology=v5e:2x4 --largest_batch

`lower_for_tpu.py` writes the program, and Google's compiler, in `tpu_compiler.py`, compiles it. Each runs in its own
environment, because TensorFlow and JAX each bring an XLA. The roofline is the time of the work at the chip's peak rates
(tpu_chips.yaml). The compiler's bytes also count data that stay in the memory on the chip. No TPU has run the step.
"""

from official_bert.command_line import run_main

import dataclasses
import json
import math
import os
import pathlib
import platform
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from absl import flags

from official_bert.config import TrainingConfig, load_config
from official_bert.storage.files import write_json, written_whole

FLAGS = flags.FLAGS
flags.DEFINE_string("config", None, "The run's YAML.", required=True)
flags.DEFINE_multi_string("set", [], "Overrides, as in run_pretraining.")
flags.DEFINE_string("topology", "v5e:2x2", "The chips of the slice, such as v5e:2x4 for eight.")
flags.DEFINE_bool(
    "largest_batch",
    False,
    "Find the largest training.batch_size that fits; two small ones are compiled first to estimate it.",
)
flags.DEFINE_string("report_file", "", "Where to write the report as JSON.")
flags.DEFINE_string("compiled_file", "", "Where to write the compiled program, as text.")

TOOLS = pathlib.Path(__file__).resolve().parent
LOWERING, COMPILER = "venv-tpu", "venv-tpu-compiler"  # targets of make, whose environments have these names
SMALL_ROWS = 8  # of a core's micro-batch: the first of the two from which the largest is estimated
MIB = 2**20
COMPILED = "compiled.hlo"


class TooLargeError(ValueError):
    """An error for a program that needs more memory than a core has."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """Chips of one kind: the name of the topology, the number of chips, and the values of its row in tpu_chips.yaml."""

    topology: str
    chips: int
    cores_per_chip: int
    bf16: float  # operations a second
    hbm: float  # bytes a second
    links: float  # bytes a second that a chip sends
    usable: int  # bytes of a core

    @property
    def cores(self) -> int:
        """The number of cores, which is the number of replicas of a step."""
        return self.chips * self.cores_per_chip

    def roofline(self, facts: dict[str, Any]) -> dict[str, float]:
        """Returns the seconds that the products, the memory and the all-reduces of a step take at the chip's peak
        rates.
        """
        sent = 2 * (self.chips - 1) / self.chips * sum(facts["all_reduces"])  # by each chip of a ring
        return {
            "products": facts["flop"] * self.cores_per_chip / self.bf16,
            "memory": facts["bytes"] * self.cores_per_chip / self.hbm,
            "all_reduces": sent / self.links,
        }


def python_of(environment: str) -> str:
    """Returns the interpreter of an environment. Raises ValueError with the command that makes the environment."""
    python = TOOLS.parent / f".{environment}/bin/python"
    if not python.exists():
        raise ValueError(f"{python}: not found; make {environment} in a checkout")
    return str(python)


def slice_of(topology: str) -> Slice:
    """Returns the slice of a name. Raises ValueError that lists the known names."""
    chips = yaml.safe_load((TOOLS / "tpu_chips.yaml").read_text(encoding="utf-8"))
    name, _, shape = topology.partition(":")
    if shape not in chips.get(name, {}).get("topologies", ()):
        known = ", ".join(f"{name}:{' '.join(row['topologies'])}" for name, row in chips.items())
        raise ValueError(f"--topology: expected a chip and a shape such as v5e:2x4, got {topology!r}; known: {known}")
    if (machine := f"{platform.system()} {platform.machine()}") != "Linux x86_64":
        raise ValueError(f"the TPU compiler exists only for Linux x86_64, this is {machine}")
    del chips[name]["topologies"]
    return Slice(topology, math.prod(map(int, shape.split("x"))), **chips[name])


def ask_compiler(*arguments: str) -> dict[str, Any]:
    """Returns the output of `tpu_compiler.py`. Raises TooLargeError, or ValueError with the compiler's reason."""
    done = subprocess.run(
        [python_of(COMPILER), str(TOOLS / "tpu_compiler.py"), *arguments], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise ValueError(f"the TPU compiler ended with status {done.returncode}: {done.stderr.strip()[-600:]}")
    facts = json.loads(done.stdout.splitlines()[-1])
    reason = facts.get("error", "")
    if sizes := re.search(r"Used (\S+) of (\S+) hbm", reason):
        raise TooLargeError(f"the step needs {sizes[1]} of a core's {sizes[2]} of memory")
    if reason:
        raise ValueError(f"the TPU compiler: {reason[:600]}")
    return facts


def lower(where: Slice, settings: list[str], proto_file: str) -> None:
    """Writes the HLO of a train step for a core of the slice; `settings` are --config and --set.

    Raises ValueError with the reason if the step cannot be lowered.
    """
    done = subprocess.run(
        [
            python_of(LOWERING),
            str(TOOLS / "lower_for_tpu.py"),
            *settings,
            f"--replicas={where.cores}",
            f"--proto_file={proto_file}",
        ],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        raise ValueError(reason or f"the lowering ended with status {done.returncode}")


def compile_step(where: Slice, settings: list[str], folder: str) -> dict[str, Any]:
    """Returns the compiler's facts about a train step for the slice; writes its HLO and compiled text to the folder."""
    proto, compiled = (os.path.join(folder, name) for name in ("step.pb", COMPILED))
    begin = time.monotonic()
    lower(where, settings, proto)
    lowered = time.monotonic()
    facts = ask_compiler(where.topology, proto, compiled)
    memory = facts["memory"]
    together = sum(memory.values()) - 2 * memory["aliased"]  # outputs in place of arguments
    return facts | {
        "memory": memory | {"together": together},
        "seconds": {"lower": lowered - begin, "compile": time.monotonic() - lowered},
    }


def report_on(where: Slice, rows: int, facts: dict[str, Any]) -> dict[str, Any]:
    """Returns the report on a step with this number of rows, and prints it."""
    memory, parts = facts["memory"], where.roofline(facts)
    step = max(parts.values())
    kinds = ", ".join(f"{kind} {memory[kind] / MIB:,.1f}" for kind in memory if kind != "together")
    times = ", ".join(f"{name} {seconds * 1e3:,.2f}" for name, seconds in parts.items())
    print(
        f"{where.topology}: {where.cores} cores, {rows} rows, {rows / where.cores:g} per core; lowered in "
        f"{facts['seconds']['lower']:.0f} s, compiled in {facts['seconds']['compile']:.0f} s\n"
        f"memory of a core in MiB: {kinds}; together {memory['together'] / MIB:,.1f} of "
        f"{where.usable / MIB:,.0f}: fits\n"
        f"work of a core: {facts['flop'] / 1e9:,.1f} GFLOP, {facts['bytes'] / 1e9:,.1f} GB read and written, "
        f"{len(facts['all_reduces'])} all-reduces of {sum(facts['all_reduces']) / 1e6:,.1f} MB\n"
        f"roofline in ms: {times}; a step {step * 1e3:,.2f}, {rows / step:,.0f} rows/s",
        flush=True,
    )
    return facts | {
        "slice": dataclasses.asdict(where),
        "batch_size": rows,
        "fits": True,
        "roofline_seconds": parts | {"step": step},
    }


def largest_rows(usable: int, measured: Mapping[int, int]) -> int:
    """Returns the largest multiple of 8 rows that fits, by the line through two points (rows, bytes)."""
    (few, less), (many, more) = sorted(measured.items())
    return max(few, math.floor((few + (usable - less) * (many - few) / (more - less)) / 8) * 8)


def find_largest(usable: int, compile_rows: Callable[[int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Compiles two small batches, and then the largest one that should fit by the line through their memory.

    If a batch is too large, a smaller one is tried. Returns the reports, that of the largest batch last. Raises
    TooLargeError if the smallest does not fit.
    """
    made = {SMALL_ROWS: compile_rows(SMALL_ROWS)}

    def compile_at_most(rows: int) -> int:
        while rows not in made:
            try:
                made[rows] = compile_rows(rows)
            except TooLargeError as error:
                print(f"{rows} rows: {error}", flush=True)
                rows -= SMALL_ROWS
        return rows

    rows = compile_at_most(2 * SMALL_ROWS)
    if rows > SMALL_ROWS:
        rows = largest_rows(usable, {rows: report["memory"]["together"] for rows, report in made.items()})
        print(f"estimate: the largest batch has {rows} rows per core and micro-batch", flush=True)
        rows = compile_at_most(rows)
    return [*(report for other, report in made.items() if other != rows), made[rows]]


def reports(
    where: Slice, training: TrainingConfig, settings: list[str], folder: str, largest_batch: bool
) -> list[dict[str, Any]]:
    """Returns the reports of the compiled batches: of the configured one, or of the search for the largest, which is
    last.
    """

    def compile_rows(rows: int) -> dict[str, Any]:
        return report_on(where, rows, compile_step(where, [*settings, f"--set=training.batch_size={rows}"], folder))

    if not largest_batch:
        return [compile_rows(training.batch_size)]
    shares = where.cores * training.accumulation_steps
    return find_largest(where.usable, lambda rows: compile_rows(rows * shares))


def main(_: list[str]) -> None:
    """Compiles the step, prints the report and writes it, also for a program that is too large."""
    training, where = load_config(FLAGS.config, overrides=FLAGS.set).training, slice_of(FLAGS.topology)
    for environment in (LOWERING, COMPILER):
        python_of(environment)
    settings = [f"--config={FLAGS.config}", *(f"--set={override}" for override in FLAGS.set)]
    with tempfile.TemporaryDirectory() as folder:
        try:
            made, problem = reports(where, training, settings, folder, FLAGS.largest_batch), None
        except TooLargeError as error:
            made, problem = [{"slice": dataclasses.asdict(where), "fits": False, "reason": str(error)}], error
        if FLAGS.report_file:
            write_json(FLAGS.report_file, {"settings": settings} | made[-1] | {"estimated_from": made[:-1]}, indent=1)
        if problem:
            raise problem
        if FLAGS.compiled_file:
            with written_whole(FLAGS.compiled_file) as file:
                file.write(pathlib.Path(folder, COMPILED).read_text(encoding="utf-8"))


if __name__ == "__main__":
    run_main(main)
