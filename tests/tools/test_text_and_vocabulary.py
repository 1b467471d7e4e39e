"""`create_pretraining_data` with a vocabulary that cannot spell the text, and with files that are no prepared text."""

import json

import pytest
from commands import run_here

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "this", "was", "a", "day", "so", "it"]
TEXT = "THIS WAS A DAY\nSO IT WAS\n\nIT WAS\n"


def create(folder, text, *more, files="text.txt"):
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    (folder / "text.txt").write_text(text, encoding="utf-8")
    return run_here(
        "tools/create_pretraining_data.py",
        f"--input_file={folder}/{files}",
        f"--vocab_file={folder}/vocab.txt",
        f"--output_file={folder}/new/out",
        "--dupe_factor=1",
        *more,
    )


@pytest.mark.parametrize(
    ("text", "more", "hint"),
    [
        (
            TEXT,
            ["--do_lower_case=False"],
            "the vocabulary has no capital letters, and --do_lower_case=False keeps those of the text",
        ),
        ("一天\n也是\n\n是\n", [], "was it made from text of this language?"),
        (TEXT, [], ""),
    ],
)
def test_text_that_the_vocabulary_cannot_spell_is_a_warning_and_in_the_account(tmp_path, text, more, hint):
    done = create(tmp_path, text, *more)
    assert done.returncode == 0, done.stderr
    assert ("warning: 100.0% of the tokens are [UNK]" in done.stderr) == ("found: [UNK]" in done.stdout) == bool(hint)
    assert hint in done.stderr
    assert json.loads((tmp_path / "new/.out.made_with.json").read_text())["do_lower_case"] == (not more)


def test_held_out_documents_among_the_others_are_a_warning_and_raw_text_is_refused(tmp_path):
    (tmp_path / "held_out-text.txt").write_text("it was\n")
    done = create(tmp_path, TEXT, files="*text.txt")
    assert done.returncode == 0 and "held_out-text.txt: documents that were held out are read together" in done.stderr
    (tmp_path / "raw").mkdir()
    done = create(tmp_path / "raw", '{"text": "it was"}\n')
    assert (
        done.returncode == 1 and "text.txt: expected text with a sentence on each line, got JSON lines" in done.stderr
    )
    assert not (tmp_path / "raw/new").exists()
    done = run_here(
        "tools/build_vocab.py", f"--input_file={tmp_path}/raw/text.txt", f"--output_file={tmp_path}/raw/new.txt"
    )
    assert done.returncode == 1 and "got JSON lines" in done.stderr and not (tmp_path / "raw/new.txt").exists()
