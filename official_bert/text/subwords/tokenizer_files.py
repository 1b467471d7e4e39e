"""The files of a tokenizer other than a WordPiece list: Hugging Face's files, unchanged, bundled in one file.

A run, and the assets of an exported model, keep them as `tokenizer.zip` in place of `vocab.txt`. The user may name that
file, a folder, or one of the files in it.
"""

import io
import os
import zipfile
from collections.abc import Mapping

from official_bert.limits import MOST_JSON
from official_bert.storage.archives import opened_zip
from official_bert.storage.files import exists, is_folder, read_bytes, read_json

BUNDLE = "tokenizer.zip"
JSON_FILE, CONFIG_FILE, SPECIAL_FILE, ADDED_FILE = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
VOCAB_JSON, MERGES_FILE, WORDPIECE_FILE = "vocab.json", "merges.txt", "vocab.txt"
MODEL_FILES = ("sentencepiece.bpe.model", "spiece.model", "sentencepiece.model")
NAMES = (JSON_FILE, *MODEL_FILES, VOCAB_JSON, MERGES_FILE, WORDPIECE_FILE, CONFIG_FILE, SPECIAL_FILE, ADDED_FILE)
CLASS_FILE = "tokenizer_class.txt"  # in a bundle: the class, if only the model's config.json says it
ENDINGS = (".json", ".model", ".spm", ".zip")
# Classes of tokenizers by `model_type`, for folders in which no file names one.
CLASSES_OF_MODELS = {
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "albert": "AlbertTokenizer",
    "mpnet": "MPNetTokenizer",
}
EPOCH = (1980, 1, 1, 0, 0, 0)  # of the members of a bundle, so that equal files give equal bytes


def is_subwords(path: str) -> bool:
    """Returns whether a path names the files of such a tokenizer, and not a list of WordPieces."""
    return path.endswith(ENDINGS) or is_folder(path)


def read(path: str) -> dict[str, bytes]:
    """Reads a tokenizer's files from a bundle, a folder, or one file (with its neighbours, if it has a usual name).

    Raises ValueError if there are none.
    """
    if is_folder(path):
        return _read_folder(path)
    name = os.path.basename(path)
    if name in NAMES and name not in (CONFIG_FILE, SPECIAL_FILE, ADDED_FILE):
        return _read_folder(os.path.dirname(path) or ".")
    if not exists(path):
        raise ValueError(f"{path}: no such tokenizer file")
    content = read_bytes(path, MOST_JSON)
    if name.endswith(".zip"):
        return unpack(content, path)
    return {JSON_FILE if name.endswith(".json") else MODEL_FILES[1]: content}


def _read_folder(folder: str) -> dict[str, bytes]:
    paths = {name: os.path.join(folder, name) for name in NAMES}
    files = {name: read_bytes(path, MOST_JSON) for name, path in paths.items() if exists(path)}
    if not set(files) & {JSON_FILE, *MODEL_FILES, VOCAB_JSON, WORDPIECE_FILE}:
        raise ValueError(
            f"{folder}: no tokenizer found there: expected {JSON_FILE}, {MODEL_FILES[0]}, {MODEL_FILES[1]}, "
            f"{VOCAB_JSON} with {MERGES_FILE}, or {WORDPIECE_FILE}"
        )
    values = read_json(os.path.join(folder, "config.json"), missing={}, of_model=True)
    named = isinstance(values, dict) and (
        values.get("tokenizer_class") or CLASSES_OF_MODELS.get(str(values.get("model_type")))
    )
    return files | ({CLASS_FILE: str(named).encode()} if named else {})


def unpack(content: bytes, where: str) -> dict[str, bytes]:
    """Returns the files of a bundle; only known names are accepted, so that they are safe to write to a folder.

    Raises ValueError, naming `where`, for damaged content.
    """
    with opened_zip(io.BytesIO(content), where) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name in (*NAMES, CLASS_FILE)}


def pack(files: Mapping[str, bytes]) -> bytes:
    """Returns the content of a bundle; the same bytes for the same files."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), files[name], zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def write_files(files: Mapping[str, bytes], folder: str) -> None:
    """Writes the files to a folder, as Hugging Face has them."""
    for name, content in files.items():
        if name != CLASS_FILE:
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
