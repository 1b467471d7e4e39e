"""Gets checkpoints by name (the Hugging Face hub, keras-hub's presets) and from zip files of 2018.

Each becomes a folder on this machine, which the formats read. `huggingface_hub` downloads, caches, locks and resumes.
Only it reads `HF_ENDPOINT`, `HF_TOKEN`, `HF_HOME` and `HF_HUB_OFFLINE`, and it sends the token to that host only. No
Python file is ever downloaded.
"""

import functools
import os
import re
import shutil
from collections.abc import Callable, Iterable
from typing import Any

from absl import logging

from official_bert.limits import LARGEST_DOWNLOAD
from official_bert.storage.archives import opened_zip
from official_bert.storage.temporaries import new_folder

NAME = re.compile(r"(?P<repository>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[\w./-]+))?")
PRESET = re.compile(r"bert_[a-z0-9_]+")  # of keras-hub
# The files of a repository that tell of its model: configurations, tokenizers, the modules of sentence-transformers, a
# preset's parts.
SMALL_FILES = re.compile(
    r"(\w*config|config_\w+|tokenizer|vocab|special_tokens_map|added_tokens|modules|task|metadata)\.json"
    r"|vocab\.txt|merges\.txt|[\w.]+\.model|\d_\w+/(config\.json|model\.safetensors|pytorch_model\.bin)"
    r"|assets/tokenizer/[\w.]+"
)
# Its weights, the first kind that it has: a file that can hold nothing but tensors comes before a pickle.
WEIGHTS = (
    re.compile(r"(adapter_)?model(-\d+-of-\d+)?\.safetensors(\.index\.json)?"),
    re.compile(r"(pytorch|adapter)_model(-\d+-of-\d+)?\.bin(\.index\.json)?"),
    re.compile(r"model\.weights\.h5"),
    re.compile(r"tf_model(-\d+-of-\d+)?\.h5(\.index\.json)?"),
    re.compile(r"[\w-]+\.ckpt(-\d+)?\.(index|data-\d+-of-\d+)"),
)
# Of a zip file of 2018, wherever in it they lie.
OF_2018 = re.compile(r"(bert_config\.json|vocab\.txt|[\w-]+\.ckpt(-\d+)?\.(index|meta|data-\d+-of-\d+))")


def is_name(path: str) -> bool:
    """Returns whether a path that does not exist can be a repository's name: it has one slash and no leading dot, and
    its first part is no folder here.
    """
    return bool(NAME.fullmatch(path)) and not os.path.isdir(path.partition("/")[0])


def local_folder(path: str) -> str:
    """Returns the folder for a repository's name or a local zip file; other paths are returned unchanged.

    A path that exists is never a name. Raises ValueError with advice if a repository cannot be downloaded, and for a
    zip file that is not one of 2018.
    """
    if os.path.exists(path):
        return _unpacked(path, os.stat(path).st_mtime_ns) if path.endswith(".zip") and os.path.isfile(path) else path
    if is_name(path):
        return _downloaded(path)
    return _saved_preset(path) if PRESET.fullmatch(path) else path


def cached_folder(name: str) -> str:
    """Returns the folder of a repository in the cache of `huggingface_hub`, without network access; "" if there is
    none.
    """
    if os.path.exists(name) or not is_name(name):
        return ""
    import huggingface_hub

    config = huggingface_hub.try_to_load_from_cache(name, "config.json")
    return os.path.dirname(config) if isinstance(config, str) else ""


