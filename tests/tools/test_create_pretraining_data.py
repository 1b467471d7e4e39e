"""The command: 2018's instances, the same bytes each time, and clear errors for bad input."""

import functools
import hashlib
import json
import re
import shutil
import signal
import time

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver
from commands import imported_tool, limited, own_signals
from made_generation import COMMAND, GOLDEN, run, small, start

from official_bert.data.record_files import records
from official_bert.long_work import provenance

RUNS = ["base", "wwm", "two_files_cased", "short", "long"]


@pytest.fixture(scope="module")
def tool():
    with imported_tool("create_pretraining_data") as module:
        yield module


@pytest.fixture
def create(tool):
    """Runs the command with flags."""

    def call(*arguments):
        with flagsaver.flagsaver(), own_signals():
            flags.FLAGS([str(COMMAND), *arguments])
            tool.main([])

    return call


def flags_of(name):
    meta = json.loads((GOLDEN / f"generator_{name}.json").read_text())
    files = ",".join(str(GOLDEN / file) for file in meta["input_files"])
    vocab = GOLDEN / f"vocab_{meta['vocab']}.txt"
    return [
        f"--input_file={files}",
        f"--vocab_file={vocab}",
        *(f"--{flag}={value}" for flag, value in meta["flags"].items()),
    ]


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def assert_refused(create, tmp_path):
    def check(message, *arguments):
        before = sorted(tmp_path.iterdir())
        with pytest.raises(ValueError, match=message):
            create(*arguments)
        assert sorted(tmp_path.iterdir()) == before, "something was left behind"

    return check


@pytest.mark.parametrize("name", RUNS)
def test_the_instances_of_2018_come_out_in_their_order(create, tmp_path, name):
    create(*flags_of(name), f"--output_file={tmp_path / 'out'}")
    wanted = np.load(GOLDEN / f"generator_{name}.npz")
    rows = list(records.read_instances([str(tmp_path / "out")]))
    assert sorted(rows[0]) == sorted(wanted)
    for feature in wanted:
        np.testing.assert_array_equal([row[feature] for row in rows], wanted[feature], err_msg=feature)


