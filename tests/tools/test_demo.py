import json
import math
import os
import re
import shlex
import subprocess
import sys

import pytest
from commands import imported_tool
from oracles.records import encode_example, write_tfrecords

from official_bert.data.record_files import records
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.vocab import SPECIAL_TOKENS


@pytest.fixture(scope="module")
def demo():
    with imported_tool("demo") as module:
        yield module


def test_the_language_reference_becomes_prose_without_repeats(demo):
    documents = demo.reference_documents()
    paragraphs = [line for document in documents for line in document.split("\n")]
    assert len(documents) >= demo.FEWEST_DOCUMENTS and sum(len(line.split()) for line in paragraphs) > 25_000
    assert len(paragraphs) == len(set(paragraphs))
    assert not any("::=" in line or line.startswith(">>>") for line in paragraphs)


def test_paths_are_those_of_the_folder_in_which_it_is_started(demo, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("Text.\n")
    monkeypatch.chdir(tmp_path)
    assert demo.from_here(f"*.txt,{tmp_path}/a.txt") == f"{tmp_path}/*.txt,{tmp_path}/a.txt"
    with pytest.raises(ValueError, match="--corpus: no file matches 'b.txt'"):
        demo.from_here("b.txt")


def test_held_out_documents_are_not_trained_on(demo, tmp_path):
    prepared = tmp_path / "corpus.txt"
    prepared.write_text("\n\n".join(f"One {n}.\nTwo {n}." for n in range(60)) + "\n")
    chosen = demo.split_documents(prepared, tmp_path / "train.txt", tmp_path / "held_out.txt")
    assert [document[0] for document in chosen] == ["One 11.", "One 23.", "One 35.", "One 47.", "One 59."]
    train, held_out = ((tmp_path / name).read_text().split("\n\n") for name in ("train.txt", "held_out.txt"))
    assert len(train) == 55 and len(held_out) == 5 and not {*map(str.strip, train)} & {*map(str.strip, held_out)}
    prepared.write_text("\n".join(f"Sentence {n}." for n in range(600)))
    assert len(demo.split_documents(prepared, tmp_path / "train.txt", tmp_path / "held_out.txt")[0]) == demo.CUT_AFTER
    prepared.write_text("Too short.\n")
    with pytest.raises(ValueError, match="expected at least 480 sentences, got 1"):
        demo.split_documents(prepared, tmp_path / "train.txt", tmp_path / "held_out.txt")


def write(path, masked):
    table = records.pretraining_features(4, 2)
    write_tfrecords(
        str(path),
        (
            encode_example(
                table,
                {
                    "input_ids": [1] * 4,
                    "input_mask": [1] * 4,
                    "segment_ids": [0] * 4,
                    "masked_lm_positions": [1, 2],
                    "masked_lm_ids": ids,
                    "masked_lm_weights": weights,
                    "next_sentence_labels": [0],
                },
            )
            for ids, weights in masked
        ),
    )


def test_the_unigram_loss_as_worked_out_by_hand(demo, tmp_path):
    write(tmp_path / "train", [([0, 1], [1, 1]), ([1, 3], [1, 0])])
    write(tmp_path / "held", [([1, 2], [1, 1])])
    # Counts 1, 2, 0, 0 and one more of each: 2/7, 3/7, 1/7, 1/7.
    loss = demo.unigram_loss(str(tmp_path / "train"), str(tmp_path / "held"), 4)
    assert loss == pytest.approx(-(math.log(3 / 7) + math.log(1 / 7)) / 2)


def test_a_blank_stands_where_a_word_of_the_vocabulary_stood(demo):
    class Tokenizer:
        def tokenize(self, word):
            return [word] if word == "river" else [word[:2], "##" + word[2:]]

    blanks = demo.make_blanks(
        [["No.", "We all saw the long river that runs by."], ["The old stones lay there for a while."]], Tokenizer()
    )
    assert blanks == [("We all saw the long [MASK] that runs by.", "river")]


def test_blanks_of_scripts_without_spaces_are_tokens(demo, tmp_path):
    pieces = [*"这座城市位于河的北岸。", "เมือง", *(f"##{char}" for char in "นี้ตั้งอยู่เหือ")]
    (tmp_path / "v.txt").write_text("\n".join(dict.fromkeys([*SPECIAL_TOKENS, *pieces])))
    tokenizer = FullTokenizer(str(tmp_path / "v.txt"), do_lower_case=False)
    assert demo.make_blanks([["这座城市位于河的北岸。"]], tokenizer) == [("这座城市位 [MASK] 河的北岸。", "于")]
    [(text, word)] = demo.make_blanks([["เมืองนี้ตั้งอยู่เหนือ"]], tokenizer)
    assert text.replace(" [MASK] ", word) == "เมืองนี้ตั้งอยู่เหนือ" and text.count("[MASK]") == 1


def test_pieces_of_words_are_blanks_too_until_there_are_three(demo, tmp_path):
    whole, piece = "这座城市位于河的北岸。", "เมืองนี้ตั้งอยู่เหนือ"
    pieces = [*whole, "เมือง", *(f"##{char}" for char in "นี้ตั้งอยู่เหือ")]
    (tmp_path / "v.txt").write_text("\n".join(dict.fromkeys([*SPECIAL_TOKENS, *pieces])))
    tokenizer = FullTokenizer(str(tmp_path / "v.txt"), do_lower_case=False)
    sentences = [whole, piece, f"{piece}{piece[5:]}", f"{piece}{piece[6:]}"]
    blanks = demo.make_blanks([sentences], tokenizer)
    assert blanks[0] == ("这座城市位 [MASK] 河的北岸。", "于") and len(blanks) == 3
    assert {text.replace(" [MASK] ", word) for text, word in blanks[1:]} <= set(sentences[1:])


@pytest.mark.parametrize(
    ("text", "deletes"),
    [
        ("ก่อตั้งขึ้นโดยพ่อค้าในศตวรรษที่สิบสอง", True),
        ("यह शहर नदी के किनारे है।", True),
        ("Ça a été fondé à Zürich.", True),
        ("It was founded in a café in the old streets of Zürich, by merchants.", False),
        ("这座城市位于河的北岸。", False),
    ],
)
def test_text_is_lower_cased_unless_that_deletes_its_letters(demo, tmp_path, text, deletes):
    (tmp_path / "text.txt").write_text(text)
    assert demo.deletes_letters(tmp_path / "text.txt") is deletes


@pytest.mark.slow
def test_the_demo_runs_to_the_end(root, tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            str(root / "tools/demo.py"),
            f"--output_dir={tmp_path}/demo",
            "--set=training.steps=300",
            "--set=training.eval_every=100",
            "--set=optimizer.warmup_steps=100",
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Held-out masked-LM loss" in done.stdout and "The masked words were: " in done.stdout
    commands_in_a_line = (done.stdout + done.stderr).replace(" \\\n", " ")
    assert commands_in_a_line.count("\n") <= 50
    assert (tmp_path / "demo/loss.png").stat().st_size > 5000
    losses = [
        json.loads(line)["eval/mlm_loss"]
        for line in (tmp_path / "demo/model/log.jsonl").read_text().splitlines()
        if "eval/mlm_loss" in line
    ]
    assert losses[-1] < losses[0]
    typed = re.search(
        r"^\.venv/bin/python (-m official_bert.run_predict --model=demo/exported .*)$",
        (root / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    asked = subprocess.run(
        [sys.executable, *shlex.split(typed[1])],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith("The [MASK] is called.\n") and len(asked.stdout.splitlines()) == 2
