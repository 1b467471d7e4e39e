"""Model inputs made from texts (2018's `InputFeatures`): one array holds all ids, and unpadded rows are made on
demand.
"""

from collections.abc import Mapping, Sequence

import numpy as np


class TextFeatures(Sequence):
    """`features[i]` is the dict of row i: `input_ids`, `input_mask`, `segment_ids` int32 [S], and its values in
    `extra`.

    `ids` holds all rows one after another; row i begins at `starts[i]`, and its segment 0 has `first_lengths[i]`
    tokens. `extra` has one value per text.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], extra: Mapping[str, np.ndarray] | None = None):
        self.ids, self.starts, self.first_lengths = arrays["ids"], arrays["starts"], arrays["first_lengths"]
        self.longer = int(arrays["longer"])  # texts that were longer than the limit: cut, or in several windows
        self.texts = arrays.get("texts")  # the number of each row's text, if a text has several; they are in order
        self.extra = {
            name: values if self.texts is None else values[self.texts] for name, values in (extra or {}).items()
        }

    def __len__(self) -> int:
        return len(self.first_lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        ids = self.ids[self.starts[index] : self.starts[index + 1]]
        segments = np.zeros(len(ids), np.int32)
        segments[self.first_lengths[index] :] = 1
        row = {"input_ids": ids, "input_mask": np.ones(len(ids), np.int32), "segment_ids": segments}
        return row | {name: values[index] for name, values in self.extra.items()}

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.diff(self.starts)

    @property
    def number_of_texts(self) -> int:
        """The number of texts (or pairs); each has a row, or several windows."""
        return len(self) if self.texts is None else int(self.texts[-1]) + 1


class ChoiceFeatures(Sequence):
    """`features[i]` is the dict of example i, the next C of `rows`: `input_ids`, `input_mask`, `segment_ids` [C,S].

    `counts` are the rows of each example: C is the largest, and missing rows hold 0, in `input_mask` too.
    """

    def __init__(self, rows: TextFeatures, counts: Sequence[int], extra: Mapping[str, np.ndarray]):
        self.rows, self.choices, self.extra = rows, max(counts, default=0), dict(extra)
        self.starts = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        rows = [self.rows[number] for number in range(self.starts[index], self.starts[index + 1])]
        length = max(len(row["input_ids"]) for row in rows)
        stacked = {name: np.zeros((self.choices, length), np.int32) for name in rows[0]}
        for choice, row in enumerate(rows):
            for name, values in row.items():
                stacked[name][choice, : len(values)] = values
        return stacked | {name: values[index] for name, values in self.extra.items()}


class WiderRows(Sequence):
    """Rows extended by the columns of other rows."""

    def __init__(self, rows: Sequence[Mapping[str, np.ndarray]], more: Sequence[Mapping[str, np.ndarray]]):
        self.rows, self.more = rows, more

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:  # type: ignore[override]
        return {**self.rows[index], **self.more[index]}
