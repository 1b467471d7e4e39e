"""How a Hugging Face folder of sentence-transformers makes a vector of a text: its modules, their settings, its prompts."""

import os
from typing import Any

from official_bert.files import read_json, read_mapping
from official_bert.models.interchange import stored_models
from official_bert.models.interchange.stored_models import StoredModel, StoredPooling

MODULES_FILE, POOLING_FOLDER, CONFIG_FILE = "modules.json", "1_Pooling", "config.json"
NORMALIZE_FOLDER = "2_Normalize"
SETTINGS_FILE, LENGTH_FILE = "config_sentence_transformers.json", "sentence_bert_config.json"
TOKENIZER_FILE, NO_LENGTH = "tokenizer_config.json", 10**6  # tokens: a larger number stands for none
PREFIX = "sentence_transformers.models."
PROMPTS = {"query": ("query",), "passage": ("document", "passage")}  # our names, and theirs
MODES = {"pooling_mode_cls_token": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max",
         "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len", "pooling_mode_weightedmean_tokens": "weightedmean",
         "pooling_mode_lasttoken": "lasttoken"}
COMPUTED = ("Transformer", "Pooling", "Normalize")


def read_pooling(folder: str) -> StoredPooling:
    """Returns the pooling of a folder; "" if it has no `modules.json`, "other" for a pooling or module that is not computed here.

    Raises ValueError for damaged files.
    """
    modules = _modules(folder)
    if "Pooling" not in modules:
        return ""
    values = read_mapping(os.path.join(folder, modules["Pooling"], CONFIG_FILE))
    modes: list[Any] = [mode for key, mode in MODES.items() if values.get(key)] or [values.get("pooling_mode")]
    if not set(modules) <= set(COMPUTED):
        return "other"
    return "cls" if modes == ["cls"] else "mean" if modes == ["mean"] else "other"


def _modules(folder: str) -> dict[str, str]:
    """The folder of each module by its class; {} without `modules.json`."""
    path = os.path.join(folder, MODULES_FILE)
    modules = read_json(path, missing=[])
    if not isinstance(modules, list) or not all(isinstance(module, dict) and {"type", "path"} <= module.keys() for module in modules):
        raise ValueError(f"{path}: expected a list of modules with type and path, got {str(modules)[:80]}")
    return {str(module["type"]).rpartition(".")[2]: str(module["path"]) for module in modules}


def read_settings(folder: str) -> dict[str, Any]:
    """Returns the fields of `StoredModel` about vectors besides the pooling: length 1, prompts, and the longest text.

    {} for a folder without `modules.json`. Raises ValueError for damaged files.
    """
    if not (modules := _modules(folder)):
        return {}
    path, length_path, tokenizer_path = (os.path.join(folder, name) for name in (SETTINGS_FILE, LENGTH_FILE, TOKENIZER_FILE))
    settings, lengths, tokenizer = (read_mapping(name, missing={}) for name in (path, length_path, tokenizer_path))
    prompts = settings.get("prompts") or {}
    longest = lengths.get("max_seq_length") or tokenizer.get("model_max_length") or 0  # the latter alone since its version 6
    longest = 0 if isinstance(longest, (int, float)) and longest > NO_LENGTH else longest
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise ValueError(f"{path}: prompts: expected texts by name, got {str(prompts)[:80]}")
    if not isinstance(longest, int) or longest < 0:
        raise ValueError(f"{length_path}: max_seq_length: expected a number of tokens, got {str(longest)[:40]}")
    our_prompts = {ours: next((prompts[name] for name in theirs if prompts.get(name)), "") for ours, theirs in PROMPTS.items()}
    our_prompts = {name: prompt for name, prompt in our_prompts.items() if prompt}
    return {"normalize": "Normalize" in modules, "prompts": our_prompts, "longest_text": longest}


def remarks(pooling: StoredPooling) -> list[str]:
    """Returns a warning about a pooling that is not computed here."""
    if pooling != "other":
        return []
    return [f"its way to make a vector of a text ({MODULES_FILE}) is not computed here; --pooling chooses cls or mean"]


def write_modules(stored: StoredModel, width: int, folder: str) -> None:
    """Writes the files by which sentence-transformers makes vectors of `width` numbers as we do."""
    modules = [("", "Transformer"), (POOLING_FOLDER, "Pooling"), *([(NORMALIZE_FOLDER, "Normalize")] if stored.normalize else [])]
    for path, _ in modules[1:]:
        os.makedirs(os.path.join(folder, path))
    stored_models.write_mapping([{"idx": index, "name": str(index), "path": path, "type": f"{PREFIX}{name}"}
                                 for index, (path, name) in enumerate(modules)], os.path.join(folder, MODULES_FILE))
    stored_models.write_mapping({"word_embedding_dimension": width} | {key: mode == stored.pooling for key, mode in MODES.items()},
                                os.path.join(folder, POOLING_FOLDER, CONFIG_FILE))
    prompts = {PROMPTS[name][0]: prompt for name, prompt in stored.prompts.items() if prompt}
    stored_models.write_mapping({"prompts": prompts, "default_prompt_name": None, "similarity_fn_name": "cosine"},
                                os.path.join(folder, SETTINGS_FILE))
    if stored.longest_text:
        stored_models.write_mapping({"max_seq_length": stored.longest_text, "do_lower_case": False}, os.path.join(folder, LENGTH_FILE))
