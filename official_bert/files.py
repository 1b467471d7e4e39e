"""Finds, reads and writes the files that a user names, whatever their content.

Other modules reach a user's files through these functions, so that a path has one meaning everywhere.
"""

import contextlib
import errno
import glob
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TextIO

BadText = Literal["error", "replace"]
DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def matching(pattern: str) -> list[str]:
    """Returns the sorted files and folders that a glob matches (** any depth), or else the path with exactly that name."""
    return sorted(glob.glob(pattern, recursive=True)) or ([pattern] if os.path.lexists(pattern) else [])


def shard_names(name: str) -> list[str]:
    """Returns the files of name@8: name-00000-of-00008 and so on; `name` alone if it does not end in such a number."""
    stem, at, count = name.rpartition("@")
    if not (at and count.isdecimal() and int(count)):
        return [name]
    return [f"{stem}-{number:05d}-of-{int(count):05d}" for number in range(int(count))]


def find_files(patterns: str, flag: str = "", repeats: bool = False) -> list[str]:
    """Returns the files of comma-separated paths, folders, globs and name@8, in that order and sorted within each.

    A folder stands for all files below it. A file that is named twice is returned once, unless `repeats`. Raises ValueError
    naming the `flag` and the pattern that matches no file.
    """
    found: list[str] = []
    for name in filter(None, patterns.split(",")):
        for pattern in [name] if os.path.exists(name) else shard_names(name):
            within = os.path.join(glob.escape(pattern), "**", "*") if os.path.isdir(pattern) else pattern
            if not (paths := list(filter(os.path.isfile, matching(within)))):
                raise ValueError(f"{flag}: no file matches {pattern!r}" if flag else f"no input file matches {pattern!r}")
            found += paths
    if not found:
        raise ValueError("no input file given (--input_file)")
    return found if repeats else list(dict.fromkeys(found))


def list_versions(folder: str, holding: Sequence[str] = ()) -> Mapping[int, str]:
    """Returns the subfolders of `folder` whose names are numbers, by number; none if `folder` cannot be read.

    With `holding`, only those that have one of these files.
    """
    try:
        with os.scandir(folder) as entries:
            return {int(entry.name): entry.name for entry in entries if re.fullmatch("[0-9]{1,18}", entry.name) and entry.is_dir()
                    and (not holding or any(os.path.exists(os.path.join(entry.path, name)) for name in holding))}
    except OSError:
        return {}


def read_lines(path: str, what: str = "file", on_bad_text: BadText | None = None, keep_ends: bool = False) -> Iterator[str]:
    """Gives the lines of a UTF-8 file without a byte-order mark and, unless `keep_ends`, without line ends and carriage returns.

    Only a line feed ends a line: Unicode's other line ends may be words. `on_bad_text` is the command's flag of that name:
    "replace" gives U+FFFD for bytes that are not UTF-8. Raises ValueError naming the file and `what` it should be if it is
    missing, or naming the file, line and byte that are not UTF-8.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115  (closed below; the errors are those of opening)
    except FileNotFoundError:
        raise ValueError(f"{path}: no such {what}") from None
    except IsADirectoryError:
        raise ValueError(f"{path}: expected a {what}, got a folder") from None
    offset = 0
    with file:
        for number, line in enumerate(file, 1):
            data = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            try:
                text = data.decode("utf-8", errors="replace" if on_bad_text == "replace" else "strict")
            except UnicodeDecodeError as error:
                place = offset + len(line) - len(data) + error.start
                raise ValueError(f"{path}:{number}: not valid UTF-8 at byte {place} of the file (0x{data[error.start]:02x})"
                                 + ("; --on_bad_text=replace continues" if on_bad_text else "")) from None
            offset += len(line)
            yield text if keep_ends else text.rstrip("\r\n")


def read_text(path: str, what: str = "file") -> str:
    """Returns the text of a UTF-8 file without a byte-order mark, line ends unchanged; raises the errors of `read_lines`."""
    return "".join(read_lines(path, what, keep_ends=True))


def read_json(path: str, what: str = "file") -> Any:
    """Returns the value in a JSON file. Raises ValueError naming the file and the place that is not JSON."""
    try:
        return json.loads(read_text(path, what))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from None


@contextlib.contextmanager
def written_beside(path: str) -> Iterator[str]:
    """Gives a temporary path beside `path`; flushes it to the disk and renames it at the end, or removes it after an error."""
    temporary = f"{path}.tmp.{os.getpid()}"
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


@contextlib.contextmanager
def written_together(paths: Sequence[str]) -> Iterator[list[TextIO]]:
    """Gives UTF-8 files to write, line ends unchanged, that appear at `paths` when all are complete; makes their folders.

    Raises ValueError naming the files if the disk is full; then, and after any other error, none of them appears.
    """
    try:
        with contextlib.ExitStack() as stack:
            files: list[TextIO] = []
            for path in paths:
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
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
    """Closes a file whose buffered text may not fit the disk."""
    with contextlib.suppress(OSError):
        file.close()


@contextlib.contextmanager
def written_whole(path: str) -> Iterator[TextIO]:
    """Gives a UTF-8 file to write, line ends unchanged, that appears at `path` when it is complete; makes its folder."""
    with written_together([path]) as [file]:
        yield file


def require_new_folder(folder: str, flag: str = "") -> None:
    """Raises ValueError, naming the `flag`, if `folder` exists and is not an empty folder."""
    if os.path.exists(folder) and (not os.path.isdir(folder) or os.listdir(folder)):
        raise ValueError(f"{flag}{'=' if flag else ''}{folder}: expected a new or empty folder")


@contextlib.contextmanager
def written_folder(folder: str) -> Iterator[str]:
    """Gives a temporary folder beside `folder` to fill; renames it at the end, or removes it after an error.

    Raises ValueError if `folder` exists and is not empty.
    """
    require_new_folder(folder)
    temporary = f"{folder.rstrip('/')}.tmp.{os.getpid()}"
    os.makedirs(temporary)
    try:
        yield temporary
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
