"""Tables in the forms of published data: without names of columns, packed, in other encodings, workbooks, fastText, two
files.
"""

import bz2
import gzip
import json
import lzma

import pyarrow
import pytest

from official_bert.data.tabular import encodings, tables
from official_bert.data.tabular.tables import TableOptions

BOTH = {"text": ["so good", "bad, bad"], "label": ["pos", "neg"]}
CSV = 'label,text\npos,so good\nneg,"bad, bad"\n'


def column_names(path, **options):
    return list(TableOptions(**options).open_rows(path).names)


def write(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv.gz", gzip.compress(CSV.encode(), mtime=0)),
        ("a.csv.bz2", bz2.compress(CSV.encode())),
        ("A.CSV.XZ", lzma.compress(CSV.encode())),
        ("a.csv.zst", pyarrow.compress(b"\xef\xbb\xbf" + CSV.encode(), "zstd", asbytes=True)),
        ("a.csv", gzip.compress(CSV.encode(), mtime=0)),
        ("train.txt", '{"text": "so good", "label": "pos"}\n{"text": "bad, bad", "label": "neg"}\n'),
        ("train.csv", '[{"text": "so good", "label": "pos"},\n{"text": "bad, bad", "label": "neg"}]'),
        ("train", '{"text": "so good", "label": "pos"}\n{"text": "bad, bad", "label": "neg"}\n'),
        (
            "train.data",
            json.dumps([{"text": "so good", "label": "pos"}, {"text": "bad, bad", "label": "neg"}], indent=1),
        ),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"text": "so good", "label": "pos"}\n{"text": "bad, bad", "label": "neg"}\n', mtime=0),
        ),
        ("fast.txt", "__label__pos so good\n__label__neg bad, bad\n"),
        ("fast.train.tsv", "__label__pos\tso good\n\n__label__neg bad, bad"),
    ],
)
def test_content_decides_whatever_the_name(tmp_path, name, content):
    assert TableOptions().read_table(write(tmp_path, name, content), ["text", "label"]).columns == BOTH


def test_texts_and_labels_stand_in_two_files(tmp_path):
    path, labels = write(tmp_path, "val_text.txt", "so good\n\nbad, bad\n\n"), tmp_path / "val_labels.txt"
    labels.write_text("1\n0\n2\n")
    table = TableOptions().read_table(path, ["text", "label"])
    assert table.columns == {"text": ["so good", "", "bad, bad"], "label": ["1", "0", "2"]} and table.lines == [1, 2, 3]
    labels.write_text("1\n0\n")
    with pytest.raises(
        ValueError, match=r"val_labels\.txt: expected as many lines, got 2 in .*val_labels\.txt and more in the other"
    ):
        TableOptions().read_table(path, ["text", "label"])
    (tmp_path / "val_text.txt").write_text("text\tlabel\na\tx\n")  # a table of this name is one
    assert TableOptions().read_table(path, ["text", "label"]).columns == {"text": ["a"], "label": ["x"]}


def test_fasttext_may_have_several_labels_or_none_but_none_without_a_name(tmp_path):
    path = write(tmp_path, "a.txt", "__label__a __label__b two\n__label__c\n")
    table = TableOptions(file_format="fasttext").read_table(path, ["text", "label"])
    assert table.columns == {"text": ["two", ""], "label": [["a", "b"], "c"]}
    table = TableOptions().read_table(write(tmp_path, "a.txt", "__label__a one\nno label\n"), ["text", "label"])
    assert table.columns == {"text": ["one", "no label"], "label": ["a", None]}
    with pytest.raises(ValueError, match=r"a\.txt:2: expected a name behind __label__, got '__label__ one'"):
        TableOptions().read_table(write(tmp_path, "a.txt", "__label__a one\n__label__ one\n"), ["text", "label"])


