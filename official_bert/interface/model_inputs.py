"""Rows as the inputs of a model: of files that training reads too, of plain lines, of texts and tables in memory."""

import dataclasses
import datetime
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from absl import logging

from official_bert import json_values
from official_bert.config import Config, merge, parse_override
from official_bert.data.rows import place
from official_bert.data.tabular import likely_tables
from official_bert.data.tabular.companions import ANNOTATIONS, annotations_of
from official_bert.data.tabular.encodings import text_lines
from official_bert.data.tabular.frames import as_source, is_frame, is_series, is_split
from official_bert.data.tabular.tables import OBJECTS, SUFFIXES, Format, RowReader, TableOptions, at_key, shown
from official_bert.data.tagged import brat, column_files, span_forms
from official_bert.storage.files import exists, is_folder
from official_bert.storage.suffixes import is_packed, suffix_of
from official_bert.tasks.loading import load_task
from official_bert.tasks.task import TaskBase
from official_bert.typed_values import and_others

Row = Mapping[str, Any]
Columns = Mapping[str, tuple[str, ...]]  # by input of a model; choices are made of a beginning and their endings
TABLE_OPTIONS = [field.name for field in dataclasses.fields(TableOptions)]
MAY_BE_NULL = {"text", "text_pair"}  # models with other inputs than these, those of classification, refuse null
SECOND_TEXT = "text_pair"
IGNORED = (
    f"column '{SECOND_TEXT}', but the model reads one text; --pairs reads both, --keep_columns={SECOND_TEXT} copies it"
)
OF_TAGGED_WORDS = (".conll", ".conllu")
HOW_TO_TAG = "run_finetuning --task=ner --output_dir=RUN --nodo_train --nodo_eval --predict_file=FILE"
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may hold one, which is no text in UTF-8
TEXTS = "a list of texts, a text, a pandas frame or series, or a split of datasets"


