"""Stores of TensorFlow and of fsspec. Each library is imported when a path asks for it."""

import functools
import glob
import io
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

from official_bert.storage.files import files_below, folder_of
from official_bert.storage.remote_copies import RemoteLocation, upload
from official_bert.storage.stores import Kind, Location, Store, matches, scheme_of

TENSORFLOW_SCHEMES = ("gs", "ram")
T = TypeVar("T")


def open_store(path: str, scheme: str) -> Store:
    """Returns the store of a path's scheme. Raises ValueError if the scheme is unknown or its package is missing."""
    return TensorFlowStore() if scheme in TENSORFLOW_SCHEMES else FsspecStore(path, scheme)


def _as_os_errors(method: Callable[..., T]) -> Callable[..., T]:
    """Turns errors of a store's library into OSErrors that name the path."""

    @functools.wraps(method)
    def checked(self: Any, path: str, *arguments: object) -> T:
        try:
            return method(self, path, *arguments)
        except (OSError, ValueError):
            raise
        except Exception as error:
            kind = FileNotFoundError if type(error).__name__ == "NotFoundError" else OSError
            raise kind(f"{path}: {' '.join(str(error).split())[:300]}") from None

    return checked


class _TensorFlowFile(io.RawIOBase):
    """TensorFlow's file behind the interface of a readable Python file."""

    def __init__(self, path: str):
        import tensorflow as tf

        self._file = tf.io.gfile.GFile(path, "rb")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._file.tell(), os.SEEK_END: self._file.size()}[whence]
        self._file.seek(min(base + offset, self._file.size()))
        return self._file.tell()

    def tell(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


class RemoteStore(Store):
    """A store whose files are copied to this machine."""

    def locate(self, path: str) -> Location:
        return RemoteLocation(path, self)

    def publish(self, path: str, target: str) -> None:
        if os.path.isdir(path):
            upload(self, [os.path.relpath(file, path) for file in files_below(path)], path, target)
        else:
            self.upload(path, target)
            os.unlink(path)

    def matching(self, pattern: str) -> list[str]:
        if self.kind(pattern) or not glob.has_magic(pattern):
            return [pattern] if self.kind(pattern) else []
        base = folder_of(re.split(r"[*?\[]", pattern)[0] + "x")
        paths = set()
        for path in self.below(base):
            while len(path) > len(base) and path not in paths:
                paths.add(path)
                path = folder_of(path)
        return sorted(path for path in paths if matches(path, pattern))


class TensorFlowStore(RemoteStore):
    """The file systems that TensorFlow itself reads and writes."""

    def __init__(self) -> None:
        import tensorflow as tf

        self._files = tf.io.gfile

    @_as_os_errors
    def kind(self, path: str) -> Kind:
        if not self._files.isdir(path):
            return "file" if self._files.exists(path) else ""
        # ram:// takes the beginning of a file's name for a folder.
        return "folder" if scheme_of(path) != "ram" or self._files.glob(f"{path.rstrip('/')}/*") else ""

    @_as_os_errors
    def open(self, path: str) -> Any:
        _require_file(self.kind(path), path)
        return io.BufferedReader(_TensorFlowFile(path), 1 << 20)

    @_as_os_errors
    def names(self, folder: str) -> list[str]:
        if self.kind(folder) != "folder":
            return []
        return [name.rstrip("/") for name in self._files.listdir(folder) if self._exists(os.path.join(folder, name))]

    @_as_os_errors
    def below(self, folder: str) -> list[str]:
        if self.kind(folder) != "folder":
            return []
        paths = (os.path.join(inside, name) for inside, _, names in self._files.walk(folder) for name in names)
        return list(filter(self._exists, paths))

    def _exists(self, listed: str) -> bool:
        """Returns whether a listed name exists: for a folder `a`, ram:// also lists the files of a folder `a.b` beside
        it.
        """
        return scheme_of(listed) != "ram" or self._files.exists(listed)

    @_as_os_errors
    def size(self, path: str) -> int:
        return self._files.stat(path).length

    @_as_os_errors
    def modified(self, path: str) -> int:
        return self._files.stat(path).mtime_nsec

    @_as_os_errors
    def upload(self, path: str, target: str) -> None:
        if scheme_of(target) == "ram" and self._files.exists(target):
            self._files.remove(target)  # ram:// appends to a file that is there
        self._files.copy(path, target, overwrite=True)

    @_as_os_errors
    def remove(self, path: str) -> None:
        if kind := self.kind(path):
            self._files.rmtree(path) if kind == "folder" else self._files.remove(path)

    @_as_os_errors
    def make_folder(self, path: str) -> None:
        self._files.makedirs(path)


class FsspecStore(RemoteStore):
    """The stores of every other scheme, through fsspec.

    Listings never come from its cache, because other processes write too.
    """

    def __init__(self, path: str, scheme: str):
        import fsspec

        try:
            self._files, _ = fsspec.core.url_to_fs(path)
        except ImportError as error:
            raise ValueError(f"{path}: {error}") from None
        except ValueError:
            raise ValueError(
                f"{path}: expected a path on this machine, gs://, or a scheme that fsspec knows, got {scheme}://"
            ) from None

    @_as_os_errors
    def kind(self, path: str) -> Kind:
        self._files.invalidate_cache()
        try:
            return "folder" if self._files.info(path)["type"] == "directory" else "file"
        except FileNotFoundError:
            return ""

    @_as_os_errors
    def open(self, path: str) -> Any:
        import fsspec

        _require_file(self.kind(path), path)
        file = self._files.open(path, "rb")
        if isinstance(file, io.BytesIO):
            return io.BytesIO(file.getvalue())  # memory:// gives all readers one position
        # fsspec's own files cannot read a line of a bounded length
        return io.BufferedReader(file, 1 << 20) if isinstance(file, fsspec.spec.AbstractBufferedFile) else file

    @_as_os_errors
    def names(self, folder: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            paths = self._files.ls(folder, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        inside = self._files._strip_protocol(folder).strip("/")
        return [name.rstrip("/").rpartition("/")[2] for name in paths if name.strip("/") != inside]

    @_as_os_errors
    def below(self, folder: str) -> list[str]:
        self._files.invalidate_cache()
        # found names begin so, without the scheme and, for some, its host
        root = self._files._strip_protocol(folder).rstrip("/")
        return [os.path.join(folder, name[len(root) :].lstrip("/")) for name in self._files.find(folder)]

    @_as_os_errors
    def size(self, path: str) -> int:
        return self._files.size(path)

    @_as_os_errors
    def modified(self, path: str) -> int:
        try:
            return int(self._files.modified(path).timestamp() * 1e9)
        except NotImplementedError:
            return 0

    @_as_os_errors
    def upload(self, path: str, target: str) -> None:
        self._files.put_file(path, target)

    @_as_os_errors
    def remove(self, path: str) -> None:
        if self.kind(path):
            self._files.rm(path, recursive=True)

    def make_folder(self, path: str) -> None:
        """Does nothing: writing a file makes the folders in its name."""


def _require_file(kind: Kind, path: str) -> None:
    if kind == "folder":
        raise IsADirectoryError(f"{path}: is a folder")
    if not kind:
        raise FileNotFoundError(f"{path}: no such file")
