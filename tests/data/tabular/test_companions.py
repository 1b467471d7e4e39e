"""Files that are read together: data of which one has changed are others."""

import gzip
import hashlib

from official_bert.data import rows
from official_bert.data.tabular.companions import files_read


def changed_by(folder, source, name, content):
    before = rows.digest(str(folder / source))
    (folder / name).write_bytes(content)
    return rows.digest(str(folder / source)) != before


def test_the_digest_of_data_covers_all_files_that_are_read(tmp_path):
    for name in ("a.txt", "a.ann", "b.txt", "b.ann", "train_text.txt", "train_labels.txt", "c.txt", "notes.md"):
        (tmp_path / name).write_text(name)
    for source in (".", "a.txt", "a.ann"):
        assert changed_by(tmp_path, source, "a.ann", f"T1\tPER 0 1\t{source}".encode())
        assert changed_by(tmp_path, source, "a.txt", f"other text {source}".encode())
        assert not changed_by(tmp_path, source, "notes.md", source.encode())
    assert changed_by(tmp_path, ".", "b.ann", b"T1") and not changed_by(tmp_path, "a.ann", "b.ann", b"T2")
    assert changed_by(tmp_path, "train_text.txt", "train_labels.txt", b"1\n")
    assert changed_by(tmp_path, "train_text.txt", "train_text.txt", b"x\n")
    (tmp_path / "train.jsonl").write_text("{}\n")
    (tmp_path / "train-labels.lst").write_text("0\n")
    assert changed_by(tmp_path, "train.jsonl", "train-labels.lst", b"1\n")
    assert files_read(str(tmp_path / "c.txt")) == [str(tmp_path / "c.txt")]
    assert rows.digest(str(tmp_path / "c.txt")) == hashlib.sha256(b"c.txt").hexdigest()
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text,label\na,1\n", mtime=0))
    assert changed_by(tmp_path, "a.csv.gz", "a.csv.gz", gzip.compress(b"text,label\na,0\n", mtime=0))
