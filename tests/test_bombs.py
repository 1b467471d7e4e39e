"""Small files that claim, or unpack to, more than memory are refused at once, with the file and the bound."""

import gzip
import json
import struct
import time

import numpy as np
import pytest
from oracles.records import crc

from official_bert.config import load_config
from official_bert.data.raw_text import containers, packed_files
from official_bert.data.record_files import records
from official_bert.data.tabular import encodings
from official_bert.models.interchange.projects import hugging_face
from official_bert.storage import files
from official_bert.typed_values import read_yaml


def test_aliases_that_expand_exponentially_are_refused(tmp_path):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 10)
    )
    (tmp_path / "bomb.yaml").write_text(bomb)
    began = time.monotonic()
    with pytest.raises(
        ValueError, match=r"bomb.yaml: not valid YAML: expected at most 10,000,000 bytes of values, its aliases make"
    ):
        load_config(str(tmp_path / "bomb.yaml"))
    with pytest.raises(ValueError, match=r"many.yaml: not valid YAML: expected at most 100 aliases"):
        read_yaml("a: &a 1\nb: [" + ", ".join(["*a"] * 101) + "]", "many.yaml")
    with pytest.raises(ValueError, match="nested too deeply"):
        read_yaml("a: &a [*a]", "own.yaml")
    assert time.monotonic() - began < 5
    assert (
        read_yaml("a: &a [1, 2]\nb: [*a, *a]", "few.yaml") == {"a": [1, 2], "b": [[1, 2], [1, 2]]}
        and read_yaml("", "no.yaml") is None
    )


@pytest.mark.parametrize("kind", ["line", "lines"])
def test_a_packed_corpus_that_unpacks_to_gigabytes_is_refused_with_its_line(tmp_path, monkeypatch, kind):
    for module in (packed_files, files):
        monkeypatch.setattr(module, "LONGEST_LINE", 1 << 20)  # the same with small numbers
    path = str(tmp_path / "bomb.gz")
    with gzip.open(path, "wb") as file:
        file.write(b"First line.\n")
        for _ in range(64):
            file.write(b"a" * (1 << 19) + (b"\n" if kind == "lines" else b""))
    told = (
        r"bomb.gz:2: expected lines of at most 1,048,576 bytes in a packed file"
        if kind == "line"
        else r"bomb.gz:\d+: expected at most 200 bytes for each packed byte, got [0-9,]+ of [0-9,]+"
    ) + ".*--allow_large_lines"
    with pytest.raises(ValueError, match=told):
        list(containers.read_text_lines(path, containers.BadText("skip")))
    lines = sum(1 for _ in containers.read_text_lines(path, containers.BadText(allow_large_lines=True)))
    assert lines == (2 if kind == "line" else 65)
    if kind == "line":
        with pytest.raises(ValueError, match="bomb.gz: expected lines of at most 1,048,576 bytes"):
            list(files.read_lines(path, unzip=True))


@pytest.mark.parametrize(("kind", "encoding"), [("line", ""), ("lines", ""), ("line", "cp1252")])
def test_a_packed_table_has_the_bounds_of_a_packed_corpus(tmp_path, monkeypatch, kind, encoding):
    monkeypatch.setattr(packed_files, "LONGEST_LINE", 1 << 20)
    path = str(tmp_path / "bomb.csv.gz")
    with gzip.open(path, "wb") as file:
        file.write(b"text,label\n")
        for _ in range(64):
            file.write(b"a" * (1 << 19) + (b"\n" if kind == "lines" else b""))
    told = (
        r"bomb.csv.gz:2: expected lines of at most 1,048,576 bytes in a packed file, got a longer one"
        if kind == "line"
        else r"bomb.csv.gz:\d+: expected at most 200 bytes for each packed byte, got [0-9,]+ of [0-9,]+"
    ) + "; unpack it first"
    with pytest.raises(ValueError, match=told):
        list(encodings.text_lines(path, encoding))


@pytest.mark.parametrize("packed", [False, True])
def test_a_record_that_claims_more_than_the_file_holds_is_refused(tmp_path, packed):
    path, header = str(tmp_path / "a.tfrecord"), struct.pack("<Q", 1 << 50)
    with (gzip.open if packed else open)(path, "wb") as file:
        file.write(header + crc(header) + b"abc")
    told = (
        "claims 1,125,899,906,842,624 bytes; a record of a packed file has at most 67,108,864"
        if packed
        else "is truncated: it claims 1,125,899,906,842,624 bytes, 3 are left"
    )
    with pytest.raises(ValueError, match=f"a.tfrecord: record 0 {told}"):
        list(records.read_records(path))


@pytest.mark.parametrize("size", [1 << 60, 1 << 30, 1 << 20])
def test_a_header_of_safetensors_that_claims_more_than_the_file_holds_is_refused(tmp_path, size):
    header = json.dumps({"w": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}}).encode()
    for data in (
        struct.pack("<Q", size) + b"{}",
        struct.pack("<Q", len(header)) + header + np.zeros(2, np.float32).tobytes(),
    ):
        (tmp_path / "model.safetensors").write_bytes(data)
        with pytest.raises(ValueError, match="model.safetensors: damaged safetensors file"):
            hugging_face.read_tensors(str(tmp_path))
