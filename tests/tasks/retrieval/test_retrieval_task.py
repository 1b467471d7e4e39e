"""Pairs of texts, groups of rows, and vectors that are those of the served model."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import yaml
from commands import printed_metrics, run_here
from made_finetuning import ROOT, make_config, resolve

from official_bert.config import load_config, to_dict
from official_bert.interface.model_inputs import ModelInputs
from official_bert.interface.predictor import Predictor
from official_bert.models.encoder import INPUTS
from official_bert.objectives import losses, ranking_losses
from official_bert.serving.served_embeddings import ServedEmbeddings, make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.tasks.retrieval.metrics import similarity

ASKED = [
    "air",
    "water",
    "arab",
    "arch",
    "road",
    "family",
    "school",
    "church",
    "city",
    "river",
    "music",
    "film",
    "book",
    "team",
    "war",
    "king",
]
SMALL = {"group_size": 4, "max_seq_length": 12}


def config_of(training=None, **options):
    return make_config(
        "retrieval", options=SMALL | options, training={"batch_size": 8, "eval_batch_size": 8} | (training or {})
    )


def write_pairs(path, rows, columns=("text", "text_pair")):
    path.write_text("".join("\t".join(map(str, row)) + "\n" for row in [columns, *rows]), encoding="utf-8")
    return path


def test_a_row_is_compared_with_its_group_without_fillers_and_equal_texts():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(8, 2, 5)).astype("float32")
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    # Rows 0 and 1 have one first text, rows 2 and 3 one second text; the second text of row 4 is the first one of row
    # 5; row 7 is filler.
    texts = np.array([[0, 1], [0, 2], [3, 4], [5, 4], [6, 7], [7, 8], [9, 10], [9, 10]], np.int32)
    weights = np.array([1, 1, 1, 1, 1, 1, 1, 0], np.float32)
    left_out = {(0, 1), (1, 0), (2, 3), (3, 2), (5, 4), (4, 7), (5, 7), (6, 7)}
    wanted = 0.0
    for row in range(7):
        group = [other for other in range(row // 4 * 4, row // 4 * 4 + 4) if (row, other) not in left_out]
        logits = {other: float(vectors[row, 0] @ vectors[other, 1]) / 0.1 for other in group}
        wanted += np.log(sum(np.exp(value) for value in logits.values())) - logits[row]
    logits, places = ranking_losses.group_logits(tf.constant(vectors), tf.constant(texts), tf.constant(weights), 4, 0.1)
    total, weight = losses.cross_entropy(logits, places, tf.constant(weights))
    assert float(total) == pytest.approx(wanted, rel=1e-5) and float(weight) == 7.0
    halves = [
        losses.cross_entropy(
            *ranking_losses.group_logits(
                tf.constant(vectors[part]), tf.constant(texts[part]), tf.constant(weights[part]), 4, 0.1
            ),
            tf.constant(weights[part]),
        )
        for part in (slice(0, 4), slice(4, 8))
    ]
    assert float(sum(part for part, _ in halves)) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_the_vectors_of_training_are_those_that_are_served(pooling, tmp_path, graph_tokenizer):
    path = write_pairs(
        tmp_path / "dev.tsv", [("the king", "the air of a river, and its water"), ("N\u00fa\u00f1ez", "war")]
    )
    found = resolve(config_of(pooling=pooling), Steps(train=False), eval_file=path)
    batch = found.held_out.source.batch(0)
    vectors = found.model(batch)["embedding"].numpy()
    served = ServedEmbeddings(found.model.encoder, graph_tokenizer, 12, pooling)
    for side in (0, 1):
        rows = {name: tf.constant(batch[name][:, side]) for name in INPUTS}
        wanted = served.answer_rows(rows)["embedding"].numpy()
        np.testing.assert_allclose(vectors[:, side], wanted / np.linalg.norm(wanted, axis=-1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize(
    ("training", "options", "told"),
    [
        (
            {"batch_size": 6},
            {},
            r"training\.batch_size: expected whole groups of options\.group_size = 4 rows .* got 6 rows there",
        ),
        ({"batch_size": 8, "accumulation_steps": 4}, {}, r"batch_size: .* got 2 rows there \(8 in the batch\)"),
        ({"eval_batch_size": 6}, {}, r"training\.eval_batch_size: expected whole groups"),
        ({}, {"group_size": 1}, "group_size: expected at least 2 rows, got 1"),
        ({}, {"temperature": 0.0}, "temperature: expected a number above 0"),
        ({}, {"train_on": "scores"}, "expected options.score_column and score_range"),
        ({}, {"train_on": "scores", "score_column": "score"}, "expected options.score_column and score_range"),
        (
            {},
            {"train_on": "scores", "score_column": "score", "score_range": [0, 5], "temperature": 0.1},
            "temperature: expected options.train_on: pairs with it, got 0.1 without; it would do nothing",
        ),
        (
            {},
            {"train_on": "scores", "score_column": "score", "score_range": [0, 5], "group_size": 16},
            "group_size: expected options.train_on: pairs with it, got 16 without; it would do nothing",
        ),
        ({}, {"score_range": [5.0, 0.0]}, "expected lowest and highest score"),
        ({}, {"text_pair_column": "text"}, "expected two columns, got 'text' twice"),
    ],
)
def test_groups_that_would_be_cut_and_wrong_options_are_refused(tmp_path, training, options, told):
    path = write_pairs(tmp_path / "train.tsv", [("air", "water"), ("king", "war")])
    with pytest.raises(ValueError, match=told):
        resolve(config_of(training, **options), train_file=path, eval_file=path, allow_same_data=True)


def test_files_are_checked_row_by_row(tmp_path):
    good = write_pairs(tmp_path / "train.tsv", [("air", "water"), ("king", "war")])
    with pytest.raises(ValueError, match="expected held-out data, but 2 of its 2 rows are in the training data"):
        resolve(config_of(), train_file=good, eval_file=good)
    empty = write_pairs(tmp_path / "empty.tsv", [("air", "water"), ("king", " ")])
    with pytest.raises(ValueError, match=r"empty\.tsv:3: column 'text_pair': expected text, it is empty"):
        resolve(config_of(), train_file=empty)
    scored = write_pairs(tmp_path / "dev.tsv", [("air", "water", 5.5)], ("text", "text_pair", "score"))
    with pytest.raises(ValueError, match=r"dev\.tsv:2: column 'score': expected a number from 0 to 5, got '5\.5'"):
        resolve(config_of(score_column="score", score_range=[0.0, 5.0]), train_file=good, eval_file=scored)
    with pytest.raises(ValueError, match=r"train\.tsv: expected a column 'score'"):
        resolve(
            config_of(score_column="score", train_on="scores", score_range=[0.0, 5.0], group_size=32), train_file=good
        )


def test_texts_of_both_columns_can_be_asked(tmp_path):
    (tmp_path / "answers.csv").write_text("id,answer\n7,water\n")
    config = config_of(text_column="question", text_pair_column="answer")
    for keep, more in (((), {}), (("id",), {"id": "7"})):
        found = ModelInputs.of_model(("text",), config, ["options.text_column=answer"], keep=keep).read_file(
            str(tmp_path / "answers.csv")
        )
        assert found == [more | {"text": "water"}]


def test_scores_are_scaled_to_cosines_and_correlated(tmp_path):
    rows = [("air", "water", 0), ("king", "war", 4), ("city", "road", 2)]
    path = write_pairs(tmp_path / "dev.tsv", rows, ("text", "text_pair", "score"))
    for range_of_scores, wanted in (([0.0, 5.0], [0.0, 0.8, 0.4]), ([], [0.0, 1.0, 0.5])):
        found = resolve(
            config_of(score_column="score", score_range=range_of_scores), Steps(train=False), eval_file=path
        )
        assert [float(row["scores"]) for row in found.held_out.source.examples] == pytest.approx(wanted)
    assert found.task.answers.best_metric() == "spearman" and load_task(config_of()).answers.best_metric() == "mrr"
    near = {0: [[1, 0], [0, 1]], 1: [[1, 0], [1, 0]], 2: [[1, 0], [0.6, 0.8]]}
    order = np.concatenate(found.held_out.source.plan(0))
    assert found.held_out.evaluate([{"embedding": np.array(near[row])} for row in order])["spearman"] == pytest.approx(
        1.0
    )
    assert all(np.isnan(value) for value in similarity(np.ones((1, 2, 3)), np.ones(1)).values())


def write_story(folder, task="retrieval", **options):
    """Writes pairs whose second text follows from the first by a rule that words alone do not tell, each with a text
    that answers another word, and a tiny model's configuration.
    """
    answers = dict(zip(ASKED, [*ASKED[5:], *ASKED[:5]]))
    fillers = ("the", "a", "its", "then", "because", "called")
    rng = np.random.default_rng(0)
    pairs = [
        [
            (f"{fillers[(part + place) % 6]} {word}", f"{answers[word]} {rng.choice(fillers)}", answers[answers[word]])
            for place, word in enumerate(ASKED)
        ]
        for part in range(6)
    ]
    columns = ("text", "text_pair", "other")
    write_pairs(folder / "train.tsv", [pair for part in pairs[:5] for pair in part], columns)
    write_pairs(folder / "dev.tsv", pairs[5], columns)
    config = make_config(
        task,
        options=options or SMALL | {"group_size": 8},
        optimizer={"learning_rate": 3e-3},
        training={"batch_size": 16, "eval_batch_size": 16, "epochs": 60.0, "log_every": 50},
        model={"hidden_size": 32, "intermediate_size": 64},
    )
    (folder / "run.yaml").write_text(yaml.safe_dump(to_dict(config)))


@pytest.mark.slow
def test_a_rule_is_learned_evaluated_asked_and_exported_by_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_story(tmp_path)
    tune = (
        "-m",
        "official_bert.run_finetuning",
        "--config=run.yaml",
        "--data_dir=.",
        "--output_dir=run",
        "--cache_dir=",
        # of so few pairs some seeds learn less: 0.75 to 0.97 with seeds 1, 2, 3 and 12345, in any order of batches
        "--set=seed=2",
    )
    done = run_here(*tune, "--predict_file=dev.tsv")
    assert done.returncode == 0, done.stderr
    measured = printed_metrics(done.stdout)
    assert measured["mrr"] > 0.8 and measured["recall_at_1"] > 0.7, done.stdout  # chance: about 0.2 and 0.06
    again = run_here(*tune, "--nodo_train")
    assert printed_metrics(again.stdout)["mrr"] == measured["mrr"], again.stdout + again.stderr
    assert run_here("-m", "official_bert.run_export", "--checkpoint=run", "--output=vectors").returncode == 0
    texts = [line.split("\t") for line in (tmp_path / "dev.tsv").read_text().splitlines()[1:]]
    vectors = [
        np.array([answer["embedding"] for answer in Predictor("vectors")([pair[side] for pair in texts])])
        for side in (0, 1)
    ]
    vectors = [rows / np.linalg.norm(rows, axis=-1, keepdims=True) for rows in vectors]
    cosines = [float(line.split("\t")[1]) for line in (tmp_path / "run/predictions.tsv").read_text().splitlines()[1:]]
    np.testing.assert_allclose(np.sum(vectors[0] * vectors[1], axis=-1), cosines, atol=1e-4)
    asked = run_here("-m", "official_bert.run_predict", "--task=retrieval", "--model=run", "the king")
    assert len(asked.stdout.splitlines()[1].split()) == 32, asked.stdout + asked.stderr
    assert (
        run_here(
            "tools/convert_checkpoint.py", "--from=ours", "--to=hugging_face", "--input=run", "--output=hf"
        ).returncode
        == 0
    )
    _, encoder = restore_for_inference("hf")
    assert encoder.settings["hidden_size"] == 32 and load_config("run/config.yaml").task == "retrieval"


def test_the_runs_pooling_is_served_also_if_embeddings_are_asked_for():
    task = load_task(config_of(pooling="cls"))
    model = task.build_model()
    ids = tf.constant([[2, 20, 30, 3]])
    rows = {"input_ids": ids, "input_mask": tf.ones_like(ids), "segment_ids": tf.zeros_like(ids)}
    last = model.encoder(rows, training=False)["sequence_output"][0].numpy()
    for asked, trained, wanted in (
        ({}, model, last[0]),
        ({"pooling": "mean"}, model, last.mean(axis=0)),
        ({}, model.encoder, last[0]),
    ):
        served = make_served_model(task, trained, ServingOptions(head="embeddings", **asked))
        np.testing.assert_allclose(served.answer_ids(rows)["embedding"][0], wanted, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "options"),
    [
        ("retrieval", SMALL),
        ("retrieval", SMALL | {"texts_at_once": 3, "negative_columns": ["other"]}),
        (
            "splade",
            SMALL | {"penalty_steps": 6, "query_penalty": 0.03, "passage_penalty": 0.01, "negative_columns": ["other"]},
        ),
        ("reranking", {"max_seq_length": 24, "dropout": 0.0, "negative_columns": ["other"]}),
    ],
)
def test_micro_batches_and_replicas_train_the_same(tmp_path, task, options):
    """12 steps as one batch, and in two micro-batches on each of two CPU replicas: losses and weights agree."""
    write_story(tmp_path, task, **options)
    arrangements = {
        "whole": (),
        "parts": ("--set=training.accumulation_steps=2", "--strategy=mirrored", "--num_cpu_devices=2"),
    }
    rate = 1e-4 if task == "splade" else 3e-3  # of large logits, the largest one is another after rounding
    found = {}
    for name, flags in arrangements.items():
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "official_bert.run_finetuning",
                "--config=run.yaml",
                "--data_dir=.",
                "--cache_dir=",
                f"--output_dir={name}",
                "--set=training.steps=12",
                "--set=training.epochs=0",
                "--set=training.log_every=1",
                f"--learning_rate={rate}",
                *flags,
            ],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
            timeout=600,
            env=os.environ | {"PYTHONPATH": str(ROOT.parent)},
        )
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        _, model = restore_for_inference(str(tmp_path / name))
        found[name] = (
            [row["train/loss"] for row in rows if "train/loss" in row],
            {variable.path.partition("/")[2]: variable.numpy() for variable in model.trainable_variables},
        )
    wanted, weights = found["whole"]
    assert len(wanted) == 12 and abs(wanted[0] - wanted[-1]) > 0.1
    np.testing.assert_allclose(found["parts"][0], wanted, rtol=2e-5, atol=2e-5)
    for key, value in weights.items():
        np.testing.assert_allclose(found["parts"][1][key], value, atol=1e-4, err_msg=key)