@dataclasses.dataclass(frozen=True)
class ModelInputs:
    """The inputs of a model, and how rows give them."""

    inputs: Sequence[str]  # by name
    training_columns: Columns = dataclasses.field(default_factory=dict)  # of inputs, in the files of training
    options: Any = None  # of the task, which say how files are read; None: not known
    keep: Sequence[str] = ()  # columns of files that are copied
    is_tagger: bool = False  # refuses files of tagged words
    may_read_pairs: bool = False  # a classifier of one text, which refuses a column of second texts

    @classmethod
    def of_model(cls, inputs: Sequence[str], config: Config | None, overrides: Sequence[str] = (), **more: Any) -> Self:
        """Returns the inputs of a model, read with the options of its training and `overrides`
        (`options.text_column=review`).

        `more` are further fields. Raises ValueError for an override that does not say how the inputs are read.
        """
        if config is None:
            if overrides:
                raise ValueError(f"--set {overrides[0]}: expected a model whose configuration is known")
            return cls(inputs, **more)
        values: Mapping[str, Any] = {"options": config.options}
        for override in overrides:
            values = merge(values, parse_override(override))
        task = load_task(dataclasses.replace(config, options=values["options"]))
        known = list(dict.fromkeys([*_reading_options(load_task(config), inputs), *_reading_options(task, inputs)]))
        for override in overrides:
            changes = parse_override(override)
            if {*changes} != {"options"} or not {*changes["options"]} <= {*known}:
                names = ", ".join(f"options.{name}" for name in known) or "this task has none"
                raise ValueError(f"--set {override}: expected an option for reading --input_file ({names})")
        return cls(inputs, task.answers.input_columns(), task.options, **more)

    @property
    def own_columns(self) -> Columns:
        """Columns with the names of the inputs."""
        return {name: (name,) for name in self.inputs}

    @property
    def columns(self) -> Columns:
        """The columns in the files of training, with the names of the inputs for those that are not known."""
        return {name: self.training_columns.get(name) or (name,) for name in self.inputs}

    def columns_among(self, names: Iterable[Any]) -> Columns | None:
        """Returns the columns of training, or those named as the inputs, if all are among `names`; else None."""
        present = {*map(str, names)}
        return next(
            (
                columns
                for columns in (self.columns, self.own_columns)
                if all(name in present or name.partition(".")[0] in present for name in _names(columns))
            ),
            None,
        )

    def read_file(self, path: str) -> list[dict[str, Any]]:
        """Reads the rows of a file, as `read_parts` does, at once."""
        return list(self._file_rows(path))

    def read_parts(self, path: str, at_once: int) -> Iterator[list[dict[str, Any]]]:
        """Yields the rows of a file, at most `at_once` in a part: the columns `keep`, then the inputs by name.

        Columns with the names of the inputs will do in the place of those of training. TSV and .txt files without names
        of columns may be plain lines: JSON objects, or the inputs between tabs.

        Raises ValueError, naming file and line or column, for what cannot be read, and for plain lines whose first one
        names the columns.
        """
        rows = self._file_rows(path)
        while part := list(itertools.islice(rows, at_once)):
            yield part

    def read_lines(self, lines: Iterable[str], name: str, skip_blank: bool = True) -> Iterator[dict[str, Any]]:
        """Yields the rows of plain lines: JSON objects, which may hold more that is kept, or the inputs between tabs.

        Raises ValueError, naming the line of `name`, for any other line, and for inputs that are no text.
        """
        divides = len(self.inputs) > 1 or suffix_of(name) == ".tsv"
        numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip() or not skip_blank)
        rows = ((number, self._parsed(line.rstrip("\r\n"), divides, f"{name}:{number}")) for number, line in numbered)
        return self._rows(RowReader(name, None, (), rows, TableOptions(), []), self.own_columns, whole=True)

    def read_texts(self, texts: Any) -> tuple[list[dict[str, Any]], Any]:
        """Returns the rows of several texts in memory, and the index of a frame or series (None: they are neither).

        Raises ValueError, naming the row from 1, for texts in other forms, and for a table without the columns.
        """
        index = texts.index if is_frame(texts) or is_series(texts) else None
        if is_frame(texts) or is_split(texts):
            if index is not None and not len(index):
                return [], index
            reader = TableOptions().open_rows(as_source(texts, "texts"))
            return list(self._rows(reader, self._require_columns(reader.names, "texts"))), index
        listed = texts.tolist() if hasattr(texts, "tolist") else texts
        if isinstance(listed, (str, bytes)) or not isinstance(listed, Sequence):
            hint = "; list(...) makes a list of it" if hasattr(texts, "__iter__") else f" {texts!r:.60}"
            raise ValueError(f"expected {TEXTS}, got {type(texts).__name__}{hint}")
        rows = ((f"row {number}", self._by_name(text, f"row {number}")) for number, text in enumerate(listed, 1))
        return list(self._model_rows(rows)), index

    def is_single(self, texts: Any) -> bool:
        """Returns whether texts are one row: a string, a tuple of inputs, a mapping, or a row of a frame."""
        if is_series(texts):
            return self.columns_among(texts.index) is not None
        return isinstance(texts, (str, tuple, Mapping))

    def _file_rows(self, path: str) -> Iterator[dict[str, Any]]:
        if not exists(path):
            raise ValueError(f"--input_file={path}: no such file")
        how = self.options
        if not isinstance(how, TableOptions):
            how = TableOptions(encoding=getattr(how, "encoding", ""))
        form = self._format(path, how)
        reader = dataclasses.replace(how, file_format=form).open_rows(path, _names(self.columns)) if form else None
        if reader and not how.header:
            likely_tables.check_no_header(how, path)
        if self.is_tagger:
            self._check_not_tagged(path, reader, how.encoding)
        columns = reader and self.columns_among(reader.names)
        if reader and (columns or how.file_format != "auto" or not self._may_be_lines(path, reader)):
            whole = columns == self.own_columns and form == "jsonl" and how.file_format == "auto" and not self.keep
            rows = self._rows(reader, columns or self.columns, whole)
            first = next(rows, None)
            if first is None:
                raise ValueError(f"{path}: no row in this file")
            return itertools.chain([first], rows)
        if self.keep:
            raise ValueError(
                f"--keep_columns={','.join(self.keep)}: {path} has no names of columns "
                f"{', '.join(_names(self.columns))}"
            )
        lines = text_lines(path, how.encoding)
        head = list(itertools.islice(lines, 1))
        self._check_no_table(path, head)
        return self.read_lines(itertools.chain(head, lines), path)

    def _format(self, path: str, how: TableOptions) -> Format | None:
        """The format of a file; None for one that is plain lines by its name, and TSV for one that may be."""
        suffix = suffix_of(path)
        if how.file_format == "auto" and not is_packed(path):
            if suffix not in (*SUFFIXES, ".xlsx"):
                return None
            if SUFFIXES.get(suffix) == "tsv" and how.header:
                return "tsv"
        return how.format_of(path, _names(self.columns))

    def _may_be_lines(self, path: str, reader: RowReader) -> bool:
        """Whether TSV without names of columns may be plain lines: the first is an object, or has all inputs."""
        text_may_have_tabs = suffix_of(path) == ".txt" and not self.training_columns
        is_object = "\t".join(reader.names).lstrip().startswith("{")
        return reader.form == "tsv" and (text_may_have_tabs or is_object or len(reader.names) == len(self.inputs))

    def _check_no_table(self, path: str, lines: Sequence[str]) -> None:
        """Raises ValueError if the first line names the columns: the file is a table, whose lines are no texts."""
        line = lines[0].rstrip("\r\n") if lines else ""
        for delimiter, suffix in ((",", ".csv"), ("\t", ".tsv"), (";", ""), ("|", "")):
            fields = [cell.strip('"') for cell in line.split(delimiter)]
            if any({*_names(columns)} <= {*fields} for columns in (self.columns, self.own_columns)):
                ways = [f"a name that ends with {suffix}"] * bool(suffix)
                ways += [f"--set options.file_format=csv --set options.delimiter={delimiter!r}"] * (
                    isinstance(self.options, TableOptions)
                )
                raise ValueError(
                    f"{path}:1: expected a text, got names of columns, {shown(fields)}; a table needs "
                    f"{' or '.join(ways) or 'the form of CSV or TSV, and such a name'}"
                )

    def _check_not_tagged(self, path: str, reader: RowReader | None, encoding: str) -> None:
        """Raises ValueError for words in columns or lists, which a tagger would answer line by line, tags included."""
        if in_rows := reader is not None and reader.form in OBJECTS:
            is_tagged = bool({*reader.names} & {*span_forms.WORD_KEYS}) and "text" not in reader.names
        else:
            names = ("tag_column", "separator", "labels")
            given = {name: getattr(self.options, name) for name in names if hasattr(self.options, name)}
            lines = text_lines(path, encoding)
            is_tagged = suffix_of(path) in OF_TAGGED_WORDS or column_files.is_tagged(lines, **given)
        if is_tagged:
            raise ValueError(
                f"--input_file={path}: expected texts, got words in {'lists' if in_rows else 'columns'}; "
                f"{HOW_TO_TAG} tags them"
            )

    def _parsed(self, text: str, divides: bool, where: str) -> Row:
        """Returns the row in a plain line, not yet checked."""
        if text.lstrip().startswith("{"):
            try:
                return json_values.decode(text)
            except (json.JSONDecodeError, RecursionError):
                pass  # it is text
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
        columns = text.split("\t") if divides else [text]
        if len(columns) != len(self.inputs):
            raise ValueError(f"{where}: expected {' TAB '.join(self.inputs)}, got {len(columns)} columns")
        return dict(zip(self.inputs, columns))

    def _by_name(self, text: Any, where: str) -> Row:
        """Returns a text in memory, in any of its forms, by names of columns. Raises ValueError for other forms."""
        if is_series(text):
            return text.to_dict()
        values = (text,) if isinstance(text, str) else text
        if isinstance(values, (tuple, list)):
            if len(values) != len(self.inputs):
                raise ValueError(
                    f"{where}: expected {' and '.join(self.inputs)}, got {len(values)} value{'s' * (len(values) > 1)}"
                )
            return dict(zip(self.inputs, values))
        if not isinstance(values, Mapping):
            raise ValueError(f"{where}: expected {' and '.join(self.inputs)}, got {text!r:.60}")
        return values

    def _require_columns(self, names: Iterable[Any], where: str) -> Columns:
        if (columns := self.columns_among(names)) is None:
            known = [
                " or ".join(dict.fromkeys([*map(repr, filter(None, parts)), repr(name)]))
                for name, parts in self.columns.items()
            ]
            raise ValueError(f"{where}: expected columns {', '.join(known)}, found {shown(list(names))}; rename them")
        return columns

    def _rows(self, reader: RowReader, columns: Columns, whole: bool = False) -> Iterator[dict[str, Any]]:
        """Yields the inputs of each row, with what is copied: the columns `keep`, or the `whole` row."""
        rows = reader.with_columns([*_names(columns), *self.keep])
        return self._model_rows(((place(reader.source, line), row) for line, row in rows), columns, whole)

    def _model_rows(
        self, rows: Iterable[tuple[str, Row]], columns: Columns | None = None, whole: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Yields the inputs of rows, each with its place. Null is kept with a warning.

        Without `columns`, the names in each row decide.
        """
        nulls: list[str] = []
        for where, row in rows:
            if self.may_read_pairs and SECOND_TEXT in {*row} - {*self.inputs, *self.keep}:
                raise ValueError(f"{where}: found a {IGNORED}")
            input_columns = columns or self._require_columns(row, where)
            yield {
                name: self._input(name, input_columns[name], row, where, nulls)
                if name in input_columns
                else _copied_value(at_key(row, name), f"{where}: column {name!r}")
                for name in (row if whole else (*self.keep, *input_columns))
            }
        if nulls:
            logging.warning("%s; kept%s", nulls[0], and_others(len(nulls) - 1))

    def _input(self, name: str, parts: Sequence[str], row: Row, where: str, nulls: list[str]) -> str | list[str]:
        """Returns an input, made of its columns; null is an empty text, and noted in `nulls`, if the model reads it so.

        Choices stand in one list, or in a column each; their beginning, if there is one, is the first column. Raises
        ValueError for a cell that is no text, or no list of texts.
        """
        try:
            cells = [at_key(row, part) if part else "" for part in parts]
        except KeyError:
            raise ValueError(f"{where}: expected keys {shown(parts)}, found {shown(list(row))}") from None
        if cells[0] is None and {*self.inputs} <= MAY_BE_NULL:
            nulls.append(f"{where}: column {parts[0]!r}: expected text, got 'None'")
            return ""
        endings: Any = None
        if name == "choices" and len(parts) < 3:
            endings = cells.pop()
            if not (isinstance(endings, (list, tuple)) and endings and not any(map(_text_error, endings))):
                raise ValueError(f"{where}: column {parts[-1]!r}: expected a list of texts, got {endings!r:.60}")
        for part, cell in zip(parts, cells):
            if error := _text_error(cell):
                raise ValueError(f"{where}: column {part!r}: {error}")
        if len(parts) == 1:
            return cells[0] if endings is None else list(endings)
        return [f"{cells[0]} {ending}".strip() for ending in (cells[1:] if endings is None else endings)]


def _names(columns: Columns) -> list[str]:
    return [name for names in columns.values() for name in names if name]


def _reading_options(task: TaskBase, inputs: Sequence[str]) -> list[str]:
    """The options of a task that say how a model's inputs are read: those of tables, and the names of columns."""
    columns = {name: parts for name, parts in task.answers.input_columns().items() if name in inputs}
    values = (*_names(columns), columns.get("choices", ())[1:])
    return [name for name, value in vars(task.options).items() if name in TABLE_OPTIONS or (value and value in values)]


def _text_error(value: Any) -> str:
    """What is wrong with a value that should be text; "" for text."""
    if not isinstance(value, str):
        return f"expected text, got {value!r:.60}"
    if half := LONE_SURROGATE.search(value):
        return f"expected text, got {value!r:.60}, with half a character (a lone surrogate) at place {half.start()}"
    return ""


def _copied_value(value: Any, where: str) -> Any:
    """Returns a value to copy in JSON's types: times as ISO text, NaN as null.

    Raises ValueError for what JSON lacks, such as bytes.
    """

    def as_json_type(part: Any) -> Any:
        return part.isoformat() if isinstance(part, (datetime.date, datetime.time)) else part.tolist()

    try:
        text = json.dumps(value, ensure_ascii=False, default=as_json_type)
        text.encode()  # refuses half a character
        return json.loads(text, parse_constant={"NaN": None}.__getitem__)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(f"{where}: expected a value that JSON has, got {value!r:.60}") from None


@dataclasses.dataclass(frozen=True)
class EntityTexts:
    """The texts of a file in a form of entities, `form` of `span_forms` or `brat`; `tool` writes it."""

    form: str
    tool: str
    originals: list[Any]  # the rows of the file
    rows: list[dict[str, Any]]  # what they hold, with the text under `text`
    left_out: int  # rows that people rejected or skipped
    are_rows_of_text: bool  # which `ModelInputs` reads too, with all that they hold


def read_entity_texts(path: str, encoding: str = "", always: bool = False) -> EntityTexts | None:
    """Reads the texts of a file in a form of entities (`data/tagged/`); None for another file.

    Rows of several forms are an error if `always`, or if their text is not under `text`; else `ModelInputs` reads them.
    """
    rows = span_forms.span_rows(path, encoding)
    if rows is None:
        return None
    is_table = not (is_folder(path) or path.endswith(ANNOTATIONS))
    of_text = is_table and all(isinstance(row, Mapping) and "text" in row for row in rows.values)
    try:
        form = span_forms.common_form(rows)
        pairs = [(rows.values[number], record[0]) for number, record in span_forms.records(rows) if record is not None]
    except ValueError:
        if always or not of_text:
            raise
        return None
    name, tool = (brat.FORM, brat.FORM) if annotations_of(path) else (form.name, form.tool)
    texts = [{**(row if isinstance(row, Mapping) else {}), "text": text} for row, text in pairs]
    return EntityTexts(name, tool, [row for row, _ in pairs], texts, len(rows.values) - len(pairs), of_text)
