"""Writes a trained or published model for servers and other runtimes: `export` from Python, `run_export` from the
command line.
"""

import dataclasses
import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from official_bert.config import Config, build
from official_bert.interface.keyword_errors import keyword_errors
from official_bert.interface.model_inputs import ModelInputs
from official_bert.models.adapters import separate
from official_bert.models.encoder import BertEncoder
from official_bert.models.interchange import formats
from official_bert.models.interchange.adapted_models import adapted
from official_bert.models.interchange.stored_models import LowRank
from official_bert.reports.model_card import write_card
from official_bert.run_folder import CARD_FILE, RunFolder
from official_bert.serving.export import ExportOptions
from official_bert.serving.export import export as write_models
from official_bert.serving.formats.checking import CheckTexts
from official_bert.serving.formats.writing import CALIBRATED, FormatOptions, PartlyRefusedError, check_formats
from official_bert.serving.precision import policy_of
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServedModel, ServingOptions
from official_bert.serving.several import export_tasks
from official_bert.storage.files import absolute, exists, read_text
from official_bert.tasks.loading import restore_for_inference
from official_bert.training.machines.distribution import check_backend
from official_bert.typed_values import did_you_mean


@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """The texts that an export reads, in files of any form that training reads; "" for none."""

    calibration_file: str = ""  # which give the ranges of numbers in int8: of vectors, or of what is multiplied
    check_file: str = ""  # on which the loss of accuracy of formats of less precision is measured
    check_label: str = ""  # the column of the right label, choice or answer in `check_file`
    check_loss: float = 0.01  # the greatest one


KINDS = (ServingOptions, ExportOptions, Texts)
OTHERWISE = ("output", "formats", "other_formats", "bounded")  # their fields that are arguments of other names, or none
OWN = ("format", "opset", "do_lower_case", "adapters")  # arguments that are flags of the command too
MOST_TASKS = 16  # TensorFlow loads the graph of each


def export(
    run: Any,
    output: str | os.PathLike,
    format: str | Sequence[str] = "saved_model",
    *,
    vocab_file: str = "",
    do_lower_case: bool | None = None,
    base: str | os.PathLike = "",
    adapters: Sequence[Any] = (),
    opset: int = 17,
    report: Callable[[str], None] = print,
    **options: Any,
) -> list[str]:
    """Writes a model as `run_export` does; returns the folders written: `models/mine/text/1`, `models/mine/onnx/1`.

    `run` is a run (its folder, or what `fine_tune` returned) or a checkpoint of any format, `output` the folder of the
    exported model, such as models/NAME, `base` the checkpoint that an adapter is for. With `adapters`, runs and PEFT
    folders, `run` is their base, and they are the tasks of one SavedModel. `options` are named as the command's flags:
    those of the answers (`head="embeddings"`, `top_k=3`), `precision="bfloat16"`, `version=2`, `check_file="dev.csv"`.

    Raises ValueError as the command does, before anything is written.
    """
    known = [*OWN, *(field.name for kind in KINDS for field in dataclasses.fields(kind) if field.name not in OTHERWISE)]
    if unknown := [name for name in options if name not in known]:
        near = did_you_mean(unknown[0], known)
        raise ValueError(f"{unknown[0]}: {f'no such keyword; {near}' if near else f'expected one of {sorted(known)}'}")
    serving, writing, texts = (
        {name: value for name, value in options.items() if name in kind.__dataclass_fields__} for kind in KINDS
    )
    with keyword_errors(checkpoint="run", **{name: name for name in known}):
        lines = export_model(
            _path_of(run),
            [*map(_path_of, adapters)],
            build(ServingOptions, serving, "options"),
            ExportOptions(
                output=os.fspath(output),
                formats=[format] if isinstance(format, str) else [*format],
                other_formats=FormatOptions(opset=opset),
                **writing,
            ),
            build(Texts, texts, "options"),
            vocab_file,
            do_lower_case,
            os.fspath(base),
        )
    report("\n".join(lines))
    return [line.partition(": ")[0] for line in lines]


def _path_of(run: Any) -> str:
    """Returns the path of a run: its folder, or what `fine_tune` returned."""
    return os.fspath(getattr(run, "output_dir", run))


def export_model(
    checkpoint: str,
    adapters: Sequence[str],
    serving: ServingOptions,
    writing: ExportOptions,
    texts: Texts,
    vocab_file: str = "",
    do_lower_case: bool | None = None,
    base: str = "",
) -> list[str]:
    """Writes a model in all formats, and the card of its run; with `adapters`, the tasks that these make of it. Returns
    a line about each. Raises ValueError, naming the flags of `run_export`, for what cannot be written.
    """
    check_backend()
    check_formats(writing.formats)
    if (serving.vectors == "int8" or not {*CALIBRATED}.isdisjoint(writing.formats)) != bool(texts.calibration_file):
        raise ValueError(
            f"--calibration_file: expected with --vectors=int8 and --format={' or '.join(CALIBRATED)}, "
            "and only with them: the texts give the ranges of numbers in int8"
        )
    if adapters:
        _check_beside_adapters(serving, writing, texts, base)
        with policy_of(writing.precision):
            return export_tasks(_tasks_of(checkpoint, adapters, serving, vocab_file, do_lower_case), writing)
    with policy_of(writing.precision):
        task, model = restore_for_inference(checkpoint, vocab_file, do_lower_case, base)
    served = make_served_model(task, model, serving)
    calibration = _rows(served, task.config, "--calibration_file", texts.calibration_file)
    if serving.vectors == "int8":
        served.calibrate([row["text"] for row in calibration])
    other_formats = dataclasses.replace(
        writing.other_formats, calibration=calibration, texts=_check_texts(served, task.config, texts)
    )
    try:
        lines = write_models(served, task.config, dataclasses.replace(writing, other_formats=other_formats))
    except PartlyRefusedError:
        _copy_card(checkpoint, writing.output)
        raise
    _copy_card(checkpoint, writing.output)
    return lines


