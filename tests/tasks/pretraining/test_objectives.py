"""The sentence task of pre-training: next sentence, sentence order, or none."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from made_pretraining import data_files, make_config, resolve, weights_after_two_steps, write_records

from official_bert.long_work.provenance import write_origin
from official_bert.models.encoder import weights_by_name
from official_bert.models.interchange import formats
from official_bert.reports.comparison import measure_interval
from official_bert.runs import whole_run
from official_bert.tasks.loading import load_task, restore_model
from official_bert.training.machines.cluster import Placement
from official_bert.training.trainer import Trainer


def test_sop_is_nsp_by_its_own_name_and_none_is_the_masked_words_alone(tmp_path):
    path = write_records(tmp_path / "train", 32)
    resolved = {task: resolve(make_config(options={"sentence_task": task}), path) for task in ("nsp", "sop", "none")}
    weights = {name: set(weights_by_name(one.model)) for name, one in resolved.items()}
    assert weights["nsp"] - weights["none"] == {"next_sentence/output_weights", "next_sentence/output_bias"}
    assert weights["nsp"] == weights["sop"] > weights["none"]
    batch = next(iter(resolved["nsp"].train.dataset()))
    outputs = resolved["nsp"].model(batch)
    losses, counters = (
        {name: getattr(one.task.objective, kind)(outputs, batch) for name, one in resolved.items()}
        for kind in ("losses", "counters")
    )
    assert losses["sop"] == {"mlm": losses["nsp"]["mlm"], "sop": losses["nsp"]["nsp"]}
    assert losses["none"] == {"mlm": losses["nsp"]["mlm"]}
    for name, one in resolved.items():
        assert tuple(one.task.objective.names) == tuple(losses[name]) == tuple(one.task.objective.weights(batch))
        assert tuple(one.task.objective.counter_names) == tuple(counters[name])
        assert {f"{loss}_accuracy" for loss in losses[name]} == set(counters[name])
    assert set(resolved["none"].model(batch)) == {"mlm_logits"}
    assert all(
        float(weight) == float(resolved["sop"].task.objective.weights(batch)[loss])
        for loss, (_, weight) in losses["sop"].items()
    )


@pytest.mark.parametrize(
    "options",
    [
        {},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in ({"sentence_task": "none"}, {"pack": True, "max_instances_per_row": 3})
        ),
    ],
)
def test_intervals_come_from_the_rows_whose_sums_are_the_losses(tmp_path, options, eager_steps):
    path = write_records(tmp_path / "records", 21, max_seq_length=16)
    keras.utils.set_random_seed(3)  # weights that predict some words: without any, an accuracy has no interval
    one = resolve(make_config(options=options), path, path)
    metrics, predictions = Trainer(one.recipe, tf.distribute.get_strategy(), 1).evaluate(one.held_out.source)
    (answers,) = one.held_out.comparable(predictions).values()
    assert len(answers.questions) == len(predictions) and (
        len(predictions) < 21 if options.get("pack") else len(predictions) == 21
    )
    assert answers.measure(np.arange(len(predictions))) == pytest.approx(metrics, rel=1e-6)
    intervals = measure_interval(answers)
    assert set(intervals) == set(metrics) and all(
        low <= metrics[name] <= high for name, (low, high) in intervals.items()
    )
    single = [answers.measure(np.array([row]))["mlm_loss"] for row in range(len(predictions))]
    assert max(single) > intervals["mlm_loss"][1] > intervals["mlm_loss"][0] > min(single)


@pytest.mark.parametrize("made, wanted", [("none", "nsp"), ("sop", "nsp"), ("nsp", "sop"), ("nsp", "none")])
def test_records_of_another_sentence_task_are_refused_with_both_names(tmp_path, made, wanted):
    path = write_records(tmp_path / "train", 4)
    config = make_config(options={"sentence_task": wanted})
    resolve(config, path)  # nothing says what they were made with
    write_origin(path, {"sentence_task": made})
    with pytest.raises(
        ValueError,
        match=f"train: its records were made with --sentence_task={made}, but config.options.sentence_task is {wanted}",
    ):
        resolve(config, path)
    resolve(make_config(options={"sentence_task": made}), path)


def test_a_phase_has_no_sentence_task_of_its_own():
    phases = [{"steps": 1}, {"steps": 1, "options": {"sentence_task": "none"}}]
    with pytest.raises(
        ValueError, match=r"config.phases\[1\].options.sentence_task: expected that of the run, sop .* got none"
    ):
        load_task(make_config(phases=phases, options={"sentence_task": "sop"}))


def test_a_phase_has_no_first_weights_of_its_own():
    with pytest.raises(
        ValueError,
        match=r"config.phases\[0\].options.first_weights: expected that of the run, random .* got neighbours",
    ):
        load_task(make_config(phases=[{"steps": 1, "options": {"first_weights": "neighbours"}}]))
    options = {"first_weights": "neighbours"}
    load_task(make_config(options=options, phases=[{"steps": 1, "options": options}]))


@pytest.mark.parametrize("rule", ["adamw", "lamb", "stable_adamw"])
def test_a_pooler_that_nothing_reads_does_not_decay(tmp_path, rule):
    config = make_config(options={"sentence_loss": False}, optimizer={"name": rule, "learning_rate": 0.1})
    run = resolve(config, write_records(tmp_path / "train", 64))
    after = weights_after_two_steps(run)
    first = {
        name: np.random.default_rng(number).normal(0, 0.1, weight.shape).astype("float32")
        for number, (name, weight) in enumerate(weights_by_name(run.model).items())
    }
    assert {name for name, value in after.items() if np.array_equal(value, first[name])} == {
        "pooler/kernel",
        "pooler/bias",
    }


@pytest.mark.slow
def test_a_model_without_a_head_for_sentences_is_trained_restored_and_converted(tmp_path):
    path = write_records(tmp_path / "train", 64)
    config = make_config(options={"sentence_task": "none"}, training={"steps": 4, "save_every": 2})
    trained = whole_run.train(load_task(config), data_files(path, path), str(tmp_path / "run"), Placement())
    assert set(trained.metrics) >= {"loss", "mlm_loss", "mlm_accuracy"} and not [
        name for name in trained.metrics if "nsp" in name
    ]
    assert trained.metrics["loss"] == trained.metrics["mlm_loss"]
    _, restored = restore_model(str(tmp_path / "run"))
    for name in ("hugging_face", "ours"):
        formats.write(formats.read(str(tmp_path / "run")), name, str(tmp_path / name))
        model = formats.make_model(formats.read(str(tmp_path / name)))
        np.testing.assert_array_equal(
            weights_by_name(model)["masked_lm/output_bias"], weights_by_name(restored)["masked_lm/output_bias"]
        )
        assert "nsp_logits" not in model(next(iter(trained.resolved.train.dataset())))
    assert restore_model(str(tmp_path / "ours"))[0].options["sentence_task"] == "none"
