"""Texts to answer in the forms that people have them, as rows of a model's inputs; answers as a frame."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.data.tables import Rows, shown
from official_bert.interface.input_files import Columns, rows_of_table
from official_bert.interface.memory_tables import as_source, is_frame, is_series, is_split

Row = Mapping[str, Any]
TAKEN = "a list of texts, a text, a pandas frame or series, or a split of datasets"


def is_single(texts: Any, inputs: Sequence[str], columns: Columns) -> bool:
    """Whether texts are one row: a string, a tuple of inputs, a mapping, or a row of a frame."""
    if is_series(texts):
        return _chosen(list(texts.index), inputs, columns) is not None
    return isinstance(texts, (str, tuple, Mapping))


def read_texts(texts: Any, inputs: Sequence[str], columns: Columns) -> tuple[list[Row], Any]:
    """Returns the rows of inputs of several texts, and the index of a frame or series (None: they are neither).

    `columns` are those of each input in the files of training, which a frame and mappings may have in place of the inputs. Raises
    ValueError, naming the row from 1, for texts in other forms, and for a frame without the columns.
    """
    if is_frame(texts) or is_split(texts):
        index = texts.index if is_frame(texts) else None
        if index is not None and not len(index):
            return [], index
        source = as_source(texts, "texts")
        assert isinstance(source, Rows)
        input_columns = _chosen(list(source.values[0]), inputs, columns)
        if input_columns is None:
            wanted = [" or ".join(dict.fromkeys([*map(repr, filter(None, columns.get(name, ()))), repr(name)])) for name in inputs]
            raise ValueError(f"texts: expected columns {', '.join(wanted)}, found {shown(list(source.values[0]))}; rename them")
        return list(rows_of_table(source, input_columns)), index
    index = texts.index if is_series(texts) else None
    listed = texts.tolist() if hasattr(texts, "tolist") else texts
    if isinstance(listed, (str, bytes)) or not isinstance(listed, Sequence):
        raise ValueError(f"expected {TAKEN}, got {type(texts).__name__}" + ("; list(...) makes a list of it" if hasattr(texts, "__iter__")
                                                                          else f" {texts!r:.60}"))
    return [_row(text, number, inputs, columns) for number, text in enumerate(listed, 1)], index


def _chosen(names: Sequence[Any], inputs: Sequence[str], columns: Columns) -> Columns | None:
    """Returns the columns of each input among these names: those of training or else the inputs; None if neither are all there."""
    names_there = {*map(str, names)}
    ways: list[Columns] = [{name: columns.get(name) or (name,) for name in inputs}, {name: (name,) for name in inputs}]
    return next((way for way in ways if all(part in names_there for parts in way.values() for part in parts if part)), None)


def _row(text: Any, number: int, inputs: Sequence[str], columns: Columns) -> Row:
    """Returns a text in any of its forms as a row of inputs; raises ValueError for other forms."""
    if isinstance(text, str):
        text = (text,)
    if is_series(text):
        text = text.to_dict()
    if isinstance(text, (tuple, list)):
        if len(text) != len(inputs):
            raise ValueError(f"row {number}: expected {' and '.join(inputs)}, got {len(text)} value{'s' * (len(text) > 1)}")
        text = dict(zip(inputs, text))
    if not isinstance(text, Mapping):
        raise ValueError(f"row {number}: expected {' and '.join(inputs)}, got {text!r:.60}")
    if not all(name in text for name in inputs) and (chosen := _chosen(list(text), inputs, columns)) is not None:
        return rows_of_table(Rows("row", [text], [number]), chosen)[0]
    for name in inputs:
        value = text.get(name)
        if name == "choices" and isinstance(value, (list, tuple)) and value and all(isinstance(one, str) for one in value):
            continue
        if name == "choices" or not isinstance(value, str):
            raise ValueError(f"row {number}: {name}: expected {'texts' if name == 'choices' else 'a text'}, got {value!r:.60}")
    return text


def named_probabilities(answer: dict[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """Returns an answer whose probabilities are by label, if they are those of the labels."""
    values = answer.get("probabilities")
    if labels and {"label", "labels"} & answer.keys() and isinstance(values, list) and len(values) == len(labels):
        return {**answer, "probabilities": dict(zip(labels, values))}
    return answer


def as_frame(answers: Sequence[Mapping[str, Any]], index: Any) -> Any:
    """Returns answers as a pandas frame with this index: a column for each output, `probability:LABEL` for each label."""
    import pandas
    rows = []
    for answer in answers:
        shares = answer.get("probabilities")
        named = {f"probability:{label}": share for label, share in shares.items()} if isinstance(shares, Mapping) else {}
        rows.append({name: value for name, value in answer.items() if not (named and name == "probabilities")} | named)
    return pandas.DataFrame({name: pandas.Series([row[name] for row in rows], index=index, dtype=_dtype([row[name] for row in rows]))
                             for name in (rows[0] if rows else ())}, index=index)


def _dtype(values: Sequence[Any]) -> Any:
    """The type of a column: objects for texts and lists, else what numpy takes."""
    return None if all(isinstance(value, (bool, int, float, np.number)) for value in values) else object