def _copy_card(checkpoint: str, output: str) -> None:
    """Writes the card of a checkpoint's run beside the exported model, if there is one."""
    if (run := RunFolder.holding(checkpoint)) and exists(run.file(CARD_FILE)):
        write_card(os.path.join(output, CARD_FILE), read_text(run.file(CARD_FILE)))


def _check_beside_adapters(serving: ServingOptions, writing: ExportOptions, texts: Texts, base: str) -> None:
    """Raises ValueError for what only a model of one task can have."""
    wrong = {
        "--format": ", ".join(name for name in writing.formats if name != "saved_model"),
        "--constant_weights": writing.constant_weights,
        "--calibration_file": texts.calibration_file,
        "--check_file": texts.check_file,
        "--explanations": serving.explanations,
        "--base": base,
    }
    for flag, value in wrong.items():
        if value:
            raise ValueError(
                f"{flag}: expected its default beside --adapters, whose tasks share the variables of one "
                f"SavedModel, got {value}; export an adapter alone, which merges it, for that"
            )


def _tasks_of(
    checkpoint: str, adapters: Sequence[str], serving: ServingOptions, vocab_file: str, do_lower_case: bool | None
) -> dict[str, Callable[[], tuple[ServedModel, Config]]]:
    """Returns what makes the task of each adapter, by the names of their folders.

    Raises ValueError for too many, for two of one name, and for adapters of another base.
    """
    names: dict[str, str] = {}
    for path in adapters:
        run = RunFolder.holding(path)
        name = re.sub(r"[^\w.-]+", "_", os.path.basename(absolute(run.path if run else path)), flags=re.ASCII)
        if not path or name.startswith("__") or name == "serving_default":
            raise ValueError(f"--adapters={path}: expected a folder whose name can be a signature's, got {name!r}")
        if name in names:
            raise ValueError(
                f"--adapters: expected adapters of different names, got {name} twice: {names[name]} and "
                f"{path}; rename a folder"
            )
        names[name] = path
    if len(names) > MOST_TASKS:
        raise ValueError(f"--adapters: expected at most {MOST_TASKS}, got {len(names)}")
    base = formats.encoder_of(formats.read(checkpoint))
    digest = adapted.digest(base)
    products = {name: _read_products(path, checkpoint, digest) for name, path in names.items()}

    def make(name: str) -> tuple[ServedModel, Config]:
        path = names[name]
        task, model = restore_for_inference(path, vocab_file, do_lower_case, _base_of(path, checkpoint))
        separate(model, products[name], base)
        head = "embeddings" if isinstance(model, BertEncoder) else serving.head
        try:
            return make_served_model(task, model, dataclasses.replace(serving, head=head)), task.config
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    return {name: functools.partial(make, name) for name in names}


def _read_products(path: str, checkpoint: str, digest: str) -> Mapping[str, LowRank]:
    """Returns the products of an adapter on a base with a digest; none for a head on the same encoder.

    Raises ValueError for an adapter of another base, and for a whole model with another encoder.
    """
    run = RunFolder.holding(path)
    if run and (record := run.base) and record["digest"] != digest:
        raise ValueError(
            f"--adapters={path}: expected adapters for {checkpoint}, got some for a base with other "
            f"weights, {record['path']}"
        )
    stored = formats.read(path, base=_base_of(path, checkpoint))
    if stored.adapters is None and adapted.digest(stored) != digest:
        raise ValueError(
            f"--adapters={path}: expected a run with training.adapters, a PEFT folder, or a head on the "
            f"encoder of {checkpoint}, got a model with another encoder"
        )
    return stored.adapters.products if stored.adapters else {}


def _base_of(path: str, checkpoint: str) -> str:
    """Returns the base that a reader of an adapter needs: runs know theirs."""
    return checkpoint if formats.find_format(path)[0] == "peft" else ""


def _check_texts(served: ServedModel, config: Config, texts: Texts) -> CheckTexts | None:
    """Reads `check_file`; None without it."""
    keep = [texts.check_label] if texts.check_label else []
    rows = _rows(served, config, "--check_file", texts.check_file, keep)
    return (
        CheckTexts(rows, [str(row[texts.check_label]) for row in rows] if keep else None, texts.check_loss)
        if rows
        else None
    )


def _rows(served: ServedModel, config: Config, flag: str, path: str, keep: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Reads the rows of a file of texts, with the columns `keep`; none without a path."""
    if not path:
        return []
    if not exists(path):
        raise ValueError(f"{flag}={path}: no such file")
    if not (rows := ModelInputs.of_model(list(served.text_inputs), config, keep=keep).read_file(path)):
        raise ValueError(f"{flag}={path}: expected texts, got none")
    return rows
