"""A run from its first step to its last, in this process: phases, stops, guards, evaluations, the best checkpoint, full
disks.
"""

import collections
import json
import re
import resource
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from eager_models import eager_functions
from local_ports import free_ports
from made_pretraining import S, data_files, make_config, resolve, write_records

from official_bert.run_folder import METRIC_FILE, RunFolder
from official_bert.runs import evaluation, whole_run
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.training import checkpointing, loop
from official_bert.training.machines import distribution
from official_bert.training.machines.cluster import Placement
from official_bert.training.stops import divergence
from official_bert.training.trainer import Trainer


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("records") / "train.tfrecord", 100)


@pytest.fixture(scope="module")
def held_out(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("records") / "held_out.tfrecord", 40, seed=1)


def given(config, *records):
    """Returns the first two arguments of training and evaluation."""
    return load_task(config), data_files(*records)


def train(what, folder, lines=None):
    return whole_run.train(*what, str(folder), Placement(), report=(lines if lines is not None else []).append)


def logged(folder, name, file="log.jsonl"):
    """Returns the values of a metric by step."""
    rows = map(json.loads, (folder / file).read_text().splitlines())
    return {row["step"]: row[name] for row in rows if name in row}


@pytest.fixture(scope="module")
def in_phases(records, tmp_path_factory):
    """Returns what a run of two phases trains on, and its losses by step."""
    folder = tmp_path_factory.mktemp("phases")
    short = write_records(folder / "short.tfrecord", 60, max_seq_length=12)
    config = make_config(
        training={"steps": 0, "log_every": 1, "save_every": 100, "steps_per_loop": 1},
        phases=[{"steps": 3, "options": {"max_seq_length": 12}}, {"steps": 3, "batch_size": 16}],
    )

    def task():
        return given(config, f"{short},{records}")

    with eager_functions():
        train(task(), folder / "whole")
    losses = logged(folder / "whole", "train/loss")
    assert list(losses) == list(range(1, 7))
    rows = logged(folder / "whole", "train/tokens_per_second"), logged(folder / "whole", "train/sequences_per_second")
    lengths = [rows[0][step] / rows[1][step] for step in range(1, 7)]
    assert max(lengths[:3]) <= 12 and min(lengths[3:]) > 10.5  # 8 to 12 tokens a row, then 8 to 16
    return task, losses


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(2, marks=pytest.mark.slow, id="in the first phase"),
        pytest.param(3, id="between the phases"),
        pytest.param(5, marks=pytest.mark.slow, id="in the second phase"),
    ],
)
def test_phases_go_through_in_one_run_whenever_it_was_stopped(in_phases, tmp_path, stopped_at, stop, eager_steps):
    task, wanted = in_phases
    with stopped_at(stop - 1) as status:
        train(task(), tmp_path / "stopped")
    assert status.value.code == loop.STOPPED
    lines = []
    train(task(), tmp_path / "stopped", lines)
    assert re.match(rf"resumed: .*ckpt-\d+ at step {stop} of 6", lines[0]), lines
    assert logged(tmp_path / "stopped", "train/loss") == wanted


@pytest.mark.slow
def test_a_stable_schedule_goes_on_to_a_later_end_and_from_its_decay_as_if_planned_so(records, tmp_path, stopped_at):
    optimizer = {
        "name": "stable_adamw",
        "schedule": "warmup_stable_decay",
        "warmup_steps": 2,
        "decay_steps": 3,
        "decay_shape": "one_minus_sqrt",
    }

    def task(steps):
        training = {"steps": steps, "log_every": 1, "save_every": 100, "steps_per_loop": 1}
        return given(make_config(optimizer=optimizer, training=training), records)

    def train_until(stop, steps):
        with stopped_at(stop - 1):
            train(task(steps), tmp_path / "stopped")

    train(task(9), tmp_path / "whole")
    train_until(4, steps=7)
    train_until(8, steps=9)
    train(task(9), tmp_path / "stopped")
    for name in ("train/loss", "train/learning_rate"):
        assert logged(tmp_path / "stopped", name) == logged(tmp_path / "whole", name)
    rates = list(logged(tmp_path / "whole", "train/learning_rate").values())
    np.testing.assert_allclose(
        np.array(rates) / max(rates), [0.5, 1, 1, 1, 1, 1, 1 - 3**-0.5, 1 - (2 / 3) ** 0.5, 0], atol=1e-6
    )


