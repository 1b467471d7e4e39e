"""The speed of a training run, from its log."""

import json
import pathlib
import statistics


def rate_of(folder: pathlib.Path) -> float:
    """Returns the median sequences a second in a run's log, without the first lines, in which graphs are made."""
    rows = [json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return statistics.median(
        row["train/sequences_per_second"] for row in rows[2:] if "train/sequences_per_second" in row
    )
