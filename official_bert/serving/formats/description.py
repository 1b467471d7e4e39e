"""What travels with a model of another runtime: names, limits, and what a text needs before and after the numbers.

`model.json` stands beside the file, `assets/` as in a SavedModel (vocabulary, labels, configuration); an ONNX file has all of it inside
as well, because such files are moved alone.
"""

import dataclasses
import json
from typing import Any

from official_bert.config import Config
from official_bert.serving.formats.dense import Dense
from official_bert.serving.served_model import ServedModel, ServingOptions


def describe(served: ServedModel, config: Config, dense: Dense, *, form: str, version: int) -> dict[str, Any]:
    """Returns the description of a model, of JSON's types."""
    return {
        "format": form, "version": version, "task": config.task,
        "inputs": {name: [spec.dtype.name, spec.shape.as_list()] for name, spec in dense.inputs.items()},
        "outputs": {name: [spec.dtype.name, spec.shape.as_list()] for name, spec in dense.outputs.items()},
        "labels": list(served.labels), "do_lower_case": bool(served.tokenizer.do_lower_case),
        "limits": {"vocab_size": served.encoder.settings["vocab_size"], "type_vocab_size": served.encoder.settings["type_vocab_size"],
                   "max_seq_length": served.max_seq_length, **{
                       f"max_{name}": most for name, most in served.longest.items() if name in ("choices", "masked_lm_positions")}},
        "special_ids": {name: int(number) for name, number in served.special.items()},
        "packing": {"separators": served.template.separators, "second_segment": served.template.second_segment},
        "options": {name: value for name, value in dataclasses.asdict(served.options).items() if value not in (None, "", 0)}}


def read_options(description: dict[str, Any]) -> ServingOptions:
    """Returns the choices with which a described model was exported."""
    return ServingOptions(**description["options"])


def to_text(description: dict[str, Any]) -> str:
    """Returns the JSON of a description."""
    return json.dumps(description, indent=1, ensure_ascii=False) + "\n"
