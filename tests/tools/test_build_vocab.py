"""The command: a refused option; stopped in the middle it keeps nothing, leaves nothing, and the same command then
gives the same file.
"""

import gzip
import signal
import subprocess
import sys
import time

import pytest
from commands import run_here


def test_a_smoothing_of_one_language_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("some words\n")
    done = run_here(
        "tools/build_vocab.py", f"--input_file={tmp_path}/a.txt", f"--output_file={tmp_path}/v.txt", "--smoothing=0.5"
    )
    assert done.returncode == 1 and "--smoothing: expected several languages in --input_file with it" in done.stderr


@pytest.mark.parametrize("cut", [slice(0, 300), slice(0, 2)])
def test_a_cut_off_file_is_named(tmp_path, cut):
    text = "".join(f"word{number * 7919 % 1009}\n" for number in range(300)).encode()
    (tmp_path / "a.gz").write_bytes(gzip.compress(text)[cut])
    done = run_here(
        "tools/build_vocab.py", f"--input_file={tmp_path}/a.gz", f"--output_file={tmp_path}/v.txt", "--num_workers=1"
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "the compressed file is damaged or cut off here" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_leaves_nothing_and_can_be_repeated(root, tmp_path, number):
    (tmp_path / "text.txt").write_text("".join(f"word{n % 20_011} and number{n % 10_007}\n" for n in range(600_000)))
    command = [
        sys.executable,
        str(root / "tools/build_vocab.py"),
        f"--input_file={tmp_path}/text.txt",
        f"--output_file={tmp_path}/out/vocab.txt",
        "--vocab_size=3000",
        "--num_workers=2",
    ]
    subprocess.run(command, check=True, capture_output=True)
    whole = (tmp_path / "out/vocab.txt").read_bytes()
    (tmp_path / "out/vocab.txt").unlink()
    for seconds in (0.6, 1.5, 2.5):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        time.sleep(seconds)
        process.send_signal(number)
        begin = time.monotonic()
        errors = process.communicate(timeout=60)[1]
        assert time.monotonic() - begin < 6 and process.returncode and "Traceback" not in errors
        assert not list((tmp_path / "out").iterdir())
    subprocess.run(command, check=True, capture_output=True)
    assert (tmp_path / "out/vocab.txt").read_bytes() == whole


def test_a_vocabulary_without_room_for_words_names_the_number_to_change(tmp_path):
    (tmp_path / "a.txt").write_text("some words\n")
    arguments = (
        "tools/build_vocab.py",
        f"--input_file={tmp_path}/a.txt",
        f"--output_file={tmp_path}/v.txt",
        "--num_workers=1",
    )
    done = run_here(*arguments, "--vocab_size=20")
    assert done.returncode == 1 and done.stderr.endswith(
        "error: --vocab_size: expected more than the 104 entries of 5 special tokens and 99 [unusedN] slots, got 20; "
        "for a small vocabulary use fewer slots (--num_unused=0)\n"
    )
    done = run_here(*arguments, "--vocab_size=105")
    assert (
        done.returncode == 1
        and "give a larger size (--vocab_size), fewer [unusedN] slots (--num_unused) or fewer" in done.stderr
    )
    assert run_here(*arguments, "--vocab_size=30", "--num_unused=0", "--min_frequency=1").returncode == 0