@functools.cache
def _downloaded(name: str) -> str:
    """Returns the folder of a repository in the cache of `huggingface_hub`, after it downloads the missing files."""
    import huggingface_hub
    from huggingface_hub import errors

    match = NAME.fullmatch(name)
    assert match
    repository, revision = match["repository"], match["revision"]
    try:
        # asks once; the listing of files would try for a minute
        about = huggingface_hub.HfApi().model_info(repository, revision=revision)
        files = [file.rfilename for file in about.siblings or ()]
        return huggingface_hub.snapshot_download(
            repository, revision=revision, allow_patterns=files_to_download(files, name)
        )
    except errors.GatedRepoError:
        raise ValueError(f"{name}: the Hugging Face hub requires a token of a user with access; set HF_TOKEN") from None
    except errors.RevisionNotFoundError:
        raise ValueError(f"{name}: the repository has no revision {revision!r}") from None
    except errors.RepositoryNotFoundError:
        raise ValueError(
            f"{name}: no such file or folder, nor a repository of that name on the Hugging Face hub (a private one "
            "needs HF_TOKEN)"
        ) from None
    except (errors.HTTPError, errors.OfflineModeIsEnabled, errors.EntryNotFoundError, OSError) as error:
        config = huggingface_hub.try_to_load_from_cache(repository, "config.json", revision=revision)
        if not isinstance(config, str):
            raise ValueError(
                f"{name}: no such file or folder, and the Hugging Face hub cannot be reached ({_line(error)}); "
                "download it once while connected, or give the path of a folder with the files"
            ) from None
        folder = os.path.dirname(config)
        if not any(kind.fullmatch(file) for kind in WEIGHTS for file in os.listdir(folder)):
            raise ValueError(
                f"{name}: only a part could be downloaded ({_line(error)}); the same command continues the download"
            ) from None
        logging.warning("%s: the Hugging Face hub cannot be reached; the earlier download is used", name)
        return folder


def files_to_download(files: Iterable[str], name: str) -> list[str]:
    """Returns the files of a repository that the formats read. Raises ValueError if none of them holds weights."""
    files = list(files)
    weights = next((kept for kind in WEIGHTS if (kept := [file for file in files if kind.fullmatch(file)])), [])
    if not weights:
        raise ValueError(
            f"{name}: expected model.safetensors, pytorch_model.bin, tf_model.h5, model.weights.h5 or a TensorFlow "
            f"checkpoint in the repository, got {', '.join(sorted(files)[:8]) or 'no file'}"
        )
    return [*(file for file in files if SMALL_FILES.fullmatch(file)), *weights]


def _line(error: Exception) -> str:
    """Returns the message of an error in one short line."""
    return " ".join(str(error).split())[:160]


def _own_folder(name: str) -> str:
    """Makes a folder of this name inside a new temporary folder, deleted at exit."""
    folder = os.path.join(new_folder(), name)
    os.mkdir(folder)
    return folder


@functools.cache
def _unpacked(path: str, _: int) -> str:
    """Returns a temporary folder, deleted at exit, with the checkpoint in a zip file of 2018."""
    folder = _own_folder(os.path.basename(path))
    with opened_zip(path, path, LARGEST_DOWNLOAD) as archive:
        members = {
            os.path.basename(member.filename): member
            for member in archive.infolist()
            if OF_2018.fullmatch(os.path.basename(member.filename))
        }
        if not any(name.endswith(".index") for name in members):
            raise ValueError(
                f"{path}: expected a zip file of 2018 with bert_config.json, vocab.txt and a checkpoint, got "
                f"{', '.join(sorted(archive.namelist())[:8]) or 'an empty one'}"
            )
        for name, member in members.items():
            with archive.open(member) as source, open(os.path.join(folder, name), "wb") as target:
                shutil.copyfileobj(source, target)
    return folder


@functools.cache
def _saved_preset(name: str) -> str:
    """Returns a temporary folder, deleted at exit, with keras-hub's preset of a name; unknown names are returned
    unchanged.
    """
    import keras_hub  # takes seconds

    if name not in keras_hub.models.BertBackbone.presets:
        return name
    folder = _own_folder(name)
    for load in _loaders(keras_hub):
        try:
            load(name).save_to_preset(folder)
        except Exception as error:  # whatever its downloader raises
            raise ValueError(f"{name}: keras-hub could not fetch this preset: {_line(error)}") from None
    return folder


def _loaders(keras_hub: Any) -> tuple[Callable, ...]:
    """Returns keras-hub's own functions for the two parts of a preset."""
    return keras_hub.models.BertBackbone.from_preset, keras_hub.tokenizers.BertTokenizer.from_preset
