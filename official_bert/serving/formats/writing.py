"""Writes a served model for other runtimes: ONNX Runtime and LiteRT."""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import tensorflow as tf

from official_bert.config import Config
from official_bert.runtimes.engines import FILE, engine_of, start
from official_bert.serving.formats.checking import CheckTexts, check_answers, check_numbers
from official_bert.serving.formats.converters import to_litert, to_onnx
from official_bert.serving.formats.dense import dense_pass
from official_bert.serving.formats.description import describe
from official_bert.serving.served_model import ServedModel

DEFAULT_OPSET = 17
FORMATS: Mapping[str, Callable[..., bytes]] = {  # how a dense pass is written
    "onnx": to_onnx, "litert": to_litert, "litert_float16": functools.partial(to_litert, weights=tf.float16),
    "litert_int8": functools.partial(to_litert, weights=tf.int8)}
# Formats with smaller weights are judged by their answers to a user's texts; `either`: if there are any. All others
# must have the SavedModel's numbers within a bound.
JUDGED_BY: Mapping[str, Literal["answers", "either"]] = {"litert_float16": "either", "litert_int8": "answers"}
# Why other runtimes get rows of ids, and no text.
NO_TEXT: Mapping[str, str] = {
    "onnx_text": "the tokenizer of ONNX Runtime Extensions gives other tokens than 2018's (Greek, Turkish, U+2028)",
    "litert_text": "the tokenizer's graph has operations on strings (UnicodeDecode and others) that are neither built "
                   "into LiteRT nor "
    "among those that tensorflow-text registers for it"
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """The user's choices about other formats."""

    opset: int = DEFAULT_OPSET  # of ONNX
    texts: CheckTexts | None = None  # to judge formats with smaller weights


def check_formats(names: Sequence[str]) -> None:
    """Raises ValueError for an unknown format, one twice, and one that takes text."""
    known_names = ["saved_model", *FORMATS]
    for name in names:
        if name in NO_TEXT:
            raise ValueError(
                f"--format={name}: expected one of {', '.join(known_names)}, which take token ids: {NO_TEXT[name]}")
        if name not in known_names:
            raise ValueError(f"--format: expected one or more of {', '.join(known_names)}, got {name!r}")
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"--format: expected one or more of {', '.join(known_names)}, each once, got {','.join(names)!r}")


def check_choices(names: Sequence[str], options: FormatOptions, precision: str) -> None:
    """Raises ValueError for choices that do not go with the formats, before any work is done."""
    check_formats(names)
    formats = [name for name in names if name in FORMATS]
    smaller = [name for name in formats if name in JUDGED_BY]
    by_answers = [name for name in smaller if JUDGED_BY[name] == "answers"]
    if formats and precision != "float32":
        raise ValueError(
            f"--precision={precision}: expected --format=saved_model alone with it, got {formats[0]}, whose "
            f"products are "
            "float32; litert_float16 and litert_int8 have smaller weights")
    if by_answers and not options.texts:
        raise ValueError(
            f"--format={by_answers[0]}: expected --check_file, texts on which its loss of accuracy is measured")
    if options.texts and not smaller:
        raise ValueError(
            "--check_file: expected a format with smaller weights (litert_float16, litert_int8) with it; others are "
            "compared number by number")
    if options.opset != DEFAULT_OPSET and "onnx" not in formats:
        raise ValueError("--opset: expected --format=onnx with it")


def write_format(served: ServedModel, config: Config, form: str, folder: str, assets: str, *, version: int,
                 options: FormatOptions) -> str:
    """Writes a folder with the model's file, `model.json` and `assets/`; returns a line about it.

    The file is run beside the SavedModel's graph first. Raises ValueError if it does not answer as that does, or cannot
    be written.
    """
    where = f"--format={form}"
    dense = dense_pass(served, where)
    description = describe(served, config, dense, form=form, version=version)
    kind = engine_of(form)
    os.makedirs(folder)
    path = pathlib.Path(folder, kind.file)
    path.write_bytes(FORMATS[form](dense, where, description, served.tokenizer.vocab_file, options.opset))
    engine = start(kind, str(path))
    if options.texts and form in JUDGED_BY:
        finding = check_answers(served, engine, description, options.texts, where)
    else:
        finding = check_numbers(served, engine, where, "; --check_file judges it by its answers" * (form in JUDGED_BY))
    path.with_name(FILE).write_text(json.dumps(description, indent=1, ensure_ascii=False), encoding="utf-8")
    shutil.copytree(assets, os.path.join(folder, "assets"))
    opset = f"opset {options.opset}; " if form == "onnx" else ""
    return f"{', '.join(dense.inputs)} -> {', '.join(dense.outputs)}; {opset}{path.stat().st_size} bytes; {finding}"
