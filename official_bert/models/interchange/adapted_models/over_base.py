"""Makes complete models from adapters and their base: of PEFT folders, and of runs that trained adapters."""

import os
from typing import Any

from absl import logging

from official_bert.models.interchange import formats, hub
from official_bert.models.interchange.adapted_models import adapted
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.run_folder import BASE_FILE, RunFolder
from official_bert.runtimes.finite import require_finite
from official_bert.storage.files import is_remote, read_mapping

LONGEST_NAME = 256  # of a base, as many characters as a file system allows


def read_peft(path: str, folder: str, base: str) -> StoredModel:
    """Returns the model of a PEFT folder on `base`, or on the base that the folder names if `base` is empty.

    Raises ValueError if the base is itself a PEFT folder or not named, and as `peft.read` does.
    """
    base = base or _named_base(path, folder)
    if formats.find_format(base)[0] == "peft":
        raise ValueError(f"{path}: expected a whole model as its base, got {base}, a PEFT folder")
    model = formats.module_of("peft").read(folder, formats.read(base))
    require_finite(model.weights, model.origin)
    return model


def _named_base(path: str, folder: str) -> str:
    """Returns the base that a PEFT folder names: its folder in the hub's cache, or, with a warning, the name itself.

    Raises ValueError if there is no name, and for a remote path (`s3://...`), which would be opened with the user's
    rights.
    """
    named: Any = read_mapping(os.path.join(folder, formats.ADAPTER_FILE)).get("base_model_name_or_path")
    if not isinstance(named, str) or not 0 < len(named) < LONGEST_NAME or not named.isprintable() or is_remote(named):
        raise ValueError(
            f"{path}: expected --base with it (base=... in Python), the model that this adapter is for; "
            f"its adapter_config.json names {named!r:.80}"
        )
    if cached := hub.cached_folder(named):
        return cached
    logging.warning("%s: opens the base named in adapter_config.json: %.80s; --base names another", path, named)
    return named


def over_base(model: StoredModel, run: RunFolder) -> StoredModel:
    """Returns the complete model of a run whose checkpoints hold adapters and head.

    Raises ValueError if the base is missing or has changed.
    """
    record, settings = run.base, run.recorded_config().training.adapters
    if settings is None:
        raise ValueError(f"{run.file(BASE_FILE)}: expected training.adapters in the configuration of the run, got none")
    logging.warning("%s: reads the base named in %s: %.200s", model.origin, BASE_FILE, record["path"])
    try:
        base = formats.read(record["path"])
    except ValueError as error:
        raise ValueError(f"{model.origin}: its base, which {run.file(BASE_FILE)} names: {error}") from None
    if adapted.digest(base) != record["digest"]:
        raise ValueError(
            f"{model.origin}: expected the base with which its adapters were trained, but "
            f"{record['path']} has other weights now"
        )
    return adapted.over_base(model, base, record["path"], settings.scale if settings.rank else 1.0)
