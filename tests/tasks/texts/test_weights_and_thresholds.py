"""Weights of labels in training, and thresholds tuned in evaluation, from the options to the answers."""

import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import data_files, make_config, resolve

from official_bert.interface.predictor import Predictor
from official_bert.models.checkpoints import checkpoint_at
from official_bert.run_folder import RunFolder, tuned_for
from official_bert.runs.fine_tuning import FineTuning
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.loading import load_task, restore_model
from official_bert.tasks.texts.metrics import best_threshold
from official_bert.training.machines import distribution
from official_bert.training.machines.cluster import Placement
from official_bert.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("eager_predictors")

WORDS = ("water", "stone", "paper", "green", "house", "small")


def write_rows(path, rows, header="text\tlabel"):
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def rows_of(count, seed=0):
    """Rows whose labels are the words `water` and, rarely, `stone`."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        words = list(rng.choice(WORDS[2:], rng.integers(2, 6)))
        labels = [word for word, share in zip(WORDS, (0.5, 0.15)) if rng.random() < share]
        yield f"{' '.join([*words, *labels])}\t{','.join(labels)}"


@pytest.fixture
def one_label(tmp_path):
    rows = [f"{WORDS[number % 6]} {number}\t{'yes' if number % 4 == 0 else 'no'}" for number in range(40)]
    return write_rows(tmp_path / "train.tsv", rows)


def test_rows_weigh_in_training_as_scikit_learn_balances_them_and_in_evaluation_one(one_label):
    data = resolve(make_config("classification", options={"class_weights": "balanced"}), train_file=one_label)
    weights = {int(row["label_ids"]): float(row["loss_weights"]) for row in data.train.examples}
    counts = np.bincount([int(row["label_ids"]) for row in data.train.examples])
    assert weights == pytest.approx({label: counts.sum() / (2 * count) for label, count in enumerate(counts)})
    assert "weights of the labels: no 0.6667, yes 2" in data.notes
    assert "loss_weights" not in data.held_out.source.batch(0) and len(data.held_out.source.examples) == 4
    batch = {key: tf.constant(value) for key, value in data.train.batch(0).items()}
    logits = tf.random.stateless_normal((16, 2), seed=(1, 2))
    total, weight = data.task.objective.losses({"logits": logits}, batch)["loss"]
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["label_ids"], logits).numpy()
    own = np.array([weights[int(label)] for label in batch["label_ids"]]) * batch["example_weights"].numpy()
    assert float(total) == pytest.approx((each * own).sum(), rel=1e-5) and float(weight) == pytest.approx(
        own.sum(), rel=1e-6
    )
    assert float(data.task.objective.weights(batch)["loss"]) == pytest.approx(own.sum(), rel=1e-6)
    assert set(data.task.data.batch_spec(4)) == set(data.train.batch(0))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"class_weights": {"yes": 5.0}, "label_smoothing": 0.1}, {"kind": "multi_label", "positive_weights": "balanced"}],
)
def test_a_weighted_batch_cut_into_micro_batches_is_the_same_step(tmp_path, one_label, options):
    path = one_label if "class_weights" in options else write_rows(tmp_path / "several.tsv", rows_of(40))
    made = []
    for pieces in (1, 4):
        tf.keras.utils.set_random_seed(3)
        config = make_config(
            "classification",
            options={**options, "dev_share": 0.0, "dropout": 0.0},
            training={"accumulation_steps": pieces, "batch_size": 8},
        )
        data = resolve(config, train_file=path)
        trainer = Trainer(data.recipe, tf.distribute.get_strategy(), 10)
        rows = trainer.run_steps(iter(distribution.distribute(data.train, trainer.strategy)), tf.constant(5)).numpy()
        made.append((rows[:, 0], [weight.numpy() for weight in trainer.weights]))
    np.testing.assert_allclose(made[0][0], made[1][0], rtol=1e-5)
    for one, other in zip(made[0][1], made[1][1]):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"kind": "regression", "class_weights": "balanced"},
            r"class_weights: expected options.kind: classifier \(not regression; .* with it, got balanced without",
        ),
        (
            {"kind": "regression", "label_smoothing": 0.1},
            r"label_smoothing: expected options.kind: classifier or multi_label \(not regression\) with it",
        ),
        (
            {"kind": "multi_label", "class_weights": "balanced"},
            r"classifier \(not multi_label; several labels have positive_weights\) with it",
        ),
        (
            {"positive_weights": "balanced"},
            r"positive_weights: expected options.kind: multi_label \(not classifier\) with it",
        ),
        ({"threshold": "tuned"}, r"threshold: expected options.kind: multi_label \(not classifier\) with it"),
        ({"kind": "multi_label", "threshold": 1.5}, "threshold: expected probabilities from 0 to 1, got 1.5"),
        (
            {"kind": "multi_label", "threshold": [0.5, 0.4, 0.3]},
            r"config\.options\.threshold: expected a number for each of the 2 labels, got 3",
        ),
        ({"label_smoothing": 1.0}, "label_smoothing: expected a share from 0 to below 1"),
        (
            {"class_weights": "balance"},
            "class_weights: expected '' or 'balanced' or list of float or mapping to float, got 'balance'",
        ),
        ({"class_weights": {"maybe": 2.0}}, r"class_weights: expected labels of \['no', 'yes'\], got 'maybe'"),
        ({"class_weights": [1.0, 2.0, 3.0]}, "expected a weight for each of the 2 labels"),
        (
            {"kind": "multi_label", "threshold": "tuned", "dev_share": 0.0},
            "threshold: tuned: expected evaluation data to tune it on",
        ),
    ],
)
def test_options_without_meaning_are_refused(one_label, options, said):
    if options.get("kind") == "multi_label":
        path = pathlib.Path(one_label)
        path.write_text(path.read_text().replace("yes", "yes,no", 1))
    with pytest.raises(ValueError, match=said):
        resolve(make_config("classification", options=options), train_file=one_label)
    with pytest.raises(ValueError, match="expected a data set with labels, stsb has scores"):
        load_task(make_config("glue", options={"dataset": "stsb", "class_weights": "balanced"}))


def test_the_best_threshold_is_that_of_every_threshold_tried():
    rng = np.random.default_rng(0)
    for count in (1, 2, 7, 40):
        targets = (rng.random(count) < 0.4).astype("float32")
        probabilities = rng.choice(np.linspace(0.05, 0.95, 19), count).astype("float32")
        found = best_threshold(targets, probabilities)

        def f1(threshold, targets=targets, probabilities=probabilities):
            given = probabilities >= threshold
            return 2 * (given * targets).sum() / max(given.sum() + targets.sum(), 1)

        assert f1(found) == pytest.approx(max(f1(threshold) for threshold in np.linspace(0.001, 0.999, 999)))
    assert best_threshold(np.array([0.0, 0.0]), np.array([0.9, 0.1])) == 0.5
    assert best_threshold(np.array([1.0, 0.0]), np.array([0.25, 0.125], np.float32)) == 0.1875


@pytest.mark.slow
@pytest.mark.parametrize("threshold", ["tuned", "tuned_per_label"])
def test_thresholds_tuned_on_the_evaluation_data_are_those_of_the_answers(tmp_path, threshold):
    train, dev = (
        write_rows(tmp_path / f"{name}.tsv", rows_of(count, seed))
        for name, count, seed in (("train", 200, 0), ("dev", 60, 1))
    )
    config = make_config(
        "classification",
        options={"kind": "multi_label", "threshold": threshold, "positive_weights": "balanced"},
        training={"epochs": 2.0, "eval_epochs": 1.0, "save_every": 13},
        optimizer={"learning_rate": 2e-3},
    )
    folder = str(tmp_path / "run")
    files = data_files(train_file=train, eval_file=dev, predict_file=dev)
    said = []
    run = RunFolder(folder)
    metrics = FineTuning(
        load_task(config), files, run, Placement(), steps=Steps(predict=True), report=said.append
    ).carry_out()
    stored = tuned_for(checkpoint_at(folder))["threshold"]
    assert any(line.startswith("weights of the positive rows: stone ") for line in said)
    named = {
        "tuned": {"threshold": stored},
        "tuned_per_label": dict(zip(("threshold_stone", "threshold_water"), np.atleast_1d(stored))),
    }
    assert {name: value for name, value in metrics.items() if name.startswith("threshold")} == named[threshold]
    predictor = Predictor(folder)
    answers = predictor([line.split("\t")[0] for line in dev.read_text().splitlines()[1:]])
    written = [line.split("\t")[1] for line in (tmp_path / "run/predictions.tsv").read_text().splitlines()[1:]]
    assert [",".join(answer["labels"]) for answer in answers] == written
    limits = np.broadcast_to(stored, 2)
    for answer in answers:
        assert sorted(answer["labels"]) == [
            label
            for label, probability, limit in zip(("stone", "water"), answer["probabilities"].values(), limits)
            if probability >= limit
        ]
    chosen = Predictor(folder, ServingOptions(threshold=0.0))("paper green")
    assert len(chosen["labels"]) == 2
    # Each kept checkpoint answers with the thresholds of its own evaluation, an earlier one with none.
    measured = {
        row["step"]: row
        for row in map(json.loads, (tmp_path / "run/log.jsonl").read_text().splitlines())
        if "eval/loss" in row
    }
    assert (
        len(measured) == 2
        and len(
            {row["eval/threshold" if threshold == "tuned" else "eval/threshold_stone"] for row in measured.values()}
        )
        == 2
    )
    for step, row in measured.items():
        wanted = [row[f"eval/{name}"] for name in named[threshold]]
        assert np.atleast_1d(restore_model(f"{folder}/ckpt-{step}")[0].options["threshold"]).tolist() == wanted
    assert tuned_for(checkpoint_at(f"{folder}/ckpt-{min(measured) - 1}")) == {}
    # An evaluation alone measures with what is stored, and tunes nothing on its rows.
    other = write_rows(tmp_path / "other.tsv", rows_of(30, 5))
    again = FineTuning(
        load_task(run.config()),
        DataFiles(eval_file=str(other)),
        run,
        Placement(),
        steps=Steps(train=False),
        report=said.append,
    ).carry_out()
    assert (
        not [name for name in again if name.startswith("threshold")]
        and tuned_for(checkpoint_at(folder))["threshold"] == stored
    )


@pytest.mark.slow
def test_thresholds_that_the_run_does_not_ask_for_are_those_of_this_evaluation_alone(tmp_path, eager_steps):
    train, dev = (
        write_rows(tmp_path / f"{name}.tsv", rows_of(count, seed))
        for name, count, seed in (("train", 40, 0), ("dev", 30, 1))
    )
    folder, said = str(tmp_path / "run"), []
    config = make_config(
        "classification", options={"kind": "multi_label", "threshold": "tuned"}, training={"epochs": 1.0}
    )
    run = RunFolder(folder)
    FineTuning(
        load_task(config), data_files(train_file=train, eval_file=dev), run, Placement(), report=said.append
    ).carry_out()
    before, files = tuned_for(checkpoint_at(folder)), DataFiles(eval_file=str(dev), predict_file=str(dev))
    asked = load_task(RunFolder(folder).config(["options.threshold=tuned_per_label"]))
    found = FineTuning(
        asked, files, run, Placement(), steps=Steps(train=False, predict=True), report=said.append
    ).carry_out()
    stone, water = (found[f"threshold_{label}"] for label in ("stone", "water"))
    for line in (tmp_path / "run/predictions.tsv").read_text().splitlines()[1:]:
        _, given, *probabilities = line.split("\t")
        assert set(filter(None, given.split(","))) == {
            label
            for label, probability, limit in zip(("stone", "water"), probabilities, (stone, water))
            if float(probability) >= limit
        }
    assert tuned_for(checkpoint_at(folder)) == before  # which the run's own option asked for
    assert (
        f"threshold of this evaluation is not stored, because the run in {folder} has options.threshold: tuned; give "
        f"it to the commands that should use it: [{stone}, {water}]" in said
    )
    FineTuning(
        load_task(run.config()), files, run, Placement(), steps=Steps(train=False), report=said.append
    ).carry_out()
    tuned = f"threshold: 'tuned' -> {before['threshold']}"
    assert f"evaluated with the values that an earlier evaluation tuned: {tuned}" in said


def test_an_evaluation_of_a_checkpoint_that_is_no_run_tunes_the_thresholds_of_the_answers(tmp_path, eager_steps):
    dev = write_rows(tmp_path / "dev.tsv", rows_of(30, 1))
    task = load_task(
        make_config(
            "classification", options={"kind": "multi_label", "labels": ["stone", "water"], "threshold": "tuned"}
        )
    )
    task.build_model().save(tmp_path / "bert.keras")
    said = []
    metrics = FineTuning(
        task,
        data_files(eval_file=dev, predict_file=dev),
        RunFolder(str(tmp_path / "out")),
        Placement(),
        str(tmp_path / "bert.keras"),
        Steps(train=False, predict=True),
        report=said.append,
    ).carry_out()
    assert f"tuned in evaluation: threshold: 'tuned' -> {metrics['threshold']!r}" in said
    for line in (tmp_path / "out/predictions.tsv").read_text().splitlines()[1:]:
        _, given, *probabilities = line.split("\t")
        assert set(filter(None, given.split(","))) == {
            label
            for label, probability in zip(("stone", "water"), probabilities)
            if float(probability) >= metrics["threshold"]
        }


def test_a_threshold_that_no_evaluation_tuned_is_told(tmp_path):
    task = load_task(
        make_config("classification", options={"kind": "multi_label", "labels": ["a", "b"], "threshold": "tuned"})
    )
    with pytest.raises(ValueError, match="threshold: tuned, but no evaluation has tuned it yet"):
        task.answers.answer(np.zeros(2, np.float32))
    with pytest.raises(ValueError, match="threshold: tuned, but no evaluation has tuned it yet"):
        task.data.check(Steps(train=False, evaluate=False, predict=True))  # before anything is answered
    task.data.check(Steps(train=False))
    given = load_task(
        make_config("classification", options={"kind": "multi_label", "labels": ["a", "b"], "threshold": [0.9, 0.2]})
    )
    assert given.answers.answer(np.array([2.0, -1.0], np.float32))["labels"] == ["b"]  # 0.88 and 0.27
