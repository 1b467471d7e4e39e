"""Answers as training reads them, so that a person can correct them in a labelling tool and train again."""

import csv
import json
from collections.abc import Mapping, Sequence
from typing import Any

from official_bert.config import Config
from official_bert.data.tagged import span_forms
from official_bert.data.tagged.span_forms import Reading, Span
from official_bert.files import written_beside, written_whole
from official_bert.tasks.loading import load_task
from official_bert.tasks.tagging.conll import Sentence, write_columns

TABLES = ("csv", "jsonl", "parquet")
OUTPUT_FORMATS = (*TABLES, "conll", *span_forms.BY_NAME)
ANSWERS = ("label", "labels", "score", "choice")  # outputs of models, one of which is the label of a row


def check_format(form: str, outputs: Sequence[str]) -> None:
    """Raises ValueError for a form that cannot hold what a model answers."""
    if "entities" in outputs:
        if form == "csv":
            raise ValueError("--output_format=csv: expected jsonl, parquet, conll or a form of entities, for a text has several entities")
    elif form not in TABLES or not {*ANSWERS} & {*outputs}:
        wanted = f"one of {', '.join(TABLES)}" if {*ANSWERS} & {*outputs} else "none, because training reads no such answers"
        raise ValueError(f"--output_format={form}: expected {wanted}, for a model that gives {', '.join(outputs)}")


def write_answers(path: str, form: str, rows: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]],
                  config: Config | None) -> None:
    """Writes rows with their answers, in a form of `OUTPUT_FORMATS`, as the task of `config` reads them to train."""
    if answers and "entities" in answers[0]:
        _write_entities(path, form, rows, answers)
    else:
        _write_table(path, form, [_labelled(row, answer, config, form) for row, answer in zip(rows, answers)])


def _labelled(row: Mapping[str, Any], answer: Mapping[str, Any], config: Config | None, form: str) -> dict[str, Any]:
    """Returns a row with the columns of training."""
    options = load_task(config).options if config else None
    columns = load_task(config).input_columns() if config else {}
    names = {name: parts[0] for name, parts in columns.items() if len(parts) == 1}
    value = next(answer[name] for name in ANSWERS if name in answer)
    if isinstance(value, list) and form == "csv":
        value = getattr(options, "label_separator", ",").join(value)
    kept = {names.get(name, name): json.dumps(cell, ensure_ascii=False) if form == "csv" and isinstance(cell, (list, dict)) else cell
            for name, cell in row.items()}
    return kept | {getattr(options, "label_column", "") or "label": value}


def _write_entities(path: str, form: str, rows: Sequence[Mapping[str, Any]], answers: Sequence[Mapping[str, Any]]) -> None:
    """Writes texts with their entities."""
    records = [(row["text"], [Span(start, end, kind) for start, end, kind in zip(answer["starts"], answer["ends"], answer["types"])])
               for row, answer in zip(rows, answers)]
    if form in span_forms.BY_NAME:
        kept = [{key: value for key, value in row.items() if key != "text"} for row in rows]
        write = span_forms.BY_NAME[form].write
        written = [write(row if form not in ("spacy", "spacy_2") else {}, *record) for row, record in zip(kept, records)]
        with written_whole(path) as file:
            if form in span_forms.LISTS:
                file.write(json.dumps(written, ensure_ascii=False, indent=1) + "\n")
            else:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in written)
        return
    tagged = [span_forms.tags_of(text, spans, f"row {number}", Reading("longest")) for number, (text, spans) in enumerate(records, 1)]
    if form == "conll":
        write_columns(path, [Sentence(tuple(words), (), 0, 0) for words, _ in tagged], [tags for _, tags in tagged])
    else:
        _write_table(path, form, [{"tokens": words, "ner_tags": tags} for words, tags in tagged])


def _write_table(path: str, form: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as CSV, JSON lines or Parquet."""
    if form == "parquet":
        import pyarrow
        import pyarrow.parquet
        with written_beside(path) as temporary:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(map(dict, rows))), temporary)
        return
    with written_whole(path) as file:
        if form == "csv":
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        else:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
