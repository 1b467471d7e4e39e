"""Plain record files on this machine: files from elsewhere are copied, and gzip files unpacked, once, into a cache."""

import contextlib
import fcntl
import gzip
import os
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence

from absl import logging

from official_bert.data.cache import check_own, file_digest, name_of
from official_bert.data.record_files import records
from official_bert.long_work.preflight import check_disk
from official_bert.storage.files import DISK_FULL, modified, open_bytes, size_of
from official_bert.storage.temporaries import temporary_folder

FOLDER = "records"  # in the cache
CHUNK = 1 << 22
SAID_FROM = 1 << 26  # bytes
VERSION, PART, LOCK = ".of-", ".part", ".lock"


def cache_folder(cache_dir: str) -> str:
    """Returns the folder for copies and indices of records: in `cache_dir`, or a temporary one, deleted at exit.

    It is temporary if `cache_dir` is "", is remote (records are read locally), or cannot be written. Raises ValueError
    if another user may have put files into it.
    """
    if cache_dir:
        folder = os.path.join(cache_dir, FOLDER)
        check_own(cache_dir)
        check_own(folder)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    folder = os.path.join(temporary_folder(), FOLDER)
    os.makedirs(folder, exist_ok=True)
    return folder


def needs_copy(path: str) -> bool:
    """Returns whether records must be copied before they are read: they are remote or compressed."""
    return not os.path.exists(path) or records.is_gzip(path)


def check_space(paths: Sequence[str], folder: str) -> None:
    """Reports the disk space that missing copies need, if it is large. Raises ValueError if `folder` has less."""
    missing = [path for path in paths if not os.path.exists(_copy_path(path, folder))]
    size = sum(map(size_of, missing))
    packed = any(map(records.is_gzip, missing))
    if missing:
        check_disk({folder: size}, f"plain copies of {len(missing)} files of records (--cache_dir)")
    if size >= SAID_FROM:
        logging.warning(
            "%s gets plain copies of %d files of records, %.1f GB%s; %.1f GB are free there",
            folder,
            len(missing),
            size / 1e9,
            " while packed" if packed else "",
            shutil.disk_usage(folder).free / 1e9,
        )


def local_records(path: str, folder: str, show: Callable[[float], None] = lambda _: None) -> str:
    """Makes a plain copy of a record file in `folder` and returns its path.

    A copy that matches the file's size and time is reused; copies of earlier versions are removed. Another process that
    needs the same copy waits for it. Raises ValueError, and leaves no copy, if the gzip stream is broken or the disk is
    full.
    """
    target = _copy_path(path, folder)
    known_by = name_of(path)
    with _alone(os.path.join(folder, f".{known_by}{LOCK}"), path):
        if not os.path.exists(target):
            _copy(path, target, show)
            for name in os.listdir(folder):
                if name.lstrip(".").startswith(known_by + VERSION) and os.path.basename(target) not in name:
                    os.unlink(os.path.join(folder, name))
    return target


def _copy_path(path: str, folder: str) -> str:
    """The path of the copy of a file as it is now."""
    return os.path.join(folder, f"{name_of(path)}{VERSION}{size_of(path)}-{modified(path) or file_digest(path)[:16]}")


@contextlib.contextmanager
def _alone(lock: str, path: str) -> Iterator[None]:
    """Waits until no other process makes the same copy."""
    with open(lock, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logging.warning("%s: another process is copying it to this machine; waiting", path)
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield


def _copy(path: str, target: str, show: Callable[[float], None]) -> None:
    size, part = size_of(path), f"{target}{PART}"
    try:
        with open_bytes(path) as raw, open(part, "wb") as file:
            stream = gzip.GzipFile(fileobj=raw) if records.is_gzip(path) else raw
            while data := stream.read(CHUNK):
                file.write(data)
                show(raw.tell() / max(size, 1))
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno in DISK_FULL:
            raise ValueError(
                f"{part}: {os.strerror(error.errno)}; --cache_dir on another disk, or unpack {path} yourself"
            ) from None
        for _ in records.read_records(path):  # names the broken record
            pass
        raise ValueError(f"{path}: cannot be read: {error}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)
