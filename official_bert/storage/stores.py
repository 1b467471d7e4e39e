"""Stores of files: this machine, TensorFlow's file systems (`gs://`, `ram://`), fsspec's (`s3://`, `memory://` ...).

`files` uses this module. Code that needs files on this machine calls `locate`. Other stores are in `remote_stores`.
"""

import contextlib
import fnmatch
import glob
import os
import re
import shutil
import stat
from collections.abc import Callable, Sequence
from typing import Any, Literal

from official_bert.dotted_names import by_name

Kind = Literal["file", "folder", ""]
SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://")


def scheme_of(path: str) -> str:
    """Returns the scheme, the part before `://`; "" for a path on this machine."""
    scheme = SCHEME.match(path)
    return scheme[1] if scheme else ""


def matches(path: str, pattern: str) -> bool:
    """Returns whether a glob matches a path.

    `**` matches any number of folders; only a dot matches the dot of a hidden name.
    """
    return _parts_match(path.split("/"), pattern.split("/"))


def _parts_match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern or not parts:
        return not parts and all(part == "**" for part in pattern)
    hidden = parts[0].startswith(".") and not pattern[0].startswith(".")
    if pattern[0] == "**":
        return _parts_match(parts, pattern[1:]) or (not hidden and _parts_match(parts[1:], pattern))
    return not hidden and fnmatch.fnmatchcase(parts[0], pattern[0]) and _parts_match(parts[1:], pattern[1:])


class Location:
    """A path in a store, and the path on this machine that has the same content: for this machine's files, the same
    path.
    """

    def __init__(self, path: str):
        self.path = path

    def fetch(self) -> str:
        """Returns a path on this machine for a file, a folder or the prefix of files: the path itself, or that of a
        copy.

        The copy is renewed if the file has changed. Messages name the original file (`temporaries.original_paths`).
        """
        return self.path

    def forget(self) -> None:
        """Removes the copy, if one was made."""

    def pull(self) -> None:
        """Updates the copy of a folder: fetches what others have written since, and removes what they have removed."""

    def push(self) -> None:
        """Uploads the changed files of the copy, those that readers look for at the end, and removes files that were
        removed here.
        """

    def beside(self, ending: str) -> str:
        """Returns a path on this machine for a companion of the file: beside it, or in a folder for temporary files."""
        return f"{self.path}{ending}"


class Store:
    """The files of this machine, by their whole paths. Other stores have the same methods.

    Failures are OSErrors that name the path.
    """

    def locate(self, path: str) -> Location:
        """Returns the location of a path in this store."""
        return Location(path)

    def kind(self, path: str) -> Kind:
        """Returns "file" or "folder", or "" if there is neither."""
        return "folder" if os.path.isdir(path) else "file" if os.path.exists(path) else ""

    def open(self, path: str) -> Any:
        """Opens a file to read its bytes. Raises ValueError for pipes and devices."""
        require_regular(path, path)
        return open(path, "rb")

    def names(self, folder: str) -> list[str]:
        """Returns the names of the files and folders in a folder; an empty list if the path is no folder."""
        return os.listdir(folder) if os.path.isdir(folder) else []

    def below(self, folder: str) -> list[str]:
        """Returns the paths of all files below a folder."""
        return [os.path.join(inside, name) for inside, _, names in os.walk(folder) for name in names]

    def size(self, path: str) -> int:
        """Returns the size of a file in bytes."""
        return os.path.getsize(path)

    def modified(self, path: str) -> int:
        """Returns when a file was changed, in nanoseconds; 0 if the store does not record times."""
        return os.stat(path).st_mtime_ns

    def upload(self, path: str, target: str) -> None:
        """Copies a file of this machine to the path `target`. Readers see its whole content at once."""
        shutil.copyfile(path, target)

    def publish(self, path: str, target: str) -> None:
        """Moves a complete file or folder from this machine to its final path in the store."""
        os.replace(path, target)

    def matching(self, pattern: str) -> list[str]:
        """Returns the sorted files and folders that match a glob (`**`: any depth); else the path of that name, if it
        exists.
        """
        return sorted(glob.glob(pattern, recursive=True)) or ([pattern] if os.path.lexists(pattern) else [])

    def remove(self, path: str) -> None:
        """Removes a file or a whole folder, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)

    def make_folder(self, path: str) -> None:
        """Makes a folder and its parents, if the store has folders."""
        os.makedirs(path or ".", exist_ok=True)


def store_of(path: str) -> Store:
    """Returns the store of a path. Raises ValueError if its scheme is unknown or needs a package that is missing."""
    scheme = scheme_of(path)
    if not scheme:
        return Store()
    open_store: Callable[[str, str], Store] = by_name("official_bert.storage.remote_stores:open_store")
    return open_store(path, scheme)


def locate(path: str) -> Location:
    """Returns the location of a path of any store."""
    return store_of(path).locate(path)


def require_regular(path: str, where: str) -> None:
    """Raises ValueError that begins with `where` if a path of this machine is a pipe or a device.

    Opening or reading one may block for ever, and bytes that were read to detect the format would be lost.
    """
    if scheme_of(path):
        return
    mode = os.stat(path).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise ValueError(
            f"{where}: expected a file, which can be read several times, got a "
            f"{'pipe' if stat.S_ISFIFO(mode) else 'device'}"
        )
