"""Weights of tags and smoothing in the loss of training: by hand, and never with a CRF."""

import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import make_config, resolve

from official_bert.tasks.loading import load_task


@pytest.mark.parametrize("features", ["", "last"])
def test_words_weigh_in_training_as_their_tags_are_balanced(tmp_path, features):
    path = tmp_path / "train.conll"
    path.write_text("".join(f"Anna{number} B-PER\nsings O\nin O\nthe O\n\n" for number in range(20)))
    frozen = {"features": features, "lstm_size": 8} if features else {}
    data = resolve(
        make_config(
            "ner",
            options={"class_weights": "balanced", "label_smoothing": 0.1, "doc_stride": 8, **frozen},
            training={"batch_size": 4, "eval_batch_size": 4},
        ),
        train_file=path,
    )
    assert data.task.options.labels == ("O", "B-PER", "I-PER")
    # 18 sentences are trained on
    assert f"weights of the tags: O {72 / (2 * 54):.4g}, B-PER {72 / (2 * 18):.4g}, I-PER 1" in data.notes
    batch = {name: tf.constant(value) for name, value in data.train.batch(0).items()}
    held_out = data.held_out.source.batch(0)
    assert "loss_weights" not in held_out
    tags, real = batch["tags"].numpy(), batch["tag_mask"].numpy() * batch["example_weights"].numpy()[:, None]
    weights = np.array([72 / 108, 2.0, 1.0])[tags] * real
    logits = np.random.default_rng(0).normal(size=(*tags.shape, 3)).astype("float32")
    total, weight = data.task.objective.losses({"logits": tf.constant(logits)}, batch)["loss"]
    logged = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    targets = 0.9 * np.eye(3)[tags] + 0.1 / 3
    assert float(total) == pytest.approx((-(targets * logged).sum(-1) * weights).sum(), rel=1e-5)
    assert float(weight) == pytest.approx(weights.sum(), rel=1e-6) and float(
        data.task.objective.weights(batch)["loss"]
    ) == float(weight)
    if not features:
        assert set(data.task.data.batch_spec(4)) == set(batch)


@pytest.mark.parametrize("options", [{"class_weights": "balanced"}, {"label_smoothing": 0.1}])
def test_a_crf_takes_neither(options):
    with pytest.raises(ValueError, match=r"options\.class_weights, label_smoothing: expected no crf with them"):
        load_task(make_config("ner", options={"crf": True, **options}))
