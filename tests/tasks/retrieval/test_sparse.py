"""Sparse vectors: weights of words without all logits, their penalty and its schedule, search and export."""

import json

import numpy as np
import pytest
import tensorflow as tf
import yaml
from commands import printed_metrics, run_here
from made_finetuning import make_config, resolve

from official_bert.config import to_dict
from official_bert.interface.predictor import Predictor
from official_bert.models.pretrainer import Pretrainer
from official_bert.objectives.sparse_vectors import flops_penalty
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.data import Steps

ROWS = [
    {"text": "air", "text_pair": "water", "no": "road"},
    {"text": "city", "text_pair": "river", "no": "film"},
    {"text": "book", "text_pair": "team", "no": "war"},
    {"text": "church", "text_pair": "school", "no": "music"},
]


def config_of(training=None, **options):
    return make_config(
        "splade",
        options={"group_size": 2, "max_seq_length": 12} | options,
        training={"batch_size": 4, "eval_batch_size": 4} | (training or {}),
    )


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_weights_are_the_largest_logits_of_masked_lm_and_so_are_their_gradients(tmp_path):
    found = resolve(
        config_of(negative_columns=["no"]), Steps(evaluate=False), train_file=write(tmp_path / "train.jsonl", ROWS)
    )
    model, batch = found.model, found.train.batch(0)
    plain = Pretrainer(model.encoder, next_sentence=False)
    plain.build()
    for name in ("transform", "layer_norm"):
        for mine, theirs in zip(getattr(plain.masked_lm, name).weights, getattr(model.masked_lm, name).weights):
            mine.assign(theirs)
    rng = np.random.default_rng(0)
    bias = rng.normal(size=model.masked_lm.output_bias.shape)
    model.masked_lm.output_bias.assign(bias)
    plain.masked_lm.output_bias.assign(bias)
    rows = {name: tf.constant(batch[name].reshape(12, -1)) for name in ("input_ids", "input_mask", "segment_ids")}
    every = tf.tile(tf.range(rows["input_ids"].shape[1])[None], (12, 1))
    upstream = tf.constant(rng.normal(size=(12, model.encoder.settings["vocab_size"])), tf.float32)
    table = model.encoder.embeddings.word_embeddings.value
    with tf.GradientTape(persistent=True) as tape:
        logits = plain({**rows, "masked_lm_positions": every})["mlm_logits"]
        wanted = tf.math.log1p(
            tf.nn.relu(tf.reduce_max(tf.where(rows["input_mask"][:, :, None] > 0, logits, -1e9), axis=1))
        )
        weights = model(batch, training=True)["weights"]
        losses = tf.reduce_sum(wanted * upstream), tf.reduce_sum(tf.reshape(weights, wanted.shape) * upstream)
    np.testing.assert_allclose(tf.reshape(weights, wanted.shape), wanted, atol=1e-5)
    assert 0.05 < np.mean(wanted.numpy() > 0) < 0.99
    for mine, theirs in (
        (model.encoder.transformer_layers[0].weights[0].value,) * 2,
        (table, table),
        (model.masked_lm.output_bias.value, plain.masked_lm.output_bias.value),
    ):
        gradients = tape.gradient(losses[1], mine), tape.gradient(losses[0], theirs)
        np.testing.assert_allclose(*map(tf.convert_to_tensor, gradients), atol=1e-4)