def test_a_training_shorter_than_its_decay_is_refused_before_it_begins(records, tmp_path):
    config = make_config(optimizer={"schedule": "warmup_stable_decay", "decay_steps": 3}, training={"steps": 2})
    with pytest.raises(
        ValueError,
        match="config.optimizer: expected a warm-up and a decay of at most the training's 2 steps, got 0 and 3",
    ):
        train(given(config, records), tmp_path / "run")
    assert not (tmp_path / "run" / "log.jsonl").exists()


@pytest.mark.slow
def test_the_best_checkpoint_is_that_of_the_best_evaluation(records, held_out, tmp_path):
    config = make_config(
        optimizer={"learning_rate": 0.02, "schedule": "constant"},
        training={"steps": 12, "eval_every": 3, "save_every": 3, "eval_batch_size": 8, "keep_checkpoints": 3},
    )
    train(given(config, records, held_out), tmp_path)
    losses = logged(tmp_path, "eval/loss")
    best = min(losses, key=losses.get)
    assert json.loads((tmp_path / "best" / METRIC_FILE).read_text()) == {
        "metric": "loss",
        "value": losses[best],
        "step": best,
        "batches": 0,
    }
    assert len(list(tmp_path.glob("ckpt-*.index"))) == 3 and len(list((tmp_path / "best").glob("ckpt-*.index"))) == 1
    task, model = restore_for_inference(str(tmp_path / "best"))
    source = resolve(config, records, held_out).held_out.source
    sums = {"mlm": [0, 0], "nsp": [0, 0]}
    for batch in source.dataset().take(source.batches_per_epoch):
        for name, (total, weight) in task.objective.losses(model(dict(batch), training=False), batch).items():
            sums[name][0] += float(total)
            sums[name][1] += float(weight)
    assert sum(total / weight for total, weight in sums.values()) == pytest.approx(losses[best], abs=1e-4)


def test_the_best_of_a_phase_that_is_measured_otherwise_gives_way(tmp_path):
    checkpoint = tf.train.Checkpoint(value=tf.Variable(0.0))

    def kept(*evaluations):
        best = checkpointing.BestCheckpoint(RunFolder(str(tmp_path)), "-loss")  # as after a resume
        return [best.keep_if_better(checkpoint, step, {"loss": loss}, *how) for step, loss, *how in evaluations]

    assert kept((1, 1.0, 0), (2, 1.5, 0), (3, 2.0, 1), (4, 2.1, 1)) == [True, False, True, False]
    assert kept((5, 2.05, 1), (6, 1.9, 1)) == [False, True]
    assert [path.name for path in (tmp_path / "best").glob("*.index")] == ["ckpt-6.index"]
    assert kept((7, 2.0, 1, 50), (8, 2.1, 1, 50), (9, 1.95, 1, 50), (10, 3.0, 1, 0)) == [True, False, True, True]


@pytest.mark.slow
def test_the_best_of_a_run_in_phases_is_the_best_of_the_last_length(records, held_out, tmp_path):
    files = [
        ",".join((long, write_records(tmp_path / f"{name}.tfrecord", 40, max_seq_length=12)))
        for name, long in (("train", records), ("held_out", held_out))
    ]
    config = make_config(
        optimizer={"learning_rate": 0.02, "schedule": "constant"},
        training={"steps": 0, "eval_every": 1, "save_every": 100, "eval_batch_size": 8},
        phases=[{"steps": 8, "options": {"max_seq_length": 12}}, {"steps": 3}],
    )
    train(given(config, *files), tmp_path / "run")
    losses = logged(tmp_path / "run", "eval/loss")
    best = min((9, 10, 11), key=losses.get)
    assert json.loads((tmp_path / "run/best" / METRIC_FILE).read_text()) == {
        "metric": "loss",
        "value": losses[best],
        "step": best,
        "batches": 0,
        "phase": 1,
    }


def test_a_wrong_record_to_evaluate_on_is_named(tmp_path):
    wrong = write_records(tmp_path / "wrong.tfrecord", 7, next_sentence_labels=[7])
    run = resolve(make_config(training={"eval_batch_size": 8}), wrong, wrong)
    trainer = Trainer(run.recipe, tf.distribute.get_strategy(), 1)
    with pytest.raises(ValueError, match=r"^/.*/wrong\.tfrecord: record 6: next-sentence label neither 0 nor 1$"):
        trainer.evaluate(run.held_out.source)


