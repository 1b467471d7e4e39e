"""Checks that exported models answer like the 2018 code, or like the model that was exported."""

from official_bert.command_line import EXTRAS

import contextlib
import functools
import io
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from official_bert.tools.verification.check import Check, largest
from official_bert.tools.verification.model_checks import inputs_of, words_of

TEXTS = (
    "The quartermaster repainted the [MASK] ledger during the debate.",
    "[MASK] retired pilot borrowed two brass [MASK] while it rained.",
    "Señora Núñez inherited three unlabelled [MASK].",
)


def exported(folder: pathlib.Path, form: str) -> pathlib.Path:
    """Returns the folder of the checkpoint exported in a form; exports it if it is not there."""
    from official_bert.interface.exporting import export

    if not (folder / form).exists():
        with contextlib.redirect_stdout(io.StringIO()):  # TensorFlow's remarks
            export(folder / "tf1_bert", folder / form, form, max_seq_length=64, batch_sizes=(), report=lambda _: None)
    return folder / form


def ids_difference(folder: pathlib.Path) -> float:
    """Returns the difference between the 2018 code's log-probabilities of masked words and those of a SavedModel of
    ids.
    """
    from official_bert.serving.loading import load_exported

    model = load_exported(str(exported(folder, "saved_model")), "ids")
    return _from_2018(folder, model(**_rows(folder)))


def engine_difference(form: str, folder: pathlib.Path) -> float:
    """Returns the difference between the 2018 code's log-probabilities of masked words and those of another runtime."""
    from official_bert.runtimes.engines import load_engine

    engine, _ = load_engine(str(exported(folder, form) / form / "1"))
    return _from_2018(folder, engine(_rows(folder)))


def _rows(folder: pathlib.Path) -> dict[str, np.ndarray]:
    names = ("input_ids", "input_mask", "segment_ids", "masked_lm_positions")
    return {name: inputs_of(folder)[name].astype("int32") for name in names}


def _from_2018(folder: pathlib.Path, outputs: Mapping[str, Any]) -> float:
    wanted = np.load(folder / "tf1_bert" / "outputs.npz")
    return largest(words_of(outputs["logits"]), wanted["masked_lm_log_probs"])


def text_difference(folder: pathlib.Path) -> float:
    """Returns the difference between the checkpoint's probabilities of filled blanks and those of a SavedModel of
    texts.

    It is at least 1 if a word differs.
    """
    from official_bert.interface.predictor import Predictor

    models = (exported(folder, "saved_model"), folder / "tf1_bert")
    pairs = [*zip(*(Predictor(str(model))(list(TEXTS)) for model in models))]
    return max(
        largest(found["probabilities"], wanted["probabilities"]) if found["tokens"] == wanted["tokens"] else 1.0
        for found, wanted in pairs
    )


CHECKS = (
    Check("SavedModel of ids", "log-probabilities", 1e-5, ids_difference),
    Check("SavedModel of texts", "probabilities of words", 1e-5, text_difference),
    *(
        Check(
            f"model for {name}", "log-probabilities", 1e-4, functools.partial(engine_difference, extra), extra, modules
        )
        for extra, name, modules in (
            ("onnx", "ONNX Runtime", EXTRAS["onnx"]),
            ("litert", "LiteRT", EXTRAS["litert"]),
            ("openvino", "OpenVINO", ("openvino", *EXTRAS["onnx"])),
        )
    ),
)
