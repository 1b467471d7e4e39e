"""Answers to many raw texts: a model loaded once, texts batched by length, answers in the order of the texts.

A model is a training run's folder or an exported one; both answer through the same graph.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.config import load_config
from official_bert.serving.loading import function_of, load_model
from official_bert.serving.served_model import ServedEmbeddings, ServedModel, ServingOptions, make_served_model
from official_bert.tasks.loading import restore_for_inference, task_class
from official_bert.training.checkpointing import CONFIG_FILE

Row = Mapping[str, Any]
INPUT_ORDER = ("text", "text_pair", "question", "context", "choices")  # of columns; a SavedModel's inputs have no order


class Predictor:
    """`answer(rows)` gives a dict of the outputs a row, `describe(row, answer)` its lines for a person.

    `inputs` are the names that a row must have, `outputs` those of an answer.
    """

    def __init__(self, path: str, options: ServingOptions | None = None):
        """The model at a path: a training run's folder, a checkpoint in it, an exported model.

        Raises ValueError if there is none, or if it does not read one of the options.
        """
        options = options or ServingOptions()
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        if os.path.exists(os.path.join(folder, CONFIG_FILE)) or not os.path.isdir(path):
            served = make_served_model(*restore_for_inference(path), options)
            self._model, self.describe = function_of(served), served.describe
        else:
            options.read((), f"{path}, an exported model, which answers as it was exported")
            self._model = load_model(path, "text")
            self.describe = _exported_class(self._model.place, self._model.outputs).describe
        if unknown := sorted(set(self._model.inputs) - set(INPUT_ORDER)):
            raise ValueError(f"{path}: expected a model that takes text (models/NAME, or models/NAME/text/VERSION), got one of {unknown}")
        self.inputs = tuple(sorted(self._model.inputs, key=INPUT_ORDER.index))
        self.outputs = self._model.outputs

    def answer(self, rows: Sequence[Row], batch_size: int = 32) -> list[dict[str, Any]]:
        """The outputs of each row, in their order. ValueError, with the row's number, where a row lacks an input."""
        for number, row in enumerate(rows, 1):
            if missing := [name for name in self.inputs if name not in row]:
                raise ValueError(f"row {number}: expected {' and '.join(self.inputs)}, {' and '.join(missing)} is missing")
        order = sorted(range(len(rows)), key=lambda index: sum(len(str(rows[index][name])) for name in self.inputs))
        answers: list[dict[str, Any]] = [{} for _ in rows]
        for start in range(0, len(order), batch_size):
            chosen = order[start:start + batch_size]
            outputs = self._model(**{name: [rows[index][name] for index in chosen] for name in self.inputs})
            for place, index in enumerate(chosen):
                answers[index] = {name: plain(value[place]) for name, value in outputs.items()}
        return answers


def served_classes(task: str, where: str = "config.task") -> tuple[type[ServedModel], ...]:
    """The kinds of served models of a task's name; `fill_mask` is pre-training's. ValueError for a name that is unknown."""
    if task == "embeddings":
        return (ServedEmbeddings,)
    return task_class("pretraining" if task == "fill_mask" else task, where).served_classes


def class_that_gives(outputs: Iterable[str], classes: Iterable[type[ServedModel]]) -> type[ServedModel] | None:
    """The first of the classes whose outputs are all among `outputs`, or None."""
    return next((kind for kind in classes if set(kind.outputs) <= set(outputs)), None)


def _exported_class(folder: str, outputs: Iterable[str]) -> type[ServedModel]:
    """The class of an exported model, by the task of the configuration in its assets; the base if that is not known here."""
    try:
        task = load_config(os.path.join(folder, "assets", CONFIG_FILE)).task
        return class_that_gives(outputs, (*served_classes(task), ServedEmbeddings)) or ServedModel
    except ValueError:  # exported by other code, or with a task of one's own that is not on the path: it answers all the same
        return ServedModel


def plain(value: Any) -> Any:
    """A NumPy value as JSON's types, strings decoded."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def read_rows(arguments: Sequence[str], input_file: str, names: Sequence[str], lines: Iterable[str]) -> Iterator[Row]:
    """Rows of the inputs `names` from arguments, else from a file's lines: JSON objects, or columns between tabs.

    Raises ValueError naming the line where it is neither.
    """
    place = "argument" if arguments else input_file
    for number, line in enumerate(arguments or lines, 1):
        if not arguments and not line.strip():
            continue
        text = line.rstrip("\r\n")
        if text.startswith("{"):
            try:
                yield json.loads(text)
                continue
            except json.JSONDecodeError:
                if input_file.endswith((".jsonl", ".json")):
                    raise ValueError(f"{place}:{number}: not valid JSON") from None
        columns = text.split("\t") if len(names) > 1 else [text]
        if len(columns) != len(names):
            raise ValueError(f"{place}:{number}: expected {' TAB '.join(names)}, got {len(columns)} columns")
        yield dict(zip(names, columns))
