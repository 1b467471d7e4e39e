"""The command: 2018's instances, the same bytes each time, and a clear word about bad input."""

import hashlib
import importlib.util
import json
import os
import pathlib
import re
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

from official_bert.data import records

ROOT = pathlib.Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden"
COMMAND = ROOT / "tools" / "create_pretraining_data.py"
RUNS = ["base", "wwm", "two_files_cased", "short", "long"]


@pytest.fixture(scope="module")
def tool():
    """The command as a module, so that not every test starts a process."""
    spec = importlib.util.spec_from_file_location("create_pretraining_data", COMMAND)
    module = importlib.util.module_from_spec(spec)
    names = set(flags.FLAGS)
    spec.loader.exec_module(module)
    yield module
    for name in set(flags.FLAGS) - names:
        delattr(flags.FLAGS, name)


@pytest.fixture
def create(tool):
    """Runs the command with flags."""
    def call(*arguments):
        with flagsaver.flagsaver():
            flags.FLAGS([str(COMMAND), *arguments])
            tool.create()
    return call


def start(*arguments, **kwargs):
    return subprocess.Popen([sys.executable, str(COMMAND), *arguments], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, cwd=ROOT, env=dict(os.environ, PYTHONPATH=str(ROOT)), **kwargs)


def run(*arguments, **kwargs):
    process = start(*arguments, **kwargs)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def flags_of(name):
    meta = json.loads((GOLDEN / f"generator_{name}.json").read_text())
    files = ",".join(str(GOLDEN / file) for file in meta["input_files"])
    vocab = GOLDEN / f"vocab_{meta['vocab']}.txt"
    return [f"--input_file={files}", f"--vocab_file={vocab}",
            *(f"--{flag}={value}" for flag, value in meta["flags"].items())]


def small(tmp_path, *extra, text=None, name="out"):
    """Flags of a quick run over `text` or a golden one."""
    path = GOLDEN / "text_a.txt"
    if text is not None:
        path = tmp_path / "text.txt"
        path.write_bytes(text)
    return [f"--input_file={path}", f"--vocab_file={GOLDEN / 'vocab_uncased.txt'}",
            f"--output_file={tmp_path / name}", "--dupe_factor=2", "--max_seq_length=64", *extra]


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
    assert sorted(path.name for path in tmp_path.iterdir()) == names
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
        create(*small(tmp_path), "--dupe_factor=20", f"--output_file={folder}/a,{folder}/b",
               f"--num_workers={workers}", *extra)
        found.add((digest(folder / "a"), digest(folder / "b")))
    assert len(found) == 1


def test_a_kept_store_gives_the_same_bytes_and_is_not_tokenized_again(create, assert_refused, tmp_path, capsys):
    store = f"--token_store={tmp_path / 'store'}"
    create(*small(tmp_path, name="plain"))
    create(*small(tmp_path, store, name="first"))
    assert capsys.readouterr().err.count("tokenizing") == 2
    create(*small(tmp_path, store, name="second"))
    assert "tokenizing" not in capsys.readouterr().err
    assert digest(tmp_path / "plain") == digest(tmp_path / "first") == digest(tmp_path / "second")
    create(*small(tmp_path, store, "--max_seq_length=32", "--random_seed=2", name="other"))
    assert_refused("made with another --do_lower_case", *small(tmp_path, store, "--do_lower_case=False", name="third"))


@pytest.mark.parametrize("message, changes", [
    ("no file matches", ["--input_file=missing*.txt"]),
    ("no such vocabulary file", ["--vocab_file=missing.txt"]),
    ("max_predictions_per_seq: expected 1 to 61", ["--max_predictions_per_seq=62"]),
    ("max_seq_length: expected 5", ["--max_seq_length=4", "--max_predictions_per_seq=1"]),
    ("dupe_factor: expected at least 1", ["--dupe_factor=0"]),
    ("expected different names", ["--output_file=a,a"]),
    ("--num_workers", ["--num_workers=0"]),
    ("make 1 together", ["--mask_rate=0.9"]),
])
def test_flags_that_cannot_be_used_are_refused(assert_refused, tmp_path, message, changes):
    assert_refused(message, *small(tmp_path, *changes))


