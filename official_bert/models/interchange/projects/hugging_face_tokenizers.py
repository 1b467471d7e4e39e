"""Reads and writes the tokenizer of a Hugging Face folder: vocabulary and casing, or another tokenizer's files
unchanged.
"""

import os
from collections.abc import Mapping, Sequence

from official_bert.models.interchange import stored_models
from official_bert.models.interchange.names import NameTable
from official_bert.models.interchange.stored_models import Fields, StoredModel
from official_bert.storage.files import read_mapping
from official_bert.text.subwords import definition, tokenizer_files
from official_bert.text.subwords.word_pieces import check_steps, check_types
from official_bert.text.vocab import SPECIAL_TOKENS

TOKENIZER_FILE, FAST_TOKENIZER_FILE, MODEL_FILE = "tokenizer_config.json", "tokenizer.json", "config.json"
ADDED_FILE = "added_tokens.json"
CLASSES = ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer")  # and the same with Fast
GENERIC = ("PreTrainedTokenizerFast", "PreTrainedTokenizer", "TokenizersBackend")  # tokenizer.json says it all


def read(folder: str) -> Fields:
    """Returns the tokenizer's fields of `StoredModel`: `tokenizer` ({} if it is BERT's or missing), `vocab`,
    `do_lower_case`.

    Raises ValueError for an unsupported tokenizer.
    """
    files = _files(folder)
    if definition.ids_alone(files, folder):
        return {"tokenizer": {}, "vocab": None, "do_lower_case": None}
    if files and (tokenizer := _other_tokenizer(files, folder)):
        return {"tokenizer": files, "vocab": None, "do_lower_case": tokenizer.lower_cases}
    return {"tokenizer": {}, "vocab": _read_vocab(folder), "do_lower_case": _read_do_lower_case(folder)}


def _files(folder: str) -> dict[str, bytes]:
    """Returns the files of a tokenizer; {} if there are none."""
    try:
        return tokenizer_files.read(folder)
    except ValueError:
        return {}


def _other_tokenizer(files: Mapping[str, bytes], folder: str) -> definition.Definition | None:
    """Returns the definition of a tokenizer other than BERT's; None for BERT's.

    Raises ValueError for an unsupported one.
    """
    class_name = definition.class_of(files, folder)
    if class_name in CLASSES or (class_name in definition.GENERIC and tokenizer_files.WORDPIECE_FILE in files):
        return None
    tokenizer = definition.read_definition(files, folder)
    return None if tokenizer.family.kind == "wordpiece" and tokenizer.family.special["[CLS]"] == "[CLS]" else tokenizer


def pad_id(stored: StoredModel) -> int:
    """Returns the id of padding; 0 if no tokenizer is known."""
    if stored.tokenizer:
        from official_bert.text import loading

        return loading.of_files(stored.tokenizer, stored.origin).special_id("[PAD]")
    return list(stored.vocab).index("[PAD]") if stored.vocab and "[PAD]" in stored.vocab else 0


def _read_vocab(folder: str) -> list[str] | None:
    """Returns the entries of `vocab.txt`, or of `tokenizer.json` (newer versions write only that); None if there is
    neither.
    """
    path = os.path.join(folder, FAST_TOKENIZER_FILE)
    if (vocab := stored_models.read_vocab(folder)) is not None or not (values := _read_library(path)):
        return vocab
    ids = values.get("model", {}).get("vocab") or {}
    if not isinstance(ids, dict) or {*map(type, ids.values())} - {int} or sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"{path}: expected a WordPiece vocabulary with ids 0, 1, 2, ..., got something else")
    return sorted(ids, key=ids.__getitem__)


def _read_library(path: str) -> Fields:
    """Returns a `tokenizer.json` without its null values; {} if there is none. Raises ValueError for wrong types."""
    values = {key: value for key, value in read_mapping(path, missing={}).items() if value is not None}
    definition.check_sections(values, path)
    return values


