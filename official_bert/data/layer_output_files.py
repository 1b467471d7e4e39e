"""Files of the encoder's outputs for each token (extract_features): 2018's JSON lines, NumPy's .npz, Parquet.

A row is a sentence: its number, its tokens, and by layer float32 [tokens,D].
"""

import abc
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet

from official_bert.files import written_beside


class SentenceOutputs(NamedTuple):
    """One sentence; `layers` has the numbers of `--layers` as keys (-1: the last)."""

    number: int
    tokens: list[str]
    layers: Mapping[int, np.ndarray]


class Writer(abc.ABC):
    """Writes sentences to a file in one format."""

    @abc.abstractmethod
    def __init__(self, path: str, layers: Sequence[int]):
        """Creates the file at `path`; `layers` are those of each sentence that are written."""

    @abc.abstractmethod
    def write(self, rows: Sequence[SentenceOutputs]) -> None:
        """Takes the next sentences."""

    @abc.abstractmethod
    def close(self) -> None:
        """Writes everything that is still in memory."""


class JsonLinesWriter(Writer):
    """A line a sentence, with 2018's keys ("linex_index" is its spelling) and its rounding to six digits."""

    def __init__(self, path: str, layers: Sequence[int]):
        self.file, self.layers = open(path, "w", encoding="utf-8"), layers  # noqa: SIM115

    def write(self, rows: Sequence[SentenceOutputs]) -> None:
        for row in rows:
            values = {layer: np.round(row.layers[layer].astype(np.float64), 6).tolist() for layer in self.layers}
            features = [{"token": token, "layers": [{"index": layer, "values": values[layer][place]} for layer in self.layers]}
                        for place, token in enumerate(row.tokens)]
            self.file.write(json.dumps({"linex_index": row.number, "features": features}) + "\n")

    def close(self) -> None:
        self.file.close()


class NpzWriter(Writer):
    """`tokens` [T] of all sentences, `starts` [N+1] (sentence n has the rows starts[n] to starts[n+1]), `layer_-1` [T,D] ...

    Everything stays in memory until the file is closed.
    """

    def __init__(self, path: str, layers: Sequence[int]):
        self.path, self.layers = path, layers
        self.tokens: list[str] = []
        self.starts = [0]
        self.values: dict[int, list[np.ndarray]] = {layer: [] for layer in layers}

    def write(self, rows: Sequence[SentenceOutputs]) -> None:
        for row in rows:
            self.tokens += row.tokens
            self.starts.append(len(self.tokens))
            for layer in self.layers:
                self.values[layer].append(row.layers[layer])

    def close(self) -> None:
        arrays: dict[str, Any] = {f"layer_{layer}": np.concatenate(parts) for layer, parts in self.values.items()}
        with open(self.path, "wb") as file:
            np.savez(file, tokens=np.array(self.tokens), starts=np.array(self.starts), **arrays)


class ParquetWriter(Writer):
    """A row a sentence: `index`, `tokens` (list), `layer_-1` ... (a list of D floats for each token); a row group a call."""

    def __init__(self, path: str, layers: Sequence[int]):
        matrix = pyarrow.list_(pyarrow.list_(pyarrow.float32()))
        self.layers = layers
        self.schema = pyarrow.schema([("index", pyarrow.int64()), ("tokens", pyarrow.list_(pyarrow.string())),
                                      *((f"layer_{layer}", matrix) for layer in layers)])
        self.writer = pyarrow.parquet.ParquetWriter(path, self.schema)

    def write(self, rows: Sequence[SentenceOutputs]) -> None:
        columns: dict[str, list] = {"index": [row.number for row in rows], "tokens": [row.tokens for row in rows]}
        columns |= {f"layer_{layer}": [list(row.layers[layer]) for row in rows] for layer in self.layers}
        self.writer.write_table(pyarrow.table(columns, schema=self.schema))

    def close(self) -> None:
        self.writer.close()


# By file suffix; JSON lines for any other.
WRITERS: Mapping[str, type[Writer]] = {".npz": NpzWriter, ".parquet": ParquetWriter}


@contextmanager
def open_writer(path: str, layers: Sequence[int]) -> Iterator[Writer]:
    """Gives a writer of the format of the path's suffix; the file appears when it is whole."""
    with written_beside(path) as temporary:
        writer = WRITERS.get(os.path.splitext(path)[1], JsonLinesWriter)(temporary, layers)
        yield writer
        writer.close()
