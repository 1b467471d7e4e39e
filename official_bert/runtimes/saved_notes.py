"""Reads the files that describe an exported SavedModel: labels, notes, padded outputs. They may come from anybody."""

import json
import os
from collections.abc import Mapping

LABELS_FILE, ABOUT_FILE, PADDED_FILE = "labels.txt", "about.json", "padded_outputs.json"
MOST_BYTES = 1 << 20  # of such a file
Padded = Mapping[str, Mapping[str, str]]  # {output: {"counted_by": output} or {"as_wide_as": input}}


def read_padded(folder: str) -> dict[str, Padded]:
    """Returns which outputs of each signature are padded in a batch; {} if there is no such file.

    Raises ValueError if the file has another form.
    """
    path = os.path.join(folder, PADDED_FILE)
    if not os.path.exists(path):
        return {}
    try:
        padded = json.loads(_read_short(path) or "no text")
        if not all(
            how.keys() & {"counted_by", "as_wide_as"} for outputs in padded.values() for how in outputs.values()
        ):
            raise ValueError
        return padded
    except (ValueError, AttributeError, RecursionError):
        form = '{"SIGNATURE": {"OUTPUT": {"counted_by": "OUTPUT"}}}, or "as_wide_as" and an input'
        raise ValueError(f"{path}: expected {form}") from None


def read_labels(folder: str) -> list[str]:
    """Returns the names of a model's classes; [] if the file is missing, too long or no text."""
    text = _read_short(os.path.join(folder, LABELS_FILE))
    return text.removesuffix("\n").split("\n") if text is not None else []


def read_about(folder: str) -> dict[str, str | int]:
    """Returns the notes that `run_export` writes about a model; {} if the file is missing, too long or not JSON."""
    try:
        about = json.loads(_read_short(os.path.join(folder, ABOUT_FILE)) or "{}")
    except (ValueError, RecursionError):
        return {}
    return {key: value for key, value in about.items() if type(value) in (str, int)} if isinstance(about, dict) else {}


def _read_short(path: str) -> str | None:
    """Returns the text of a file; None if it is missing, too long or no text."""
    try:
        if os.path.getsize(path) > MOST_BYTES:
            return None
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return None
