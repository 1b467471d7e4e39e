"""A check of `official-bert verify`, and the results of the 2018 code that it compares with."""

import dataclasses
import gzip
import importlib.util
import json
import pathlib
import shutil
import time
from collections.abc import Callable
from typing import Any

import numpy as np

GOLDEN = pathlib.Path(__file__).parent / "golden"  # copies and excerpts of tests/golden; tests/made_verification.py


@dataclasses.dataclass(frozen=True)
class Check:
    """A computation that `official-bert verify` repeats and compares.

    `measure` gets the folder of `unpack` and returns the largest difference from the expected values; `unit` names what
    is compared.
    """

    name: str
    unit: str
    bound: float
    measure: Callable[[pathlib.Path], float]
    extra: str = ""  # of the package's optional dependencies, without which the check is left out
    modules: tuple[str, ...] = ()  # that the extra installs

    def missing(self) -> str:
        """Returns a message about the packages to install for this check; "" if none is missing."""
        absent = [name for name in self.modules if importlib.util.find_spec(name) is None]
        return f"{', '.join(absent)} is not installed: pip install 'official-bert[{self.extra}]'" if absent else ""

    def row(self, folder: pathlib.Path) -> dict[str, Any]:
        """Returns the check's row of the report.

        An error counts as a difference, so that the other checks still run.
        """
        row: dict[str, Any] = {"check": self.name, "unit": self.unit, "bound": self.bound}
        if reason := self.missing():
            return row | {"result": "left out", "reason": reason}
        begin = time.monotonic()
        try:
            difference = float(self.measure(folder))
        except Exception as error:  # whatever a changed package raises
            text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            return row | {"result": "differs", "reason": text, "seconds": round(time.monotonic() - begin, 1)}
        passed = difference <= self.bound  # False for NaN
        row |= {"difference": difference if np.isfinite(difference) else str(difference)}
        return row | {"result": "passed" if passed else "differs", "seconds": round(time.monotonic() - begin, 1)}


def unpack(folder: pathlib.Path) -> None:
    """Copies the golden results to a folder, and the vocabulary beside the checkpoint there."""
    shutil.copytree(GOLDEN, folder, dirs_exist_ok=True)
    for path in folder.rglob("*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
    shutil.copyfile(folder / "vocab_uncased.txt", folder / "tf1_bert" / "vocab.txt")


def read_json(path: pathlib.Path) -> Any:
    """Returns the value in a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def largest(found: Any, expected: Any, scale: float = 1.0) -> float:
    """Returns the largest difference of two arrays of the same shape, divided by `scale`; NaN if a number is NaN.

    Raises ValueError if the shapes differ.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if found.shape != expected.shape:
        raise ValueError(f"expected an array of shape {expected.shape}, got {found.shape}")
    return float(np.abs(found - expected).max() / scale)
