"""Compares engines with the SavedModel beside them: the difference of their outputs, and their speed."""

import hashlib
import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from official_bert.runtimes.engines import FILE, Arrays, precision_of
from official_bert.runtimes.processor import processor
from official_bert.storage.files import exists, files_below, open_bytes, read_mapping

TURNS, SKIPPED = 30, 3  # of a request by each side; the first do not count
RUNTIMES = ("tensorflow", "onnxruntime", "ai-edge-litert", "openvino")


def admitted_limits(folder: str, form: str, most_loss: float | None) -> dict[str, int]:
    """Returns the limits of an engine's model (`limits` in model.json).

    Raises ValueError if there is no such model, or if it has reduced precision and lost more than `most_loss` (None
    admits no reduced precision).
    """
    if not exists(path := os.path.join(folder, FILE)):
        raise ValueError(f"run_export --format=saved_model,{form} writes it")
    description = read_mapping(path)
    loss = description.get("loss")
    if precision_of(form) and not (most_loss is not None and isinstance(loss, float) and loss <= most_loss):
        raise ValueError(
            f"--most_loss admits a model that lost at most that much on run_export's --check_file; "
            f"{'it lost ' + format(loss, '.4f') if isinstance(loss, float) else 'its loss is not recorded'}"
        )
    return description.get("limits", {})


def difference(name: str, expected: Arrays, computed: Arrays, bound: float, is_exact: bool) -> float:
    """Returns the difference of an output, relative to its largest magnitude if that is above 1.

    For integers and text it is infinity if they differ, except where two scores beside them are nearer than twice
    `bound`, so that either may come first; 0 in precisions below float32 (not `is_exact`), which `run_export` has
    checked.
    """
    value, computed_value = expected[name], computed[name]
    if value.shape != computed_value.shape:
        return np.inf if is_exact else 0.0
    if value.dtype.kind == "f":
        return float(np.abs(value - computed_value).max(initial=0) / np.abs(value).max(initial=1))
    differs = value != computed_value
    for scores in expected.values():
        if scores.dtype.kind == "f" and scores.shape == value.shape and value.ndim > 1 and value.shape[-1] > 1:
            gaps = np.pad(np.abs(np.diff(scores)), [(0, 0)] * (value.ndim - 1) + [(1, 1)], constant_values=np.inf)
            differs &= np.minimum(gaps[..., 1:], gaps[..., :-1]) > 2 * bound
    return np.inf if differs.any() and is_exact else 0.0


def take_turns(sides: Sequence[Callable], request: Arrays) -> list[list[float]]:
    """Returns the seconds that each side took per turn for a request.

    The sides take turns; the first turns are not counted.
    """
    times = [list[float]() for _ in sides]
    for turn in range(SKIPPED + TURNS):
        for side, seconds in list(zip(sides, times))[:: (-1) ** turn]:
            began = time.perf_counter()
            side(request)
            if turn >= SKIPPED:
                seconds.append(time.perf_counter() - began)
    return times


def digest_of(folders: Iterable[str], *settings: float | None) -> str:
    """Returns a digest of all that a comparison depends on: the models' files, settings, versions of runtimes,
    processor.
    """
    versions = {}
    for name in RUNTIMES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = ""
    digest = hashlib.sha256(json.dumps([processor(), *settings, versions]).encode())
    for folder in folders:
        for path in sorted(files_below(folder)) if exists(folder) else ():
            with open_bytes(path) as file:
                digest.update(f"\n{path.removeprefix(folder)}\n".encode())
                while data := file.read(1 << 20):
                    digest.update(data)
    return digest.hexdigest()
