"""Trains every objective for three steps with two checkouts, and compares the results to the last bit.

    git worktree add /tmp/before main~3
    python tests/compare_trainings.py --before=/tmp/before --only=table,words     # without --only: all cases
    python tests/compare_trainings.py --list

For each case both checkouts run the same command (`official_bert.run_finetuning` or `run_pretraining`), each in a
process with its own PYTHONPATH, on data that `training_cases.py` draws from a seed. Compared are all variables of the
checkpoint (weights, moments, counters) by name, type and value; the rows of log.jsonl without times and speeds; the
metrics in eval_results.txt; and the prediction files. A line for each case says `equal`, or what differs first. The
exit status is 1 if anything differs. Use it for a change that should leave every number as it is.

The cases and their data are those of this file's checkout (`--after`). Graphs are not optimised, on both sides,
which saves half of the time.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import training_cases
from training_cases import Case

ROOT = pathlib.Path(__file__).parent.parent
# Of a row of the log: what the machine decides.
OF_THE_MACHINE = ("per_second", "seconds", "memory", "time")
# Of a run's folder: what is compared otherwise, and notes with paths and times.
NO_ANSWERS = ("config.yaml", "data.json", "README.md", "base.json", "evaluations.json", "vocab.txt", "checkpoint")
LOG, RESULTS, WEIGHTS, ENDED = "log.jsonl", "eval_results.txt", "variables.npz", "ended.json"
SHOWN = 300  # characters of an error


def main() -> int:
    """Runs the cases with both checkouts, prints the table, and returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", default="", help="the checkout to compare with")
    parser.add_argument("--after", default=str(ROOT), help="the other checkout; by default that of this file")
    parser.add_argument("--only", default="", help="names of cases with commas between them; by default all")
    parser.add_argument("--work_dir", default="", help="a folder for both sides' runs, which is kept")
    parser.add_argument(
        "--in_turn", action="store_true", help="one checkout after the other, on a machine with one core"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases, and stop")
    options = parser.parse_args()
    try:
        cases = training_cases.chosen([name for name in options.only.split(",") if name])
        if options.list:
            print("\n".join(case.name for case in cases))
            return 0
        checkouts = {side: checkout(getattr(options, side), f"--{side}") for side in ("before", "after")}
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(options.work_dir or temporary)
        run_both(checkouts, cases, work, options.in_turn)
        return report(cases, work)


def checkout(path: str, flag: str) -> pathlib.Path:
    """Returns a checkout's folder. Raises ValueError if the package is not in it."""
    folder = pathlib.Path(path).resolve()
    if not path or not (folder / "official_bert" / "__init__.py").is_file():
        raise ValueError(f"{flag}: expected a checkout with the folder official_bert, got {path!r}")
    return folder


def run_both(checkouts: Mapping[str, pathlib.Path], cases: Sequence[Case], work: pathlib.Path, in_turn: bool) -> None:
    """Trains the cases with both checkouts: a process for each number of devices, which is fixed in a process."""
    for side in checkouts:
        (work / side).mkdir(parents=True, exist_ok=True)
        training_cases.write_data(work / side)
    for devices in sorted({case.devices for case in cases}):
        names = ",".join(case.name for case in cases if case.devices == devices)
        processes = []
        for side, folder in checkouts.items():
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "run_trainings.py"), names],
                cwd=work / side,
                env={
                    **os.environ,
                    "PYTHONPATH": str(folder),
                    "TF_CPP_MIN_LOG_LEVEL": "3",
                    "KERAS_BACKEND": "tensorflow",
                },
            )
            processes.append(process)
            if in_turn:
                process.wait()
        for process in processes:
            process.wait()


def report(cases: Sequence[Case], work: pathlib.Path) -> int:
    """Prints a line for each case; returns the exit status."""
    width, different = max(len(case.name) for case in cases), 0
    for case in cases:
        before, after = (work / side / case.name for side in ("before", "after"))
        found = next(differences(before, after), "")
        different += bool(found)
        print(f"{case.name:{width}}  {found or f'equal: {summary(after)}'}", flush=True)
    print(f"{len(cases) - different} of {len(cases)} cases are equal")
    return int(different > 0)


