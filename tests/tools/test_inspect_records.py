"""Inspection: its output is true, and records that no model can be trained on are refused."""

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from commands import imported_tool
from made_generation import facts_of
from oracles.records import encode_example, write_tfrecords

from official_bert.data.record_files import records
from official_bert.long_work import provenance
from official_bert.text.vocab import load_vocab

ROOT = pathlib.Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"
COMMAND = ROOT / "tools" / "inspect_records.py"
VOCAB = GOLDEN / "vocab_uncased.txt"


@pytest.fixture(scope="module")
def tool():
    with imported_tool("inspect_records") as module:
        yield module


@pytest.fixture
def inspect(tool, capsys):
    """Runs the command; returns what it prints."""

    def call(path, *arguments):
        with flagsaver.flagsaver():
            flags.FLAGS([str(COMMAND), f"--input_file={path}", f"--vocab_file={VOCAB}", *arguments])
            tool.main([])
        return capsys.readouterr().out

    return call


@pytest.fixture(scope="module")
def golden_rows():
    arrays = np.load(GOLDEN / "generator_base.npz")
    return {name: arrays[name] for name in arrays}


def write(path, rows, features=None):
    features = features or records.pretraining_features(128, 20)
    count = len(rows["input_ids"])
    write_tfrecords(
        str(path),
        [encode_example(features, {name: value[row] for name, value in rows.items()}) for row in range(count)],
    )
    return path


def test_what_is_printed_is_what_the_golden_records_hold(inspect, tmp_path, golden_rows):
    printed = inspect(write(tmp_path / "out", golden_rows))
    tokens = golden_rows["input_mask"].sum()
    used = golden_rows["masked_lm_weights"] > 0
    now = np.take_along_axis(golden_rows["input_ids"], golden_rows["masked_lm_positions"], 1)[used]
    words = VOCAB.read_text(encoding="utf-8").splitlines()
    ids, counts = np.unique(golden_rows["masked_lm_ids"][used], return_counts=True)
    for wanted in (
        f"271 records of 128 tokens; {tokens / 271:.1f} used, {1 - tokens / (271 * 128):.1%} padding",
        f"label 1 (random or swapped): {golden_rows['next_sentence_labels'].mean():.1%}",
        f"predictions: {used.sum() / 271:.1f} per record",
        f"{used.sum() / tokens:.1%} of the tokens",
        f"{(now == 14).mean():.1%} [MASK]",
        f"most frequent: {words[ids[counts.argmax()]]} {counts.max() / used.sum():.1%}",
    ):
        assert wanted in printed
    assert printed.count("  label ") == 3 and "[MASK|" in printed


def test_records_of_another_vocabulary_are_refused(inspect, tmp_path, golden_rows):
    path = write(tmp_path / "out", golden_rows)
    provenance.write_origin(str(path), {"vocabulary": facts_of(load_vocab(str(VOCAB))).digest})
    inspect(path)
    other = facts_of({"[CLS]": 0, "[SEP]": 1, "[MASK]": 2, "[PAD]": 3, "[UNK]": 4, "a": 5})
    provenance.write_origin(str(path), {"vocabulary": other.digest})
    with pytest.raises(
        ValueError,
        match="out: its records were made with another vocabulary; expected --vocab_file with the same entries",
    ):
        inspect(path)


def test_decoded_examples_show_what_stands_and_what_is_wanted(inspect, tmp_path):
    meta = json.loads((GOLDEN / "generator_short.json").read_text())
    S, P = meta["flags"]["max_seq_length"], meta["flags"]["max_predictions_per_seq"]
    arrays = np.load(GOLDEN / "generator_short.npz")
    path = write(tmp_path / "out", {name: arrays[name] for name in arrays}, records.pretraining_features(S, P))
    first = next(line for line in inspect(path, "--num_examples=1").splitlines() if line.startswith("  label"))
    words = VOCAB.read_text(encoding="utf-8").splitlines()
    pieces = first.split(": ", 1)[1].split(" ")
    for place, original, weight in zip(
        arrays["masked_lm_positions"][0], arrays["masked_lm_ids"][0], arrays["masked_lm_weights"][0]
    ):
        if weight:
            now = words[arrays["input_ids"][0][place]].strip("[]")
            assert pieces[place] == f"[{now}|{words[original]}]"


WRONG = [
    ("token id beyond the vocabulary", "input_ids", (5, 3), 3000),
    ("input_mask is not ones and then zeros", "input_mask", (5, 3), 0),
    ("where input_mask is 0", "input_ids", (5, 127), 77),
    ("where input_mask is 0", "segment_ids", (5, 127), 1),
    ("segment id", "segment_ids", (5, 3), 2),
    ("begin with [CLS]", "input_ids", (5, 0), 77),
    ("next-sentence label", "next_sentence_labels", (5, 0), 2),
    ("masked id beyond", "masked_lm_ids", (5, 0), 3000),
    ("masked position is not at a token", "masked_lm_positions", (5, 19), 127),
    ("weight is neither", "masked_lm_weights", (5, 0), 0.5),
    ("do not ascend", "masked_lm_positions", (5, 1), 0),
    ("is to be predicted", "masked_lm_ids", (5, 0), 13),
]


