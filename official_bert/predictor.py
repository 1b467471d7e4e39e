"""Answers to many raw texts: a model loaded once, texts batched by length, answers in the order of the texts.

A model is a training run's folder or an exported one; both answer through the same graph.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.from_task import ServingOptions, make_served_model
from official_bert.serving.loading import load_model
from official_bert.serving.served_model import ServedModel
from official_bert.tasks.loading import restore_for_inference
from official_bert.training.checkpointing import CONFIG_FILE

Row = Mapping[str, Any]
INPUT_ORDER = ("text", "text_pair", "question", "context", "choices")  # of columns; a SavedModel's inputs have no order


class Predictor:
    """`answer(rows)` gives a dict of the outputs a row; `inputs` are the names that a row must have."""

    def __init__(self, path: str, options: ServingOptions | None = None):
        """The model at a path: a training run's folder, a checkpoint in it, an exported model. ValueError where there is none."""
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        if os.path.exists(os.path.join(folder, CONFIG_FILE)) or not os.path.isdir(path):
            served = make_served_model(*restore_for_inference(path), options or ServingOptions())
            self.inputs = tuple(served.text_inputs)
            self._answer = function_of(served)
        else:
            self._answer = load_model(path, "text")
            self.inputs = tuple(sorted(self._answer.inputs, key=INPUT_ORDER.index))  # type: ignore[attr-defined]

    def answer(self, rows: Sequence[Row], batch_size: int = 32) -> list[dict[str, Any]]:
        """The outputs of each row, in their order. ValueError, with the row's number, where a row lacks an input."""
        for number, row in enumerate(rows, 1):
            if missing := [name for name in self.inputs if name not in row]:
                raise ValueError(f"row {number}: expected {' and '.join(self.inputs)}, {' and '.join(missing)} is missing")
        order = sorted(range(len(rows)), key=lambda index: sum(len(str(rows[index][name])) for name in self.inputs))
        answers: list[dict[str, Any]] = [{} for _ in rows]
        for start in range(0, len(order), batch_size):
            chosen = order[start:start + batch_size]
            outputs = self._answer(**{name: [rows[index][name] for index in chosen] for name in self.inputs})
            for place, index in enumerate(chosen):
                answers[index] = {name: plain(value[place]) for name, value in outputs.items()}
        return answers


def function_of(served: ServedModel) -> Callable[..., Mapping[str, Any]]:
    """The graph of a served model's text form as a function from named lists to NumPy arrays by name."""
    graph = tf.function(served.answer_text, input_signature=[dict(served.text_inputs)])

    def answer(**values: Any) -> dict[str, Any]:
        found = graph({name: tf.constant(value, served.text_inputs[name].dtype) for name, value in values.items()})
        return {name: value.numpy() for name, value in found.items()}
    return answer


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


def describe(row: Row, answer: Row) -> list[str]:
    """An answer as lines for a person."""
    if "tokens" in answer:
        blanks = zip(answer["tokens"], answer["probabilities"])
        return [f"  {probability:.3f}  {token}" for tokens, probabilities in blanks if any(tokens)
                for token, probability in zip(tokens, probabilities)]
    if "label" in answer:
        return [f"  {answer['label']}  ({max(answer['probabilities']):.3f})"]
    if "labels" in answer:
        return [f"  {', '.join(filter(None, answer['labels'])) or '(none)'}"]
    if "answer" in answer:
        return [f"  {answer['answer'] or '(no answer)'}  [{answer['start']}:{answer['end']}]  score {answer['score']:.2f}"]
    if "entities" in answer:
        found = zip(answer["types"], answer["entities"], answer["starts"], answer["ends"], answer["scores"])
        return [f"  {kind}  {entity}  [{start}:{end}]  ({score:.3f})" for kind, entity, start, end, score in found
                if kind] or ["  (no entity)"]
    if "choice" in answer:
        chosen = answer["choice"]
        return [f"  {chosen}: {row['choices'][chosen]}  ({answer['probabilities'][chosen]:.3f})"]
    if "embedding" in answer:
        return ["  " + " ".join(f"{number:.4f}" for number in answer["embedding"])]
    return [f"  {answer}"]
