"""Runs of the generator's command over golden text, for its tests."""

import os
import pathlib
import subprocess
import sys

from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.text.tokenization import FullTokenizer

ROOT = pathlib.Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden"
COMMAND = ROOT / "tools" / "create_pretraining_data.py"


def facts_of(vocab):
    """The facts of {token: id}."""
    return VocabularyFacts.of(FullTokenizer("vocab.txt", vocab=vocab))


def start(*arguments, limits=(), **kwargs):
    return subprocess.Popen(
        [*limits, sys.executable, str(COMMAND), *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        **kwargs,
    )


def run(*arguments, **kwargs):
    process = start(*arguments, **kwargs)
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def small(tmp_path, *extra, text=None, name="out"):
    """Flags of a quick run over `text` or a golden one."""
    path = GOLDEN / "text_a.txt"
    if text is not None:
        path = tmp_path / "text.txt"
        path.write_bytes(text)
    return [
        f"--input_file={path}",
        f"--vocab_file={GOLDEN / 'vocab_uncased.txt'}",
        f"--output_file={tmp_path / name}",
        "--dupe_factor=2",
        "--max_seq_length=64",
        *extra,
    ]
