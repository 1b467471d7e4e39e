"""Zip files that someone else wrote: every damage is one line, and no entry unpacks to more than its bound."""

import io
import json
import pathlib
import zipfile

import numpy as np
import openpyxl
import pytest

from official_bert.data.cache import cached
from official_bert.data.record_files import record_index
from official_bert.data.tabular.formats import sheet_cells
from official_bert.models.interchange import hub
from official_bert.storage import archives
from official_bert.text.subwords import tokenizer_files

TEXT = " ".join(map(str, range(99)))


def zip_of(**contents):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name.replace("__", "."), content)
    return packed.getvalue()


def workbook():
    book, content = openpyxl.Workbook(), io.BytesIO()
    for row in range(9):
        book.active.append([f"text {row}", row])
    book.save(content)
    return content.getvalue()


def zip_of_2018():
    return zip_of(bert_config__json=TEXT, vocab__txt=TEXT, bert_model__ckpt__index=TEXT)


# What reads a zip file at a path, a good one, and an entry that is read.
READERS = {
    "workbook": (lambda path: list(sheet_cells(path)), workbook(), "xl/worksheets/sheet1.xml"),
    "hub": (lambda path: hub._unpacked.__wrapped__(path, 0), zip_of_2018(), "vocab.txt"),
    "tokenizer": (
        lambda path: tokenizer_files.unpack(pathlib.Path(path).read_bytes(), path),
        zip_of(tokenizer__json=TEXT),
        "tokenizer.json",
    ),
}


def damaged(content, name):
    """Yields a zip file with each kind of damage to an entry that Python's reader has an exception of its own for."""
    entry = zipfile.ZipFile(io.BytesIO(content)).getinfo(name)
    local, central = entry.header_offset, content.rindex(name.encode()) - 46  # the directory is at the end
    data = content.index(name.encode(), local) + len(name)

    def changed(*changes):
        whole = bytearray(content)
        for place, value in changes:
            whole[place] = value
        return bytes(whole)

    yield changed((central + 6, 255))  # a later version of the format
    yield changed((central + 8, content[central + 8] | 1), (local + 6, content[local + 6] | 1))  # encrypted
    yield changed((central + 10, 77), (local + 8, 77))  # an unknown method
    yield changed((central + 10, 14), (local + 8, 14))  # LZMA
    for place in range(data, data + min(20, entry.compress_size)):
        yield changed((place, content[place] ^ 255))
    for length in range(0, len(content), max(1, len(content) // 9)):
        yield content[:length]


@pytest.mark.parametrize("reader", READERS)
def test_every_damage_is_one_line(tmp_path, reader):
    read, good, name = READERS[reader]
    path = str(tmp_path / "a.zip")
    (tmp_path / "a.zip").write_bytes(good)
    assert read(path)
    for content in damaged(good, name):
        (tmp_path / "a.zip").write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.zip: .*(damaged|not a readable workbook)") as told:
            read(path)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize("reader", READERS)
def test_entries_that_unpack_to_far_more_than_the_file_holds_are_refused(tmp_path, monkeypatch, reader):
    read, good, _ = READERS[reader]
    monkeypatch.setattr(archives, "MOST_UNPACKED", 1 << 16)
    monkeypatch.setattr(archives, "MOST_PACKED", 2)
    monkeypatch.setattr(hub, "LARGEST_DOWNLOAD", 1 << 16)
    packed = io.BytesIO(good)
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("more.txt", bytes(1 << 20))
    (tmp_path / "bomb.zip").write_bytes(packed.getvalue())
    with pytest.raises(
        ValueError, match=r"bomb\.zip: .*unpacks to at most [0-9,]+ bytes, its entries claim 1,0[0-9]{2},[0-9]{3}"
    ):
        read(str(tmp_path / "bomb.zip"))


def test_a_damaged_cache_is_made_anew(tmp_path):
    def make():
        return {"ids": np.arange(5, dtype=np.int32)}

    cached(str(tmp_path / "cache"), {}, make)
    (stored,) = (tmp_path / "cache").iterdir()
    for content in damaged(stored.read_bytes(), "ids.npy"):
        stored.write_bytes(content)
        np.testing.assert_array_equal(cached(str(tmp_path / "cache"), {}, make)["ids"], np.arange(5))


@pytest.mark.parametrize("count", [None, "7", 7.0, True, [7]])
def test_an_index_whose_count_is_no_number_is_damaged(tmp_path, count):
    header = {"format": record_index.FORMAT, "count": count, "checksum": 0}
    (tmp_path / "index").write_bytes(json.dumps(header).encode().ljust(record_index.HEADER_BYTES))
    with pytest.raises(ValueError, match="index is damaged"):
        record_index.read_facts(str(tmp_path / "index"), {}, 8)
