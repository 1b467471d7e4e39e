"""Temporary files, which go with this process, and the user's files that messages name in their place."""

import atexit
import functools
import shutil
import tempfile


def new_folder() -> str:
    """Makes a folder that goes with this process."""
    folder = tempfile.mkdtemp(prefix="official_bert_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def temporary_folder() -> str:
    """Returns the folder for copies of files that lie elsewhere."""
    return new_folder()


@functools.cache
def _originals() -> dict[str, str]:
    """The user's files by the temporary ones that stand for them."""
    return {}


def stand_for(temporary: str, original: str) -> None:
    """Lets messages name `original` in place of a temporary file that holds a part of it."""
    _originals()[temporary] = original


def original_paths(text: str) -> str:
    """Returns a message with the user's paths in place of those of temporary files."""
    for temporary, original in _originals().items():
        text = text.replace(temporary, original)
    return text
