"""Makes models of all members with Hugging Face's PyTorch classes, and runs those that we wrote, in an environment of its own.

    .venv-torch/bin/python tests/models/interchange/members/run_family.py make FOLDER CLASSES.json
    .venv-torch/bin/python tests/models/interchange/members/run_family.py compare FOLDER

`make` writes FOLDER/NUMBER/{config.json, model.safetensors, expected.npz}; `compare` reads FOLDER/NUMBER/written and prints the largest
difference from expected.npz, relative to each tensor's largest magnitude.
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers

INPUTS = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}


def outputs_of(model, rows, takes_segments):
    """Returns all outputs of a model by name."""
    inputs = {theirs: torch.tensor(rows[ours]).long() for ours, theirs in INPUTS.items() if takes_segments or theirs != "token_type_ids"}
    if type(model).__name__.endswith("MultipleChoice"):
        inputs = {name: value[:, None] for name, value in inputs.items()}
    with torch.no_grad():
        found = model.eval()(**inputs, output_hidden_states=True)
    last = {"last_hidden_state": found["last_hidden_state"] if "last_hidden_state" in found else found["hidden_states"][-1]}
    return {name: value.numpy() for name, value in (dict(found) | last).items() if isinstance(value, torch.Tensor)}


def make(folder, classes):
    """Makes the models of a list of [class, arguments of its configuration, whether it reads segments]."""
    for number, (name, arguments, takes_segments) in enumerate(json.loads(pathlib.Path(classes).read_text())):
        torch.manual_seed(number)
        kind = getattr(transformers, name)
        model = kind._from_config(kind.config_class(**arguments), attn_implementation="eager")
        for weight in model.parameters():
            weight.data.normal_(0, 0.25)
        model.tie_weights()
        model.save_pretrained(place := pathlib.Path(folder, str(number)))
        rng, lengths = np.random.default_rng(number), np.array([23, 17, 9])
        mask = (np.arange(23) < lengths[:, None]).astype("int64")
        ids = np.where(mask, rng.integers(4, arguments["vocab_size"], (3, 23)), arguments.get("pad_token_id", 0))
        ids[1, 3] = arguments.get("pad_token_id", 0)  # typed in the text
        rows = {"input_ids": ids, "input_mask": mask, "segment_ids": rng.integers(0, 2, (3, 23)) * mask * int(takes_segments)}
        np.savez(place / "expected.npz", **{f"in.{key}": value for key, value in rows.items()},
                 **{f"out.{key}": value for key, value in outputs_of(model, rows, takes_segments).items()})


def compare(folder):
    """Prints, for each model, the largest difference of what our folder gives from what theirs gave."""
    for place in sorted(pathlib.Path(folder).iterdir(), key=lambda path: int(path.name)):
        expected = np.load(place / "expected.npz")
        rows = {key.removeprefix("in."): expected[key] for key in expected.files if key.startswith("in.")}
        config = json.loads((place / "written/config.json").read_text())
        model, report = getattr(transformers, config["architectures"][0]).from_pretrained(
            place / "written", output_loading_info=True, attn_implementation="eager")
        wrong = {key: sorted(map(str, value)) for key, value in report.items() if value}
        if wrong and not all("pooler" in name for names in wrong.values() for name in names):
            sys.exit(f"error: {place}: {wrong}")
        found, most = outputs_of(model, rows, bool(rows["segment_ids"].any())), 0.0
        for key, value in found.items():
            wanted = expected[f"out.{key}"]
            if wanted.shape[:2] == rows["input_mask"].shape:
                value, wanted = value[rows["input_mask"] == 1], wanted[rows["input_mask"] == 1]
            if key != "pooler_output" or not wrong:
                most = max(most, float(np.abs(value - wanted).max() / np.abs(wanted).max()))
        print(json.dumps([place.name, config["architectures"][0], most]))


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](*sys.argv[2:])