def test_a_file_without_names_has_numbered_columns_and_the_error_says_so(tmp_path):
    path = write(tmp_path, "ag_news.csv", '"3","Wall St.","Reuters, short"\n"4","Chip","x"\n')
    assert TableOptions(header=False).read_table(path, ["c2", "c1"]).columns == {
        "c2": ["Wall St.", "Chip"],
        "c1": ["3", "4"],
    }
    assert column_names(path, file_format="csv", header=False) == ["c1", "c2", "c3"]
    with pytest.raises(
        ValueError,
        match=r"ag_news\.csv: expected a column 'text', found '3'.* options\.header=false, its columns are c1",
    ):
        TableOptions().read_table(path, ["text"])
    with pytest.raises(ValueError, match="expected a column 'c9', found 'c1', 'c2', 'c3'$"):
        TableOptions(header=False).read_table(path, ["c9"])


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-32", "gb18030"])
def test_other_encodings_are_read_by_their_bytes_or_by_name(tmp_path, encoding):
    text = "text,label\n„schön“ ja,1\n" if encoding != "gb18030" else "text,label\n很好,1\n不好,0\n"
    content = text.encode(encoding)
    for name, written in (("a.csv", content), ("a.csv.gz", gzip.compress(content, mtime=0))):
        path = write(tmp_path, name, written)
        for options in ({"encoding": encoding}, {}):
            table = TableOptions(**options).read_table(path, ["label", "text"])
            assert table.columns["text"][0] == text.split("\n")[1].split(",")[0]
    with pytest.raises(ValueError, match=r"--encoding=latin-99: expected an encoding that Python knows"):
        TableOptions(encoding="latin-99").read_table(path, ["text"])


GERMAN = "Die Lieferung war pünktlich.\nSchöne Grüße aus Köln.\n"
FRENCH = "Le colis est arrivé très abîmé, je suis déçu.\nÇa marche à merveille, garçon !\n"
POLISH = "Paczka przyszła późno i była uszkodzona.\nŚwietna obsługa, polecam każdemu!\n"
RUSSIAN = "Доставка была быстрой, но качество плохое.\nОчень доволен покупкой, спасибо большое!\n"
JAPANESE = "この商品はとても良いです。\n配送が遅くて、箱が壊れていました。\n"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "cp1252"),
        (GERMAN, "mac-roman"),
        (GERMAN, "cp850"),
        (FRENCH, "cp1252"),
        (FRENCH, "latin-1"),
        (POLISH, "cp1250"),
        (POLISH, "iso8859-2"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        (JAPANESE, "cp932"),
        (JAPANESE, "euc-jp"),
        ("배송이 빠르고 품질이 좋습니다.\n상자가 망가져서 왔어요.\n", "cp949"),
        ("Η παράδοση ήταν γρήγορη.\nΗ ποιότητα είναι κακή.\n", "cp1253"),
        ("texto,etiqueta\nmuy malo el año,neg\nbueno,pos\n", "cp1252"),
        ("x O\nschön O\nMünchen B-LOC\n", "cp1252"),
    ],
)
def test_the_letters_of_a_language_tell_the_encoding(tmp_path, text, encoding):
    path = write(tmp_path, "a.txt", text.encode(encoding))
    assert "".join(encodings.text_lines(path)) == text


def test_an_encoding_on_which_detectors_disagree_is_refused_with_the_candidates(tmp_path):
    path = write(tmp_path, "a.csv", "¡Excelente producto!\n".encode("cp850"))
    with pytest.raises(ValueError, match=r"a\.csv: .* not clear; expected .*--set options\.encoding=cp850 or --set"):
        TableOptions().read_table(path, ["texto"])


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["text,label\nso good,1\n", "text,label\n一好,1\n" + "一些中文没有字母,0\n" * 40])
def test_utf_16_without_a_mark_is_read_and_zero_bytes_in_texts_are_no_sign_of_it(tmp_path, encoding, text):
    for name, content in (
        ("a.csv", text.encode(encoding)),
        ("a.csv.gz", gzip.compress(text.encode(encoding), mtime=0)),
    ):
        assert TableOptions().read_table(write(tmp_path, name, content), ["label"]).columns["label"][0] == "1"
    path = write(tmp_path, "b.csv", "text,label\na\0b,1\n")
    with pytest.raises(ValueError, match=r"b\.csv:2: expected text, got a NUL byte; --encoding=utf-8 reads it as text"):
        TableOptions().read_table(path, ["text"])
    assert TableOptions(encoding="utf-8").read_table(path, ["text"]).columns["text"] == ["a\0b"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "text;label\na, b;1\n"),
        ("a.tsv", 'text,label\n"a, b",1\n'),
        ("a.csv", "text\tlabel\na, b\t1\n"),
        ("a.txt", "label|text\n1|a, b\n"),
        ("a.tsv", '"text"\t"label"\n"a, b"\t"1"\n'),
        ("a.csv", ";text;label\n0;a, b;1\n;;\n\n"),
        ("a.csv", "sep=;\r\ntext;label\r\na, b;1\r\n"),
    ],
)
def test_the_delimiter_with_which_the_first_line_names_the_columns_is_taken(tmp_path, name, content):
    table = TableOptions().read_table(write(tmp_path, name, content), ["text", "label"])
    assert table.columns == {"text": ["a, b"], "label": ["1"]}


