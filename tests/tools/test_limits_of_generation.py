"""The generator within the limits of a machine: file handles and memory."""

import pathlib
import re
import time

import pytest
from commands import limited
from made_generation import GOLDEN, run, small, start


@pytest.mark.slow
def test_more_outputs_than_file_handles_work_or_are_refused_at_once(tmp_path):
    code, _, errors = run(*small(tmp_path, name="out@1100"), limits=limited(nofile="256:1024"))
    assert code == 1 and errors.startswith("error: 1100 files have to be open at once, this process may open 1024")
    assert not list(tmp_path.iterdir())
    code, _, _ = run(*small(tmp_path, name="out@1100"), limits=limited(nofile="256:4096"))
    assert code == 0 and len(list(tmp_path.glob("out-*"))) == 1100


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
        peaks.append(
            peak_of_anonymous_memory(
                *small(tmp_path), f"--input_file={tmp_path / 'text.txt'}", "--num_workers=2", "--max_seq_length=128"
            )
        )
    assert peaks[1] < 1.1 * peaks[0] and peaks[1] < 400_000
