"""Temporary folders, deleted at exit, and the user's paths that messages show in place of temporary ones."""

import atexit
import functools
import shutil
import tempfile


def new_folder() -> str:
    """Makes a temporary folder, deleted at exit, and returns its path."""
    folder = tempfile.mkdtemp(prefix="official_bert_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def temporary_folder() -> str:
    """Returns the temporary folder for copies of files from other stores."""
    return new_folder()


@functools.cache
def _originals() -> dict[str, str]:
    """Returns the user's path for each temporary path."""
    return {}


def stand_for(temporary: str, original: str) -> None:
    """Makes messages name `original` in place of a temporary file that holds a part of it."""
    _originals()[temporary] = original


def original_paths(text: str) -> str:
    """Returns a message in which the user's paths replace the temporary ones."""
    for temporary, original in _originals().items():
        text = text.replace(temporary, original)
    return text
