"""What record files were made with, in a hidden file beside each: `.train.tfrecord.made_with.json` beside `train.tfrecord`.

The records themselves are those of 2018, byte for byte, which do not say what their labels mean.
"""

import json
import os
from collections.abc import Mapping
from typing import Any

from official_bert.files import read_json, written_whole

SUFFIX, SIZE = ".made_with.json", "file_bytes"


def origin_file(path: str) -> str:
    """The path of the file that says what a record file was made with; a glob of record files does not match it."""
    return os.path.join(os.path.dirname(path), f".{os.path.basename(path)}{SUFFIX}")


def to_text(size: int, facts: Mapping[str, Any]) -> str:
    """The text of such a file, for records of `size` bytes; `facts` are JSON values."""
    return json.dumps({SIZE: size, **facts}, indent=1) + "\n"


def write_origin(path: str, facts: Mapping[str, Any]) -> None:
    """Writes down what the record file at a path was made with."""
    with written_whole(origin_file(path)) as file:
        file.write(to_text(os.path.getsize(path), facts))


def read_origin(path: str) -> Mapping[str, Any]:
    """What a record file was made with; {} if nothing says it, or if the file has changed since it was written down.

    Raises ValueError if the file beside it is damaged.
    """
    if not os.path.exists(where := origin_file(path)):
        return {}
    facts = read_json(where)
    if not isinstance(facts, dict):
        raise ValueError(f"{where}: expected a mapping, got {str(facts)[:80]}")
    return facts if facts.get(SIZE) == os.path.getsize(path) else {}
