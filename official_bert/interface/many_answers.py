"""Batch prediction: answers to many rows, several files in, shards out, in bounded memory, resumed after a kill, by
several processes.

Each shard is made of the parts that follow each other in the input, PART rows each. A part is answered as one, whatever
was answered before, and kept in a numbered file of its shard's work folder: a resumed run writes the same bytes. A
process takes the shards in order that nobody has locked, so that the same command, started several times, shares them.
"""

import base64
import contextlib
import dataclasses
import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from official_bert.interface.model_inputs import ModelInputs
from official_bert.interface.output_files import labelled
from official_bert.interface.predictor import Predictor, warn_of_empty
from official_bert.long_work import preflight
from official_bert.long_work.made_of import require_same
from official_bert.long_work.progress import Reporter
from official_bert.long_work.work_folder import BusyError, WorkFolder, work_path
from official_bert.models.checkpoints import checkpoint_at
from official_bert.storage import files

PART = 1024  # rows that are answered, and kept, at once
FORMS = ("", "outputs", "jsonl", "parquet", "npy")
Form = Literal["lines", "jsonl", "parquet", "vectors_parquet", "npy"]
Read = Callable[[str, int], Iterator[list[dict[str, Any]]]]  # the rows of a file, so many in a part
Row = dict[str, Any]


def are_vectors(output_format: str, outputs: Sequence[str]) -> bool:
    """Returns whether a format, for a model with these outputs, is one of vectors alone."""
    return output_format == "npy" or (output_format == "parquet" and "embedding" in outputs)


def is_many(input_file: str, output_file: str) -> bool:
    """Returns whether rows are answered in shards: several files, or an output NAME@N."""
    if not input_file or input_file == "-":
        return False
    several = not files.exists(input_file) and (
        files.shard_names(input_file) != [input_file] or any(sign in input_file for sign in "*?[,")
    )
    return several or files.shard_names(output_file) != [output_file]


def form_of(output_format: str, outputs: Sequence[str], keep: Sequence[str]) -> Form:
    """Returns the form of the shards. Raises ValueError for one that cannot hold the answers, or is not written in
    parts.
    """
    if output_format not in FORMS:
        raise ValueError(
            f"--output_format={output_format}: expected one of {', '.join(filter(None, FORMS))} for several files or "
            "shards; other forms are written from one file into one"
        )
    if output_format == "npy" and "embedding" not in outputs:
        raise ValueError(
            f"--output_format=npy: expected a model that gives embeddings, got one that gives {', '.join(outputs)}"
        )
    if output_format == "npy" and keep:
        raise ValueError(f"--keep_columns={keep[0]}: an array has no place for it; --output_format=parquet has")
    if output_format == "parquet" and "embedding" in outputs:
        return "vectors_parquet"
    if output_format in ("jsonl", "parquet") and not {"label", "labels", "score", "choice"} & {*outputs}:
        raise ValueError(
            f"--output_format={output_format}: expected none, or outputs, because training reads no such answers "
            f"({', '.join(outputs)})"
        )
    return {"": "lines", "outputs": "lines"}.get(output_format, output_format)  # type: ignore[return-value]


def shown(row: Mapping[str, Any], predictor: Predictor) -> Row:
    """Returns what is written of a row beside its answer: not the text if that was redacted."""
    hidden = predictor.inputs if "redacted" in predictor.outputs else ()
    return {name: value for name, value in row.items() if name not in hidden}


