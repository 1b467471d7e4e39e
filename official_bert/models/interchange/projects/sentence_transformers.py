"""How a Hugging Face folder of sentence-transformers makes a vector of a text: `modules.json` and the pooling's `config.json`."""

import os
from typing import Any

from official_bert import files
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.stored_models import StoredPooling

MODULES_FILE, POOLING_FOLDER, CONFIG_FILE = "modules.json", "1_Pooling", "config.json"
PREFIX = "sentence_transformers.models."
MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max",
         "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len", "pooling_mode_weightedmean_tokens": "weightedmean",
         "pooling_mode_lasttoken": "lasttoken"}
COMPUTED = ("Transformer", "Pooling", "Normalize")  # lengths of vectors are left as they are: they do not change cosines


def read_pooling(folder: str) -> StoredPooling:
    """Returns the pooling of a folder; "" if it has no `modules.json`, "other" for a pooling or module that is not computed here.

    Raises ValueError for damaged files.
    """
    path = os.path.join(folder, MODULES_FILE)
    if not os.path.exists(path):
        return ""
    modules = files.read_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules):
        raise ValueError(f"{path}: expected a list of modules with type and path, got {str(modules)[:80]}")
    kinds = {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in modules}
    if "Pooling" not in kinds:
        return ""
    values = stored_models.read_mapping(os.path.join(folder, kinds["Pooling"], CONFIG_FILE))
    modes: list[Any] = [mode for key, mode in MODES.items() if values.get(key)] or [values.get("pooling_mode")]
    if not set(kinds) <= set(COMPUTED):
        return "other"
    return "cls" if modes == ["cls"] else "mean" if modes == ["mean"] else "other"


def remarks(pooling: StoredPooling) -> list[str]:
    """Returns a warning about a pooling that is not computed here."""
    if pooling != "other":
        return []
    return [f"its way to make a vector of a text ({MODULES_FILE}) is not computed here; --pooling chooses cls or mean"]


def write_pooling(pooling: StoredPooling, width: int, folder: str) -> None:
    """Writes the files by which sentence-transformers makes vectors of `width` numbers as we do."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{PREFIX}Transformer"},
               {"idx": 1, "name": "1", "path": POOLING_FOLDER, "type": f"{PREFIX}Pooling"}]
    os.makedirs(os.path.join(folder, POOLING_FOLDER))
    stored_models.write_mapping(modules, os.path.join(folder, MODULES_FILE))
    stored_models.write_mapping({"word_embedding_dimension": width} | {key: mode == pooling for key, mode in MODES.items()},
                                os.path.join(folder, POOLING_FOLDER, CONFIG_FILE))
