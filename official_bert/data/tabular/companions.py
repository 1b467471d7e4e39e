"""Finds companion files: texts or rows with labels (TweetEval, PIQA), texts with annotations (brat). Naming one is
enough.
"""

import os

from official_bert.storage.files import is_file, is_folder, list_names

JSON_LINES, LABELS_IN_LINES = ".jsonl", "-labels.lst"  # of AI2's data: a label a line
TEXTS, LABELS = "_text.txt", "_labels.txt"  # ends of the names of two files, whose lines belong together
TEXT, ANNOTATIONS = ".txt", ".ann"  # of brat's documents


def labels_beside(path: str) -> str:
    """Returns the file of labels beside a file of texts, "" if there is none."""
    return _beside(path, TEXTS, LABELS)


def labels_in_lines(path: str) -> str:
    """Returns the file of labels, one a line, beside JSON lines; "" if there is none."""
    return _beside(path, JSON_LINES, LABELS_IN_LINES)


def _beside(path: str, end: str, other_end: str) -> str:
    """The path with another end; "" if it has not this end, or there is no such file."""
    other = path.removesuffix(end) + other_end
    return other if path.endswith(end) and is_file(other) else ""


def annotations_of(path: str) -> list[str]:
    """Returns the brat annotation files that a path refers to: itself, the one beside a text, or all of a folder; else
    none.
    """
    if path.endswith(ANNOTATIONS):
        return [path]
    if is_folder(path):
        return [os.path.join(path, name) for name in list_names(path) if name.endswith(ANNOTATIONS)]
    return [beside] if (beside := _beside(path, TEXT, ANNOTATIONS)) else []


def text_of(annotations: str) -> str:
    """Returns the path of the text to which annotations belong."""
    return annotations.removesuffix(ANNOTATIONS) + TEXT


def files_read(path: str) -> list[str]:
    """Returns all existing files that are read for a path: a change in any of them changes the data."""
    if labels := labels_beside(path) or labels_in_lines(path):
        return [path, labels]
    documents = [name for annotations in annotations_of(path) for name in (annotations, text_of(annotations))]
    return list(filter(is_file, documents or [path]))