@pytest.mark.slow
def test_following_a_run_gives_the_evaluations_that_the_run_gave(records, held_out, tmp_path):
    config = make_config(training={"steps": 9, "eval_every": 3, "save_every": 3, "eval_batch_size": 8})
    train(given(config, records, held_out), tmp_path)
    evaluation.evaluate_continuously(*given(config, records, held_out), str(tmp_path), Placement(), 5.0, lambda _: None)
    own, followed = logged(tmp_path, "eval/loss"), logged(tmp_path, "eval/loss", "eval_log.jsonl")
    assert list(followed) == [3, 6, 9] and followed == pytest.approx(own, abs=1e-6)


def test_numbers_that_were_not_finite_are_read_back_as_such(tmp_path):
    (tmp_path / "eval_log.jsonl").write_text(
        '{"step": 9, "time": 1.0, "eval/mlm_loss": null, "eval/mlm_accuracy": 0.5}\n'
    )
    assert RunFolder(str(tmp_path)).last_followed() == pytest.approx(
        {"step": 9, "mlm_loss": np.nan, "mlm_accuracy": 0.5}, nan_ok=True
    )


def test_an_evaluation_that_does_not_say_what_was_frozen_reads_the_checkpoint(records, held_out, tmp_path, eager_steps):
    training = {"steps": 1, "eval_batch_size": 8}
    trained = whole_run.train(
        *given(make_config(training=training | {"freeze": "embeddings"}), records, held_out),
        str(tmp_path),
        Placement(),
        report=lambda _: None,
    )
    found = evaluation.measure(
        *given(make_config(training=training), records, held_out), str(tmp_path), Placement()
    ).metrics
    assert found["loss"] == pytest.approx(trained.metrics["loss"], abs=1e-6)


@pytest.mark.slow
def test_profiled_steps_leave_a_profile(records, tmp_path):
    config = make_config(training={"steps": 6})
    whole_run.train(*given(config, records), str(tmp_path), Placement(), profile_steps="2:4", report=lambda _: None)
    assert list((tmp_path / "tensorboard").glob("plugins/profile/*/*.xplane.pb"))
    with pytest.raises(ValueError, match="profile_steps"):
        whole_run.train(*given(config, records), str(tmp_path / "other"), Placement(), profile_steps="4:2")


def test_numbers_that_explode_stop_the_run_and_leave_its_checkpoints(records, tmp_path, eager_steps):
    config = make_config(
        optimizer={"learning_rate": 1e17, "schedule": "constant"}, training={"save_every": 1, "keep_checkpoints": 50}
    )
    with pytest.raises(ValueError, match=r"step \d+: .+ is not finite; the checkpoints before it are intact") as error:
        train(given(config, records), tmp_path)
    step = int(re.search(r"step (\d+)", str(error.value)).group(1))
    reader = tf.train.load_checkpoint(str(tmp_path / f"ckpt-{step - 1}"))
    for name, dtype in reader.get_variable_to_dtype_map().items():
        assert not dtype.is_floating or np.isfinite(reader.get_tensor(name)).all(), name


def test_the_first_bad_tensor_is_named(records):
    strategy, resolved = distribution.make_strategy(Placement()), resolve(make_config(), records)
    trainer = Trainer(resolved.recipe, strategy, 20)
    batch = next(iter(resolved.train.dataset()))

    sizes, gradients = [], trainer.step.gradients

    def noted(weights, seeds, part, *more):
        sizes.append(len(part["input_ids"]))
        return gradients(weights, seeds, part, *more)

    trainer.step.gradients = noted
    assert (
        divergence.first_bad_tensor(trainer.step, trainer.weights, batch, 0, 4) == "the sum of gradients, or an update"
    )
    assert sizes == [8] * 4  # one micro-batch after the other

    def bad():
        return divergence.first_bad_tensor(
            trainer.step, [tf.convert_to_tensor(weight) for weight in trainer.weights], batch, 0, 1
        )

    kernel = next(
        value for value in trainer.model.trainable_variables if value.path.endswith("layer_0/intermediate/kernel")
    )
    before = kernel.numpy()
    kernel.assign(np.full(kernel.shape, 3e38, np.float32))
    assert bad().startswith("output of ") and "layer_0/intermediate" in bad()
    kernel.assign(np.full(kernel.shape, np.nan, np.float32))
    assert bad() == f"weight {kernel.path}"
    kernel.assign(before)
    assert bad() == "the sum of gradients, or an update"


def test_a_layer_without_a_path_is_named_too(records):
    tf.keras.config.set_dtype_policy("mixed_float16")
    try:
        resolved = resolve(make_config(), records)
    finally:
        tf.keras.config.set_dtype_policy("float32")
    named = []
    object.__setattr__(resolved.model.encoder, "_path", None)  # as of layers that were never built
    with divergence.watched(resolved.model, lambda name, _: named.append(name)):
        batch = next(iter(resolved.train.dataset()))
        resolved.model({key: value for key, value in batch.items() if key != "example_weights"})
    assert named and all(isinstance(name, str) and "None" not in name for name in named)


