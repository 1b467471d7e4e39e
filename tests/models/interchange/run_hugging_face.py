"""Runs Hugging Face's PyTorch classes for the tests beside it, in an environment of its own (`make venv-torch`).

.venv-torch/bin/python tests/models/interchange/run_hugging_face.py outputs FOLDER INPUTS.npz OUTPUTS.npz
.venv-torch/bin/python tests/models/interchange/run_hugging_face.py embeddings FOLDER SENTENCES.txt OUTPUTS.npz
.venv-torch/bin/python tests/models/interchange/run_hugging_face.py save FOLDER
"""

import json
import pathlib
import sys

import numpy as np
import torch
import transformers


def load(folder):
    """Returns the model of the class that a folder names, and the library's messages about its weights."""
    name = json.loads((pathlib.Path(folder) / "config.json").read_text())["architectures"][0]
    model, report = getattr(transformers, name).from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    wrong = {key: sorted(map(str, value)) for key, value in report.items() if value}
    if wrong:
        sys.exit(f"error: {folder}: {wrong}")
    return model.eval()


def outputs(folder, source, target):
    """Writes all outputs of a model for the inputs in a file."""
    inputs = np.load(source)
    with torch.no_grad():
        found = load(folder)(
            input_ids=torch.tensor(inputs["input_ids"]).long(),
            output_hidden_states=True,
            attention_mask=torch.tensor(inputs["input_mask"]).long(),
            token_type_ids=torch.tensor(inputs["segment_ids"]).long(),
        )
    last = {
        "sequence_output": found["last_hidden_state"] if "last_hidden_state" in found else found["hidden_states"][-1]
    }
    np.savez(
        target,
        **{name: value.numpy() for name, value in (dict(found) | last).items() if isinstance(value, torch.Tensor)},
    )


def embeddings(folder, source, target):
    """Writes the last layer's mean over tokens, scaled to length 1, for each line of a file."""
    lines = pathlib.Path(source).read_text(encoding="utf-8").splitlines()
    rows = transformers.AutoTokenizer.from_pretrained(folder)(lines, padding=True, return_tensors="pt")
    with torch.no_grad():
        states = load(folder)(**rows)["last_hidden_state"]
    weights = rows["attention_mask"][:, :, None].float()
    means = (states * weights).sum(1) / weights.sum(1)
    np.savez_compressed(target, embeddings=torch.nn.functional.normalize(means).numpy())


def save(folder):
    """Writes a small model of random weights with `save_pretrained` and with `torch.save`."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
    )
    model = transformers.BertForPreTraining(config)
    for weight in model.parameters():
        weight.data.normal_(0, 0.3)
    model.tie_weights()
    model.save_pretrained(folder)
    pathlib.Path(folder, "bin").mkdir()
    config.architectures = ["BertForPreTraining"]
    config.save_pretrained(f"{folder}/bin")
    torch.save(model.state_dict(), f"{folder}/bin/pytorch_model.bin")


if __name__ == "__main__":
    {"outputs": outputs, "embeddings": embeddings, "save": save}[sys.argv[1]](*sys.argv[2:])
