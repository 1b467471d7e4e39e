"""Answers as training reads them, so that a person can correct them in a labelling tool and train again.

By default answers to a file in a form of entities have that form, if both names end alike.
"""

import csv
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.config import Config
from official_bert.data.tabular.companions import annotations_of
from official_bert.data.tabular.tables import SUFFIXES
from official_bert.data.tagged import brat, span_forms
from official_bert.data.tagged.span_forms import Reading
from official_bert.data.tagged.spans import Span, in_utf16
from official_bert.storage.files import require_new_folder, shard_names, written_beside, written_whole
from official_bert.storage.suffixes import PACKED, suffix_of
from official_bert.tasks.loading import load_task
from official_bert.tasks.tagging.conll import Sentence, write_columns

Row = Mapping[str, Any]
Rows = Sequence[Row]
TABLES = ("csv", "jsonl", "parquet")
ALL_OUTPUTS = "outputs"  # JSON lines of the inputs with all that the model gives, which training does not read
OUTPUT_FORMATS = (*TABLES, "conll", *span_forms.BY_NAME, brat.FORM, ALL_OUTPUTS)
ANSWERS = ("label", "labels", "score", "choice")  # outputs of models, one of which is the label of a row


def check_format(form: str, outputs: Sequence[str]) -> None:
    """Raises ValueError for a form that cannot hold what a model answers."""
    if form == ALL_OUTPUTS:
        return
    if "entities" in outputs:
        if form == "csv":
            raise ValueError(
                "--output_format=csv: expected jsonl, parquet, conll or a form of entities, for a text has several "
                "entities"
            )
    elif form not in TABLES or not {*ANSWERS} & {*outputs}:
        expected = (
            f"one of {', '.join(TABLES)}" if {*ANSWERS} & {*outputs} else "none, because training reads no such answers"
        )
        raise ValueError(f"--output_format={form}: expected {expected}, for a model that gives {', '.join(outputs)}")


def check_name(path: str) -> None:
    """Raises ValueError for an --output_file, NAME@8 too, whose name ends as that of a packed file: answers are not
    packed.
    """
    name = path if shard_names(path) == [path] else path.rpartition("@")[0]
    if packing := next(filter(name.lower().endswith, PACKED), ""):
        raise ValueError(f"--output_file={path}: expected a name without {packing}: answers are written unpacked")


def ends_alike(path: str, output: str) -> bool:
    """Returns whether the names of two files, or folders, end alike, without the ending of a packed one."""
    return suffix_of(path.rstrip("/")) == suffix_of(output.rstrip("/"))


def files_of(path: str, form: str, source: str) -> list[str]:
    """Returns the files that are written for an output of this form; [] for a folder, which must be new or empty.

    Without a form, answers to brat's files are brat's if both names end alike.
    """
    if form != brat.FORM and (form or not annotations_of(source) or not ends_alike(source, path)):
        return [path]
    if suffix_of(path) in (*SUFFIXES, ".conll", ".xlsx") and not brat.files_written(path):
        raise ValueError(f"--output_file={path}: expected NAME.ann for a document of brat, or a new folder for several")
    if not (files := brat.files_written(path)):
        require_new_folder(path, "--output_file")
    return files


def write_answers(
    path: str,
    form: str,
    rows: Rows,
    answers: Rows,
    config: Config | None,
    originals: Sequence[Any] = (),
    encoding: str = "",
) -> None:
    """Writes rows with their answers, in a form of `OUTPUT_FORMATS`, as the task of `config` reads them to train.

    `originals` are the rows of a file in the same form of entities, whose other parts are kept; `encoding` is that of
    its texts.
    """
    if answers and "entities" in answers[0]:
        _write_entities(path, form, rows, answers, config, originals, encoding)
    else:
        _write_table(path, form, [labelled(row, answer, config, form) for row, answer in zip(rows, answers)])


def labelled(row: Row, answer: Row, config: Config | None, form: str) -> dict[str, Any]:
    """Returns a row with the columns of training."""
    task = load_task(config) if config else None
    columns, options = (task.answers.input_columns(), task.options) if task else ({}, None)
    names = {name: parts[0] for name, parts in columns.items() if len(parts) == 1}
    value = next(answer[name] for name in ANSWERS if name in answer)
    if isinstance(value, list) and form == "csv":
        value = getattr(options, "label_separator", ",").join(value)
    cells = {
        names.get(name, name): json.dumps(cell, ensure_ascii=False)
        if form == "csv" and isinstance(cell, (list, dict))
        else cell
        for name, cell in row.items()
    }
    more = {name: answer[name] for name in ("abstains",) if name in answer}
    return cells | {getattr(options, "label_column", "") or "label": value} | more


def _write_entities(
    path: str, form: str, rows: Rows, answers: Rows, config: Config | None, originals: Sequence[Any], encoding: str
) -> None:
    """Writes texts with their entities."""
    records = [
        (row["text"], [Span(*places) for places in zip(answer["starts"], answer["ends"], answer["types"])])
        for row, answer in zip(rows, answers)
    ]
    if form == brat.FORM:
        places = [[(span.start, span.end, span.kind) for span in spans] for _, spans in records]
        brat.write_documents(path, brat.answered_documents(rows, places, os.path.basename(path), encoding))
    elif form in span_forms.BY_NAME:
        if config and config.options.get("places") == "utf16":
            records = [(text, in_utf16(text, spans)) for text, spans in records]
        _write_spans(path, span_forms.BY_NAME[form], rows, records, originals)
    else:
        _write_words(path, form, records)


def _write_spans(
    path: str, form: span_forms.Form, rows: Rows, records: Sequence[tuple[str, list[Span]]], originals: Sequence[Any]
) -> None:
    """Writes texts with their entities in a form, with what else the rows hold, or the `originals` of this form."""
    if originals:
        written = [form.write(row, *record) for row, record in zip(originals, records)]
    else:
        kept = [{key: value for key, value in row.items() if key != "text"} for row in rows]
        written = [form.convert(row, *record) for row, record in zip(kept, records)]
    was_lines = originals and suffix_of(path) == ".jsonl"
    if form.name in span_forms.LISTS and not was_lines:
        with written_whole(path) as file:
            file.write(json.dumps(written, ensure_ascii=False, indent=1) + "\n")
    else:
        _write_table(path, "jsonl", written)


def _write_words(path: str, form: str, records: Sequence[tuple[str, list[Span]]]) -> None:
    """Writes the words of texts with the tags of their entities."""
    tagged = [
        span_forms.tags_of(text, spans, f"row {number}", Reading("longest"))
        for number, (text, spans) in enumerate(records, 1)
    ]
    if form == "conll":
        write_columns(path, [Sentence(tuple(words), (), 0, 0) for words, _ in tagged], [tags for _, tags in tagged])
    else:
        _write_table(path, form, [{"tokens": words, "ner_tags": tags} for words, tags in tagged])


def _write_table(path: str, form: str, rows: Rows) -> None:
    """Writes rows as CSV, JSON lines or Parquet."""
    if form == "parquet":
        import pyarrow
        import pyarrow.parquet

        with written_beside(path) as temporary:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(map(dict, rows))), temporary)
        return
    with written_whole(path) as file:
        if form == "csv":
            writer = csv.DictWriter(
                file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
