import bz2
import gzip
import json
import lzma

import pyarrow
import pyarrow.parquet
import pytest

from official_bert.data.raw_text import containers, documents

TEXTS = ["One sentence here.\nAnother paragraph.", "他來了。"]
LINES = "".join(json.dumps({"body": text}) + "\n" for text in TEXTS).encode()
COMPRESS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pyarrow.compress(data, "zstd", asbytes=True),
}


def read(path, policy="error", **settings):
    bad = containers.BadText(policy)
    found = [document.paragraphs for document in documents.read_documents(str(path), bad=bad, **settings)]
    return found, bad.report


@pytest.mark.parametrize("name", [*COMPRESS, "misleading.txt"])
def test_compressed_files_are_read_whatever_their_name(tmp_path, name):
    path = tmp_path / f"a.jsonl.{name}"
    compress = COMPRESS.get(name, gzip.compress)
    path.write_bytes(compress(LINES[:30]) + compress(LINES[30:]))  # two members, as `cat` makes them
    assert read(path, text_key="body")[0] == [text.split("\n") for text in TEXTS]


@pytest.mark.parametrize("name", COMPRESS)
def test_a_compressed_file_that_is_cut_off_is_no_silent_loss(tmp_path, name):
    path = tmp_path / f"a.{name}"
    path.write_bytes(COMPRESS[name](b"".join(b"line %d of text\n" % number for number in range(50_000)))[:-1000])
    with pytest.raises(ValueError, match=rf"a.{name}:\d+: the compressed file is damaged or cut off"):
        read(path, form="text")
    [[first, *_]], report = read(path, "skip", form="text")
    assert first == "line 0 of text"
    [example] = report.dropped["text that cannot be read"].examples
    assert "cut off" in example


def write_arrow(path, table, new):
    with pyarrow.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)


@pytest.mark.parametrize("kind", ["parquet", "file", "stream"])
def test_tables_are_read_row_by_row(tmp_path, kind):
    table = pyarrow.table({"id": [1, 2, 3], "body": [TEXTS[0], None, TEXTS[1]]})
    path = tmp_path / f"data.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(table, path)
    else:
        write_arrow(path, table, pyarrow.ipc.new_file if kind == "file" else pyarrow.ipc.new_stream)
    with pytest.raises(ValueError, match=f"data.{kind}:2: 'body' is null"):
        read(path, text_key="body")
    found, report = read(path, "skip", text_key="body")
    assert found == [text.split("\n") for text in TEXTS]
    assert report.dropped["text that cannot be read"].amounts == {"documents": 1}
    with pytest.raises(ValueError, match="expected a column 'text' of strings .*got id: int64, body: string"):
        read(path)


def test_a_folder_of_datasets_is_its_tables(tmp_path):
    for name in ("d/state.json", "d/dataset_info.json", "d/data-00000-of-00001.arrow", "other/state.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    paths = sorted(map(str, tmp_path.rglob("*.*")))
    assert [path.removeprefix(f"{tmp_path}/") for path in containers.without_dataset_files(paths)] == [
        "d/data-00000-of-00001.arrow",
        "other/state.json",
    ]


BAD_ROWS = {
    "surrogate": (b'{"text": "bad \\ud800 half"}', "a lone surrogate", [["bad \ufffd half"]]),
    "nested": (b"[" * 100_000, "nested too deeply", []),
    "null": (b'{"text": null}', "'text' being NoneType", []),
    "number": (b'{"text": "a", "n": ' + b"9" * 5000 + b"}", "not valid JSON", []),
    "bytes": (b'{"text": "caf\xe9"}', "not valid UTF-8 at byte", [["caf\ufffd"]]),
    "list": (b"[1]", "got list", []),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_bad_rows_are_named_skipped_or_replaced_and_counted(tmp_path, name):
    row, told, repaired = BAD_ROWS[name]
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "good"}\n' + row + b'\n{"text": "end"}\n')
    with pytest.raises(ValueError, match="a.jsonl:2: ") as error:
        read(path)
    assert told in str(error.value) and "\n" not in str(error.value)
    found, report = read(path, "skip")
    assert found == [["good"], ["end"]]
    [example] = report.dropped["text that cannot be read"].examples
    assert told in example and "a.jsonl:2" in example
    found, report = read(path, "replace")
    assert found == [["good"], *repaired, ["end"]]
    assert len(report.notes) == len(repaired) and len(report.dropped) == 1 - len(repaired)


def test_an_article_without_its_end_is_named_skipped_or_kept(tmp_path):
    path = tmp_path / "wiki_00"
    text = "Tea is a drink made from the leaves of a plant, hot or cold."
    path.write_text(
        "".join(
            f'<doc id="{title}" title="{title}">\n{title}\n\n{text}\n{end}'
            for title, end in (("A", "</doc>\n"), ("B", ""), ("C", ""))
        )
    )
    with pytest.raises(ValueError, match="wiki_00:6: an article without its end"):
        read(path)
    found, report = read(path, "skip")
    assert found == [["", text]] and report.dropped["text that cannot be read"].amounts["documents"] == 2
    assert len(read(path, "replace")[0]) == 3


def test_archives_are_refused_and_an_empty_file_has_no_document(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04rest")
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="a.zip: expected lines of text, plain or compressed, got a zip file"):
        read(tmp_path / "a.zip")
    assert read(tmp_path / "empty")[0] == []