@dataclasses.dataclass(frozen=True)
class ManyAnswers:
    """Rows of several files to be answered into the shards `outputs`."""

    predictor: Predictor
    model_inputs: ModelInputs
    input_file: str  # paths, folders, globs and name@8, with commas between them
    outputs: Sequence[str]
    form: Form
    batch_size: int
    options: Mapping[str, Any]  # of the command, which decide what the answers are
    overrides: Sequence[str] = ()  # of the options for reading
    discard: bool = False  # whether to begin anew instead of continuing

    @functools.cached_property
    def inputs(self) -> list[str]:
        """The files with the rows, in their order."""
        return files.find_files(self.input_file, "--input_file")

    @property
    def manifest(self) -> str:
        """The file beside the shards that says what they are made of, and how many rows there are."""
        first = self.outputs[0]
        stem = first.removesuffix(f"-00000-of-{len(self.outputs):05d}")
        return f"{stem}-of-{len(self.outputs):05d}.json" if len(self.outputs) > 1 else f"{first}.json"

    def write(self) -> None:
        """Answers all rows that nobody has answered yet, and says what is left to other processes.

        Raises ValueError, before any answer, for rows that cannot be read, fewer rows than shards, and outputs of other
        inputs.
        """
        preflight.check_outputs([*self.outputs, self.manifest], self.inputs, self.input_file)
        counts = self._counts()
        self._remove_left_parts()
        shards = list(
            itertools.pairwise(
                round(number * sum(counts) / len(self.outputs)) for number in range(len(self.outputs) + 1)
            )
        )
        waiting = {path: bounds for path, bounds in zip(self.outputs, shards) if not files.exists(path)}
        if not waiting:
            print(f"{self.manifest}: all {sum(counts):,} rows are answered; --discard answers them again")
            return
        rows = _Rows(self.inputs, counts, self.model_inputs.read_parts)
        rows_left, rows_done = sum(end - start for start, end in waiting.values()), 0
        with Reporter() as reporter:
            for path, (start, end) in waiting.items():

                def show(answered: int, before: int = rows_done) -> None:
                    reporter.show(f"answering {rows_left:,} rows", min((before + answered) / max(rows_left, 1), 0.999))

                with contextlib.suppress(BusyError):
                    self._answer_shard(path, rows, start, end, show)
                rows_done += end - start
            reporter.show(f"answering {rows_left:,} rows", 1.0)
        if busy := [path for path in waiting if not files.exists(path)]:
            print(
                f"{len(busy)} of {len(self.outputs)} files are being answered by other processes, first {busy[0]}; the "
                "same command finishes what they leave"
            )

    @functools.cached_property
    def _made_of(self) -> dict[str, Any]:
        """What decides the answers, by the name that the user knows; JSON values."""
        return {
            "input_file": list(map(_identity, self.inputs)),
            "model": _weights(self.predictor.path),
            "output_format": self.form,
            "options": dict(self.options),
            "set": list(self.overrides),
            "keep_columns": list(self.model_inputs.keep),
            "part": PART,
        }

    def _counts(self) -> list[int]:
        """Returns the rows of each input: as the manifest says, or counted, which also checks that they can be read."""
        made_of = self._made_of
        if self.discard:
            for path in (self.manifest, *self.outputs):
                files.remove(path)
        if files.exists(self.manifest):
            manifest = files.read_json(self.manifest, "list of the inputs of the answers")
            before = manifest.get("made_of", {}) if isinstance(manifest, dict) else {}
            require_same(
                before,
                made_of,
                f"{self.manifest}: its answers were made with",
                "give another --output_file, or --discard to answer again",
            )
            return manifest["rows"]
        if there := [path for path in self.outputs if files.exists(path)]:
            raise ValueError(
                f"{there[0]}: exists already, and {self.manifest}, which records how it was made, does not; --discard "
                "replaces it"
            )
        types: dict[str, tuple[type, str]] | None = {} if self.form in ("parquet", "vectors_parquet") else None
        counts = [_count(path, self.model_inputs.read_parts, types) for path in self.inputs]
        if sum(counts) < len(self.outputs):
            raise ValueError(
                f"--output_file: expected at most as many files as rows, got {len(self.outputs)} for {sum(counts)}"
            )
        files.write_json(self.manifest, {"made_of": made_of, "rows": counts})
        return counts

    def _remove_left_parts(self) -> None:
        """Removes the parts of shards that are written: a process may have been killed before it removed them."""
        for path in filter(files.exists, self.outputs):
            if files.exists(work := work_path(path)):
                with contextlib.suppress(BusyError), WorkFolder(work, {}, discard=True):
                    pass

    def _answer_shard(self, path: str, rows: "_Rows", start: int, end: int, show: Callable[[int], None]) -> None:
        """Answers the rows of a shard, those in its work folder excepted, and writes it. Raises BusyError if another
        process does.
        """
        with WorkFolder(work_path(path), self._made_of | {"rows": [start, end]}, self.discard) as work:
            if files.exists(path):  # another process has just written it
                return
            firsts = range(start, end, PART)
            empty: list[str] = []
            for number, first in enumerate(firsts):
                if work.result(number) is None:
                    part = rows.between(first, min(first + PART, end))
                    answers = self.predictor.answer(part, self.batch_size)
                    empty += filter(None, map(self.predictor.lacks_question, part, answers))
                    work.keep_result(number, self._entry(part, [self.predictor.unpadded(answer) for answer in answers]))
                    show(first + len(part) - start)
            warn_of_empty(empty, end - start)
            with files.written_beside(path) as temporary:
                _WRITERS[self.form](temporary, lambda: map(work.result, range(len(firsts))), end - start)

    def _entry(self, part: Sequence[Row], answers: Sequence[Mapping[str, Any]]) -> Any:
        """Returns the answers to a part as its file keeps them, in JSON values."""
        if self.form in ("npy", "vectors_parquet"):
            vectors = np.array([answer["embedding"] for answer in answers], np.float32)
            copied = [{name: value for name, value in row.items() if name not in self.predictor.inputs} for row in part]
            return {
                "width": vectors.shape[1],
                "vectors": base64.b64encode(vectors.tobytes()).decode(),
                "kept": copied if self.form == "vectors_parquet" else [],
            }
        if self.form == "lines":
            return [{**shown(row, self.predictor), **answer} for row, answer in zip(part, answers)]
        return [labelled(row, answer, self.predictor.config, self.form) for row, answer in zip(part, answers)]


