"""Finds, reads and writes the files that a user names, whatever their content.

Other modules reach a user's files through these functions. So a path means the same everywhere: on this machine, on
TensorFlow's file systems (`gs://`, `ram://`) and on those of fsspec (`s3://`, `memory://` ...). A file for another
store is written on this machine and then copied there; nothing is renamed there.
"""

import contextlib
import errno
import glob
import gzip
import json
import os
import re
import shutil
import stat
import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Literal, TextIO

from official_bert import json_values
from official_bert.limits import LONGEST_LINE, MOST_JSON, MOST_JSON_VALUES, require_at_most
from official_bert.storage.stores import SCHEME, require_regular, scheme_of, store_of
from official_bert.storage.temporaries import temporary_folder

BadText = Literal["error", "replace"]
DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def disk_full_reason(error: BaseException) -> str:
    """Returns the system's message if an error means a full disk, a file that is too large or a quota; "" for other
    errors.

    TensorFlow raises the same error for a full disk and for too little memory; only its text differs.
    """
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return os.strerror(error.errno)
    return next((reason for number in DISK_FULL if (reason := os.strerror(number)) in str(error)), "")


def is_remote(path: str) -> bool:
    """Returns whether a path lies in another store, not on this machine."""
    return bool(scheme_of(path))


def exists(path: str) -> bool:
    """Returns whether a path is a file or a folder."""
    return bool(store_of(path).kind(path))


def is_file(path: str) -> bool:
    """Returns whether a path is a file."""
    return store_of(path).kind(path) == "file"


def is_folder(path: str) -> bool:
    """Returns whether a path is a folder."""
    return store_of(path).kind(path) == "folder"


def list_names(folder: str) -> list[str]:
    """Returns the sorted names of the files and folders in a folder; an empty list if there is no such folder."""
    return sorted(store_of(folder).names(folder))


def size_of(path: str) -> int:
    """Returns the size of a file in bytes. Raises OSError if there is no such file."""
    return store_of(path).size(path)


def modified(path: str) -> int:
    """Returns when a file was changed, in nanoseconds; 0 if its store does not record times."""
    return store_of(path).modified(path)


