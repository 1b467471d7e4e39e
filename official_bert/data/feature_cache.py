"""Features of tokenized examples kept on disk between runs, by what they were made from."""

import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

FORMAT = 1  # raised where what is stored for the same settings changes
Rows = list[dict[str, np.ndarray]]


def cached_rows(cache_dir: str, files: Sequence[str], settings: Mapping[str, Any], make: Callable[[], Rows]) -> Rows:
    """What `make()` gives: rows with the same keys, arrays of rank 0 or 1; out of `cache_dir` where it has been made before.

    The key is the content of `files` (data, vocabulary) and the `settings`, plain JSON. No `cache_dir` keeps nothing. A damaged
    file is made anew.
    """
    if not cache_dir:
        return make()
    path = os.path.join(cache_dir, f"{_digest(files, settings)}.npz")
    if (rows := _load(path)) is not None:
        return rows
    rows = make()
    os.makedirs(cache_dir, exist_ok=True)
    temporary = f"{path}.tmp.{os.getpid()}.npz"
    np.savez(temporary, **_pack(rows))  # type: ignore[arg-type]
    os.replace(temporary, path)
    return rows


def _digest(files: Sequence[str], settings: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps([FORMAT, settings], sort_keys=True).encode())
    for name in files:
        with open(name, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]


def _pack(rows: Rows) -> dict[str, np.ndarray]:
    """Each key's arrays one after the other, and the lengths of those that have one (-1: a number)."""
    packed: dict[str, np.ndarray] = {"count": np.array(len(rows))}
    for key in rows[0] if rows else ():
        arrays = [np.asarray(row[key]) for row in rows]
        packed[f"values:{key}"] = np.concatenate([array.reshape(-1) for array in arrays])
        packed[f"lengths:{key}"] = np.array([len(array) if array.ndim else -1 for array in arrays], np.int32)
    return packed


def _load(path: str) -> Rows | None:
    """The rows of a file; None where there is none or it cannot be read."""
    try:
        with np.load(path) as stored:
            packed = {key: stored[key] for key in stored.files}
    except (FileNotFoundError, OSError, ValueError, zipfile.BadZipFile):
        return None
    rows: Rows = [{} for _ in range(int(packed.pop("count")))]
    for key in [name.removeprefix("values:") for name in packed if name.startswith("values:")]:
        values, lengths = packed[f"values:{key}"], packed[f"lengths:{key}"]
        ends = np.cumsum(np.abs(lengths))
        for row, length, end in zip(rows, lengths, ends):
            row[key] = values[end - 1] if length < 0 else values[end - length:end]
    return rows
