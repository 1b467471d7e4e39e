"""Students of teachers in pre-training: probabilities of words, states and relations, the layers that a student begins
with.
"""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tensorflow as tf
import yaml
from made_finetuning import ROOT
from made_pretraining import S, data_files, make_config, resolve, write_records
from made_teachers import write_teacher

from official_bert.config import OptimizerConfig, to_dict
from official_bert.models.encoder import weights_by_name
from official_bert.run_folder import RunFolder
from official_bert.runs import whole_run
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.training.machines.cluster import Placement
from official_bert.training.trainer import Trainer

STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ALL = {"labels": 2.0, "answers": 5.0, "states": 1.0, "relations": 1.0}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("records") / "r.tfrecord", 64)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    config = make_config(model={"num_hidden_layers": 3, **STILL})
    return write_teacher(tmp_path_factory.mktemp("teacher") / "run", config)


def config_of(teacher, model=None, options=None, **training):
    return make_config(model=STILL | (model or {}), options=options or {}, training={"teacher": teacher[0], **training})


def test_a_student_equal_to_its_teacher_has_no_loss_on_what_it_says(teacher, records):
    config = config_of(teacher, {"num_hidden_layers": 3}, distillation=ALL | {"relation_heads": 4})
    run = resolve(config, records)
    for name, weight in weights_by_name(run.distilled.targets.teacher.model).items():
        weights_by_name(run.model)[name].assign(weight)
    student = run.distilled
    batch = student.add_teacher_outputs(next(iter(run.train.dataset())))
    losses, weights = student.losses(run.model(dict(batch), training=True), batch), student.weights(batch)
    assert list(losses) == list(weights) == ["mlm", "nsp", "answers", "states", "relations"] == list(student.names)
    for name, (total, weight) in losses.items():
        assert float(weight) == float(weights[name]) > 0
        assert (abs(float(total)) / float(weight) < 1e-5) == (name in ("answers", "states", "relations")), name
    plain = load_task(make_config(model=STILL | {"num_hidden_layers": 3}))
    own = plain.objective.losses(run.model(dict(batch), training=False), batch)
    assert float(losses["mlm"][0]) == pytest.approx(2.0 * float(own["mlm"][0]), rel=1e-5)
    evaluated = run.task.objective.losses(run.model(dict(batch), training=False), next(iter(run.train.dataset())))
    assert list(evaluated) == ["mlm", "nsp"] and float(evaluated["mlm"][0]) == pytest.approx(
        float(own["mlm"][0]), rel=1e-5
    )


@pytest.mark.parametrize(
    ("model", "options", "training", "wrong"),
    [
        ({"vocab_size": 41}, {}, {}, "expected the vocabulary of the student, of 41 entries"),
        (
            {"hidden_size": 8},
            {},
            {"distillation": {"states": 1.0}},
            "states: expected a teacher as wide as the student .8., got 16",
        ),
        (
            {},
            {},
            {"distillation": {"relations": 1.0, "relation_heads": 3}},
            "relation_heads: expected a divisor of the student's hidden_size",
        ),
        (
            {"hidden_size": 24, "num_attention_heads": 2},
            {},
            {"distillation": {"relations": 1.0, "relation_heads": 12}},
            "expected a divisor of the teacher's hidden_size 16, got 12",
        ),
        ({}, {}, {"distillation": {"keep": "kept"}}, "keep: expected auto or computed for pre-training"),
        (
            {"attention": "left_to_right"},
            {"objective": "next_token"},
            {},
            "expected model.attention left_to_right, as the student's",
        ),
        (
            {"attention": "left_to_right"},
            {"objective": "next_token"},
            {"distillation": {"relations": 1.0}},
            "relations: expected model.attention bidirectional",
        ),
        ({"max_position_embeddings": 32}, {"max_seq_length": 32}, {}, "at most the model's 16 positions"),
        (
            {},
            {"first_weights": "neighbours"},
            {"distillation": {"student_layers": "0"}},
            "first_weights: expected random beside",
        ),
    ],
)
def test_what_is_wrong_about_a_teacher_of_words_is_told_before_training(
    teacher, records, tmp_path, model, options, training, wrong
):
    rows = (
        records
        if options.get("max_seq_length", S) == S
        else write_records(tmp_path / "r.tfrecord", 4, max_seq_length=32)
    )
    with pytest.raises(ValueError, match=wrong) as error:
        resolve(config_of(teacher, model, options, **training), rows)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_relations_teach_a_student_of_another_depth_width_and_number_of_heads(teacher, records):
    config = config_of(
        teacher,
        {"hidden_size": 8, "num_attention_heads": 4, "num_hidden_layers": 2},
        batch_size=16,
        distillation={"labels": 0.0, "answers": 0.0, "relations": 1.0, "relation_heads": 4},
    )
    run = resolve(dataclasses.replace(config, optimizer=OptimizerConfig(learning_rate=2e-3)), records)
    trainer = Trainer(run.recipe, tf.distribute.get_strategy(), 200)
    rows = trainer.run_steps(iter(run.train.dataset()), tf.constant(150)).numpy()
    losses = rows[:, trainer.step.names.index("relations_loss")]
    assert losses[-10:].mean() < 0.9 * losses[:10].mean()


