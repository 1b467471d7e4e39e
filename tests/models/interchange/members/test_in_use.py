"""Relatives over WordPieces are fine-tuned from Hugging Face's folders, answer, and are exported in every precision."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from made_checkpoints import WORDS, stored_small

import official_bert
from official_bert.models.interchange import formats

ERF = {"hidden_act": "gelu_erf", "masked_lm_act": "gelu_erf"}
KINDS = {"distilbert": {"type_vocab_size": 0, "pooler_act": "relu", "hidden_act": "gelu_erf"},
         "electra": {"embedding_size": 4, "pooler_act": "gelu_erf", **ERF}, "ernie": {"task_type_vocab_size": 3, "hidden_act": "relu"},
         "albert": {"embedding_size": 4, "layer_groups": 1},
         "mpnet": {"type_vocab_size": 0, "relative_buckets": 32, "first_position": 2, "max_position_embeddings": 16, **ERF},
         "modernbert": {"type_vocab_size": 0, "norm": "pre", "feed_forward": "gated", "biases": False, "pooler_norm": True,
                        "pooling": "mean", "rotary": 1e4, "window": 2, "window_rotary": 1e3, "pooler_act": "gelu_erf", **ERF},
         "deberta-v2": {"type_vocab_size": 0, "position_buckets": 4, "position_span": 12, "pooler_act": "gelu_erf",
                        "hidden_act": "gelu_erf"}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_relative_is_tuned_and_exported(kind, tmp_path):
    stored = stored_small("", **KINDS[kind])
    formats.write(stored, "hugging_face", str(tmp_path / "theirs"))
    assert formats.read(str(tmp_path / "theirs")).model_type == kind
    words = WORDS[5:9]
    rows = [{"text": f"{first} {second}", "label": "yes" if first == words[0] else "no"} for first in words for second in words]
    official_bert.fine_tune("classification", init_checkpoint=tmp_path / "theirs", train=rows, output_dir=tmp_path / "run", epochs=1,
                            batch_size=8, max_seq_length=10, learning_rate=1e-3, report=lambda _: None)
    texts = [row["text"] for row in rows]
    wanted = np.array([answer["logits"] for answer in official_bert.Predictor(tmp_path / "run")(texts)])
    assert np.ptp(wanted) > 0
    for precision, close in (("float32", 1e-5), ("bfloat16", 0.05), ("int8", 0.05)):
        out = tmp_path / precision
        done = subprocess.run([sys.executable, "-m", "official_bert.run_export", f"--checkpoint={tmp_path / 'run'}", f"--output={out}",
                               f"--precision={precision}"], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-800:]
        model = tf.saved_model.load(str(out / "text" / "1"))
        got = model.signatures["serving_default"](text=tf.constant(texts))["logits"].numpy()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=close * max(1.0, np.abs(wanted).max()))
