"""Features of raw texts, pairs or choices, and answers from logits, in plain Python."""

from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.data.batches.feature_rows import ChoiceFeatures, TextFeatures
from official_bert.data.batches.text_features import make_features


def encode(task, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """`text`, and `text_pair` or `choices` of tasks with such -> features."""
    choices = task.num_outputs if task.head == "choice" else 1
    first, second = [row["text"] for row in rows for _ in range(choices)], None
    if task.head == "choice":
        for number, row in enumerate(rows, 1):
            if len(row["choices"]) != choices:
                raise ValueError(f"row {number}: expected {choices} choices, got {len(row['choices'])}")
        second = [choice for row in rows for choice in row["choices"]]
    elif task.options.pairs:
        second = [row["text_pair"] for row in rows]
    features = TextFeatures(make_features(first, second, task.tokenizer, task.options.max_seq_length))
    return list(ChoiceFeatures(features, [choices] * (len(features) // choices), {}) if choices > 1 else features)


def decode(
    task,
    rows: Sequence[Mapping[str, Any]],
    features: Sequence[Mapping[str, Any]],
    predictions: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Returns the answer to each row of logits that the task writes into prediction files."""
    return [task.answers.answer(row["logits"]) for row in predictions]