@pytest.mark.slow
def test_a_student_begins_with_layers_of_its_teacher(teacher, records, tmp_path):
    config = config_of(teacher, {"num_hidden_layers": 2}, steps=1, distillation={"student_layers": "0,2"})
    said = []
    whole_run.train(load_task(config), data_files(records), str(tmp_path / "run"), Placement(), report=said.append)
    assert any(
        "initialized (weights only)" in line and "of its layers 0, 2" in line and "new:" not in line for line in said
    ), said
    theirs = weights_by_name(teacher[1])
    _, model = restore_for_inference(str(tmp_path / "run"))
    for name, weight in weights_by_name(model).items():
        wanted = theirs[name.replace("layer_1/", "layer_2/")]
        # after a step at a small rate
        np.testing.assert_allclose(weight.numpy(), wanted.numpy(), atol=2e-3, err_msg=name)


@pytest.mark.parametrize(
    ("model", "layers", "init", "wrong"),
    [
        ({"num_hidden_layers": 2}, "0,3", "", "config.training.teacher: .*expected layers from 0 to 2, got 3"),
        ({"num_hidden_layers": 3}, "0,2", "", "config.training.teacher: .*a model of another size: .*missing"),
        (
            {"num_hidden_layers": 2, "hidden_size": 24, "num_attention_heads": 4},
            "0,2",
            "",
            "config.training.teacher: .*model of another size",
        ),
        (
            {"num_hidden_layers": 2},
            "0,2",
            "elsewhere",
            "--init_checkpoint=elsewhere: expected none beside training.distillation.student_la",
        ),
    ],
)
def test_a_student_that_does_not_fit_the_layers_is_refused(teacher, records, tmp_path, model, layers, init, wrong):
    config = config_of(teacher, model, steps=1, distillation={"student_layers": layers})
    with pytest.raises(ValueError, match=wrong):
        whole_run.train(
            load_task(config), data_files(records), str(tmp_path / "run"), Placement(), init, report=lambda _: None
        )
    assert not RunFolder(str(tmp_path / "run")).checkpoints()


@pytest.mark.slow
def test_a_killed_student_goes_on_bit_for_bit_and_not_with_another_teacher(teacher, records, tmp_path):
    steps = {"steps": 12, "save_every": 3, "steps_per_loop": 1}
    config = config_of(teacher, {"num_hidden_layers": 2, "hidden_dropout_prob": 0.1}, **steps, distillation=ALL)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(to_dict(config)))
    command = [sys.executable, "-m", "official_bert.run_pretraining", f"--config={path}", f"--input_file={records}"]
    runs = [tmp_path / "whole", tmp_path / "killed"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT.parent)}
    subprocess.run([*command, f"--output_dir={runs[0]}"], check=True, capture_output=True, env=environment)
    with subprocess.Popen(
        [*command, f"--output_dir={runs[1]}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        while not RunFolder(str(runs[1])).checkpoints() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    done = subprocess.run(
        [*command, f"--output_dir={runs[1]}"], check=True, capture_output=True, text=True, env=environment
    )
    assert "resumed" in done.stdout
    weights = [weights_by_name(restore_for_inference(str(run))[1]) for run in runs]
    for name, weight in weights[0].items():
        assert np.array_equal(weight.numpy(), weights[1][name].numpy()), name
    write_teacher(teacher[0], make_config(model={"num_hidden_layers": 3, **STILL}), seed=2)
    refused = subprocess.run(
        [*command, f"--output_dir={runs[1]}"], check=False, capture_output=True, text=True, env=environment
    )
    write_teacher(teacher[0], make_config(model={"num_hidden_layers": 3, **STILL}), seed=1)
    assert (
        refused.returncode == 1
        and "other weights of training.teacher" in refused.stderr
        and len(refused.stderr.splitlines()) == 1
    )


@pytest.mark.slow
def test_replicas_and_micro_batches_are_one_training(teacher, records, tmp_path):
    found = {}
    for name, placement, pieces in (
        ("one", Placement(), 1),
        ("two", Placement(strategy="mirrored", num_cpu_devices=2), 2),
    ):
        config = config_of(teacher, {"num_hidden_layers": 2}, steps=4, accumulation_steps=pieces, distillation=ALL)
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(to_dict(config)))
        command = [
            sys.executable,
            "-m",
            "official_bert.run_pretraining",
            f"--config={path}",
            f"--input_file={records}",
            f"--output_dir={tmp_path / name}",
            "--set=training.log_every=1",
            f"--strategy={placement.strategy}",
            *([f"--num_cpu_devices={placement.num_cpu_devices}"] if placement.num_cpu_devices else []),
        ]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT.parent)})
        log = [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]
        found[name] = np.array(
            [
                [row[f"train/{part}"] for part in ("loss", "answers_loss", "states_loss", "relations_loss")]
                for row in log
                if "train/loss" in row
            ]
        )
    np.testing.assert_allclose(found["one"], found["two"], rtol=1e-4)
