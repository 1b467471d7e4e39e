"""Writes a served model for other runtimes: ONNX Runtime, LiteRT and OpenVINO."""

import dataclasses
import json
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import tensorflow as tf

from official_bert.config import Config
from official_bert.dotted_names import by_name
from official_bert.runtimes.engines import FILE, engine_of, precision_of, start
from official_bert.serving.formats.checking import (
    CheckTexts,
    check_answers,
    check_numbers,
    largest_difference,
    random_rows,
)
from official_bert.serving.formats.dense import dense_pass
from official_bert.serving.formats.description import describe
from official_bert.serving.formats.quantization import quantize, recorded_rows
from official_bert.serving.served_model import ServedModel
from official_bert.storage.files import disk_full_reason

DEFAULT_OPSET = 17
# The function of `Converters` that writes a dense pass, and its further arguments.
FORMATS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "onnx": ("to_onnx", {}),
    "onnx_int8": ("to_onnx", {}),
    "litert": ("to_litert", {}),
    "litert_float16": ("to_litert", {"weights": tf.float16}),
    "litert_int8": ("to_litert", {"weights": tf.int8}),
    "openvino": ("to_openvino", {}),
    "openvino_bfloat16": ("to_openvino", {}),
    "openvino_int8": ("to_openvino", {}),
}
CALIBRATED = ("onnx_int8", "openvino_int8")  # whose products are made integers then, by a user's texts
# Formats of less precision are judged by their answers to a user's texts; this one only if there are any. All others
# must have the SavedModel's numbers within a bound.
JUDGED_BY_ANSWERS = tuple(filter(precision_of, FORMATS))
JUDGED_BY_EITHER = ("litert_float16",)
BOUND_FACTOR = 3  # by which numbers of formats that are judged by answers may differ more when a server compares some
# Why other runtimes get rows of ids, and no text.
NO_TEXT: Mapping[str, str] = {
    "onnx_text": "the tokenizer of ONNX Runtime Extensions gives other tokens than 2018's (Greek, Turkish, U+2028)",
    "litert_text": "the tokenizer's graph has operations on strings (UnicodeDecode and others) that are neither built "
    "into LiteRT nor "
    "among those that tensorflow-text registers for it",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FormatOptions:
    """The user's options for formats of other runtimes."""

    opset: int = DEFAULT_OPSET  # of ONNX
    texts: CheckTexts | None = None  # to judge formats of less precision
    calibration: Sequence[Mapping[str, Any]] = ()  # rows of texts for `CALIBRATED` formats


class Converters(Protocol):
    """The interface of `converters.py`, which is imported only to export these formats."""

    to_onnx: Callable[..., None]
    to_litert: Callable[..., None]
    to_openvino: Callable[..., None]
    write_companions: Callable[[ServedModel, Config, str], None]


class RefusedError(ValueError):
    """A format that cannot hold a model, or whose runtime does not run it."""


class PartlyRefusedError(RefusedError):
    """Some formats were refused; the others are published."""


def check_formats(names: Sequence[str]) -> None:
    """Raises ValueError for unknown and duplicate formats, and for formats that take text."""
    known_names = ["saved_model", *FORMATS]
    for name in names:
        if name in NO_TEXT:
            raise ValueError(
                f"--format={name}: expected one of {', '.join(known_names)}, which take token ids: {NO_TEXT[name]}"
            )
        if name not in known_names:
            raise ValueError(f"--format: expected one or more of {', '.join(known_names)}, got {name!r}")
    if not names or len(set(names)) < len(names):
        raise ValueError(
            f"--format: expected one or more of {', '.join(known_names)}, each once, got {','.join(names)!r}"
        )


def check_choices(names: Sequence[str], options: FormatOptions, precision: str) -> None:
    """Raises ValueError for options that conflict with the formats, before any work is done."""
    check_formats(names)
    formats = [name for name in names if name in FORMATS]
    judged = [name for name in formats if name in JUDGED_BY_ANSWERS]
    by_answers = [name for name in judged if name not in JUDGED_BY_EITHER]
    if formats and precision != "float32":
        raise ValueError(
            f"--precision={precision}: expected --format=saved_model alone with it, got {formats[0]}; formats of other "
            f"precisions have these in their names: {', '.join(JUDGED_BY_ANSWERS)}"
        )
    if by_answers and not options.texts:
        raise ValueError(
            f"--format={by_answers[0]}: expected --check_file, texts on which its loss of accuracy is measured"
        )
    if options.texts and not judged:
        raise ValueError(
            f"--check_file: expected a format of less precision ({', '.join(JUDGED_BY_ANSWERS)}) with "
            "it; others are compared number by number"
        )
    if options.opset != DEFAULT_OPSET and not any(map(_is_onnx, formats)):
        raise ValueError(f"--opset: expected --format=onnx with it, got {', '.join(formats) or 'none'}")


def write_format(
    served: ServedModel, config: Config, form: str, folder: str, assets: str, *, version: int, options: FormatOptions
) -> str:
    """Writes a folder with the model's file, `model.json`, `assets/` and files for other programs; returns a line about
    it.

    The file is compared with the SavedModel's graph first. Raises ValueError if its answers differ, `RefusedError` if
    the file cannot be written or run.
    """
    where = f"--format={form}"
    converters: Converters = by_name("official_bert.serving.formats.converters")
    dense = dense_pass(served, where)
    description = describe(served, config, dense, form=form, version=version)
    os.makedirs(folder)
    path = os.path.join(folder, engine_of(form).file)
    try:
        name, more = FORMATS[form]
        convert = getattr(converters, name)
        convert(path, dense, where, description, served.tokenizer.vocab_file, options.opset, **more)
        if form in CALIBRATED:
            rows = recorded_rows(served, start(form, path), description, options.calibration)
            quantize(form, path, rows, where, bool(served.encoder.config.position_buckets))
        engine = start(form, path)
        for length in (1, min(8, served.max_seq_length)):
            engine(random_rows(served, 2, length))
    except Exception as error:  # converters and runtimes have exceptions of their own
        if isinstance(error, (OSError, MemoryError)) or disk_full_reason(error):
            raise
        reason = " ".join(str(error).split())[:300].removeprefix(f"{where}: ")
        raise RefusedError(f"{where}: {reason or type(error).__name__}") from error
    if options.texts and form in JUDGED_BY_ANSWERS:
        description["loss"], finding = check_answers(served, engine, description, options.texts, where)
        description["bound"] = BOUND_FACTOR * largest_difference(served, engine)[0]
    else:
        remedy = "; with --check_file, its answers are compared instead" * (form in JUDGED_BY_EITHER)
        finding = check_numbers(served, engine, where, remedy)
    pathlib.Path(folder, FILE).write_text(json.dumps(description, indent=1, ensure_ascii=False), encoding="utf-8")
    size = sum(entry.stat().st_size for entry in os.scandir(folder))
    shutil.copytree(assets, os.path.join(folder, "assets"))
    converters.write_companions(served, config, folder)
    opset = f"opset {options.opset}; " if _is_onnx(form) else ""
    return f"{', '.join(dense.inputs)} -> {', '.join(dense.outputs)}; {opset}{size} bytes; {finding}"


def _is_onnx(form: str) -> bool:
    return FORMATS[form][0] == "to_onnx"