class _Rows:
    """The rows of several files as one sequence that is read forwards; going back reads a file again."""

    def __init__(self, paths: Sequence[str], counts: Sequence[int], read: Read):
        self.paths, self.read = paths, read
        self.starts = list(itertools.accumulate(counts, initial=0))
        self.place = -1
        self.rows: Iterator[Row] = iter(())

    def between(self, start: int, end: int) -> list[Row]:
        """Returns the rows from `start` to `end`, of all files. Raises ValueError if a file has fewer rows than were
        counted.
        """
        if self.place < 0 or start < self.place:
            number = max(number for number, first in enumerate(self.starts[:-1]) if first <= start)
            self.place = self.starts[number]
            self.rows = (row for path in self.paths[number:] for part in self.read(path, PART) for row in part)
        for _ in itertools.islice(self.rows, start - self.place):
            pass
        rows = list(itertools.islice(self.rows, end - start))
        if len(rows) != end - start:
            raise ValueError(
                f"{self.paths[-1]}: expected {self.starts[-1]:,} rows in all, as they were counted; did a file change?"
            )
        self.place = end
        return rows


def _count(path: str, read: Read, types: dict[str, tuple[type, str]] | None) -> int:
    """Counts the rows of a file; those of Parquet without reading them.

    Notes the `types` of the columns, each with the file that has it first, unless they are None. Raises ValueError for
    a column of two.
    """
    if path.lower().endswith(".parquet"):
        import pyarrow.lib
        import pyarrow.parquet

        _note_types(next(read(path, PART), []), path, types)  # also raises the error for wrong columns
        with contextlib.suppress(pyarrow.lib.ArrowException, OSError), files.open_bytes(path) as file:
            return pyarrow.parquet.read_metadata(file).num_rows
    count = 0
    for part in read(path, PART):
        _note_types(part, path, types)
        count += len(part)
    return count


def _note_types(rows: Sequence[Row], path: str, types: dict[str, tuple[type, str]] | None) -> None:
    if types is None:
        return
    for name, value in itertools.chain.from_iterable(row.items() for row in rows):
        value_type, where = types.setdefault(name, (type(value), path)) if value is not None else (type(None), path)
        if type(value) is not value_type:
            raise ValueError(
                f"--output_format=parquet: column {name!r}: expected values of one type, got {value_type.__name__} in "
                f"{where} "
                f"and {type(value).__name__} in {path}; --output_format=outputs writes JSON lines, which hold any"
            )


def _identity(path: str) -> list:
    """What tells a file from one that was changed: name, bytes, time of change."""
    return [os.path.basename(path), files.size_of(path), files.modified(path)]


def _weights(path: str) -> list:
    """What tells a model from another one at its path, such as that of a later checkpoint."""
    if prefix := checkpoint_at(path):
        weight_files = [
            file
            for file in files.files_below(files.folder_of(prefix) or ".")
            if os.path.basename(file).startswith(f"{os.path.basename(prefix)}.")
        ]
    else:
        weight_files = files.files_below(path) if files.is_folder(path) else [path] if files.is_file(path) else []
    return [files.absolute(path), *map(_identity, sorted(weight_files))]


def _write_lines(path: str, replay: Callable[[], Iterator[list[Row]]], _: int) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        for rows in replay():
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_parquet(path: str, replay: Callable[[], Iterator[Any]], _: int) -> None:
    """Writes a table, a row group for each part; of vectors as a column `embedding` beside the columns that are kept.

    Raises ValueError for a column of two types.
    """
    import pyarrow
    import pyarrow.parquet

    try:  # a part may have nothing but null in a column: all of them say its type
        schema = functools.reduce(
            lambda schema, other: pyarrow.unify_schemas([schema, other]), (_table(entry).schema for entry in replay())
        )
    except pyarrow.lib.ArrowException as error:
        raise ValueError(
            f"--output_format=parquet: expected values of one type in each column ({str(error).splitlines()[0]}); JSON "
            "lines hold any (--output_format=outputs)"
        ) from None
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for entry in replay():
            writer.write_table(_table(entry, schema))


def _table(entry: Any, schema: Any = None) -> Any:
    """Returns the table of a part's entry, rows or vectors, with the columns and types of a schema."""
    import pyarrow

    if isinstance(entry, list):
        return pyarrow.Table.from_pylist(entry, schema)
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(_vectors(entry).ravel()), entry["width"])
    kept = pyarrow.Table.from_pylist(entry["kept"], schema and schema.remove(schema.get_field_index("embedding")))
    return pyarrow.table([*kept.columns, column], [*kept.column_names, "embedding"])


def _write_array(path: str, replay: Callable[[], Iterator[Mapping[str, Any]]], count: int) -> None:
    """Writes an array float32 [N,D] for `numpy.load`, which may map it into memory."""
    with open(path, "wb") as file:
        for number, entry in enumerate(replay()):
            if not number:
                np.lib.format.write_array_header_1_0(
                    file, {"descr": "<f4", "fortran_order": False, "shape": (count, entry["width"])}
                )
            file.write(_vectors(entry).tobytes())


def _vectors(entry: Mapping[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(entry["vectors"]), "<f4").reshape(-1, entry["width"])


_WRITERS: Mapping[str, Callable[[str, Callable[[], Iterator[Any]], int], None]] = {
    "lines": _write_lines,
    "jsonl": _write_lines,
    "parquet": _write_parquet,
    "vectors_parquet": _write_parquet,
    "npy": _write_array,
}
