"""Files of strangers end in one line that names them, or are read, at little more cost than ordinary ones."""

import json
import time

import foreign_files
import pytest
from forked import Forked

from official_bert.config import load_config
from official_bert.data.raw_text import containers, documents
from official_bert.data.tabular import encodings, formats, stored_names
from official_bert.models.interchange import formats as checkpoints

BY_NAME = {case.name: case for case in foreign_files.ALL}
USUAL: dict = {}


@pytest.fixture(scope="module")
def forked():
    with Forked() as processes:
        yield processes


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_NAME)
def test_a_command_ends_soon_and_in_one_line(name, forked, tmp_path):
    line, wrong = foreign_files.judged(BY_NAME[name], forked, tmp_path, USUAL)
    assert not wrong, line


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("far_empty_cells.xlsx", "expected a filled cell in the first 1,000 rows, got none"),
        ("million_empty_rows.xlsx", "expected at most 250,000 tags, or 8 for each of its"),
        ("one_far_row.xlsx", "expected a filled cell in the first 1,000 rows, got none"),
        ("pipe.csv", "got a pipe"),
        ("device.csv", "got a device"),
        ("many_keys.yaml", "expected at most 20,000 values"),
        ("many_anchors.yaml", "expected at most 100 anchors"),
        ("long_number.yaml", ":2: '1:1:1.*' is no int"),
        ("long_hexadecimal.yaml", ":1: '0xfff.*' is no int"),
        ("huge_words", "vocab.txt: expected at most 67,108,864 bytes"),
        ("many_tensors", "model.safetensors: expected at most 65,536 tensors, got 70,000"),
        ("many_dimensions", "model.safetensors: w0: expected at most 8 dimensions, got 60"),
        ("deep.keras", "cannot be read as a Keras model: maximum recursion depth"),
        ("base_outside", "config.yaml: base: expected none in the folder of a run, got '/etc/hostname'"),
        ("pipe_config_json", "config.json: expected a file, .* got a pipe"),
        ("device_of_weights", "model.safetensors: expected a file, .* got a device"),
        ("huge_config", "config.json: expected at most 67,108,864 bytes"),
    ],
)
def test_readers_refuse_them_at_once(name, message, tmp_path):
    case = BY_NAME[name]
    case.make(path := tmp_path / name)
    reader = {
        "xlsx": lambda: list(formats.sheet_cells(str(path))),
        "csv": lambda: list(encodings.text_lines(str(path))),
        "yaml": lambda: load_config(str(path)),
    }.get(name.rpartition(".")[2], lambda: checkpoints.read(str(path)))
    began = time.monotonic()
    with pytest.raises(ValueError, match=f"{name}.*{message}"):
        reader()
    assert time.monotonic() - began < 10  # on a loaded machine


def test_a_formatted_column_and_a_far_cell_do_not_hide_a_table(tmp_path):
    """As people format whole columns: every row has empty cells with a style, some of them far away."""
    rows = "".join(
        f'<row r="{row}"><c r="A{row}" t="inlineStr"><is><t>text {row}</t></is></c><c r="B{row}"><v>{row % 2}</v></c>'
        + "".join(f'<c r="{column}{row}" s="1"/>' for column in ("C", "D", "E", "XFD"))
        + "</row>"
        for row in range(1, 301)
    )
    foreign_files.workbook(tmp_path / "a.xlsx", rows)
    assert list(formats.sheet_cells(str(tmp_path / "a.xlsx"))) == [
        (row, [f"text {row}", str(row % 2)]) for row in range(1, 301)
    ]


def test_titles_and_long_lines_take_linear_time(tmp_path):
    BY_NAME["title.xml"].make(path := tmp_path / "title.xml")
    began = time.monotonic()
    with pytest.raises(ValueError, match=r"title.xml:1: an article without its end"):
        list(documents._read_wikiextractor(path.read_text().splitlines(), str(path), containers.BadText()))
    assert time.monotonic() - began < 10
    article = ['<doc id="1" title="A "quoted" title" url="x">', 'A "quoted', "A sentence.", "</doc>"]
    read = documents._read_wikiextractor(article, "x", containers.BadText())
    assert [document.title for document in read] == ['A "quoted']
    (tmp_path / "long.txt").write_bytes(("größer " * 60_000 + "\n").encode("cp1252") * 2)
    assert encodings.encoding_of(str(tmp_path / "long.txt")) == "cp1252"


@pytest.mark.parametrize("names", ["[" * 1_000_000, {"a": 1}, 5, [[], {}], "ab"])
def test_names_of_classes_in_parquet_that_are_no_list_of_texts_are_no_reason_to_fail(names, tmp_path):
    """As the metadata of `datasets` may hold them: they are passed over, or taken as texts."""
    about = (
        names
        if "[[" in str(names) and isinstance(names, str)
        else json.dumps({"info": {"features": {"label": {"_type": "ClassLabel", "names": names}}}})
    )
    label = stored_names.class_names({b"huggingface": about.encode()})({"label": 1})["label"]
    assert label is None or isinstance(label, (int, str))


def test_a_long_unknown_key_is_quoted_shortly(tmp_path):
    (path := tmp_path / "a.yaml").write_text(f"? {'a' * 900_000}\n: 1\n")
    with pytest.raises(ValueError, match="unknown keys") as error:
        load_config(str(path))
    assert len(str(error.value)) < 1000