def test_quotation_marks_hold_the_lines_of_a_cell_of_tsv_together(tmp_path):
    table = TableOptions().read_table(write(tmp_path, "a.tsv", 'text\tlabel\n"one\ntwo"\t1\nthree\t0\n'), ["text"])
    assert table.columns["text"] == ["one\ntwo", "three"]


def test_quotation_marks_that_break_csv_are_text(tmp_path):
    table = TableOptions().read_table(write(tmp_path, "a.csv", 'label;text\n1;"No" was said\n0;"so\n'), ["text"])
    assert table.columns["text"] == ['"No" was said', '"so']


def test_a_workbook_is_read_with_its_cells_as_text(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["text", "label", None], ["so good", 1], [None, None], ["  ", 2.0], ["x", True]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    table = TableOptions().read_table(str(tmp_path / "a.xlsx"), ["text", "label"])
    assert table.columns == {"text": ["so good", "  ", "x"], "label": ["1", "2", "true"]} and table.lines == [2, 4, 5]
    data = (tmp_path / "a.xlsx").read_bytes()
    (tmp_path / "a.xlsx").write_bytes(data[:200])
    with pytest.raises(ValueError, match=r"a\.xlsx: not a readable workbook"):
        TableOptions().read_table(str(tmp_path / "a.xlsx"), ["text"])


def test_a_key_may_be_within_another(tmp_path):
    path = write(
        tmp_path,
        "a.json",
        '[{"t": "a", "labels": {"label": 1}, "x.y": 2}, {"t": "b", "labels": {"label": 0}, "x.y": 3}]',
    )
    assert TableOptions().read_table(path, ["t", "labels.label", "x.y"]).columns == {
        "t": ["a", "b"],
        "labels.label": [1, 0],
        "x.y": [2, 3],
    }
    with pytest.raises(
        ValueError, match=r"a\.json\[row 0\]: expected a key 'labels\.binary', found 't', 'labels', 'x\.y'"
    ):
        TableOptions().read_table(path, ["labels.binary"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "a.csv",
            "Text,label\na,1\n",
            r"expected a column 'text', found 'Text', 'label' \('Text' differs by case or spaces only\)",
        ),
        ("a.csv", "text ,label\na,1\n", r"'text ' differs by case"),
        ("a.csv", "text,label\ra,1\r", "a carriage return alone does not end a line"),
        ("a.csv", b"PK\x03\x04x", r"a\.csv: not a readable workbook"),
    ],
)
def test_the_name_that_is_meant_is_named(tmp_path, name, content, message):
    with pytest.raises(ValueError, match=message):
        TableOptions().read_table(write(tmp_path, name, content), ["text", "label"])
    with pytest.raises(ValueError, match="expected a file, got a folder"):
        TableOptions().read_table(str(tmp_path), ["text", "label"])


def test_damaged_packed_files_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"a\.csv\.gz:\d+: the compressed file is damaged or cut off here"):
        TableOptions().read_table(write(tmp_path, "a.csv.gz", gzip.compress(CSV.encode() * 99)[:-20]), ["text"])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "text\tlabel\n__label__x\t1\n"),
        ("a.tsv", '{"a"}\ttext\tlabel\nx\ty\tz\n'),
        ("a.csv", "[text,text,label\na,b,c\n"),
        ("a_text.txt", "text\tlabel\nx\ty\n"),
    ],
)
def test_a_table_whose_first_line_names_the_columns_is_one(tmp_path, name, content):
    assert (
        TableOptions().format_of(write(tmp_path, name, content), ["text", "label"])
        == tables.SUFFIXES["." + name.rpartition(".")[2]]
    )
