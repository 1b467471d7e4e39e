"""Copies on this machine of files that lie elsewhere, for those who can read or write here only.

They live as long as the process. The tree of folders is the same, so what lies beside a file lies beside its copy.
"""

import atexit
import functools
import os
import re
import shutil
import tempfile

from official_bert.storage.files import (
    files_below,
    folder_of,
    is_remote,
    modified,
    normal,
    open_bytes,
    remove,
    size_of,
    upload,
    written_beside,
)
from official_bert.storage.stores import scheme_of, store_of


@functools.cache
def temporary_folder() -> str:
    """A folder for copies of files that lie elsewhere, which goes with this process."""
    folder = tempfile.mkdtemp(prefix="official_bert_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def own_folder(name: str) -> str:
    """Makes a folder for the files of a name, which goes with this process."""
    above = tempfile.mkdtemp(prefix="official_bert_")
    atexit.register(shutil.rmtree, above, ignore_errors=True)
    folder = os.path.join(above, name)
    os.mkdir(folder)
    return folder


def require_here(path: str, flag: str, reason: str) -> None:
    """Raises ValueError, naming the flag and the reason, for a path elsewhere than on this machine."""
    if is_remote(path):
        raise ValueError(f"--{flag}={path}: expected a path on this machine: {reason}")


def _copy_of(path: str) -> str:
    """Where the copy of a path that lies elsewhere lies here: folders are the same, so what lies beside it lies beside
    its copy.
    """
    return os.path.join(temporary_folder(), scheme_of(path), normal(path)[len(scheme_of(path)) + 3 :].lstrip("/"))


@functools.cache
def _originals() -> dict[str, str]:
    """What temporary files of this process stand for."""
    return {}


def stand_for(temporary: str, original: str) -> None:
    """Lets messages name `original` in place of a temporary file that holds a part of it."""
    _originals()[temporary] = original


def original_paths(text: str) -> str:
    """A message with the user's paths in place of those of copies."""
    for temporary, original in _originals().items():
        text = text.replace(temporary, original)
    return (
        re.sub(rf"{re.escape(temporary_folder())}/([^/\s]+)/", r"\1://", text)
        if temporary_folder.cache_info().currsize
        else text
    )


def local_copy(path: str) -> str:
    """A path on this machine with the same content as a file or folder: itself, or a copy that lives as long as the
    process.

    The prefix of files gives the prefix of their copies. A copy is made again if the file has changed.
    """
    if not is_remote(path):
        return path
    store, kind, target = store_of(path), store_of(path).kind(path), _copy_of(path)
    if kind == "file":
        _refresh(path, target)
    elif kind == "folder":
        os.makedirs(target, exist_ok=True)
        for inside in store.below(path):
            _refresh(inside, _copy_of(inside))
    else:
        for name in store.names(folder_of(path)):
            if name.startswith(os.path.basename(path)):
                local_copy(os.path.join(folder_of(path), name))
    return target


def _refresh(path: str, target: str) -> None:
    """Copies a file here unless the copy has its size and time, or its content if the store knows no times."""
    size, when = size_of(path), modified(path)
    if (
        os.path.exists(target)
        and os.path.getsize(target) == size
        and (os.stat(target).st_mtime_ns == when if when else open_bytes(path).read() == open_bytes(target).read())
    ):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with written_beside(target) as temporary, open_bytes(path) as source, open(temporary, "wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    if when:
        os.utime(target, ns=(when, when))


class WorkingFolder:
    """The `folder` here that stands for a folder anywhere: the same, or a copy whose changes are copied back."""

    def __init__(self, path: str):
        self.path, self.folder = path, local_copy(path)
        self._copied = self._state()

    def _state(self) -> dict[str, tuple[int, int]]:
        """Size and time of each file of the copy, by name; none if there is no copy."""
        if self.folder == self.path:
            return {}
        return {
            name: self._state_of(name)
            for name in (os.path.relpath(path, self.folder) for path in files_below(self.folder))
        }

    def _state_of(self, name: str) -> tuple[int, int]:
        stat = os.stat(os.path.join(self.folder, name))
        return stat.st_size, stat.st_mtime_ns

    def pull(self) -> None:
        """Brings here what others have written since, and removes here what they have removed."""
        if is_remote(self.path):
            local_copy(self.path)
            names = {os.path.relpath(_copy_of(path), self.folder) for path in files_below(self.path)}
            for name in set(self._copied) - names:
                remove(os.path.join(self.folder, name))
            self._copied = {name: state for name, state in self._state().items() if name in names}

    def push(self) -> None:
        """Copies back what has changed, the files that readers look for last, and removes what was removed here."""
        now = self._state()
        changed = [name for name, state in now.items() if self._copied.get(name) != state and not name.startswith(".")]
        upload(changed, self.folder, self.path)
        for name in changed:  # with the same time here, nothing is brought back that was just written
            if when := modified(os.path.join(self.path, name)):
                os.utime(os.path.join(self.folder, name), ns=(when, when))
        for name in set(self._copied) - set(now):
            remove(os.path.join(self.path, name))
        # A log that has grown since is another one than the copied.
        self._copied = {
            name: (size, self._state_of(name)[1]) if name in changed else (size, time)
            for name, (size, time) in now.items()
        }