@pytest.mark.parametrize("message, name, place, value", WRONG, ids=[f"{wrong[1]}-{wrong[0]}" for wrong in WRONG])
def test_records_that_cannot_be_trained_on_are_refused_by_number(
    inspect, tmp_path, golden_rows, message, name, place, value
):
    short = np.flatnonzero(golden_rows["input_mask"].sum(axis=1) < 100)[:9]
    rows = {key: array[short] for key, array in golden_rows.items()}
    rows[name][place] = value
    with pytest.raises(ValueError, match="out: record 5: ") as caught:
        inspect(write(tmp_path / "out", rows))
    assert message in str(caught.value)


def test_a_record_without_predictions_or_without_a_last_separator_is_refused(inspect, tmp_path, golden_rows):
    rows = {key: array[:9].copy() for key, array in golden_rows.items()}
    rows["masked_lm_weights"][2] = 0
    with pytest.raises(ValueError, match="record 2: no token is to be predicted"):
        inspect(write(tmp_path / "out", rows))
    rows = {key: array[:9].copy() for key, array in golden_rows.items()}
    rows["input_ids"][4, rows["input_mask"][4].sum() - 1] = 77
    with pytest.raises(ValueError, match="record 4: it does not end"):
        inspect(write(tmp_path / "out", rows))


@pytest.mark.parametrize("label", [0, 1])
def test_one_sided_labels_are_refused_after_the_report(tool, inspect, tmp_path, golden_rows, label, capsys):
    rows = golden_rows | {"next_sentence_labels": np.full((271, 1), label)}
    with pytest.raises(ValueError, match=f"every next-sentence label is {label}"):
        inspect(write(tmp_path / "out", rows))
    assert "271 records" in capsys.readouterr().out


def test_single_segments_need_no_labels(inspect, tmp_path, golden_rows):
    rows = golden_rows | {
        "next_sentence_labels": np.zeros((271, 1), int),
        "segment_ids": np.zeros_like(golden_rows["segment_ids"]),
    }
    assert "two segments: 0.0%" in inspect(write(tmp_path / "out", rows))


def test_files_of_unequal_lengths_and_broken_ones_are_refused(inspect, tmp_path, golden_rows):
    good = write(tmp_path / "a", golden_rows)
    shorter = {name: array[:, :96] if array.shape[1] == 128 else array for name, array in golden_rows.items()}
    write(tmp_path / "b", shorter, records.pretraining_features(96, 20))
    with pytest.raises(ValueError, match=r"b: expected records as in .*a"):
        inspect(f"{tmp_path}/*")
    good.write_bytes(good.read_bytes()[:-9])
    with pytest.raises(ValueError, match="a: record 270 is truncated"):
        inspect(good)
    with pytest.raises(ValueError, match="no file matches"):
        inspect(tmp_path / "nothing")


def test_records_without_masks_are_told_as_such(inspect, tmp_path, golden_rows):
    features = records.unmasked_features(128)
    rows = {name: golden_rows[name] for name in ("input_ids", "input_mask", "segment_ids", "next_sentence_labels")}
    rows |= {"word_starts": rows["input_mask"], "schema_version": np.ones((271, 1), int)}
    assert "the records have no masks" in inspect(write(tmp_path / "out", rows, features))


def test_one_record_in_so_many_is_read_and_numbered_as_in_the_file(inspect, tmp_path, golden_rows):
    path = write(tmp_path / "out", golden_rows)
    printed = inspect(path, "--every=10")
    assert "28 records looked at, one in 10" in printed and "28 records of 128 tokens" in printed
    assert f"{golden_rows['input_mask'][::10].sum() / 28:.1f} used" in printed
    rows = {name: array.copy() for name, array in golden_rows.items()}
    rows["next_sentence_labels"][[33, 40]] = 7  # record 33 is not looked at
    with pytest.raises(ValueError, match="record 40: its next-sentence label"):
        inspect(write(tmp_path / "bad", rows), "--every=10")


def test_files_without_a_record_are_taken_beside_others(inspect, tmp_path, golden_rows):
    write(tmp_path / "b", golden_rows)
    (tmp_path / "a").write_bytes(b"")
    write_tfrecords(str(tmp_path / "c"), [], compress=True)
    printed = inspect(tmp_path / "*")
    assert "a: 0 records" in printed and "b: 271 records" in printed and "c: 0 records" in printed
    with pytest.raises(ValueError, match="no record in these files"):
        inspect(tmp_path / "a")


@pytest.mark.slow
def test_a_command_that_imports_tensorflow_at_once_says_nothing_about_the_machine(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key != "TF_CPP_MIN_LOG_LEVEL"}  # set by the tests
    done = subprocess.run(
        [sys.executable, COMMAND, f"--input_file={tmp_path}/none", f"--vocab_file={VOCAB}"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == f"error: --input_file: no file matches '{tmp_path}/none'\n" and not done.stdout
