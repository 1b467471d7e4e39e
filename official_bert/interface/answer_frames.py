"""Answers for Python: probabilities by the names of labels, and answers as a frame."""

from collections.abc import Mapping, Sequence
from typing import Any


def named_probabilities(answer: dict[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """Returns an answer whose probabilities are by label, if they are those of the labels."""
    values = answer.get("probabilities")
    if labels and {"label", "labels"} & answer.keys() and isinstance(values, list) and len(values) == len(labels):
        return {**answer, "probabilities": dict(zip(labels, values))}
    return answer


def as_frame(answers: Sequence[Mapping[str, Any]], index: Any) -> Any:
    """Returns answers as a pandas frame of this index: a column for each output, `probability:LABEL` for each label."""
    import pandas

    rows = []
    for answer in answers:
        by_label = shares if isinstance(shares := answer.get("probabilities"), Mapping) else {}
        rows.append(
            {name: value for name, value in answer.items() if value is not by_label}
            | {f"probability:{label}": share for label, share in by_label.items()}
        )
    return pandas.DataFrame(rows, index)
