"""Models of all members over WordPieces are fine-tuned from Hugging Face's folders, answer, and are exported in every
precision.
"""

import dataclasses
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from commands import run_here
from made_checkpoints import FAMILY, WORDS, stored_small

import official_bert
from official_bert.models.interchange import formats

KINDS = sorted(path.name for path in FAMILY.iterdir() if path.is_dir())


def write(kind: str, folder: pathlib.Path) -> str:
    """Writes an encoder of the kind of a model in tests/golden/family, over a small list of WordPieces; returns its
    `model_type`.
    """
    source = formats.read(str(next(path for path in (FAMILY / kind).iterdir() if path.is_dir())))
    assert source.config is not None
    sizes = dataclasses.asdict(source.config) | {
        "vocab_size": len(WORDS),
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    formats.write(
        dataclasses.replace(stored_small("", **sizes), model_type=source.model_type), "hugging_face", str(folder)
    )
    return source.model_type


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_relative_is_tuned_and_exported(kind, tmp_path, monkeypatch, root):
    monkeypatch.chdir(root)
    model_type = write(kind, tmp_path / "theirs")
    assert formats.read(str(tmp_path / "theirs")).model_type == model_type
    words = WORDS[5:9]
    rows = [
        {"text": f"{first} {second}", "label": "yes" if first == words[0] else "no"}
        for first in words
        for second in words
    ]
    official_bert.fine_tune(
        "classification",
        init_checkpoint=tmp_path / "theirs",
        train=rows,
        output_dir=tmp_path / "run",
        epochs=1,
        batch_size=8,
        max_seq_length=10,
        learning_rate=1e-3,
        report=lambda _: None,
    )
    texts = [row["text"] for row in rows]
    wanted = np.array([answer["logits"] for answer in official_bert.Predictor(tmp_path / "run")(texts)])
    assert np.ptp(wanted) > 0
    for precision, close in (("float32", 1e-5), ("bfloat16", 0.05)):
        out = tmp_path / precision
        done = run_here(
            "-m",
            "official_bert.run_export",
            f"--checkpoint={tmp_path / 'run'}",
            f"--output={out}",
            f"--precision={precision}",
            "--warmup_batch_sizes=",
        )
        assert done.returncode == 0, done.stderr[-800:]
        model = tf.saved_model.load(str(out / "text" / "1"))
        got = model.signatures["serving_default"](text=tf.constant(texts))["logits"].numpy()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=close * max(1.0, np.abs(wanted).max()))
