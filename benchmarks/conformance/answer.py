"""Asks one library for its answers to all checks that its adapter has, in the library's own environment.

    python benchmarks/conformance/answer.py NAME FOLDER

FOLDER has the questions, which `benchmarks/conformance/judge.py` wrote; FOLDER/answers/NAME.json gets the answers.
Nothing of official_bert is imported here but by its own adapter.
"""

import contextlib
import importlib
import importlib.metadata
import json
import os
import pathlib
import sys

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
CHECKS = (
    "tokens",
    "offsets",
    "pairs",
    "outputs",
    "gradient",
    "masked_lm",
    "next_sentence",
    "adamw",
    "instances",
    "squad",
    "glue",
)
TEXTS = ("uncased", "cased", "text")  # whose tokens are asked


class Given:
    """The questions, and the files that an adapter may read."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.values = json.loads((folder / "questions.json").read_text(encoding="utf-8"))
        self.batch = dict(np.load(folder / "batch.npz"))  # 2018's names, [4,24]; masked_lm_positions [4,5]
        self.directions = dict(np.load(folder / "directions.npz"))  # of sequence_output and pooled_output
        self.adamw = dict(np.load(folder / "adamw.npz"))  # a weight, and the gradients of some steps

    def texts(self, kind: str) -> list[str]:
        """Returns the texts of a kind."""
        return self.values["texts"].get(kind, [])

    def vocabulary(self, kind: str = "uncased") -> str:
        """Returns the path of a vocabulary: a word a line."""
        return str(self.folder / f"vocab_{kind}.txt")

    def tokenizer_json(self, kind: str = "uncased") -> str:
        """Returns the path of the same as Hugging Face's tokenizer.json."""
        return str(self.folder / f"tokenizer_{kind}.json")

    def total(self, outputs, add):
        """Returns the number whose gradient is asked, from outputs by name and the library's sum of an array."""
        return sum(add(outputs[name] * direction) for name, direction in self.directions.items())

    def squad(self) -> dict:
        """Returns the settings of SQuAD, the `file` of questions, and the `results`: logits by `unique_id`."""
        settings = json.loads((self.folder / "squad_v1_features.json").read_text(encoding="utf-8"))
        logits = np.load(self.folder / "squad_v1_logits.npz")
        names = ("unique_id", "start_logits", "end_logits")
        rows = zip(*(logits[name].tolist() for name in names))
        results = [dict(zip(names, row)) for row in rows]
        kept = {name: value for name, value in settings.items() if isinstance(value, (int, float))}
        return kept | {"file": str(self.folder / "squad_v1.json"), "results": results}

    def weights(self, form: str) -> str:
        """Returns the folder of the checkpoint in a format."""
        return str(self.folder / "weights" / form)


def answers_of(adapter, given: Given) -> dict:
    """Returns the answer to each check that the adapter has; {"error": ...} if the library raises one."""
    answers = {}
    for check in CHECKS:
        if not (function := getattr(adapter, check, None)):
            continue
        for kind in [kind for kind in TEXTS if given.texts(kind)] if check == "tokens" else [None]:
            name = f"{check} {kind}" if kind else check
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    found = function(given, kind) if kind else function(given)
            except Exception as error:  # whatever a library raises
                found = {"error": f"{type(error).__name__}: {error}"[:500]}
            answers[name] = found
    return answers


def as_json(value):
    """Returns arrays as lists."""
    return np.asarray(value).tolist()


def main(name: str, folder: str) -> None:
    """Writes the answers of one library."""
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    adapter = importlib.import_module(f"adapters.{name}")
    if (pathlib.Path(__file__).parent / "adapters" / f"{name}_model.py").exists():
        vars(adapter).update(vars(importlib.import_module(f"adapters.{name}_model")))
    given = Given(pathlib.Path(folder))
    if only := given.values.get("only"):
        for check in set(CHECKS) - {only}:
            vars(adapter).pop(check, None)
    versions = {package: importlib.metadata.version(package) for package in adapter.PACKAGES}
    report = {"versions": versions, "answers": answers_of(adapter, given)}
    path = pathlib.Path(folder) / "answers" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, default=as_json), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
