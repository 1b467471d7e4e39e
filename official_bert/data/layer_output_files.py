"""Files of the encoder's outputs for each token (extract_features): 2018's JSON lines, NumPy's .npz, Parquet.

A row is a sentence: its number, its tokens, and by layer float32 [tokens,D].
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow
import pyarrow.parquet

from official_bert.files import written_beside


class SentenceOutputs(NamedTuple):
    """One sentence; `layers` by the number that was asked for (-1: the last)."""

    number: int
    tokens: list[str]
    layers: Mapping[int, np.ndarray]


class Writer(Protocol):
    """What each format's writer does."""

    def write(self, rows: Sequence[SentenceOutputs]) -> None:
        """Takes more sentences, in their order."""

    def close(self) -> None:
        """Writes what is left."""


class JsonLinesWriter:
    """A line a sentence, with 2018's keys ("linex_index" is its own) and its rounding to six digits."""

    def __init__(self, path: str, layers: Sequence[int]):
        self.file, self.layers = open(path, "w", encoding="utf-8"), layers  # noqa: SIM115

    def write(self, rows: Sequence[SentenceOutputs]) -> None:
        """Takes more sentences."""
        for row in rows:
            values = {layer: np.round(row.layers[layer].astype(np.float64), 6).tolist() for layer in self.layers}
            features = [{"token": token, "layers": [{"index": layer, "values": values[layer][place]} for layer in self.layers]}
                        for place, token in enumerate(row.tokens)]
            self.file.write(json.dumps({"linex_index": row.number, "features": features}) + "\n")

    def close(self) -> None:
        """Closes the file."""
        self.file.close()


class NpzWriter:
    """`tokens` [T] of all sentences, `starts` [N+1] (sentence n has the rows from starts[n] to starts[n+1]), `layer_-1` [T,D] ..."""

    def __init__(self, path: str, layers: Sequence[int]):
        self.path, self.layers = path, layers
        self.tokens: list[str] = []
        self.starts = [0]
        self.values: dict[int, list[np.ndarray]] = {layer: [] for layer in layers}

    def write(self, rows: Sequence[SentenceOutputs]) -> None:
        """Takes more sentences; they stay in memory until the file is closed."""
        for row in rows:
            self.tokens += row.tokens
            self.starts.append(len(self.tokens))
            for layer in self.layers:
                self.values[layer].append(row.layers[layer])

    def close(self) -> None:
        """Writes everything."""
        arrays: dict[str, Any] = {f"layer_{layer}": np.concatenate(parts) for layer, parts in self.values.items()}
        with open(self.path, "wb") as file:
            np.savez(file, tokens=np.array(self.tokens), starts=np.array(self.starts), **arrays)


class ParquetWriter:
    """A row a sentence: `index`, `tokens` (list), `layer_-1` ... (a list of D floats for each token). Written part by part."""

    def __init__(self, path: str, layers: Sequence[int]):
        matrix = pyarrow.list_(pyarrow.list_(pyarrow.float32()))
        self.layers = layers
        self.schema = pyarrow.schema([("index", pyarrow.int64()), ("tokens", pyarrow.list_(pyarrow.string())),
                                      *((f"layer_{layer}", matrix) for layer in layers)])
        self.writer = pyarrow.parquet.ParquetWriter(path, self.schema)

    def write(self, rows: Sequence[SentenceOutputs]) -> None:
        """Takes more sentences, as one row group."""
        columns: dict[str, list] = {"index": [row.number for row in rows], "tokens": [row.tokens for row in rows]}
        columns |= {f"layer_{layer}": [list(row.layers[layer]) for row in rows] for layer in self.layers}
        self.writer.write_table(pyarrow.table(columns, schema=self.schema))

    def close(self) -> None:
        """Writes the index."""
        self.writer.close()


# By a file's ending; any other: JSON lines.
WRITERS: Mapping[str, Callable[[str, Sequence[int]], Writer]] = {".npz": NpzWriter, ".parquet": ParquetWriter}


@contextmanager
def open_writer(path: str, layers: Sequence[int]) -> Iterator[Writer]:
    """A writer of the format that the path's ending says; the file appears when it is whole."""
    make: Callable[[str, Sequence[int]], Writer] = WRITERS.get(os.path.splitext(path)[1], JsonLinesWriter)
    with written_beside(path) as temporary:
        writer = make(temporary, layers)
        yield writer
        writer.close()