WRONG = [
    ({"next_sentence_labels": [2]}, "next-sentence label"),
    ({"input_mask": np.zeros(S)}, "no token at all"),
    ({"masked_lm_ids": np.array([7, 40, 0])}, "beyond the vocabulary of 40"),
    ({"masked_lm_positions": np.array([1, S, 0])}, "position"),
]


@pytest.mark.parametrize(("wrong", "told"), WRONG, ids=[told for _, told in WRONG])
def test_a_record_that_cannot_be_learned_from_is_named(tmp_path, wrong, told):
    path = write_records(tmp_path / "bad.tfrecord", 40, **wrong)
    source = resolve(make_config(), path).train
    with pytest.raises(tf.errors.InvalidArgumentError) as refused:
        collections.deque(source.dataset().take(source.batches_per_epoch + 1), maxlen=0)
    assert re.search(rf"bad\.tfrecord: record 39: .*{told}", source.explain(refused.value.message))
    if told == "position":
        with pytest.raises(ValueError, match=r"bad\.tfrecord: record 39: .*position"), eager_functions():
            train(given(make_config(), path), tmp_path / "run")


def test_a_full_disk_leaves_the_checkpoints_before(tmp_path):
    values = tf.Variable(np.random.default_rng(0).normal(size=50_000).astype(np.float32))
    checkpoint = tf.train.Checkpoint(values=values)
    folder = checkpointing.CheckpointFolder(checkpoint, RunFolder(str(tmp_path)), keep=3)
    folder.save(1)
    before, limits = values.numpy(), resource.getrlimit(resource.RLIMIT_FSIZE)
    values.assign_add(tf.ones_like(values))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        with pytest.raises(
            OSError, match="the checkpoint of step 2 could not be written, those before it are intact: File too large$"
        ):
            folder.save(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.glob("ckpt-2*"))
    assert folder.restore_newest().endswith("ckpt-1")
    np.testing.assert_array_equal(values.numpy(), before)


@pytest.mark.slow
def test_fine_tuning_on_two_replicas_or_two_workers_is_that_on_one_device(root, golden, tmp_path):
    command = [
        sys.executable,
        "-m",
        "official_bert.run_finetuning",
        "--task=mrpc",
        f"--data_dir={root}/tests/fixtures/glue/MRPC",
        f"--config={root}/configs/model/tiny.yaml",
        f"--vocab_file={golden}/vocab_uncased.txt",
        "--cache_dir=",
        "--set=model.vocab_size=3000",
        "--set=options.dropout=0.0",
        "--set=model.hidden_dropout_prob=0.0",
        "--set=model.attention_probs_dropout_prob=0.0",
        "--set=training.log_every=1",
        "--set=training.batch_size=4",
        "--set=training.eval_batch_size=4",
        "--set=training.epochs=4.0",
        "--do_predict",
    ]
    hosts = ",".join(f"127.0.0.1:{port}" for port in free_ports(2))
    workers = [["--strategy=multi_worker", f"--worker_hosts={hosts}", f"--task_index={index}"] for index in range(2)]
    runs = {"one": [[]], "two": [["--strategy=mirrored", "--num_cpu_devices=2"]], "workers": workers}
    for name, processes in runs.items():
        started = [
            subprocess.Popen(
                [*command, *more, f"--output_dir={tmp_path / name}"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for more in processes
        ]
        for process in started:
            told = process.communicate(timeout=300)
            assert process.returncode == 0, told
            assert ("wrote" in told[0]) == (process is started[0])
    one, two, several = (logged(tmp_path / name, "train/loss") for name in runs)
    assert len(one) > 3 and one == pytest.approx(two, abs=1e-5) and one == pytest.approx(several, abs=1e-5)
    metrics = [
        dict(line.split(" = ") for line in (tmp_path / name / "eval_results.txt").read_text().splitlines())
        for name in runs
    ]
    assert "accuracy" in metrics[0] and len(metrics[0]) > 2
    for other in metrics[1:]:
        assert {key: float(value) for key, value in other.items()} == pytest.approx(
            {key: float(value) for key, value in metrics[0].items()}, abs=1e-5
        )
    answers = [(tmp_path / name / "MRPC.tsv").read_text() for name in runs]
    assert answers[0].startswith("index\tprediction") and len(set(answers)) == 1
