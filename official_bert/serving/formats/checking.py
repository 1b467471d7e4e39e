"""Compares an exported file with the SavedModel's own graph before it is published.

Exact formats must give the same numbers for rows of ids. Formats of reduced precision are checked by their answers to a
user's texts.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.runtimes.engines import Arrays, PortableModel
from official_bert.serving.formats.description import as_model
from official_bert.serving.loading import function_of
from official_bert.serving.served_model import ServedModel

BOUND = 1e-4  # of numbers up to 1; relative beyond
ROWS, LONGEST = 3, 64  # of the rows of ids that are compared
BATCH = 32  # texts
# outputs that are right or wrong
DECISIONS = ("label", "labels", "choice", "answer", "entities", "types", "starts", "tokens")


@dataclasses.dataclass(frozen=True)
class CheckTexts:
    """A user's texts (rows of a model's inputs, perhaps with labels), and the accuracy that an export may lose on
    them.
    """

    rows: Sequence[Mapping[str, Any]]
    labels: Sequence[str] | None = None
    most_loss: float = 0.01


def check_numbers(served: ServedModel, engine: PortableModel, where: str, remedy: str = "") -> str:
    """Compares a file's outputs with those of the `ids` SavedModel's graph; returns a line about the difference.

    Raises ValueError, naming `where` and a `remedy`, if they differ by more than `BOUND`.
    """
    difference, place = largest_difference(served, engine)
    if not difference <= BOUND:  # NaN is not
        raise ValueError(
            f"{where}: expected the numbers of the SavedModel within {BOUND:g}, got {place} with a "
            f"difference of {difference:.2g}; nothing was written{remedy}"
        )
    return f"within {difference:.1e} of the SavedModel"


def largest_difference(served: ServedModel, engine: PortableModel) -> tuple[float, str]:
    """Returns the largest difference between outputs of a file and of the `ids` SavedModel, for rows of three lengths,
    and a description of it. The difference is NaN if an output is.
    """
    reference = tf.function(lambda **inputs: served.answer_ids(inputs), autograph=False).get_concrete_function(
        **served.ids_inputs
    )
    differences = [(0.0, "nothing")]
    for rows, length in ((1, 3), (ROWS, min(LONGEST, served.max_seq_length)), (2, served.max_seq_length)):
        inputs = random_rows(served, rows, length)
        tensors = reference(**{name: tf.constant(value) for name, value in inputs.items()})
        expected, computed = {key: value.numpy() for key, value in tensors.items()}, engine(inputs)
        numbers = {name for name, value in expected.items() if value.dtype.kind != "b"}  # whence `abstains` follows
        for name in numbers & set(computed):
            real = _compared(served, name, inputs, expected)
            values = np.abs(computed[name][real] - expected[name][real]) / np.maximum(1, np.abs(expected[name][real]))
            differences.append((float(values.max(initial=0)), f"{name} of {rows} rows of {length} tokens"))
    return differences[int(np.argmax([value for value, _ in differences]))]  # that is the first NaN, if there is one


def random_rows(served: ServedModel, rows: int, length: int) -> dict[str, np.ndarray]:
    """Returns random rows of ids for a served model's inputs, the first without padding and the others half padding."""
    rng = np.random.default_rng(0)
    sizes = served.encoder.config
    shape = (rows, 2, length) if served.ids_inputs["input_ids"].shape.rank == 3 else (rows, length)
    mask = np.ones(shape, np.int32)
    mask[1:, ..., (length + 1) // 2 :] = 0
    values = {
        "input_ids": np.where(mask, rng.integers(0, sizes.vocab_size, shape), served.special["PAD"]),
        "segment_ids": mask * rng.integers(0, max(sizes.type_vocab_size, 1), shape),
        "masked_lm_positions": rng.integers(0, (length + 1) // 2, (rows, 2)),
        "input_mask": mask,
    }
    return {name: values[name].astype(np.int32) for name in served.ids_inputs}


def _compared(served: ServedModel, name: str, inputs: Arrays, outputs: Arrays) -> Any:
    """Returns the index of the values of an output that are compared: those of real tokens, or all. For ids sorted by
    weight, only those whose neighbours have clearly other weights, because near ones may swap places.
    """
    if served.padded_ids.get(name) == "input_ids":
        return inputs["input_mask"].astype(bool)
    if name == "ids":
        apart = np.abs(np.diff(outputs["weights"], axis=1)) > 2 * BOUND
        return np.pad(apart, [(0, 0), (1, 0)], constant_values=True) & np.pad(apart, [(0, 0), (0, 1)])
    return ...


def check_answers(
    served: ServedModel, engine: PortableModel, description: Mapping[str, Any], texts: CheckTexts, where: str
) -> tuple[float, str]:
    """Compares the answers to texts with the SavedModel's; returns the loss, and a description of it.

    With labels, the loss is the loss of accuracy. Without, it is the share of texts whose answer changes, an upper
    bound of it. For numeric answers (scores, vectors), it is the unexplained share of their variance. Raises ValueError
    that begins with `where` for a loss above `most_loss`.
    """
    before = answers_of(served, texts.rows)
    after = answers_of(served, texts.rows, engine, description)
    loss, finding = loss_of(before, after, texts.labels)
    if not loss <= texts.most_loss:
        raise ValueError(
            f"{where}: expected a loss of at most {texts.most_loss:g} on --check_file, got {loss:.4f}: {finding}; "
            "nothing was written"
        )
    return loss, finding


def answers_of(
    served: ServedModel,
    rows: Sequence[Mapping[str, Any]],
    engine: PortableModel | None = None,
    description: Mapping[str, Any] | None = None,
    at_once: int = BATCH,
) -> list[dict[str, Any]]:
    """Returns the answers to rows of texts, computed by `engine` with its `description`, or by the model if there is
    none.
    """
    served.engine = as_model(engine, description) if engine and description else None
    try:
        function: Callable = function_of(served)
        answers = []
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            answers += rows_of(function(**{name: [row[name] for row in part] for name in served.text_inputs}))
    finally:
        served.engine = None
    return answers


def rows_of(outputs: Arrays) -> list[dict[str, Any]]:
    """Returns the answer to each row of a batch."""
    count = len(next(iter(outputs.values())))
    return [{name: value[place] for name, value in outputs.items()} for place in range(count)]


def loss_of(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], labels: Sequence[str] | None = None
) -> tuple[float, str]:
    """Returns the loss of the answers `after` compared with those `before`, as in `check_answers`, and a description of
    it.
    """
    names = [name for name in DECISIONS if name in before[0]]
    count = len(before)
    if labels is not None:
        name = names[0] if names else ""
        if name not in ("label", "choice", "answer"):
            raise ValueError("--check_label: expected a model that gives a label, a choice or an answer")
        right = [
            sum(_text(answer[name]) == label for answer, label in zip(answers, labels)) for answers in (before, after)
        ]
        return (
            right[0] - right[1]
        ) / count, f"accuracy {right[1] / count:.4f} on {count} texts, the SavedModel's {right[0] / count:.4f}"
    if names:
        changed = sum(
            any(_kept(first[name]) != _kept(second[name]) for name in names) for first, second in zip(before, after)
        )
        return changed / count, f"{changed} of {count} answers differ from the SavedModel's"
    name = next(name for name in ("embedding", "weights", "score") if name in before[0])
    words = 1 + max(int(answer["ids"].max()) for answer in (*before, *after)) if name == "weights" else 0
    mean = sum(_vector(answer, name, words) for answer in before) / count if count > 1 else 0.0
    spread = sum(float(np.square(_vector(answer, name, words) - mean).sum()) for answer in before)
    lost = sum(
        float(np.square(_vector(second, name, words) - _vector(first, name, words)).sum())
        for first, second in zip(before, after)
    )
    lost /= max(spread, 1e-12)
    return lost, f"{lost:.2e} of the variance of {name} on {count} texts differs from the SavedModel's"


def _vector(answer: Mapping[str, Any], name: str, words: int) -> np.ndarray:
    """Returns an answer's numbers, float64. Weights of words become a vector [words] with the weights at their ids."""
    if name != "weights":
        return np.asarray(answer[name], np.float64)
    return np.bincount(answer["ids"], answer["weights"], words)  # what fills up a row weighs nothing


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _kept(value: Any) -> Any:
    """Returns a decision without its padding; of several words for a blank, the first."""
    if not isinstance(value, np.ndarray):
        return value
    first = value[:, 0] if value.ndim == 2 else value
    return [item for item in first.tolist() if item]