def refuse_ids_alone(folder: str) -> None:
    """Raises ValueError for the folder of a supported model whose tokenizer is not supported."""
    if os.path.isdir(folder) and (why := definition.ids_alone(_files(folder), folder)):
        raise ValueError(f"{folder}: {why}")


def read_alone(folder: str) -> StoredModel | None:
    """Returns the vocabulary and casing of a folder that `tokenizer.save_pretrained` wrote, without a model; None
    without a vocabulary.
    """
    refuse_ids_alone(folder)
    fields = read(folder) if os.path.isdir(folder) else {}
    if not fields.get("tokenizer") and fields.get("vocab") is None:
        return None
    return StoredModel(origin=folder, folder=folder, weights={}, table=NameTable([]), **fields)


def remarks(folder: str, vocab: Sequence[str] | None) -> list[str]:
    """Returns a warning about an unsupported tokenizer, or about added tokens, which are tokenized as ordinary text
    here.
    """
    if vocab is None:
        why = definition.ids_alone(_files(folder), folder)
        return [f"{folder}: {why}"] if why else []
    added = read_mapping(os.path.join(folder, ADDED_FILE), missing={})
    library = _read_library(os.path.join(folder, FAST_TOKENIZER_FILE))
    entries = [entry for entry in library.get("added_tokens", ()) if isinstance(entry, dict)]
    words = {*vocab}
    lost = [
        token
        for token in dict.fromkeys([*added, *(str(entry.get("content")) for entry in entries)])
        if token not in SPECIAL_TOKENS and not (token in words and token.isalnum())
    ]
    if not lost:
        return []
    return [
        f"its added tokens ({', '.join(lost[:4]):.80}{', ...' if len(lost) > 4 else ''}) are split into pieces here, "
        "like other text"
    ]


def _read_do_lower_case(folder: str) -> bool | None:
    """Returns whether text is lower-cased by the files; None if they do not say. `tokenizer_config.json` overrides
    `tokenizer.json`.

    Raises ValueError for a tokenizer other than BERT's, and for unsupported switches.
    """
    path, library_path, model_path = (
        os.path.join(folder, name) for name in (TOKENIZER_FILE, FAST_TOKENIZER_FILE, MODEL_FILE)
    )
    config, model = (read_mapping(name, missing={}) for name in (path, model_path))
    library = _read_library(library_path)
    check_types(library, library_path)
    # As in Hugging Face, the model's own file names the class if the tokenizer's names none.
    named = [
        (name, values["tokenizer_class"])
        for name, values in ((path, config), (model_path, model))
        if values.get("tokenizer_class") is not None
    ]
    where, class_name = next(iter(named), ("", None))
    if class_name is not None and class_name not in GENERIC and str(class_name).removesuffix("Fast") not in CLASSES:
        raise ValueError(f"{where}: tokenizer_class: expected {CLASSES[0]}, got {class_name!r:.80}")
    if class_name in GENERIC and library:  # has tokenizer.json's switches alone
        config = {}
    lower = config.get("do_lower_case")
    normalizer = {} if lower is not None else library.get("normalizer", {})
    lower = normalizer.get("lowercase", lower)
    check_steps(config, lower is not False, path)
    check_steps(normalizer, lower is not False, library_path)
    return None if lower is None else bool(lower)


def write(stored: StoredModel, length: int, folder: str) -> None:
    """Writes `tokenizer_config.json` and `special_tokens_map.json`. `length` is the longest row in tokens."""
    special = {f"{name.lower()}_token": f"[{name}]" for name in ("UNK", "SEP", "PAD", "CLS", "MASK")}
    stored_models.write_mapping(special, folder, "special_tokens_map.json")
    stored_models.write_mapping(
        {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": stored.do_lower_case is not False,
            "tokenize_chinese_chars": True,
            "strip_accents": None,
            "model_max_length": length,
        }
        | special,
        folder,
        TOKENIZER_FILE,
    )