def test_the_penalty_is_that_of_groups_and_rises_with_the_square_of_the_step(tmp_path):
    rng = np.random.default_rng(0)
    weights, present = rng.uniform(size=(6, 5)).astype("float32"), np.array([1, 1, 0, 1, 1, 1], np.float32)
    wanted = sum(
        np.sum(weights[rows][present[rows] > 0].mean(axis=0) ** 2) * present[rows].sum()
        for rows in (slice(0, 3), slice(3, 6))
    )
    assert float(flops_penalty(tf.constant(weights), tf.constant(present), 3)) == pytest.approx(wanted, rel=1e-5)
    found = resolve(
        config_of(penalty_steps=10, query_penalty=0.5, passage_penalty=0.25),
        Steps(evaluate=False),
        train_file=write(tmp_path / "train.jsonl", ROWS),
    )
    assert [float(found.train.batch(number)["penalty_share"][0]) for number in (0, 4, 9, 20)] == pytest.approx(
        [0.01, 0.25, 1.0, 1.0]
    )
    batch, vectors = found.train.batch(4), rng.uniform(size=(4, 2, 7)).astype("float32")
    losses = found.task.objective.losses({"weights": tf.constant(vectors)}, batch)
    sides = [
        sum(np.sum(vectors[rows, side].mean(axis=0) ** 2) * 2 for rows in (slice(0, 2), slice(2, 4))) for side in (0, 1)
    ]
    assert float(losses["flops"][0]) == pytest.approx(0.25 * (0.5 * sides[0] + 0.25 * sides[1]), rel=1e-5)
    products = [
        [vectors[row, 0] @ vectors[other, 1] for other in range(row // 2 * 2, row // 2 * 2 + 2)] for row in range(4)
    ]
    wanted = sum(np.logaddexp.reduce(products[row]) - products[row][row % 2] for row in range(4))
    assert float(losses["ranking"][0]) == pytest.approx(wanted, rel=1e-5)


def test_sparse_vectors_search_and_are_served(tmp_path):
    found = resolve(config_of(), Steps(train=False), eval_file=write(tmp_path / "dev.jsonl", ROWS))
    held_out, batch = found.held_out, found.held_out.source.batch(0)
    predictions = []
    for number in range(held_out.source.batches_per_epoch):
        answers = found.task.objective.predictions(found.model(held_out.source.batch(number)), batch)
        predictions += [{name: value[row].numpy() for name, value in answers.items()} for row in range(4)]
    measured = held_out.evaluate(predictions)
    dense = np.zeros((8, found.model.encoder.settings["vocab_size"]))
    for row, place in zip(predictions, np.concatenate(held_out.source.plan(0))):
        dense[place, row["ids"][0]] = row["weights"][0]
    order = np.argsort(-(dense[:4] @ dense[4:].T), axis=1, kind="stable")
    assert measured["mrr_at_10"] == pytest.approx(
        np.mean([1 / (1 + list(row).index(query)) for query, row in enumerate(order)])
    )
    assert measured["words"] == pytest.approx(np.mean(np.sum(dense[4:] > 0, axis=1)))
    served = make_served_model(found.task, found.model, ServingOptions(top_k=5))
    answer = served.answer_text({"text": tf.constant([row["text"] for row in ROWS])})
    np.testing.assert_allclose(answer["weights"], np.sort(dense[:4], axis=1)[:, :-6:-1], atol=1e-4)
    assert answer["ids"].shape == (4, 5)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"pooling": "cls"}, "pooling: expected --task=retrieval with it"),
        ({"query_penalty": -1.0}, "query_penalty: expected at least 0, got -1"),
        (
            {"query_penalty": 0.0, "passage_penalty": 0.0, "penalty_steps": 5},
            "penalty_steps: expected a query_penalty or a passage_penalty above 0",
        ),
        ({"loss": "triplet", "group_size": 3}, r"batch_size: expected whole groups of options\.group_size = 3 rows"),
        ({"train_on": "texts"}, "sparse vectors are trained on pairs"),
    ],
)
def test_options_that_mean_nothing_to_sparse_vectors_are_refused(options, told):
    with pytest.raises(ValueError, match=told):
        resolve(config_of(**options))


@pytest.mark.slow
def test_a_sparse_model_is_trained_exported_and_asked_by_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["air", "water", "arab", "arch", "road", "family", "school", "church", "city", "river", "music", "film"]
    for name, front in (("train", ("the", "a", "his")), ("dev", ("its",))):
        write(
            tmp_path / f"{name}.jsonl",
            [{"text": f"{one} {word}", "text_pair": f"{word} was"} for one in front for word in words],
        )
    config = make_config(
        "splade",
        options={"max_seq_length": 8, "group_size": 12, "penalty_steps": 20, "passage_penalty": 1e-3},
        optimizer={"learning_rate": 3e-3},
        training={"batch_size": 12, "eval_batch_size": 12, "epochs": 40.0},
        model={"hidden_size": 32, "intermediate_size": 64, "initializer_range": 0.1},
    )
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(to_dict(config)))
    done = run_here(
        "-m", "official_bert.run_finetuning", "--config=run.yaml", "--data_dir=.", "--output_dir=run", "--cache_dir="
    )
    assert done.returncode == 0, done.stderr
    assert printed_metrics(done.stdout)["mrr_at_10"] > 0.7, done.stdout  # chance: 0.26
    assert (
        run_here(
            "-m", "official_bert.run_export", "--checkpoint=run", "--output=models/sparse", "--top_k=64"
        ).returncode
        == 0
    )
    answer = Predictor("models/sparse")("the river")
    assert len(answer["ids"]) == len(answer["weights"]) > 0 and answer["weights"] == sorted(
        answer["weights"], reverse=True
    )
    asked = run_here("-m", "official_bert.run_predict", "--task=splade", "--model=run", "the river")
    assert asked.stdout.splitlines()[1].split()[0].startswith(f"{answer['ids'][0]}:"), asked.stdout + asked.stderr
    convert = run_here("tools/convert_checkpoint.py", "--from=ours", "--to=hugging_face", "--input=run", "--output=hf")
    assert convert.returncode == 0 and "BertForMaskedLM" in (tmp_path / "hf/config.json").read_text(), convert.stderr