def disk_of(path: str) -> tuple[int, int] | None:
    """Returns (device number, free bytes) of the disk of a path on this machine, which need not exist yet; None for
    others.
    """
    if is_remote(path):
        return None
    folder = os.path.abspath(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return os.stat(folder).st_dev, shutil.disk_usage(folder).free


def open_bytes(path: str) -> IO[bytes]:
    """Opens a file to read its bytes. Raises OSError if it cannot be opened."""
    return store_of(path).open(path)


def folder_of(path: str) -> str:
    """Returns the folder of a file, "" for the current one."""
    if scheme := SCHEME.match(path):
        return scheme[0] + os.path.dirname(path.removeprefix(scheme[0]).rstrip("/"))
    return os.path.dirname(path)


def normal(path: str) -> str:
    """Returns a path without needless dots and slashes."""
    if scheme := SCHEME.match(path):
        return scheme[0] + os.path.normpath(path.removeprefix(scheme[0]))
    return os.path.normpath(path)


def absolute(path: str) -> str:
    """Returns the absolute path, which means the same in every working folder."""
    return normal(path) if is_remote(path) else os.path.abspath(path)


def real(path: str) -> str:
    """Returns a path with symbolic links resolved."""
    return normal(path) if is_remote(path) else os.path.realpath(path)


def path_inside(folder: str, name: Any, where: str) -> str:
    """Returns the path of a file or folder inside `folder` that a file there names. It need not exist.

    A link may lead to the `blobs` of the same repository in the hub's cache, whose snapshots consist of such links.
    Raises ValueError that begins with `where` for an absolute name, a Windows path, a name with `..` or control
    characters, and a link that leaves the folder.
    """
    if (
        not isinstance(name, str)
        or not name.isprintable()
        or len(name) > 255
        or re.search(r"[\\:]|^/|(^|/)\.\.(/|$)", name)
    ):
        raise ValueError(f"{where}: expected the name of a file inside the folder, got {str(name)[:80]!r}")
    path, inside = os.path.join(folder, name), real(folder or ".")
    target = real(path)
    cache = re.match(r"(.*/models--[^/]+)/snapshots/", f"{inside}/")
    is_blob = cache is not None and os.path.dirname(target) == f"{cache[1]}/blobs"
    if not (is_blob or f"{target}/".startswith(f"{inside.rstrip('/')}/")):
        raise ValueError(
            f"{where}: expected the name of a file inside the folder, got {name[:80]!r}, a link to {target}"
        )
    return path


def require_regular_files(prefix: str) -> None:
    """Raises ValueError if a path on this machine that begins with `prefix`, or one in such a folder, is a pipe or a
    device.
    """
    for end in ("*", "*/*"):
        for path in glob.iglob(glob.escape(prefix) + end, include_hidden=True):
            if os.path.exists(path):
                require_regular(path, path)


def make_folder(path: str) -> None:
    """Makes a folder and its parents, unless they exist."""
    store_of(path).make_folder(path)


@contextlib.contextmanager
def made_folder(path: str) -> Iterator[None]:
    """Makes a folder and its parents; at the end, removes the new ones that are still empty."""
    missing: list[str] = []
    while path and not is_remote(path) and not exists(path):
        missing, path = [*missing, path.rstrip("/")], os.path.dirname(path.rstrip("/"))
    make_folder(missing[0] if missing else path)
    try:
        yield
    finally:
        for folder in missing:
            with contextlib.suppress(OSError):  # it has been filled
                os.rmdir(folder)


def make_private_folder(path: str) -> None:
    """Makes a folder that only its user may enter (mode 0700), or accepts one that nobody else can have written to.

    Does nothing for paths in other stores, which have their own rights. Raises ValueError if the path is a link,
    belongs to another user or is writable for others; OSError if the folder cannot be made.
    """
    if is_remote(path):
        return
    path = path.rstrip("/") or "/"
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if reason := why_not_private(path):
            raise ValueError(
                f"{path}: expected a folder that nobody else can write in, {reason}; remove it or give another"
            ) from None


def why_not_private(path: str) -> str:
    """Returns why others may have written to a folder of this machine; "" if only its user and the administrator can.

    Raises OSError if there is no such folder.
    """
    facts = os.lstat(path.rstrip("/") or "/")
    if stat.S_ISLNK(facts.st_mode):
        return "got a link"
    if not stat.S_ISDIR(facts.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
    if hasattr(os, "geteuid") and facts.st_uid != os.geteuid():
        return f"got one of another user (id {facts.st_uid})"
    if facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"got one that others can write in (mode {stat.S_IMODE(facts.st_mode):04o}; chmod go-w takes that away)"
    return ""


def remove(path: str) -> None:
    """Removes a file or a whole folder, if it exists."""
    store_of(path).remove(path)


def files_below(folder: str) -> list[str]:
    """Returns the paths of all files below a folder."""
    return store_of(folder).below(folder)


def publish(path: str, target: str) -> None:
    """Moves a complete file or folder from this machine to its final path, on this machine or in another store."""
    make_folder(folder_of(target))
    device = os.stat(path).st_dev
    if is_remote(target) or os.path.isdir(path) or device == os.stat(os.path.dirname(target) or ".").st_dev:
        store_of(target).publish(path, target)
    else:  # a file cannot be renamed to another disk
        with written_beside(target) as temporary:
            shutil.copyfile(path, temporary)
        os.unlink(path)


def matching(pattern: str) -> list[str]:
    """Returns the sorted files and folders that match a glob (`**`: any depth); else the path of exactly that name, if
    any.
    """
    return store_of(pattern).matching(pattern)


def shard_names(name: str) -> list[str]:
    """Returns the files that name@8 stands for (name-00000-of-00008 ...); `[name]` if it does not end in `@` and a
    number.
    """
    stem, at, count = name.rpartition("@")
    if not (at and count.isdecimal() and int(count)):
        return [name]
    return [f"{stem}-{number:05d}-of-{int(count):05d}" for number in range(int(count))]


def find_files(patterns: str, flag: str = "", repeats: bool = False) -> list[str]:
    """Returns the files of comma-separated paths, folders, globs and name@8, in that order and sorted within each.

    A folder stands for all files below it. A file that is named twice is returned once, unless `repeats`. Raises
    ValueError that names the `flag` and the pattern if a pattern matches no file, or matches a pipe or a device.
    """
    files: list[str] = []
    for name in filter(None, patterns.split(",")):
        for pattern in [name] if exists(name) else shard_names(name):
            within = os.path.join(glob.escape(pattern), "**", "*") if is_folder(pattern) else pattern
            if not (paths := list(filter(is_file, matching(within)))):
                raise ValueError(
                    f"{flag}: no file matches {pattern!r}" if flag else f"no input file matches {pattern!r}"
                )
            for path in paths:
                require_regular(path, f"{flag}{'=' if flag else ''}{path}")
            files += paths
    if not files:
        raise ValueError("no input file given (--input_file)")
    return files if repeats else list(dict.fromkeys(files))


def list_versions(folder: str, holding: Sequence[str] = ()) -> Mapping[int, str]:
    """Returns the subfolders of `folder` whose names are numbers, as {number: name}; {} if `folder` cannot be read.

    With `holding`, only those that contain one of these files.
    """
    try:
        return {
            int(name): name
            for name in list_names(folder)
            if re.fullmatch("[0-9]{1,18}", name)
            and is_folder(path := os.path.join(folder, name))
            and (not holding or any(exists(os.path.join(path, file)) for file in holding))
        }
    except OSError:
        return {}


def read_lines(
    path: str, what: str = "file", on_bad_text: BadText | None = None, keep_ends: bool = False, unzip: bool = False
) -> Iterator[str]:
    """Yields the lines of a UTF-8 file without its byte-order mark and, unless `keep_ends`, without line ends.

    Only a line feed ends a line, because Unicode's other line ends may be words of a vocabulary. `on_bad_text` is the
    command's flag of that name: "replace" yields U+FFFD for bytes that are not UTF-8. `unzip` decompresses a file whose
    name ends with .gz. Raises ValueError that names the file and `what` it should be if it is missing or no whole gzip
    file, and ValueError that names file, line and byte if a byte is not UTF-8.
    """
    try:
        file = open_bytes(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such {what}") from None
    except IsADirectoryError:
        raise ValueError(f"{path}: expected a {what}, got a folder") from None
    offset = 0
    with file:
        for number, line in enumerate(_unzipped(file, path) if unzip and path.endswith(".gz") else file, 1):
            data = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            try:
                text = data.decode("utf-8", errors="replace" if on_bad_text == "replace" else "strict")
            except UnicodeDecodeError as error:
                place = offset + len(line) - len(data) + error.start
                raise ValueError(
                    f"{path}:{number}: not valid UTF-8 at byte {place} of the file (0x{data[error.start]:02x})"
                    + ("; --on_bad_text=replace continues" if on_bad_text else "")
                ) from None
            offset += len(line)
            yield text if keep_ends else text.rstrip("\r\n")


def _unzipped(file: IO[bytes], path: str) -> Iterator[bytes]:
    """Yields the lines of a gzip file. Raises ValueError if it is damaged or cut off, or if a line is too long."""
    try:
        unzipped = gzip.GzipFile(fileobj=file)
        while line := unzipped.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise ValueError(
                    f"{path}: expected lines of at most {LONGEST_LINE:,} bytes in a packed file, got a longer one"
                )
            yield line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: not a whole gzip file: {error}") from None


def read_text(path: str, what: str = "file", most: int = 0) -> str:
    """Returns the text of a UTF-8 file without its byte-order mark, with its line ends.

    Raises the errors of `read_lines`, and ValueError for a file of more than `most` bytes (0: no bound).
    """
    require_size(path, most)
    return "".join(read_lines(path, what, keep_ends=True))


def require_size(path: str, most: int) -> None:
    """Raises ValueError for a file of more than `most` bytes (0: no bound)."""
    if most and is_file(path):
        require_at_most(most, size_of(path), "bytes", path)


def read_bytes(path: str, most: int = 0) -> bytes:
    """Returns the bytes of a file.

    Raises ValueError for more than `most` bytes (0: no bound), OSError if reading fails.
    """
    require_size(path, most)
    with open_bytes(path) as file:
        return file.read()


def read_json(path: str, what: str = "file", missing: Any = None, of_model: bool = False) -> Any:
    """Returns the value in a JSON file; `missing`, unless that is None, if there is no such file.

    `of_model` bounds the size of the file and the number of its values (`limits`). Raises ValueError that names the
    file and the place of the syntax error.
    """
    if missing is not None and not exists(path):
        return missing
    most_bytes, most_values = (MOST_JSON, MOST_JSON_VALUES) if of_model else (0, 0)
    text = read_text(path, what, most_bytes)
    try:
        return json_values.parse(text, most_values)
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from None


def read_mapping(path: str, missing: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the mapping in a model's JSON file, as `read_json` does. Raises ValueError if the value is no mapping."""
    values = read_json(path, missing=missing, of_model=True)
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a mapping, got {str(values)[:80]}")
    return values


def read_log(path: str) -> Iterator[dict[str, Any]]:
    """Yields the rows of a run's log: objects whose `step` is an integer, and objects without training or evaluation
    values.

    Skips other lines, because a killed run may leave half a line. Yields nothing if there is no such file.
    """
    for line in read_lines(path, on_bad_text="replace") if exists(path) else ():
        with contextlib.suppress(ValueError, RecursionError):
            row = json.loads(line)
            if isinstance(row, dict) and (type(row.get("step")) is int or not any("/" in key for key in row)):
                yield row


@contextlib.contextmanager
def full_disk_names(path: str, temporary: str) -> Iterator[None]:
    """Turns a disk-full error that names `temporary`, or a path in it, into a one-line OSError that names `path`."""
    try:
        yield
    except Exception as error:  # of TensorFlow too
        reason = disk_full_reason(error)
        if not reason or temporary not in str(error):
            raise
        raise OSError(next(number for number in DISK_FULL if os.strerror(number) == reason), reason, path) from None


@contextlib.contextmanager
def temporary_for(path: str) -> Iterator[str]:
    """Yields a temporary path on this machine for the future content of `path`; removes what is left of it at the end.

    It lies beside `path` under a random name, because processes in other containers may have the same process number.
    """
    temporary = f"{path.rstrip('/')}.tmp.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    if is_remote(path):
        temporary = os.path.join(temporary_folder(), os.path.basename(temporary))
    try:
        with full_disk_names(path, temporary):
            yield temporary
    finally:
        remove(temporary)


@contextlib.contextmanager
def written_beside(path: str) -> Iterator[str]:
    """Yields a temporary path to write to.

    At the end its file is flushed and renamed to `path`; after an error it is removed.
    """
    with temporary_for(path) as temporary:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        publish(temporary, path)


@contextlib.contextmanager
def written_together(paths: Sequence[str]) -> Iterator[list[TextIO]]:
    """Yields UTF-8 files to write, with line ends unchanged, that appear at `paths` when all are complete. Makes their
    folders.

    After an error none of them appears. Raises ValueError that names the files if the disk is full.
    """
    try:
        with contextlib.ExitStack() as stack:
            files: list[TextIO] = []
            for path in paths:
                stack.enter_context(made_folder(folder_of(path)))
                temporary = stack.enter_context(written_beside(path))
                files.append(open(temporary, "w", encoding="utf-8", newline=""))  # noqa: SIM115  (closed below)
                stack.callback(_close, files[-1])
            yield files
            for file in files:
                file.close()
    except OSError as error:
        if error.filename is not None or error.errno not in DISK_FULL:
            raise
        raise ValueError(f"{', '.join(paths)}: cannot be written: {error.strerror}") from None


def _close(file: TextIO) -> None:
    """Closes a file; ignores errors, because its buffered text may not fit on the disk."""
    with contextlib.suppress(OSError):
        file.close()


@contextlib.contextmanager
def written_whole(path: str) -> Iterator[TextIO]:
    """Yields a UTF-8 file to write, with line ends unchanged, that appears at `path` once complete.

    Makes its folder.
    """
    with written_together([path]) as [file]:
        yield file


def write_json(path: str, value: Any, end: str = "", **form: Any) -> None:
    """Writes a JSON file as `written_whole` does, in the `form` of `json.dumps`, with `end` behind the value."""
    with written_whole(path) as file:
        file.write(json.dumps(value, **form) + end)


def require_new_folder(folder: str, flag: str = "") -> None:
    """Raises ValueError that names the `flag` if `folder` is a file or a folder that is not empty."""
    if is_file(folder) or list_names(folder):
        raise ValueError(f"{flag}{'=' if flag else ''}{folder}: expected a new or empty folder")


@contextlib.contextmanager
def written_folder(folder: str) -> Iterator[str]:
    """Yields a temporary folder to fill; publishes it as `folder` at the end, or removes it after an error.

    Raises ValueError if `folder` exists and is not empty.
    """
    require_new_folder(folder)
    with temporary_for(folder) as temporary:
        os.makedirs(temporary)
        yield temporary
        publish(temporary, folder)
