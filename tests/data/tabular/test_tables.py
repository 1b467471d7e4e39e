"""Tables with named columns."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from official_bert.data import rows as numbered_rows
from official_bert.data.rows import Rows
from official_bert.data.tabular import json_rows
from official_bert.data.tabular.tables import TableOptions, rows_of


def column_names(path, **options):
    return list(TableOptions(**options).open_rows(path).names)


def written(tmp_path, name, text, encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(text.encode(encoding))
    return str(path)


def test_columns_come_by_name_wherever_they_stand(tmp_path):
    path = written(tmp_path, "a.tsv", "id\tlabel\ttext\n1\tyes\tone\n2\tno\ttwo\n")
    table = TableOptions().read_table(path, ["text", "label"])
    assert table.columns == {"text": ["one", "two"], "label": ["yes", "no"]}
    assert [table.place(row) for row in range(2)] == [f"{path}:2", f"{path}:3"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_bom_and_windows_line_ends_change_nothing(tmp_path, end):
    path = written(tmp_path, "a.tsv", "\ufeff" + end.join(["text\tlabel", "one\t1", ""]))
    assert TableOptions().read_table(path, ["text", "label"]).columns == {"text": ["one"], "label": ["1"]}


def test_quotes_are_text_in_tsv_and_quotes_in_csv(tmp_path):
    tsv = written(tmp_path, "a.tsv", 'text\tlabel\n"an open quote\t1\nshe said "no"\t0\n')
    assert TableOptions().read_table(tsv, ["text"]).columns["text"] == ['"an open quote', 'she said "no"']
    csv = written(tmp_path, "a.csv", 'text,label\n"one, ""two""\nthree",1\nlast,0\n')
    table = TableOptions().read_table(csv, ["text"])
    assert table.columns["text"] == ['one, "two"\nthree', "last"]
    assert table.lines == [2, 4]


def test_only_a_newline_ends_a_line(tmp_path):
    path = written(tmp_path, "a.tsv", "text\nbefore\u2028after\x85still\x0bhere\n")
    assert TableOptions().read_table(path, ["text"]).columns["text"] == ["before\u2028after\x85still\x0bhere"]


@pytest.mark.parametrize("name", ["a.tsv", "a.csv"])
def test_a_blank_line_is_a_row_of_a_single_column_only(tmp_path, name):
    table = TableOptions().read_table(written(tmp_path, name, "\ntext\none\n\n\r\nfour\n\n\n"), ["text"])
    assert table.columns["text"] == ["one", "", "", "four"] and table.lines == [3, 4, 5, 6]
    mark = "\t" if name == "a.tsv" else ","
    table = TableOptions().read_table(written(tmp_path, name, f"text{mark}n\none{mark}1\n\ntwo{mark}2\n"), ["text"])
    assert table.columns["text"] == ["one", "two"] and table.lines == [2, 4]


def test_names_of_columns_are_read_without_the_rows(tmp_path):
    assert column_names(written(tmp_path, "a.tsv", "\ufeff\nid\tbody\nonly one\n"), file_format="tsv") == ["id", "body"]
    assert column_names(written(tmp_path, "a.csv", "id;body\n"), file_format="csv", delimiter=";") == ["id", "body"]
    assert column_names(written(tmp_path, "a.jsonl", '{"id": 1, "body": ""}\n{oops\n'), file_format="jsonl") == [
        "id",
        "body",
    ]
    assert column_names(written(tmp_path, "b.tsv", ""), file_format="tsv") == []


def test_json_lines_keep_their_types_and_need_their_keys(tmp_path):
    first = json.dumps({"text": "one", "label": [1, "b"], "more": 0})
    path = written(tmp_path, "a.jsonl", f'{first}\n\n{{"label": 2, "text": "x"}}\n')
    table = TableOptions().read_table(path, ["text", "label"])
    assert table.columns == {"text": ["one", "x"], "label": [[1, "b"], 2]} and table.lines == [1, 3]
    with pytest.raises(ValueError, match=r"a\.jsonl:3: expected a key 'more', found 'label', 'text'"):
        TableOptions().read_table(path, ["more"])


ONE, OTHER = {"text": "one", "label": 1}, {"text": "other", "label": [2]}


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (f"{json.dumps(ONE)}\n\n{json.dumps(OTHER)}\n", "a.json:3"),
        (json.dumps([ONE, OTHER]), "a.json[row 1]"),
        ("\ufeff\n" + json.dumps([ONE, OTHER], indent=2), "a.json[row 1]"),
        (json.dumps({"version": "1", "data": [ONE, OTHER]}), "a.json[row 1]"),
        (json.dumps({"version": "1", "data": [ONE, OTHER]}, indent=0), "a.json[row 1]"),
    ],
    ids=["lines", "list", "spread", "data", "spread_data"],
)
def test_json_is_lines_or_a_list_by_its_content(tmp_path, text, place):
    path = written(tmp_path, "a.json", text)
    table = TableOptions().read_table(path, ["text", "label"])
    assert table.columns == {"text": ["one", "other"], "label": [1, [2]]}
    assert table.place(1) == f"{tmp_path}/{place}" and str(table.path) == path
    assert column_names(path, file_format="jsonl") == ["text", "label"]
    rows = rows_of(path)
    assert list(rows.values) == [ONE, OTHER] and numbered_rows.place(rows, 1) == f"{tmp_path}/{place}"


def test_a_spread_object_is_a_row(tmp_path):
    table = TableOptions().read_table(written(tmp_path, "a.json", "\n" + json.dumps(ONE, indent=2)), ["text"])
    assert table.columns == {"text": ["one"]} and table.lines == [2]


def test_json_lines_are_read_one_at_a_time(tmp_path, monkeypatch):
    read = []

    def lines(path, encoding):
        for line in [json.dumps(ONE) + "\n"] * 9:
            read.append(line)
            yield line

    monkeypatch.setattr(json_rows, "text_lines", lines)
    path = written(tmp_path, "a.json", "")
    assert column_names(path, file_format="jsonl") == ["text", "label"] and len(read) == 2


def test_another_delimiter_and_a_file_without_names(tmp_path):
    path = written(tmp_path, "a.csv", "text;label\none, two;1\n")
    assert TableOptions(delimiter=";").read_table(path, ["text", "label"]).columns == {
        "text": ["one, two"],
        "label": ["1"],
    }
    headless = written(tmp_path, "b.tsv", "x\tone\ny\ttwo\n")
    table = TableOptions().read_table(headless, ["text"], names=["source", "text"])
    assert table.columns["text"] == ["one", "two"] and table.lines == [1, 2]


def test_broken_rows_are_errors_or_counted(tmp_path):
    path = written(tmp_path, "a.tsv", "text\tlabel\none\t1\ntwo\nthree\t0\n")
    with pytest.raises(ValueError, match=r"a\.tsv:3: expected 2 columns, got 1$"):
        TableOptions().read_table(path, ["text"])
    table = TableOptions().read_table(path, ["text"], skip_broken=True)
    assert table.columns["text"] == ["one", "three"] and len(table.broken) == 1


@pytest.mark.parametrize(
    ("name", "text", "wanted", "said"),
    [
        ("a.tsv", "text\tlabel\n", ["text"], "a.tsv: no row in this file"),
        ("a.tsv", "", ["text"], "expected a column 'text', found nothing"),
        ("a.tsv", "sentence\tlabel\na\t1\n", ["text"], "a.tsv: expected a column 'text', found 'sentence', 'label'"),
        ("a.tsv", "text\ttext\na\tb\n", ["text"], "a.tsv: column 'text' occurs 2 times"),
        ("a.jsonl", '{"text": "a"}\n{"text": \n', ["text"], "a.jsonl:2: not valid JSON"),
        ("a.jsonl", "[1, 2]\n[3]\n", ["text"], r"a.jsonl:1: expected a JSON object, got \[1, 2\]"),
        (
            "a.json",
            '["a"]\n',
            ["text"],
            r'a.json\[row 0\]: expected a JSON object, got "a"; a file has an object a line, or a list',
        ),
        (
            "a.json",
            '"a"\n',
            ["text"],
            'a.json:1: expected a JSON object, got "a"; a file has an object a line, or a list',
        ),
        (
            "a.json",
            '[\n{"text": "a"},\n{"label": 1}]\n',
            ["text"],
            r"a.json\[row 1\]: expected a key 'text', found 'label'",
        ),
        (
            "a.json",
            '\n[\n{"text": "a"}\n{"text": "b"}]\n',
            ["text"],
            "a.json:4: not valid JSON: .* at column 1; .*or a list",
        ),
        (
            "a.json",
            '{"text": "a",\n{"text": "b"}\n',
            ["text"],
            "a.json:1: not valid JSON: .*; expected an object a line$",
        ),
        (
            "a.json",
            '{"text": x}\n{"text": "b"}\n',
            ["text"],
            "a.json:1: not valid JSON: .* at column 10; .* an object a line$",
        ),
        ("a.json", '{"data": []}', ["text"], "a.json: no row in this file"),
        ("a.json", "\n \n", ["text"], "a.json: no row in this file"),
        pytest.param("a.json", "[" * 100000, ["text"], "a.json:1: not valid JSON: nested too deeply", id="deep"),
        pytest.param(
            "a.json",
            '{"a": 1}\n{"a": ' + "1" * 5000 + "}",
            ["a"],
            "a.json:2: not valid JSON: Exceeds the limit",
            id="digits",
        ),
        ("a.csv", 'text\n"never closed\n', ["text"], "a.csv:2: not valid CSV"),
        ("a.xlsx", "text\na\n", ["text"], "expected a name that ends with one of .tsv"),
    ],
)
def test_mistakes_name_file_and_line(tmp_path, name, text, wanted, said):
    with pytest.raises(ValueError, match=said):
        TableOptions().read_table(written(tmp_path, name, text), wanted)


def test_columns_of_one_name_in_parquet_are_refused(tmp_path):
    path = str(tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table([["right"], ["wrong"], [1]], names=["text", "text", "label"]), path)
    with pytest.raises(ValueError, match="a.parquet: column 'text' occurs 2 times"):
        TableOptions().read_table(path, ["text"])


def test_bytes_that_are_no_utf8_name_their_line(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"text\n" + "good é\n".encode() * 3000 + "bad é\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"a\.tsv:3002: not valid UTF-8"):
        TableOptions().read_table(str(path), ["text"])


def test_a_missing_file_tells_what_lies_there(tmp_path):
    written(tmp_path, "train.csv", "text\na\n")
    with pytest.raises(ValueError, match=r"train\.tsv: no such file \(the folder holds 'train\.csv'\)"):
        TableOptions().read_table(str(tmp_path / "train.tsv"), ["text"])
    with pytest.raises(ValueError, match="there is no folder"):
        TableOptions().read_table(str(tmp_path / "nowhere" / "train.tsv"), ["text"])


def test_a_key_of_objects_in_a_list_gives_the_values_of_all(tmp_path):
    rows = Rows("f", [{"q": {"c": [{"t": "a", "k": "A"}, {"t": "b", "k": "B"}]}}, {"q": {"c": []}}])
    assert TableOptions().read_table(rows, ["q.c.t"]).columns == {"q.c.t": [["a", "b"], []]}
    for wrong in ({"q": {"c": [{"k": "A"}]}}, {"q": {"c": ["a"]}}):
        with pytest.raises(ValueError, match=r"f\[row 0\]: expected a key 'q\.c\.t'"):
            TableOptions().read_table(Rows("f", [wrong]), ["q.c.t"])


def test_labels_in_lines_beside_json_lines_are_the_column_that_its_rows_lack(tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_text('{"goal": "a"}\n{"goal": "b"}\n')
    (tmp_path / "train-labels.lst").write_text("1\n0\n")
    assert TableOptions().read_table(str(path), ["goal", "label"], label="label").columns == {
        "goal": ["a", "b"],
        "label": ["1", "0"],
    }
    assert TableOptions().read_table(str(path), ["goal"]).columns == {"goal": ["a", "b"]}
    with pytest.raises(ValueError, match=r"train\.jsonl:1: expected a key 'gaol'"):
        TableOptions().read_table(str(path), ["gaol"])
    (tmp_path / "train-labels.lst").write_text("1\n")
    with pytest.raises(
        ValueError, match=r"train\.jsonl, .*train-labels\.lst: expected as many lines, got 1 in .*lst and"
    ):
        TableOptions().read_table(str(path), ["goal", "label"], label="label")
    path.write_text('{"goal": "a", "label": 7}\n')
    assert TableOptions().read_table(str(path), ["goal", "label"], label="label").columns["label"] == [7]


@pytest.mark.parametrize(
    ("answers", "kept"),
    [
        (["accept", "reject", "ignore", "accept"], [0, 3]),
        (["reject", "accept", None], [1]),
        (["yes", "reject"], [0, 1]),
        ([["accept"], "accept"], [0, 1]),
    ],
)
def test_rows_that_nobody_accepted_are_left_out_of_labelled_files(answers, kept):
    rows = Rows(
        "f",
        [
            {"text": str(number), "answer": answer} | ({"label": "x"} if number in kept else {})
            for number, answer in enumerate(answers)
        ],
    )
    table = TableOptions().read_table(rows, ["text", "label"], label="label")
    assert table.columns["text"] == list(map(str, kept)) and table.lines == kept
    assert table.unaccepted == len(answers) - len(kept)
    assert len(TableOptions().read_table(rows, ["text"])) == len(answers)  # a file to answer
    assert len(TableOptions().read_table(rows, ["text", "answer"], label="label")) == len(answers)  # the label


def test_rows_none_of_which_anybody_accepted_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("text,label,answer\na,x,reject\n")
    with pytest.raises(ValueError, match=r"a\.csv: no row that people accepted, of 1 in this file"):
        TableOptions().read_table(str(tmp_path / "a.csv"), ["text", "label"], label="label")
