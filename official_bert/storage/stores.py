"""Where files lie: on this machine, on TensorFlow's file systems (`gs://`, `ram://`), or on fsspec's (`s3://`,
`memory://` ...).

`files` uses this module, and `locate` whoever needs files on this machine. Other stores are in `remote_stores`.
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
    """Returns the part before `://`; "" for a path on this machine."""
    scheme = SCHEME.match(path)
    return scheme[1] if scheme else ""


def matches(path: str, pattern: str) -> bool:
    """Returns whether a glob matches a path, ** any number of folders; hidden names match only a dot."""
    return _parts_match(path.split("/"), pattern.split("/"))


def _parts_match(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern or not parts:
        return not parts and all(part == "**" for part in pattern)
    hidden = parts[0].startswith(".") and not pattern[0].startswith(".")
    if pattern[0] == "**":
        return _parts_match(parts, pattern[1:]) or (not hidden and _parts_match(parts[1:], pattern))
    return not hidden and fnmatch.fnmatchcase(parts[0], pattern[0]) and _parts_match(parts[1:], pattern[1:])


class Location:
    """A path, resolved where it enters, and the path on this machine with the same content: here, itself."""

    def __init__(self, path: str):
        self.path = path

    def fetch(self) -> str:
        """Returns the path on this machine of a file, a folder or the prefix of files: its own, or that of a copy.

        A copy is made again if the file has changed. Messages name the file (`temporaries.original_paths`).
        """
        return self.path

    def forget(self) -> None:
        """Removes the copy, if there is one."""

    def pull(self) -> None:
        """Brings here what others have written into the folder since, and removes here what they have removed."""

    def push(self) -> None:
        """Copies back what has changed, the files that readers look for last, and removes what was removed here."""

    def beside(self, ending: str) -> str:
        """Returns a path on this machine for what goes with a file: beside it, or among the temporary files."""
        return f"{self.path}{ending}"


class Store:
    """The files of this machine, by their whole paths; other stores do the same for theirs.

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
        """Returns the names of files and folders in a folder; none if it is no folder."""
        return os.listdir(folder) if os.path.isdir(folder) else []

    def below(self, folder: str) -> list[str]:
        """Returns the paths of all files below a folder."""
        return [os.path.join(inside, name) for inside, _, names in os.walk(folder) for name in names]

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return os.path.getsize(path)

    def modified(self, path: str) -> int:
        """When a file changed, in nanoseconds; 0 if the store does not say it."""
        return os.stat(path).st_mtime_ns

    def upload(self, path: str, target: str) -> None:
        """Copies a file of this machine to the path `target`, which has its content at once."""
        shutil.copyfile(path, target)

    def publish(self, path: str, target: str) -> None:
        """Gives a whole file or folder of this machine its final name in the store."""
        os.replace(path, target)

    def matching(self, pattern: str) -> list[str]:
        """Returns the sorted files and folders that a glob matches (** any depth), or else the path of that name."""
        return sorted(glob.glob(pattern, recursive=True)) or ([pattern] if os.path.lexists(pattern) else [])

    def remove(self, path: str) -> None:
        """Removes a file or, with everything in it, a folder; there may be neither."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)

    def make_folder(self, path: str) -> None:
        """Makes a folder and those above it, if the store knows folders."""
        os.makedirs(path or ".", exist_ok=True)


def store_of(path: str) -> Store:
    """Returns the store of a path. Raises ValueError for a scheme that is unknown or whose package is missing."""
    scheme = scheme_of(path)
    if not scheme:
        return Store()
    open_store: Callable[[str, str], Store] = by_name("official_bert.storage.remote_stores:open_store")
    return open_store(path, scheme)


def locate(path: str) -> Location:
    """Returns the location of a path in any store."""
    return store_of(path).locate(path)


def require_regular(path: str, where: str) -> None:
    """Raises ValueError, beginning with `where`, for a pipe or a device, which only this machine has: to open or read
    one may take for ever, and what was read to tell its content would be gone.
    """
    if scheme_of(path):
        return
    mode = os.stat(path).st_mode
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise ValueError(
            f"{where}: expected a file, which can be read several times, got a "
            f"{'pipe' if stat.S_ISFIFO(mode) else 'device'}"
        )
