"""Checks before hours of work that the outputs can be written, and that disk space and file handles are enough.

Each check raises ValueError naming the path. The only change that they make is to create the folders of the outputs.
"""

import contextlib
import os
import re
import resource
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rich import filesize

from official_bert.storage import files
from official_bert.storage.stores import matches
from official_bert.storage.suffixes import is_packed

SPARE_HANDLES = 64  # for everything but inputs and outputs: libraries, scratch files, pipes
SMALL_SHARE = 0.01  # of the free disk space: smaller needs are not printed


def check_outputs(
    outputs: Sequence[str], inputs: Iterable[str] = (), patterns: str = "", may_be_packed: bool = False
) -> None:
    """Requires that each of `outputs` can be written and is not an input; makes their folders.

    `inputs` are the files to read, `patterns` the paths, folders and globs that selected them. Raises ValueError for an
    output that is a folder, is named twice, is an input or would be one in the next run, or is named like a packed file
    although none `may_be_packed`; and if its folder cannot be written.
    """
    read = {files.real(path): path for path in inputs}
    path_of: dict[str, str] = {}
    for path in outputs:
        real = files.real(path)
        if files.is_folder(path) or not os.path.basename(path):
            raise ValueError(
                f"{path or 'an output'}: expected the name of a file to write, got {'a folder' if path else 'none'}"
            )
        if is_packed(path) and not may_be_packed:
            raise ValueError(
                f"{path}: expected a name without {os.path.splitext(path)[1]}, because what is written is not packed"
            )
        if real in path_of:
            raise ValueError(f"{path}: expected different names of outputs, got the same file as {path_of[real]}")
        if real in read:
            raise ValueError(f"{path}: this output is an input too; give another name")
        if pattern := _matching_pattern(path, patterns):
            raise ValueError(
                f"{path}: this output would be an input the next time, since {pattern} matches it; write to another "
                f"folder"
            )
        path_of[real] = path
    for folder in dict.fromkeys(files.folder_of(path) or "." for path in outputs):
        check_folder(folder)


def check_folder(folder: str) -> None:
    """Makes a folder if it is missing, and requires that a file can be written in it; for other stores the first write
    tells.
    """
    if not files.disk_of(folder):
        return
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"{folder}: cannot be written: {os.strerror(error.errno or 0)}") from None


def _matching_pattern(path: str, patterns: str) -> str:
    """Returns the first pattern that matches a file of this name, "" for none."""
    for pattern in filter(None, patterns.split(",")):
        inside = os.path.join(pattern, "**") if files.is_folder(pattern) else pattern
        if re.search(r"[*?\[]", inside) and matches(files.absolute(path), files.absolute(inside)):
            return pattern
    return ""


def check_disk(needed: Mapping[str, int], what: str) -> None:
    """Requires free space for `needed`, {folder: bytes}; folders on one disk share it. Raises ValueError naming the
    folders.
    """
    for folders, total, free in _by_disk(needed):
        if total > free:
            raise ValueError(
                f"{folders}: about {filesize.decimal(total)} are needed for {what}, {filesize.decimal(free)} are free"
            )


def announce_disk(likely: Mapping[str, int], what: str) -> None:
    """Prints how much the work will take on each disk, {folder: bytes}, if it is more than `SMALL_SHARE` of the free
    space; a warning if it is more than all of it.
    """
    for folders, total, free in _by_disk(likely):
        about = f"about {filesize.decimal(total)} for {what}, {filesize.decimal(free)} are free in {folders}"
        if total > free:
            print(f"warning: disk: {about}: it may become full", file=sys.stderr, flush=True)
        elif total > SMALL_SHARE * free:
            print(f"disk: {about}", flush=True)


def _by_disk(needed: Mapping[str, int]) -> Iterator[tuple[str, int, int]]:
    """Gives for each disk of this machine the folders on it, with commas, the bytes needed there, and the free ones."""
    disks: dict[int, list[str]] = {}
    free_on: dict[int, int] = {}
    for folder in needed:
        if disk := files.disk_of(folder):
            disks.setdefault(disk[0], []).append(folder)
            free_on.setdefault(*disk)
    for number, folders in disks.items():
        free = free_on[number]
        yield ", ".join(folder or "." for folder in folders), sum(needed[folder] for folder in folders), free


def bytes_in(folder: str) -> int:
    """Returns the bytes of the files in a folder and below it, 0 if there is none: a stopped run's, which the next one
    uses or removes.
    """
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # another process may remove it
                total += os.stat(os.path.join(path, name), follow_symlinks=False).st_size
    return total


def reserve_handles(count: int) -> None:
    """Ensures that `count` files can be open at once; raises this process's limit if necessary and allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + SPARE_HANDLES
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise ValueError(
            f"{count} files have to be open at once, this process may open {hard}: write fewer files, "
            f"use --order=sharded, or raise the limit (ulimit -n {needed})"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