@pytest.mark.parametrize("message, text", [
    ("not one token", b""),
    ("not one token", b"\n \n\t\n"),
    ("not valid UTF-8 at byte offset 12", b"First line.\n\xff\xfe second\n"),
])
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


@pytest.mark.parametrize("text, words", [
    (b"It rained.\nNobody knew.\nThe door closed.\n", "one document"),
    (b"It rained.\n\nNobody knew.\n\nThe door closed.\n", "single sentence"),
])
def test_a_corpus_too_poor_for_next_sentences_is_taken_with_a_warning(create, tmp_path, capsys, text, words):
    create(*small(tmp_path, text=text))
    printed = capsys.readouterr()
    assert "warning" in printed.err and words in printed.err and "instances" in printed.out
    labels = [int(row["next_sentence_labels"][0]) for row in records.read_instances([str(tmp_path / "out")])]
    assert labels and ("single" not in words or set(labels) == {1})


@pytest.mark.parametrize("lines", [1, 40])
def test_a_line_of_10_mb_is_taken(create, tmp_path, capsys, lines):
    sentence = b"the quartermaster repainted the harbour ledger . "
    text = b"\n\n".join([sentence] * (lines - 1) + [sentence * (10_000_000 // len(sentence))])
    create(*small(tmp_path, "--max_seq_length=128", text=text))
    assert f"{lines} documents, {lines} sentences" in capsys.readouterr().out


def test_a_mistake_is_one_line_and_a_non_zero_status(tmp_path):
    code, output, errors = run(*small(tmp_path, "--input_file=missing*.txt"))
    assert code == 1 and not output
    assert errors == "error: --input_file: no file matches 'missing*.txt'\n"


def test_a_full_disk_leaves_no_file(create, tmp_path):
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails as on a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    store = f"--token_store={tmp_path / 'store'}"
    create(*small(tmp_path, store, name="fits"))
    before = sorted(tmp_path.iterdir())
    code, _, errors = run(*small(tmp_path, "--dupe_factor=40", store), preexec_fn=limit)
    assert code == 1 and errors.splitlines()[-1].startswith("error: ") and "File too large" in errors
    assert "Traceback" not in errors and sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing_and_can_be_repeated(create, tmp_path, number):
    process = start(*small(tmp_path, "--dupe_factor=4000"))
    for _ in range(400):
        if any(path.name.startswith("out.tmp") for path in tmp_path.iterdir()):
            break
        time.sleep(0.05)
    time.sleep(0.1)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1 and "stopped by" in errors and "Traceback" not in errors
    assert not list(tmp_path.iterdir())
    create(*small(tmp_path))


def peak_of_anonymous_memory(*arguments):
    """RssAnon in kB at its highest; the command starts no process of its own."""
    process, peak = start(*arguments), 0
    while process.poll() is None:
        found = re.search(r"RssAnon:\s+(\d+) kB", pathlib.Path(f"/proc/{process.pid}/status").read_text())
        peak = max(peak, int(found[1]) if found else 0)
        time.sleep(0.01)
    assert process.returncode == 0, process.stderr.read()
    return peak


@pytest.mark.slow
def test_anonymous_memory_does_not_grow_with_the_corpus(tmp_path):
    text = b"\n".join((GOLDEN / f"text_{name}.txt").read_bytes() for name in "ab") * 50
    peaks = []
    for copies in (10, 60):  # 11 and 65 MB
        (tmp_path / "text.txt").write_bytes(text * copies)
        peaks.append(peak_of_anonymous_memory(*small(tmp_path), f"--input_file={tmp_path / 'text.txt'}",
                                              "--num_workers=2", "--max_seq_length=128"))
    assert peaks[1] < 1.1 * peaks[0] and peaks[1] < 400_000
