"""SpanBERT's boundary objective: spans worked out by hand, logits and losses against NumPy, what it goes with."""

import dataclasses
import json
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from made_pretraining import make_config, resolve, write_records

from official_bert.layers.heads import LONGEST_SPAN, places_in_spans
from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange import formats
from official_bert.models.interchange.names import NameTable
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.models.span_boundary import SpanPretrainer
from official_bert.tasks.loading import load_task


def test_neighbours_are_one_span():
    positions = np.array([[2, 3, 4, 7, 9, 10, 0], [1, 2, 0, 0, 0, 0, 0]])
    weights = np.array([[1, 1, 1, 1, 1, 1, 0], [1, 1, 0, 0, 0, 0, 0]], "float32")
    begin, end, place = (np.array(part).tolist() for part in places_in_spans(positions, weights))
    assert begin == [[2, 2, 2, 7, 9, 9, 0], [1, 1, 0, 0, 0, 0, 0]] and end == [
        [4, 4, 4, 7, 10, 10, 0],
        [2, 2, 0, 0, 0, 0, 0],
    ]
    assert place == [[0, 1, 2, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0, 0]]


def normalized(rows, gamma, beta, epsilon=1e-12):
    return (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + epsilon) * gamma + beta


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("embedding_size", [12, pytest.param(0, marks=pytest.mark.slow)])
def test_words_are_predicted_from_the_rows_beside_their_span(small_config, embedding_size):
    config = dataclasses.replace(small_config, vocab_size=50, embedding_size=embedding_size, hidden_dropout_prob=0.0)
    model = SpanPretrainer.make(config, {"next_sentence": False})
    named = weights_by_name(model)
    for number, (name, weight) in enumerate(named.items()):
        if name.startswith("boundary/"):
            weight.assign(np.random.default_rng(number).normal(0, 0.5, weight.shape))
    w = {name.removeprefix("boundary/"): weight.numpy() for name, weight in named.items()}
    rng = np.random.default_rng(0)
    batch = {
        "input_ids": rng.integers(5, 50, (2, 12)),
        "input_mask": np.ones((2, 12), int),
        "segment_ids": np.zeros((2, 12), int),
        "masked_lm_positions": np.array([[3, 4, 8], [1, 11, 0]]),
        "masked_lm_weights": np.array([[1, 1, 1], [1, 1, 0]], "float32"),
    }
    outputs, rows = model(batch), model.encoder(batch)["sequence_output"].numpy()
    for row, at, left, right, place in (
        (0, 0, 2, 5, 0),
        (0, 1, 2, 5, 1),
        (0, 2, 7, 9, 0),
        (1, 0, 0, 2, 0),
        (1, 1, 10, 11, 0),
    ):
        x = np.concatenate([rows[row, left], rows[row, right], w["place_embeddings"][place]])
        x = normalized(
            gelu(x @ w["first/kernel"] + w["first/bias"]), w["first_LayerNorm/gamma"], w["first_LayerNorm/beta"]
        )
        x = normalized(
            gelu(x @ w["second/kernel"] + w["second/bias"]), w["second_LayerNorm/gamma"], w["second_LayerNorm/beta"]
        )
        wanted = x @ w["embeddings/word_embeddings"].T + w["output_bias"]
        np.testing.assert_allclose(outputs["boundary_logits"][row, at], wanted, rtol=1e-3, atol=1e-3)
    without = model({name: value for name, value in batch.items() if name != "masked_lm_weights"})
    np.testing.assert_allclose(without["mlm_logits"], outputs["mlm_logits"], rtol=1e-4, atol=1e-4)
    assert set(without) == {"mlm_logits"}  # as a served model computes it


def test_the_loss_is_a_mean_of_its_own_over_the_first_tokens_of_spans(tmp_path):
    run = resolve(
        make_config(options={"boundary_weight": 2.0, "sentence_task": "sop"}), write_records(tmp_path / "train", 32)
    )
    assert tuple(run.task.objective.names) == ("mlm", "boundary", "sop")
    batch = next(iter(run.train.dataset()))
    outputs = run.model(batch)
    found, weights = run.task.objective.losses(outputs, batch), run.task.objective.weights(batch)
    logits, used = outputs["boundary_logits"].numpy(), batch["masked_lm_weights"].numpy() > 0
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = -np.take_along_axis(logs, batch["masked_lm_ids"].numpy()[..., None], -1)[..., 0]
    np.testing.assert_allclose(found["boundary"][0], 2.0 * each[used].sum(), rtol=1e-4)
    assert {name: float(weight) for name, (_, weight) in found.items()} == {
        name: float(value) for name, value in weights.items()
    }
    assert float(weights["boundary"]) == used.sum() and "boundary_accuracy" in run.task.objective.counters(
        outputs, batch
    )
    assert tuple(run.task.objective.predictions(outputs, batch)["sums"].shape) == (32, 3, 3)
    long = {
        "masked_lm_positions": tf.range(1, 31)[None],
        "masked_lm_weights": tf.ones((1, 30)),
        "example_weights": tf.ones(1),
        "next_sentence_labels": tf.zeros((1, 1), tf.int32),
    }
    assert (
        float(run.task.objective.weights(long)["boundary"])
        == LONGEST_SPAN
        < float(run.task.objective.weights(long)["mlm"])
        == 30
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"boundary_weight": -1.0}, "boundary_weight: expected at least 0, got -1.0"),
        (
            {"boundary_weight": 1.0, "objective": "replaced_tokens"},
            "boundary_weight: expected options.objective: masked_lm",
        ),
        ({"boundary_weight": 1.0, "masking": {"strategy": "token_draws"}}, "another masking.strategy than token_draws"),
    ],
)
def test_what_it_does_not_go_with_is_refused(options, told):
    with pytest.raises(ValueError, match=told):
        load_task(make_config(options=options)).options  # noqa: B018


def test_its_head_stays_in_ours_and_is_left_out_elsewhere(small_config, tmp_path):
    model = SpanPretrainer.make(small_config, {"next_sentence": False})
    weights = {name: weight.numpy() for name, weight in weights_by_name(model).items()}
    stored = StoredModel(origin="here", weights=weights, table=NameTable([]), config=small_config, head="pretraining")
    left_out = formats.write(stored, "hugging_face", str(tmp_path / "there"))
    assert {name.partition("/")[0] for name in left_out} == {"pooler", "boundary"}
    assert set(weights_by_name(formats.make_model(stored))) == set(weights)


def test_a_keras_file_of_before_spanbert_had_a_class_is_read(small_config, tmp_path):
    model = SpanPretrainer.make(small_config)
    model.save(tmp_path / "now.keras")
    with zipfile.ZipFile(tmp_path / "now.keras") as now, zipfile.ZipFile(tmp_path / "before.keras", "w") as before:
        for name in now.namelist():
            content = now.read(name)
            if name == "config.json":
                config = json.loads(content)
                config |= {"module": "official_bert.models.pretrainer", "class_name": "Pretrainer"}
                config["registered_name"] = "official_bert>Pretrainer"
                config["config"]["boundary"] = True
                content = json.dumps(config).encode()
            before.writestr(name, content)
    loaded = keras.models.load_model(tmp_path / "before.keras")
    assert type(loaded) is SpanPretrainer
    for own, theirs in zip(loaded.weights, model.weights):
        np.testing.assert_array_equal(own, theirs)
