"""Hard negatives: what a search ranks high, without answers and without what a cross-encoder calls one."""

import errno
import json
import os
import types

import numpy as np
import pytest
from commands import run_here

from official_bert.search.rows import SearchColumns
from official_bert.tools.mining import negatives
from official_bert.tools.mining.rules import MiningRules

COLUMNS = SearchColumns(text="text", text_pair="text_pair")
PAIRS = [
    ("who is the king", "the king of the river"),
    ("who is the king", "a king rules"),
    ("what is music", "music and film"),
    ("which river", "a long river of the city"),
]


def write_pairs(folder):
    path = folder / "train.tsv"
    path.write_text("text\ttext_pair\n" + "".join("\t".join(pair) + "\n" for pair in PAIRS))
    return str(path)


def test_words_find_passages_that_do_not_answer(tmp_path):
    (tmp_path / "more.csv").write_text("passage\nthe king is dead\nwho is it\n")
    material = negatives.read_material(write_pairs(tmp_path), str(tmp_path / "more.csv"), COLUMNS, "passage")
    assert len(material.queries) == 3 and len(material.passages) == 6
    rows = list(negatives.mine(material, negatives.rank_by_words(material, 6), MiningRules(negatives=2), 0))
    assert [(row["text"], row["text_pair"]) for row in rows] == PAIRS and "scores" not in rows[0]
    assert rows[0]["negatives"] == rows[1]["negatives"] == ["who is it", "the king is dead"]
    assert rows[3]["negatives"][0] == "the king of the river"


def vectors_of(texts, *_, out=None):
    """Stands for a model: a vector of counts of letters."""
    found = np.array([[text.count(letter) for letter in "aeiourstlkw"] for text in texts], np.float32)
    found /= np.linalg.norm(found, axis=-1, keepdims=True)
    if out is not None:
        out[:] = found
    return found


def test_a_full_disk_names_the_folder_of_the_vectors(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    material = negatives.read_material(write_pairs(tmp_path), "", COLUMNS, "")
    with pytest.raises(OSError, match="No space left on device") as caught:
        negatives.rank_by_vectors(material, 4, types.SimpleNamespace(embed=vectors_of), 8, "", str(tmp_path), iter)
    assert caught.value.filename == str(tmp_path) and os.listdir(tmp_path) == ["train.tsv"]


def test_vectors_find_the_nearest_passages_and_a_cross_encoder_leaves_out_answers(tmp_path):
    material = negatives.read_material(write_pairs(tmp_path), "", COLUMNS, "")
    model = types.SimpleNamespace(embed=vectors_of)
    scores, numbers, positives = negatives.rank_by_vectors(material, 4, model, 8, "", str(tmp_path), iter)
    cosines = vectors_of(material.queries) @ vectors_of(material.passages).T
    np.testing.assert_array_equal(numbers, np.argsort(-cosines, axis=1, kind="stable"))
    np.testing.assert_allclose(positives, [cosines[0, 0], cosines[0, 1], cosines[1, 2], cosines[2, 3]], atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["train.tsv"]

    def judge(pairs, _):
        return [{"score": {"a king rules": 3.0, "music and film": 1.0}.get(text, 2.0)} for _, text in pairs]

    rows = list(
        negatives.mine(
            material, (scores, numbers, positives), MiningRules(negatives=4), 0, judge, cross_encoder_margin=0.5
        )
    )
    # Beside "the king of the river" (2.0), only "music and film" (1.0) is at least 0.5 lower; beside "a king rules"
    # (3.0), two more are.
    assert rows[0]["negatives"] == ["music and film"] and rows[0]["scores"] == [2.0, 1.0]
    assert set(rows[1]["negatives"]) == {"music and film", "a long river of the city"} and rows[1]["scores"][0] == 3.0
    assert rows[2]["negatives"] == [] and "scores" not in rows[2]


@pytest.mark.slow
def test_the_command_writes_what_retrieval_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mine = ("tools/mine_negatives.py", f"--train_file={write_pairs(tmp_path)}", "--output_file=mined.jsonl")
    done = run_here(*mine, "--negatives=2")
    assert done.returncode == 0 and "4 pairs, 3 queries, 4 passages" in done.stdout, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "mined.jsonl").read_text().splitlines()]
    assert [len(row["negatives"]) for row in rows] == [2, 2, 2, 2]
    for flags, told in (
        (("--first_rank=9", "--last_rank=9"), "no pair has a negative under these rules"),
        (("--faiss_index=Flat",), "--faiss_index: expected --model with it, got Flat without"),
        (("--margin=0.1", "--relative_margin=0.1"), "expected one of them"),
    ):
        done = run_here(*mine[:2], "--output_file=other.jsonl", *flags)
        assert done.returncode == 1 and told in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
        assert not (tmp_path / "other.jsonl").exists()


def test_the_passage_of_a_querys_own_id_is_no_negative_and_a_folder_is_a_collection(tmp_path):
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    passages = ["king of the river", "the king", "a king", "music"]
    (folder / "corpus.jsonl").write_text(
        "".join(
            json.dumps({"_id": f"d{number}", "title": "title", "text": text}) + "\n"
            for number, text in enumerate(passages)
        )
    )
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "d0", "text": passages[0]}) + "\n")
    (folder / "qrels/train.tsv").write_text("query-id\tcorpus-id\tscore\nd0\td1\t1\n")
    done = run_here(
        "tools/mine_negatives.py",
        f"--train_file={folder}",
        f"--output_file={tmp_path / 'mined.jsonl'}",
        "--negatives=3",
    )
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "mined.jsonl").read_text())
    assert row["text_pair"] == "title the king" and sorted(row["negatives"]) == ["title a king", "title music"]
