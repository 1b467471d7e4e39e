"""The archive for GLUE's server, made from folders of runs."""

import zipfile

import pytest
from commands import run_here

from official_bert.tasks.texts.glue_files import SUBMISSION_FILES


def zip_runs(root, *arguments):
    return run_here("tools/glue_submission.py", *arguments)


@pytest.fixture
def runs(tmp_path):
    """Makes a folder for each task; MNLI's holds three files."""
    for name in SUBMISSION_FILES:
        folder = tmp_path / "runs" / ("mnli" if name in ("AX", "MNLI-m", "MNLI-mm") else name.lower())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.tsv").write_text(f"index\tprediction\n0\t{name}\n")
    return tmp_path / "runs"


def test_the_archive_holds_every_file_at_its_top(root, runs, tmp_path):
    done = zip_runs(root, f"--runs={runs}/*", f"--output_file={tmp_path}/submission.zip")
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(tmp_path / "submission.zip") as archive:
        assert (
            sorted(archive.namelist()) == sorted(f"{name}.tsv" for name in SUBMISSION_FILES)
            and len(archive.namelist()) == 11
        )
        assert archive.read("MNLI-mm.tsv") == b"index\tprediction\n0\tMNLI-mm\n"


def test_what_is_missing_or_there_twice_is_named_and_nothing_written(root, runs, tmp_path):
    (runs / "rte/RTE.tsv").unlink()
    output = tmp_path / "submission.zip"
    done = zip_runs(root, f"--runs={runs}/*", f"--output_file={output}")
    assert done.returncode == 1 and not output.exists()
    assert "no file of RTE; --partial writes the archive without them" in done.stderr
    assert zip_runs(root, f"--runs={runs}/*", f"--output_file={output}", "--partial").stdout.endswith("missing: RTE\n")
    (runs / "qqp/CoLA.tsv").write_text("")
    done = zip_runs(root, f"--runs={runs}/*", f"--output_file={output}")
    assert done.returncode == 1 and "qqp/CoLA.tsv: " in done.stderr and "cola/CoLA.tsv exists too" in done.stderr
    done = zip_runs(root, f"--runs={tmp_path}/none", f"--output_file={output}")
    assert done.returncode == 1 and "none of CoLA.tsv, " in done.stderr and "Traceback" not in done.stderr
