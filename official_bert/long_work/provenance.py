"""Is this the same data? What files were made of, stored beside them; whether that has changed; which files belong
together.

The settings of a record file are in a hidden file beside it: `.train.tfrecord.made_with.json` beside `train.tfrecord`.
The records themselves equal those of 2018 byte for byte and do not say what their labels mean. Beside a text of
prepare_corpus, the same file says that the text holds copies of documents.
"""

import collections
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.storage.files import folder_of, read_mapping, remove, size_of, written_whole

SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})")
HELD_OUT = "held_out-"  # begins the names of the documents that prepare_corpus holds out
SUFFIX, SIZE, COPIES, VOCABULARY, CASING = (
    ".made_with.json",
    "file_bytes",
    "holds_copies",
    "vocabulary",
    "do_lower_case",
)


def changed_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Names the keys whose recorded values differ from those of now; a key that was not recorded has not changed."""
    return [key for key, value in now.items() if before.get(key, value) != value]


def origin_file(path: str) -> str:
    """Returns the path of the settings of a record file; globs of record files do not match it."""
    return os.path.join(folder_of(path), f".{os.path.basename(path)}{SUFFIX}")


def to_text(size: int, facts: Mapping[str, Any]) -> str:
    """Returns the text of a settings file, for records of `size` bytes; `facts` are JSON values, which may be those of
    other records.
    """
    return json.dumps({SIZE: size, **facts} | {SIZE: size}, indent=1) + "\n"


def write_origin(path: str, facts: Mapping[str, Any], size: int | None = None) -> None:
    """Writes the settings of the file at a path, or of the one of `size` bytes that will be there."""
    with written_whole(origin_file(path)) as file:
        file.write(to_text(size_of(path) if size is None else size, facts))


def read_origin(path: str) -> Mapping[str, Any]:
    """Returns the settings of a record file; {} if they are missing, or if the record file has changed since.

    Raises ValueError if the settings file is damaged.
    """
    facts = read_mapping(origin_file(path), missing={})
    return facts if facts and facts.get(SIZE) == size_of(path) else {}


def check_vocabulary(path: str, origin: Mapping[str, Any], digest: str) -> None:
    """Raises ValueError if the settings of a record file name another vocabulary than that of the digest: its ids are
    other words.
    """
    if (origin.get(VOCABULARY) or digest) != digest:
        raise ValueError(
            f"{path}: its records were made with another vocabulary; expected --vocab_file with the same entries"
        )


def check_casing(path: str, origin: Mapping[str, Any], do_lower_case: bool) -> None:
    """Raises ValueError if the settings of a record file say that its text was lower-cased and that of the run is not,
    or the reverse.
    """
    if (recorded := origin.get(CASING, do_lower_case)) != do_lower_case:
        raise ValueError(
            f"{path}: its records were made with --do_lower_case={recorded}, but tokenizer.do_lower_case "
            f"(--do_lower_case) is {do_lower_case}: the model would be trained on other words"
        )


def forget(path: str) -> None:
    """Removes the settings of the file that was at `path` before."""
    remove(origin_file(path))


def holds_copies(path: str) -> bool:
    """Returns whether a text is known to hold copies of documents."""
    return bool(read_origin(path).get(COPIES))


def doubts(paths: Sequence[str]) -> list[str]:
    """Returns a line for each reason to doubt that files were meant to be read together; [] if there is none.

    Such reasons are shards of two generations, and a text beside the part of it that is held out.
    """
    counts: dict[str, set[int]] = collections.defaultdict(set)
    for path in paths:
        if shard := SHARD.fullmatch(path):
            counts[shard[1]].add(int(shard[2]))
    lines = [
        f"{stem}: files of {' and of '.join(map(str, sorted(totals)))} are read together (-of-{min(totals):05} and "
        f"-of-{max(totals):05}); are those of an earlier command among them?"
        for stem, totals in counts.items()
        if len(totals) > 1
    ]
    for path in paths:
        folder, name = os.path.split(path)
        if name.startswith(HELD_OUT) and {os.path.join(folder, name.removeprefix(HELD_OUT))} & {*paths, *counts}:
            lines.append(f"{path}: documents that were held out are read together with the others")
    return lines
