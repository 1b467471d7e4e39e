import gzip
import shutil
import types

import pytest

from official_bert.tools.corpus import disk_space

TEXT = b"A line of plain text.\n" * 50_000  # 1.1 MB


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Checks a corpus of one file with so many bytes free, some of them held by a stopped run."""

    def run(free, content=TEXT, filters=(), held=0):
        monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=free))
        (tmp_path / "in").write_bytes(content)
        (tmp_path / "work").mkdir(exist_ok=True)
        (tmp_path / "work" / "cleaned").write_bytes(bytes(held))
        disk_space.check_disk_of_corpus(
            [str(tmp_path / "in")], len(content), str(tmp_path), str(tmp_path / "work"), filters
        )

    return run


def test_plain_text_is_announced_with_what_is_free_and_refused_if_that_is_less(check, tmp_path, capsys):
    check(1_800_000)
    assert capsys.readouterr().out == (
        f"disk: about 1.8 MB for the corpus and its work folder, 1.6 times the input, 1.8 MB are free in {tmp_path}\n"
    )
    with pytest.raises(
        ValueError, match=r"about 1\.6 MB are needed for the corpus and its work folder, 1\.6 MB are free"
    ):
        check(1_640_000)


def test_what_a_stopped_run_has_cleaned_is_not_needed_again(check):
    check(1_400_000, held=400_000)


@pytest.mark.parametrize(
    ("content", "filters", "told"),
    [
        (TEXT, ["--min_words"], "1.6 times the input (before --min_words)"),
        (TEXT, ["--mix"], "2.6 times the input (before --mix)"),
        (b'{"text": "Some."}\n' * 65_000, [], "1.6 times the input (compressed files and JSON lines by size on disk)"),
        (gzip.compress(TEXT, 0), [], "1.6 times the input (compressed files and JSON lines by size on disk)"),
    ],
)
def test_input_of_which_an_unknown_share_stays_is_a_warning_and_refused_below_a_quarter(
    check, capsys, content, filters, told
):
    check(300_000, content, filters)
    assert told in (warned := capsys.readouterr().err) and warned.startswith("warning: disk: about ")
    check(10_000_000, content, filters)
    assert told in capsys.readouterr().out
    with pytest.raises(
        ValueError, match=r"[23]\d\d\.\d kB are needed for the corpus and its work folder, 200\.0 kB are free"
    ):
        check(200_000, content, filters)
