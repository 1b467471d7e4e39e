"""Files of the encoder's outputs for each token (extract_features): 2018's JSON lines, NumPy's .npz, Parquet.

A row is a sentence: its number, its tokens, and by layer float32 [tokens,D].
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow
import pyarrow.parquet

from official_bert.storage.files import written_beside


class SentenceOutputs(NamedTuple):
    """One sentence; `layers` has the numbers of `--layers` as keys (-1: the last)."""

    number: int
    tokens: list[str]
    layers: Mapping[int, np.ndarray]


Write = Callable[[Sequence[SentenceOutputs]], None]  # takes the next sentences


@contextlib.contextmanager
def _json_lines(path: str, layers: Sequence[int]) -> Iterator[Write]:
    """A line a sentence, with 2018's keys ("linex_index" is its spelling) and its rounding to six digits."""

    def write(rows: Sequence[SentenceOutputs]) -> None:
        for row in rows:
            values = {layer: np.round(row.layers[layer].astype(np.float64), 6).tolist() for layer in layers}
            features = [
                {"token": token, "layers": [{"index": layer, "values": values[layer][place]} for layer in layers]}
                for place, token in enumerate(row.tokens)
            ]
            file.write(json.dumps({"linex_index": row.number, "features": features}) + "\n")

    with open(path, "w", encoding="utf-8") as file:
        yield write


@contextlib.contextmanager
def _npz(path: str, layers: Sequence[int]) -> Iterator[Write]:
    """`tokens` [T] of all sentences, `starts` [N+1] (sentence n has the rows starts[n] to starts[n+1]), `layer_-1`
    [T,D] ...

    Everything stays in memory until the file is closed.
    """
    sentences: list[SentenceOutputs] = []
    yield sentences.extend
    arrays = {f"layer_{layer}": np.concatenate([row.layers[layer] for row in sentences]) for layer in layers}
    arrays["tokens"] = np.array([token for row in sentences for token in row.tokens])
    with open(path, "wb") as file:
        np.savez(file, starts=np.cumsum([0, *(len(row.tokens) for row in sentences)]), **arrays)  # type: ignore[arg-type]


@contextlib.contextmanager
def _parquet(path: str, layers: Sequence[int]) -> Iterator[Write]:
    """A row a sentence: `index`, `tokens` (list), `layer_-1` ... (a list of D floats for each token); a row group a
    call.
    """
    matrix = pyarrow.list_(pyarrow.list_(pyarrow.float32()))
    schema = pyarrow.schema(
        [
            ("index", pyarrow.int64()),
            ("tokens", pyarrow.list_(pyarrow.string())),
            *((f"layer_{layer}", matrix) for layer in layers),
        ]
    )

    def write(rows: Sequence[SentenceOutputs]) -> None:
        columns: dict[str, list] = {"index": [row.number for row in rows], "tokens": [row.tokens for row in rows]}
        columns |= {f"layer_{layer}": [list(row.layers[layer]) for row in rows] for layer in layers}
        writer.write_table(pyarrow.table(columns, schema=schema))

    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        yield write


@contextlib.contextmanager
def open_writer(path: str, layers: Sequence[int]) -> Iterator[Write]:
    """Opens a writer of sentences in the format of the path's suffix; the file appears once it is complete."""
    form = {".npz": _npz, ".parquet": _parquet}.get(os.path.splitext(path)[1], _json_lines)
    with written_beside(path) as temporary, form(temporary, layers) as write:
        yield write
