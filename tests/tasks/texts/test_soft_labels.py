"""A probability for each label, in a column each, is the target of one label."""

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from made_finetuning import make_config, resolve

import official_bert

WORDS = ("water", "stone")
HEADER = "text\tyes\tno\tmaybe"
OPTIONS = {"label_columns": ["yes", "no", "maybe"]}


def write_rows(path, rows, header):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def soft_rows(count):
    """Rows of texts with the probabilities 0.7, 0.3, 0 and 0.1, 0.2, 0.7 in turn."""
    for number in range(count):
        yield f"{WORDS[number % 2]} {number}\t" + ("0.7\t0.3\t0" if number % 2 == 0 else "0.1\t0.2\t0.7")


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_is_the_cross_entropy_of_the_probabilities(tmp_path, smoothing):
    path = write_rows(tmp_path / "train.tsv", soft_rows(40), HEADER)
    data = resolve(make_config("classification", options=OPTIONS | {"label_smoothing": smoothing}), train_file=path)
    assert data.task.options.labels == ("yes", "no", "maybe")
    assert set(data.task.data.batch_spec(4)) == set(data.train.batch(0))
    batch = {key: tf.constant(value) for key, value in data.train.batch(0).items()}
    shares = batch["label_shares"].numpy()
    assert {tuple(row) for row in shares.astype(float).round(6).tolist()} == {(0.7, 0.3, 0.0), (0.1, 0.2, 0.7)}
    np.testing.assert_array_equal(batch["label_ids"], shares.argmax(-1))
    logits = np.random.default_rng(0).normal(size=shares.shape).astype(np.float32)
    total, weight = data.task.objective.losses({"logits": tf.constant(logits)}, batch)["loss"]
    targets = (1 - smoothing) * shares + smoothing / 3
    expected = -(targets * scipy.special.log_softmax(logits, axis=-1)).sum(-1)
    weights = batch["example_weights"].numpy()
    assert float(total) == pytest.approx((expected * weights).sum(), rel=1e-5) and float(weight) == weights.sum()
    held_out = data.held_out.source.batch(0)
    assert held_out["label_shares"].shape[1] == 3 and len(data.held_out.sets[0].data.label_shares) == 4


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a\t0.5\t0.2\t0.2", "train.tsv:2: columns yes, no, maybe: expected probabilities that add up to 1, got 0.9"),
        ("a\t1.5\t-0.5\t0", "train.tsv:2: column 'yes': expected a number from 0 to 1, got '1.5'"),
        ("a\tx\t1\t0", "train.tsv:2: column 'yes': expected a number, got 'x'"),
    ],
)
def test_rows_that_are_no_probabilities_are_named(tmp_path, row, message):
    path = write_rows(tmp_path / "train.tsv", [row, *soft_rows(20)], HEADER)
    with pytest.raises(ValueError, match=message):
        resolve(make_config("classification", options=OPTIONS), train_file=path)


@pytest.mark.slow
def test_a_model_learns_the_probabilities(tmp_path, golden, eager_predictors):
    config = make_config("classification", options=OPTIONS)
    path = write_rows(tmp_path / "train.tsv", soft_rows(200), HEADER)
    data = resolve(config, train_file=path)
    tuned = official_bert.fine_tune(
        "classification",
        train=path,
        output_dir=tmp_path / "run",
        report=lambda line: None,
        epochs=12,
        batch_size=20,
        learning_rate=3e-3,
        dropout=0.0,
        **OPTIONS,
        **{
            f"model.{key}": value
            for key, value in vars(data.task.config.model).items()
            if key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        },
        **{"tokenizer.vocab_file": data.task.config.tokenizer.vocab_file},
    )
    answer = tuned.predictor(WORDS[0])["probabilities"]
    assert list(answer.values()) == pytest.approx([0.7, 0.3, 0.0], abs=0.1)
