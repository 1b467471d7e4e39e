"""Makes models of all members with Hugging Face's PyTorch classes, and runs those that we wrote, in an environment of
its own.

    .venv-torch/bin/python tests/models/interchange/members/run_family.py make FOLDER CLASSES.json
    .venv-torch/bin/python tests/models/interchange/members/run_family.py compare FOLDER
    .venv-torch/bin/python tests/models/interchange/members/run_family.py keys MODELS.json

`make` writes FOLDER/NUMBER/{config.json, model.safetensors, expected.npz}; `compare` reads FOLDER/NUMBER/written and
prints the largest difference from expected.npz, relative to each tensor's largest magnitude. `keys` prints, for each
class of MODELS.json, [class, arguments of its configuration, keys that should change nothing]: its keys with their
defaults, those that its code reads, and the keys of the list that change an output.
"""

import inspect
import json
import pathlib
import re
import sys

import numpy as np
import torch
import transformers

INPUTS = {"input_ids": "input_ids", "input_mask": "attention_mask", "segment_ids": "token_type_ids"}


def outputs_of(model, rows, takes_segments):
    """Returns all outputs of a model by name."""
    inputs = {
        theirs: torch.tensor(rows[ours]).long()
        for ours, theirs in INPUTS.items()
        if takes_segments or theirs != "token_type_ids"
    }
    if type(model).__name__.endswith("MultipleChoice"):
        inputs = {name: value[:, None] for name, value in inputs.items()}
    with torch.no_grad():
        found = model.eval()(**inputs, output_hidden_states=True)
    last = {
        "last_hidden_state": found["last_hidden_state"] if "last_hidden_state" in found else found["hidden_states"][-1]
    }
    return {name: value.numpy() for name, value in (dict(found) | last).items() if isinstance(value, torch.Tensor)}


def make(folder, classes):
    """Makes the models of a list of [class, arguments of its configuration, whether it reads segments]."""
    for number, (name, arguments, takes_segments) in enumerate(json.loads(pathlib.Path(classes).read_text())):
        torch.manual_seed(number)
        kind = getattr(transformers, name)
        model = kind._from_config(kind.config_class(**arguments), attn_implementation="eager")
        for key, weight in model.named_parameters():  # layer norms around 1, or many layers would make all rows alike
            weight.data.normal_(float("norm" in key.lower() and key.endswith("weight")), 0.25)
        model.tie_weights()
        model.save_pretrained(place := pathlib.Path(folder, str(number)))
        rng, lengths = np.random.default_rng(number), np.array([23, 17, 9])
        mask = (np.arange(23) < lengths[:, None]).astype("int64")
        ids = np.where(mask, rng.integers(4, arguments["vocab_size"], (3, 23)), arguments.get("pad_token_id", 0))
        ids[1, 3] = arguments.get("pad_token_id", 0)  # typed in the text
        rows = {
            "input_ids": ids,
            "input_mask": mask,
            "segment_ids": rng.integers(0, 2, (3, 23)) * mask * int(takes_segments),
        }
        np.savez(
            place / "expected.npz",
            **{f"in.{key}": value for key, value in rows.items()},
            **{f"out.{key}": value for key, value in outputs_of(model, rows, takes_segments).items()},
        )


def compare(folder):
    """Prints, for each model, the largest difference of what our folder gives from what theirs gave."""
    for place in sorted(pathlib.Path(folder).iterdir(), key=lambda path: int(path.name)):
        expected = np.load(place / "expected.npz")
        rows = {key.removeprefix("in."): expected[key] for key in expected.files if key.startswith("in.")}
        config = json.loads((place / "written/config.json").read_text())
        model, report = getattr(transformers, config["architectures"][0]).from_pretrained(
            place / "written", output_loading_info=True, attn_implementation="eager"
        )
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


def other(key, value):
    """Returns another value of a key."""
    if value is None or key.endswith("_id"):
        return 3 + (value == 3) if key.endswith("_id") else 0.5
    if isinstance(value, bool):
        return not value
    return "another" if isinstance(value, str) else value + 1 if isinstance(value, int) else 0.5


def keys(models):
    """Prints what the configuration of each class has, what its code reads, and which listed keys change an output."""
    ids = torch.tensor([[5, 7, 9, 1, 0, 8], [3, 4, 4, 6, 0, 0]])
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    for name, arguments, passed_over in json.loads(pathlib.Path(models).read_text()):
        kind = getattr(transformers, name)
        defaults = kind.config_class().to_dict()
        code = inspect.getsource(inspect.getmodule(kind))
        read = {key for key in re.findall(r"config\.([a-z]\w+)", code) if key in defaults}
        read |= set(re.findall(r"getattr\((?:self\.)?config, \"(\w+)", code))
        model, changing = kind._from_config(kind.config_class(**arguments), attn_implementation="eager").eval(), []
        with torch.no_grad():
            wanted = model(input_ids=ids, attention_mask=mask)[0]
            for key in sorted(set(passed_over) & (set(defaults) | read)):
                config = kind.config_class(**(arguments | {key: other(key, arguments.get(key, defaults.get(key)))}))
                changed = kind._from_config(config, attn_implementation="eager").eval()
                changed.load_state_dict(model.state_dict())
                if not torch.allclose(changed(input_ids=ids, attention_mask=mask)[0], wanted, rtol=0, atol=1e-6):
                    changing.append(key)
        print(json.dumps([name, defaults, sorted(read), changing], default=str))


if __name__ == "__main__":
    {"make": make, "compare": compare, "keys": keys}[sys.argv[1]](*sys.argv[2:])
