"""A folder of arrays that are slow to make, each file named by the hash of everything that its arrays depend on."""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from official_bert.storage.files import absolute, make_folder, make_private_folder, open_bytes, written_beside
from official_bert.storage.stores import locate


def file_digest(path: str) -> str:
    """Returns the SHA-256 of a file's content."""
    with open_bytes(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def text_digest(texts: Iterable[str]) -> str:
    """Returns the SHA-256 of texts and their lengths."""
    digest = hashlib.sha256()
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.hexdigest()


def name_of(path: str) -> str:
    """Returns a name for what is kept of a file elsewhere: the file's own, and a digest of where it lies."""
    return f"{os.path.basename(path)}-{hashlib.sha256(absolute(path).encode()).hexdigest()[:16]}"


def check_own(folder: str) -> None:
    """Creates a cache folder that only its user can access; if that fails, there is no cache, which is no error.

    Raises ValueError if another user may have put files into it.
    """
    if folder:
        with contextlib.suppress(OSError):
            make_private_folder(folder)


def cached(
    folder: str, depends_on: Mapping[str, Any], make: Callable[[], Mapping[str, np.ndarray]]
) -> Mapping[str, np.ndarray]:
    """Returns the arrays of an earlier call with the same `depends_on` (JSON types: digests, versions, options), or of
    `make`.

    A folder "" keeps nothing. Unreadable files are made again; write failures are ignored. Raises what `check_own`
    raises.
    """
    if not folder:
        return make()
    check_own(folder)
    key = hashlib.sha256(json.dumps(depends_on, sort_keys=True).encode()).hexdigest()
    path = os.path.join(folder, f"{key[:32]}.npz")
    try:
        with open_bytes(path) as stored, np.load(stored, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception:  # of a damaged file: whatever the readers of zip files and of NumPy's header raise
        pass
    arrays = make()
    with contextlib.suppress(OSError):
        make_folder(folder)
        with written_beside(path) as temporary, open(temporary, "wb") as file:
            np.savez(file, **arrays)
            file.close()
    return arrays


def mapped(path: str) -> np.ndarray:
    """Returns the array of a file, mapped into memory."""
    return np.load(locate(path).fetch(), mmap_mode="r")
