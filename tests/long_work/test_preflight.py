"""What would end hours of work is found before they begin."""

import collections
import os
import shutil
import subprocess
import sys

import pytest

from official_bert.long_work import preflight


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("It rained.\n")
    return tmp_path


@pytest.mark.parametrize(
    "outputs, message",
    [
        (["text"], "text: expected the name of a file to write, got a folder"),
        (["out/"], "out/: expected the name of a file"),
        (["out", "./out"], r"\./out: expected different names of outputs, got the same file as out"),
        (["text/a.txt"], "text/a.txt: this output is an input too"),
        (["text/../text/a.txt"], "this output is an input too"),
        (["out.jsonl.gz"], r"out.jsonl.gz: expected a name without \.gz, because what is written is not packed"),
        (["text/a.txt/out"], "text/a.txt: cannot be written: (Not a directory|File exists)"),
        (["/proc/version/out"], "/proc/version: cannot be written"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused(outputs, message):
    with pytest.raises(ValueError, match=message):
        preflight.check_outputs(outputs, ["text/a.txt"], "text/a.txt")


@pytest.mark.parametrize(
    "pattern, output, is_read",
    [
        ("text", "text/deep/out", True),
        ("text/", "text/out", True),
        ("text/*", "text/out", True),
        ("text/*", "text/b/out", False),
        ("text/**", "text/b/out", True),
        ("text/**/*.txt", "text/b/c/out.txt", True),
        ("text/*.txt", "text/out.tfrecord", False),
        ("other,te?t/*", "./text/out", True),
        ("text/*", "text/.out", False),
        ("text/a.txt", "text/a.txt.out", False),
    ],
)
def test_an_output_that_the_next_run_would_read_is_refused(pattern, output, is_read):
    if is_read:
        with pytest.raises(ValueError, match="would be an input the next time"):
            preflight.check_outputs([output], [], pattern)
        assert os.listdir("text") == ["a.txt"]
    else:
        preflight.check_outputs([output], [], pattern)


def test_folders_of_outputs_are_made_and_nothing_else(folder):
    preflight.check_outputs(["new/deep/out", "out"])
    assert sorted(path.name for path in folder.rglob("*")) == ["a.txt", "deep", "new", "text"]


@pytest.mark.skipif(os.getuid() == 0, reason="root writes anywhere")
def test_a_folder_without_the_right_to_write_is_refused(folder):
    (folder / "text").chmod(0o500)
    with pytest.raises(ValueError, match="text: cannot be written: Permission denied"):
        preflight.check_outputs(["text/out"])


def test_needed_room_is_compared_with_the_disk_once_for_all_folders_on_it(monkeypatch):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 5_000_000_000))
    preflight.check_disk({".": 2_000_000_000, "text": 3_000_000_000}, "this")
    with pytest.raises(ValueError, match=r"^\., text: about 5\.5 GB are needed for this, 5\.0 GB are free$"):
        preflight.check_disk({".": 2_500_000_000, "text": 3_000_000_000}, "this")


def test_disk_is_announced_in_one_line_and_a_disk_that_may_become_full_is_a_warning(monkeypatch, capsys):
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 5_000_000_000))
    preflight.announce_disk({".": 2_000_000_000, "text": 400_000_000}, "this")
    preflight.announce_disk({".": 50_000_000}, "what takes a hundredth of the disk")
    preflight.announce_disk({".": 6_000_000_000}, "this")
    told = capsys.readouterr()
    assert told.out == "disk: about 2.4 GB for this, 5.0 GB are free in ., text\n"
    assert told.err == "warning: disk: about 6.0 GB for this, 5.0 GB are free in .: it may become full\n"


def test_the_bytes_of_a_folder_are_those_of_all_files_below_it(folder):
    assert (
        preflight.bytes_in(".") == len("It rained.\n") == preflight.bytes_in(str(folder / "text"))
        and preflight.bytes_in("none") == 0
    )


def reserve(count, soft, hard):
    """Runs `reserve_handles` in a process with these limits; returns its limit afterwards, or the error."""
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from official_bert.long_work import preflight\n"
        f"try: preflight.reserve_handles({count})\nexcept ValueError as error: print(error)\n"
        "else: print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    return subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True).stdout


def test_file_handles_are_reserved_within_the_hard_limit():
    assert reserve(100, 200, 300) == "200\n"
    assert reserve(200, 200, 300) == "264\n"
    assert reserve(1100, 200, 300).startswith("1100 files have to be open at once, this process may open 300")