def test_several_files_and_gzip_hold_the_same_instances_by_turns(create, tmp_path):
    create(*flags_of("base"), f"--output_file={tmp_path / 'out@3'}", "--gzip_compress")
    names = [f"out-0000{n}-of-00003" for n in range(3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(f".{name}.made_with.json" for name in names), *names]
    files = [list(records.read_instances([str(tmp_path / name)])) for name in names]
    wanted = np.load(GOLDEN / "generator_base.npz")["input_ids"]
    assert sum(map(len, files)) == len(wanted)
    for index, ids in enumerate(wanted):
        np.testing.assert_array_equal(files[index % 3][index // 3]["input_ids"], ids)


@pytest.mark.parametrize("extra", [(), ("--gzip_compress",), ("--order=sharded",)])
def test_the_bytes_are_the_same_for_1_2_and_4_workers(create, tmp_path, extra):
    found = set()
    for workers in (1, 2, 4):
        folder = tmp_path / str(workers)
        create(
            *small(tmp_path),
            "--dupe_factor=20",
            f"--output_file={folder}/a,{folder}/b",
            f"--num_workers={workers}",
            *extra,
        )
        found.add((digest(folder / "a"), digest(folder / "b")))
    assert len(found) == 1


def test_a_kept_store_gives_the_same_bytes_and_is_not_tokenized_again(create, assert_refused, tmp_path, capsys):
    store = f"--token_store={tmp_path / 'store'}"
    create(*small(tmp_path, name="plain"))
    create(*small(tmp_path, store, name="first"))
    assert len(re.findall(r"tokenizing: [\d.]+ s, ", capsys.readouterr().err)) == 2
    create(*small(tmp_path, store, name="second"))
    assert "tokenizing" not in capsys.readouterr().err
    assert digest(tmp_path / "plain") == digest(tmp_path / "first") == digest(tmp_path / "second")
    create(*small(tmp_path, store, "--max_seq_length=32", "--random_seed=2", name="other"))
    assert_refused("made with another --do_lower_case", *small(tmp_path, store, "--do_lower_case=False", name="third"))


@pytest.mark.parametrize(
    "message, changes",
    [
        ("no file matches", ["--input_file=missing*.txt"]),
        ("no such vocabulary file", ["--vocab_file=missing.txt"]),
        ("max_predictions_per_seq: expected 1 to 61", ["--max_predictions_per_seq=62"]),
        ("max_seq_length: expected 5", ["--max_seq_length=4", "--max_predictions_per_seq=1"]),
        ("dupe_factor: expected at least 1", ["--dupe_factor=0"]),
        ("expected different names", ["--output_file=a,a"]),
        ("--num_workers", ["--num_workers=0"]),
        (
            "--masked_lm_prob: expected another --masking than dynamic with it",
            ["--masking=dynamic", "--masked_lm_prob=0.2"],
        ),
        ("--max_predictions_per_seq: expected another --masking", ["--masking=dynamic", "--max_predictions_per_seq=9"]),
        ("--span_p: expected --masking=span with it", ["--span_p=0.3"]),
        ("--span_longest: expected --masking=span with it", ["--masking=whole_word", "--span_longest=3"]),
        ("--short_seq_prob: expected a --sentence_task with it", ["--sentence_task=none", "--short_seq_prob=0.2"]),
        ("--token_store: expected --engine=local with it", ["--engine=beam", "--token_store=store"]),
        ("--beam_options: expected --engine=beam with it", ["--beam_options=--runner=DirectRunner"]),
        ("--order: expected sharded with --engine=beam", ["--engine=beam", "--order=2018"]),
        ("--do_whole_word_mask: expected no --masking", ["--do_whole_word_mask", "--masking=span"]),
        ("--do_whole_word_mask: expected no --masking", ["--do_whole_word_mask", "--masking=token"]),
        ("masking.span_p: expected a number between 0 and 1, got 1.5", ["--masking=span", "--span_p=1.5"]),
        ("text_a.txt: this output is an input too", [f"--output_file={GOLDEN / 'text_a.txt'}"]),
        ("vocab_uncased.txt: this output is an input too", [f"--output_file={GOLDEN / 'vocab_uncased.txt'}"]),
        ("golden: expected the name of a file to write, got a folder", [f"--output_file={GOLDEN}"]),
        ("/dev/null: cannot be written", ["--output_file=/dev/null/out"]),
        ("/dev/null: cannot be written", ["--work_dir=/dev/null"]),
        ("would be an input the next time", [f"--input_file={GOLDEN}/text*", f"--output_file={GOLDEN}/text_c"]),
        ("golden: expected a token store or an empty folder", [f"--token_store={GOLDEN}"]),
        ("text_a.txt: expected a folder for the token store", [f"--token_store={GOLDEN / 'text_a.txt'}"]),
        ("make 1 together", ["--mask_rate=0.9"]),
        (
            "vocab_cased.txt: more than 1 % of its entries have capital letters",
            [f"--vocab_file={GOLDEN / 'vocab_cased.txt'}"],
        ),
    ],
)
def test_flags_that_cannot_be_used_are_refused(assert_refused, tmp_path, message, changes):
    assert_refused(message, *small(tmp_path, *changes))


@pytest.mark.parametrize(
    "message, text",
    [
        ("not one token", b""),
        ("not one token", b"\n \n\t\n"),
        ("not valid UTF-8 at byte offset 12", b"First line.\n\xff\xfe second\n"),
    ],
)
def test_text_that_cannot_be_used_is_refused(assert_refused, tmp_path, message, text):
    assert_refused(message, *small(tmp_path, text=text))


def test_bad_text_can_be_replaced(create, tmp_path):
    bad = b"A lantern fell.\nThe \xffdoor closed.\nIt rained.\n\nSomebody laughed.\nNobody knew.\n"
    create(*small(tmp_path, "--on_bad_text=replace", text=bad, name="bad"))
    create(*small(tmp_path, text=bad.replace(b"\xff", b""), name="good"))
    assert digest(tmp_path / "bad") == digest(tmp_path / "good")


def test_a_vocabulary_without_mask_or_with_an_entry_twice_is_refused(assert_refused, tmp_path):
    words = (GOLDEN / "vocab_uncased.txt").read_text(encoding="utf-8").split("\n")
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(word for word in words if word != "[MASK]"), encoding="utf-8")
    assert_refused(r"\[MASK\]", *small(tmp_path, f"--vocab_file={vocab}"))
    vocab.write_text("\n".join([*words[:40], words[20], *words[40:]]), encoding="utf-8")
    assert_refused("vocab.txt:41: vocabulary entry", *small(tmp_path, f"--vocab_file={vocab}"))


def test_more_predictions_than_a_row_has_room_for_are_a_warning(create, tmp_path, capsys):
    create(*small(tmp_path, "--max_predictions_per_seq=10"))  # of 9.6
    create(*small(tmp_path, "--masking=dynamic"))
    assert "are predicted" not in capsys.readouterr().err
    create(*small(tmp_path, "--max_predictions_per_seq=10", "--masked_lm_prob=0.5"))
    assert (
        "warning: at most max_predictions_per_seq 10 of 64 tokens are predicted, 15.6%, although the share to predict "
        "is 50.0%\n" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    "text, words",
    [
        (b"It rained.\nNobody knew.\nThe door closed.\n", "one document"),
        (b"It rained.\n\nNobody knew.\n\nThe door closed.\n", "single sentence"),
    ],
)
def test_a_corpus_too_poor_for_next_sentences_is_taken_with_a_warning(create, tmp_path, capsys, text, words):
    create(*small(tmp_path, text=text))
    printed = capsys.readouterr()
    assert "warning" in printed.err and words in printed.err and "instances" in printed.out
    labels = [int(row["next_sentence_labels"][0]) for row in records.read_instances([str(tmp_path / "out")])]
    assert labels and ("single" not in words or set(labels) == {1})


@pytest.mark.slow
@pytest.mark.parametrize("lines", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_a_line_of_10_mb_is_taken(create, tmp_path, capsys, lines):
    sentence = b"the quartermaster repainted the harbour ledger . "
    text = b"\n\n".join([sentence] * (lines - 1) + [sentence * (10_000_000 // len(sentence))])
    create(*small(tmp_path, "--max_seq_length=128", text=text))
    assert f"kept: all {lines} documents, all {lines} sentences, " in capsys.readouterr().out


def test_a_mistake_is_one_line_and_a_non_zero_status(tmp_path):
    code, output, errors = run(*small(tmp_path, "--input_file=missing*.txt"))
    assert code == 1 and not output
    assert errors == "error: --input_file: no file matches 'missing*.txt'\n"


def test_a_full_disk_leaves_no_file(create, tmp_path):
    store = f"--token_store={tmp_path / 'store'}"
    create(*small(tmp_path, store, name="fits"))
    before = sorted(tmp_path.iterdir())
    code, _, errors = run(*small(tmp_path, "--dupe_factor=40", store), limits=limited(fsize=300_000))
    assert code == 1 and errors.splitlines()[-1].startswith("error: ") and "File too large" in errors
    assert "Traceback" not in errors and sorted(tmp_path.iterdir()) == before


def wait_for(condition, seconds=60):
    """Waits until something has happened; fails otherwise."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_leaves_its_work_folder_and_goes_on_from_it(create, tmp_path, capsys, number):
    arguments = small(tmp_path, "--dupe_factor=4000")
    process = start(*arguments)
    wait_for((tmp_path / "out.work" / "tokens").exists)
    begin = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "stopped by" in errors and "Traceback" not in errors
    assert time.monotonic() - begin < 6  # two seconds, and more for a busy machine
    assert [path.name for path in tmp_path.iterdir()] == ["out.work"]
    with pytest.raises(
        ValueError, match=r"out\.work: holds the finished work of a stopped run with another --dupe_factor"
    ):
        create(*small(tmp_path))
    create(*small(tmp_path), "--discard")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.made_with.json", "out"]


def test_a_disk_that_is_too_small_is_refused_before_work(assert_refused, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 50_000))
    assert_refused(
        f"{tmp_path}: about .* are needed for records and temporary files, 50.0 kB are free",
        *small(tmp_path, "--dupe_factor=40"),
    )


def test_the_disk_that_records_take_is_announced_and_is_what_they_take(create, tmp_path, capsys, monkeypatch):
    """Within a half: the estimate is for English articles, and this text is a few kilobytes with a vocabulary of
    another.
    """
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**7))
    create(*small(tmp_path, "--dupe_factor=40", "--max_predictions_per_seq=5"))
    [told] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("disk: about ")]
    assert told.endswith(f"are free in {tmp_path}") and " for records and temporary files, " in told
    records_alone = (tmp_path / "out").stat().st_size / 1e6
    assert records_alone < 2 * float(told.split()[2]) and float(told.split()[2]) < 4 * records_alone


def test_a_length_below_the_default_of_predictions_works_as_in_2018(create, tmp_path):
    """2018's records have as many places for predictions as the flag says, however short the sequence."""
    create(*small(tmp_path, "--max_seq_length=20"))
    rows = list(records.read_instances([str(tmp_path / "out")]))
    assert {(len(row["input_ids"]), len(row["masked_lm_ids"])) for row in rows} == {(20, 20)}
    for row in rows:
        wanted = max(1, round(int(row["input_mask"].sum()) * 0.15))
        assert row["masked_lm_weights"].tolist() == [1.0] * wanted + [0.0] * (20 - wanted)


def test_spans_are_as_long_as_the_options_say(create, tmp_path):
    """With p near 1 every span is a word; with p near 0 and at most 4 words a quarter of the spans has each length."""
    means = []
    for span_p, longest in ((0.999, 10), (0.001, 4)):
        create(
            *small(
                tmp_path,
                "--masking=span",
                f"--span_p={span_p}",
                f"--span_longest={longest}",
                "--dupe_factor=10",
                "--max_seq_length=128",
                f"--vocab_file={GOLDEN / 'vocab_uncased.txt'}",
            )
        )
        runs = tokens = 0
        for row in records.read_instances([str(tmp_path / "out")]):
            places = row["masked_lm_positions"][row["masked_lm_weights"] > 0]
            runs, tokens = runs + 1 + int((np.diff(places) > 1).sum()), tokens + len(places)
        means.append(tokens / runs)
    assert means[1] > 1.5 * means[0]


@pytest.mark.parametrize(
    "text, files, words",
    [
        (
            b"It rained.\nNobody knew.\n\nThe door closed.\nA lantern fell.\n",
            4,
            [
                "2 of 4 output files (number 0, 1), each from its own documents: each is one document",
                "2 of 4 output files (number 2, 3), each from its own documents: each has no document",
            ],
        ),
        (
            b"\n\n".join([b"It rained."] * 12),
            3,
            ["3 of 3 output files (number 0, 1, 2)", "documents of a single sentence"],
        ),
    ],
)
def test_poor_shards_are_named(create, tmp_path, capsys, text, files, words):
    create(*small(tmp_path, "--order=sharded", text=text, name=f"out@{files}"))
    warnings = " ".join(capsys.readouterr().err.split())
    assert all(part in warnings for part in words)
    labels = [
        [int(row["next_sentence_labels"][0]) for row in records.read_instances([str(path)])]
        for path in sorted(tmp_path.glob("out-*"))
        if records.holds_records(str(path))
    ]
    assert len(labels) == (2 if files == 4 else 3) and (files == 4 or all(set(part) == {1} for part in labels))


def test_the_account_of_the_tokens_is_printed_and_written(create, tmp_path, capsys):
    create(*small(tmp_path, f"--report_file={tmp_path / 'deep' / 'report.json'}"))
    printed = capsys.readouterr()
    account = json.loads((tmp_path / "deep" / "report.json").read_text(encoding="utf-8"))["yield"]
    tokens, rows = account["units"]["tokens"], list(records.read_instances([str(tmp_path / "out")]))
    assert tokens["out"] == sum(int(row["input_mask"].sum()) - 3 for row in rows)
    assert tokens["in"] + tokens["repeated"] == tokens["out"] + tokens["dropped"]
    assert sum(tokens["percent"].values()) == pytest.approx(100)
    cut = account["dropped"]["cut off at --max_seq_length"]
    assert cut["amounts"]["tokens"] == tokens["dropped"] > 0 and len(cut["examples"]) == 3
    share = tokens["dropped"] / (tokens["in"] + tokens["repeated"])
    assert share > 0.05 and f"warning: {share:.1%} of the tokens of running text were dropped" in printed.err
    assert f"{tokens['in']:,}" in printed.out


@pytest.mark.slow
@pytest.mark.parametrize("order", ["2018", "sharded"])
def test_a_killed_run_goes_on_and_gives_the_same_bytes(create, tmp_path, order):
    text = tmp_path / "text.txt"
    text.write_bytes(b"\n".join((GOLDEN / f"text_{name}.txt").read_bytes() for name in "ab") * 60)
    (tmp_path / "whole").mkdir()
    arguments = [
        f"--input_file={text}",
        f"--vocab_file={GOLDEN / 'vocab_uncased.txt'}",
        "--dupe_factor=30",
        f"--order={order}",
        "--num_workers=1",
    ]
    create(*arguments, f"--output_file={tmp_path / 'whole' / 'out'}@8")
    work, finished = tmp_path / "killed" / "out-00000-of-00008.work", {}
    sign = "part-*.json" if order == "sharded" else "tokens"  # that something more is finished
    for kill in range(3):
        process = start(*arguments, f"--output_file={tmp_path / 'killed' / 'out'}@8")
        wait_for(
            functools.partial(lambda number: len(list(work.glob(sign))) > number, kill if order == "sharded" else 0)
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = {
            path.name: path.stat().st_ino for path in work.glob("part-?????") if (work / f"{path.name}.json").exists()
        }
        assert all(now[name] == inode for name, inode in finished.items()), "a finished shard was made again"
        finished = now
    assert not list((tmp_path / "killed").glob("out-*-of-?????"))
    assert order == "2018" or len(finished) >= 3
    create(*arguments, f"--output_file={tmp_path / 'killed' / 'out'}@8")
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )
    for path in (tmp_path / "whole").iterdir():
        assert digest(path) == digest(tmp_path / "killed" / path.name)


def test_lower_casing_that_deletes_vowel_signs_is_a_warning_with_a_kept_store_too(create, tmp_path, capsys):
    store = f"--token_store={tmp_path / 'store'}"
    arguments = small(tmp_path, store, text="यह एक वाक्य है।\nदूसरा वाक्य यहाँ है।\n\nIt rained.\n".encode())
    for _ in range(2):
        create(*arguments)
        # Of 12, 17 and 9 characters 2, 4 and 0.
        assert "warning: lower-casing deletes 15.8% of the text's characters" in capsys.readouterr().err
    text = "It rained all day long, and the café in the street was closed.\nShe sang.\n\nIt rained.\n"
    create(*small(tmp_path, text=text.encode(), name="other"))
    assert "lower-casing" not in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["local", pytest.param("beam", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("text", "warned"), [("中 国 人 口。\n中 人。\n\n中 国。\n", True), ("unaffable walkers. \n" * 3, False)]
)
def test_whole_words_that_are_single_tokens_are_a_warning(create, tmp_path, capsys, text, warned, engine):
    for masking in ("--do_whole_word_mask", "--masking=whole_word", "--masking=token"):
        create(*small(tmp_path, masking, f"--engine={engine}", text=text.encode(), name=f"{masking[2:]}"))
        told = (
            "warning: only 0.0% of the tokens continue a word (##), so masking whole words hardly differs"
            in capsys.readouterr().err
        )
        assert told == (warned and "token" not in masking)


def test_copies_are_kept_apart_if_the_text_is_known_to_hold_some_or_if_asked(create, tmp_path):
    words = [line for line in (GOLDEN / "text_a.txt").read_text(encoding="utf-8").splitlines() if line][:6]
    text = tmp_path / "text.txt"
    text.write_text(
        "\n\n".join(["\n".join(words[start : start + 2]) for start in (0, 2, 4)] * 4) + "\n", encoding="utf-8"
    )

    def records_of(name, *more):
        create(
            f"--input_file={text}",
            f"--vocab_file={GOLDEN}/vocab_uncased.txt",
            f"--output_file={tmp_path}/{name}",
            "--dupe_factor=8",
            "--num_workers=1",
            *more,
        )
        return (tmp_path / name).read_bytes()

    as_in_2018 = records_of("2018")
    assert as_in_2018 == records_of("asked_not", "--nocopies_apart")
    apart = records_of("asked", "--copies_apart")
    assert apart != as_in_2018
    provenance.write_origin(str(text), {provenance.COPIES: True})
    assert records_of("known") == apart and records_of("known_but_not_wanted", "--nocopies_apart") == as_in_2018
    # another text than the noted one
    text.write_text(text.read_text(encoding="utf-8") + "\n".join(words) + "\n", encoding="utf-8")
    assert records_of("changed") == records_of("changed_and_asked_not", "--nocopies_apart")