def summary(run: pathlib.Path) -> str:
    """Returns how much of a run was compared."""
    with np.load(run / WEIGHTS) as variables:
        count = len(variables.files)
    predictions = [path.name for path in answers(run)]
    return f"{count} variables, {len(log_rows(run))} rows, {', '.join(predictions) or 'no predictions'}"


def differences(before: pathlib.Path, after: pathlib.Path) -> Iterator[str]:
    """Yields what differs between the same run of two checkouts, the first thing first."""
    ended = [json.loads(path.read_text()) if (path := run / ENDED).is_file() else None for run in (before, after)]
    for side, end in zip(("before", "after"), ended):
        if end is None or end["status"]:
            yield f"{side}: the command failed: {end['error'][-SHOWN:] if end else 'its process ended'}"
    if not all(end and not end["status"] for end in ended):
        return
    yield from different_rows(log_rows(before), log_rows(after))
    yield from different_variables(before / WEIGHTS, after / WEIGHTS)
    yield from different_values(RESULTS, *(text_of(run / RESULTS) for run in (before, after)))
    first, second = ({path.name: path for path in answers(run)} for run in (before, after))
    yield from different_values("prediction files", sorted(first), sorted(second))
    for name in (name for name in first if name in second):
        yield from different_values(name, text_of(first[name]), text_of(second[name]))


def log_rows(run: pathlib.Path) -> list[dict[str, Any]]:
    """Returns the rows of a log without what the machine decides."""
    rows = [json.loads(line) for line in text_of(run / LOG).splitlines()]
    return [
        {key: value for key, value in row.items() if not any(word in key for word in OF_THE_MACHINE)} for row in rows
    ]


def answers(run: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files of a run that hold predictions."""
    others = (*NO_ANSWERS, LOG, RESULTS, WEIGHTS, ENDED)
    files = (path for path in run.glob("*") if path.is_file() and not path.name.startswith((".", "ckpt-")))
    return sorted(path for path in files if path.name not in others)


def text_of(path: pathlib.Path) -> str:
    """Returns a file's text; "" if there is no file."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def different_rows(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> Iterator[str]:
    """Yields differences between two logs: names in their order, then values."""
    yield from different_values("rows of the log", len(before), len(after))
    for first, second in zip(before, after):
        step = first.get("step")
        yield from different_values(f"step {step}: names in the log", list(first), list(second))
        for name in (name for name in first if name in second):
            yield from different_values(f"step {step}: {name}", repr(first[name]), repr(second[name]))


def different_variables(before: pathlib.Path, after: pathlib.Path) -> Iterator[str]:
    """Yields differences between the variables of two checkpoints."""
    with np.load(before) as first, np.load(after) as second:
        yield from different_values("variables", sorted(first.files), sorted(second.files))
        for name in sorted({*first.files} & {*second.files}):
            one, other = first[name], second[name]
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                yield f"{name}: {one.dtype} {one.shape} before, {other.dtype} {other.shape} after"
            elif one.tobytes() != other.tobytes():
                most = np.abs(one.astype(np.float64) - other.astype(np.float64)).max()
                yield f"{name}: {(one != other).sum()} of {one.size} values differ, by at most {most:.3g}"


def different_values(name: str, before: Any, after: Any) -> Iterator[str]:
    """Yields a line if two values differ; of texts and lists, where."""
    if before == after:
        return
    if isinstance(before, list):
        alone = [
            f"{item!r} only {side}"
            for side, one, other in (("before", before, after), ("after", after, before))
            for item in one
            if item not in other
        ]
        yield f"{name}: {', '.join(alone[:3]) or 'another order'}"
    elif isinstance(before, str) and "\n" in before:
        pairs = zip([*before.splitlines(), ""], [*after.splitlines(), ""])
        other_lines = ((number, pair) for number, pair in enumerate(pairs, 1) if pair[0] != pair[1])
        line, (first, second) = next(other_lines, (1, ("", "other ends of lines")))
        yield f"{name}:{line}: {first[:80]!r} before, {second[:80]!r} after"
    else:
        yield f"{name}: {before} before, {after} after"


if __name__ == "__main__":
    sys.exit(main())
