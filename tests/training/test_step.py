import json
import math
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from made_pretraining import make_config, resolve, write_records
from oracles.weights import variables_by_name

from official_bert.config import OptimizerConfig, TrainingConfig, load_config
from official_bert.models import checkpoints
from official_bert.tasks.loading import load_task
from official_bert.training import optimization
from official_bert.training.machines import distribution
from official_bert.training.optimization import Decision
from official_bert.training.step import State, fold_seeds
from official_bert.training.stops import divergence
from official_bert.training.trainer import Trainer

pytestmark = pytest.mark.optimized_graphs


def trainer_of(task, model, total=20):
    return Trainer(task.recipe(model), tf.distribute.get_strategy(), total)


def trained_on(config, path):
    """Returns a trainer with the weights of seed 1, and its batches."""
    tf.keras.utils.set_random_seed(1)
    resolved = resolve(config, path)
    return trainer_of(resolved.task, resolved.model), resolved.train


def test_six_steps_are_those_of_the_2018_code(golden):
    wanted = np.load(golden / "tf1_bert/after_6_steps.npz")
    base = load_config(bert_config_file=str(golden / "tf1_bert/bert_config.json"))
    config = type(base)(
        model=base.model,
        options={"max_seq_length": 24, "max_predictions_per_seq": 5},
        optimizer=OptimizerConfig(learning_rate=5e-3, warmup_steps=3),
        training=TrainingConfig(batch_size=4),
    )
    task = load_task(config)
    trainer = trainer_of(task, task.build_model(), total=10)
    checkpoints.initialize_from(trainer.model, str(golden / "tf1_bert/bert_model.ckpt"))
    batch = dict(np.load(golden / "tf1_bert/inputs.npz")) | {"example_weights": np.ones(4, "float32")}
    iterator = iter(tf.data.Dataset.from_tensors(batch).repeat())
    rows = [trainer.run_steps(iterator, tf.constant(count)).numpy() for count in (4, 2)]
    for name, variable in variables_by_name(trainer.model).items():
        np.testing.assert_allclose(variable.numpy().reshape(wanted[name].shape), wanted[name], atol=1e-4, err_msg=name)
    # The seventh step only measured the losses after the sixth.
    rows = np.concatenate([*rows, trainer.run_steps(iterator, tf.constant(1)).numpy()])
    names = trainer.step.names
    losses = rows[:, [names.index("mlm_loss"), names.index("nsp_loss")]]
    np.testing.assert_allclose(losses, wanted["losses"], atol=1e-4)


def test_what_tensorflow_keeps_of_a_step_holds_no_variables(tmp_path):
    # Graphs that call tf.custom_gradient are never freed: a search of twenty runs would hold the weights and moments of
    # all.
    trainer, source = trained_on(
        make_config(training={"freeze": "embeddings"}), write_records(tmp_path / "r.tfrecord", 50)
    )
    step, batch = trainer.step, dict(next(iter(source.dataset())))
    weights = [tf.convert_to_tensor(weight) for weight in trainer.weights]
    others = fold_seeds(trainer.model.non_trainable_variables, 0, tf.constant(0), tf.constant(0))
    graphs = [
        step.graph_of_gradients.get_concrete_function(
            weights, others, batch, step.objective.weights(batch), tf.constant(1.0)
        ),
        step.graph_of_evaluation.get_concrete_function(weights, others, batch),
    ]
    assert not [tensor for graph in graphs for tensor in graph.captured_inputs if tensor.dtype == tf.resource]


@pytest.mark.slow
def test_a_step_holds_one_forward_pass(tmp_path):
    path = write_records(tmp_path / "r.tfrecord", 50)
    trainer, source = trained_on(make_config(), path)
    batch, model = next(iter(source.dataset())), trainer.model
    weights = [tf.convert_to_tensor(weight) for weight in trainer.weights]

    def calls_of(function):
        called = []
        with divergence.watched(model, lambda path, _: called.append(path)):
            tf.function(function).get_concrete_function()
        return called

    state = State(weights, weights, weights, tf.constant(1.0), tf.constant(0))
    step = calls_of(lambda: trainer.step.train(state, batch, tf.constant(0), tf.constant(0), list)[1])
    forward = calls_of(lambda: model(dict(batch), training=True))
    assert step == forward and len(forward) > 10


@pytest.mark.slow  # test_distribution.py cuts batches on replicas, test_skipped_padding.py on one device
def test_a_batch_cut_into_micro_batches_is_the_same_step(tmp_path):
    path = write_records(tmp_path / "r.tfrecord", 200)
    rows, weights = [], []
    for pieces in (1, 4):
        config = make_config(
            model={"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
            training={"accumulation_steps": pieces},
        )
        trainer, source = trained_on(config, path)
        rows.append(trainer.run_steps(iter(distribution.distribute(source, trainer.strategy)), tf.constant(20)))
        weights.append([weight.numpy() for weight in trainer.weights])
    np.testing.assert_allclose(rows[0][:, 0], rows[1][:, 0], atol=1e-5)
    for one, other in zip(*weights):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_recomputed_activations_make_the_same_step_dropout_included(tmp_path):
    path = write_records(tmp_path / "r.tfrecord", 100)
    rows, weights = [], []
    for recompute in (False, True):
        trainer, source = trained_on(
            make_config(training={"recompute": recompute}, optimizer={"learning_rate": 1e-3}), path
        )
        rows.append(trainer.run_steps(iter(source.dataset()), tf.constant(5)).numpy())
        weights.append([weight.numpy() for weight in trainer.weights])
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-4, atol=1e-5)
    for one, other in zip(*weights):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_dropout_seeds_differ_by_step_part_and_site_and_by_nothing_else():
    sites = [tf.Variable([0, 0]) for _ in range(3)]
    seen = {}
    for step in range(3):
        for part in range(3):
            for site, seed in enumerate(fold_seeds(sites, 7, tf.constant(step), tf.constant(part))):
                seen[step, part, site] = tuple(seed.numpy())
    assert len(set(seen.values())) == 27
    again = fold_seeds(sites, 7, tf.constant(2), tf.constant(1))
    assert [tuple(seed.numpy()) for seed in again] == [seen[2, 1, site] for site in range(3)]
    other = fold_seeds(sites, 8, tf.constant(2), tf.constant(1))
    assert tuple(other[0].numpy()) != seen[2, 1, 0]


@pytest.mark.slow  # the journeys learn in float32
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_toy_data_is_learned_in_every_precision(tmp_path, precision):
    path = write_records(tmp_path / "r.tfrecord", 400)
    config = make_config(optimizer={"learning_rate": 1e-2, "schedule": "constant"}, training={"precision": precision})
    distribution.set_precision(precision)
    try:
        trainer, source = trained_on(config, path)
        rows = trainer.run_steps(iter(source.dataset()), tf.constant(100)).numpy()
    finally:
        distribution.set_precision("float32")
    losses = rows[:, trainer.step.names.index("mlm_loss")]
    assert all(weight.dtype == tf.float32 for weight in trainer.weights)
    assert losses[-5:].mean() < 0.7 * losses[:3].mean(), losses


def test_an_exploding_step_is_skipped_and_counted(tmp_path):
    path = write_records(tmp_path / "r.tfrecord", 100)
    trainer, source = trained_on(make_config(training={"skip_gradient_norm": 1e-6}), path)
    state = [*trainer.weights, *trainer.first, *trainer.second]
    for variable in state:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape))
    before = [variable.numpy() for variable in state]
    rows = trainer.run_steps(iter(source.dataset()), tf.constant(3)).numpy()
    assert rows[:, trainer.step.names.index("skipped")].tolist() == [1, 1, 1]
    for old, new in zip(before, state):
        np.testing.assert_array_equal(old, new)


# 1e6 is infinite in float16, whose loss scale is 2 ** 15 at first.
@pytest.mark.parametrize(
    ("precision", "value", "taken"),
    [("float32", np.nan, 1), pytest.param("float16", 1e6, 16, marks=pytest.mark.slow)],
)
def test_a_loss_that_is_not_finite_stops_the_steps_and_changes_nothing(tmp_path, precision, value, taken):
    path = write_records(tmp_path / "r.tfrecord", 100)
    distribution.set_precision(precision)
    try:
        trainer, source = trained_on(make_config(training={"precision": precision}), path)
    finally:
        distribution.set_precision("float32")
    bias = next(
        weight for weight in trainer.model.trainable_variables if weight.path.endswith("layer_0/intermediate/bias")
    )
    bias.assign(np.full(bias.shape, value))
    before = [weight.numpy() for weight in trainer.weights]
    rows = trainer.run_steps(iter(source.dataset()), tf.constant(25)).numpy()
    assert rows[:, trainer.step.names.index("failed")].tolist() == [0] * (taken - 1) + [1]
    assert rows[:, trainer.step.names.index("skipped")].tolist() == [1] * (taken - 1) + [0]
    for old, new in zip(before, trainer.weights):
        np.testing.assert_array_equal(old, new)


@pytest.mark.slow
def test_accumulation_runs_at_a_size_that_the_graph_optimizer_rearranges(root):
    done = subprocess.run(
        [
            sys.executable,
            str(root / "benchmarks/memory_and_precision.py"),
            "--steps=1",
            '--one=["training.accumulation_steps=4"]',
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1])["memory"] > 0


def test_large_weights_and_their_moments_are_updated_in_their_own_memory(tmp_path):
    words = 16411  # a prime number: such a table cannot be cut into blocks
    config = make_config(model={"vocab_size": words, "intermediate_size": 2048})
    trainer, _ = trained_on(config, write_records(tmp_path / "r.tfrecord", 50))
    decision = Decision(tf.constant(1.0), tf.constant(0.1), tf.constant(0, tf.int64), tf.constant(True))
    places = {update: place for place, update in enumerate(trainer.step.updates_in_place)}
    assert 5 < len(places) < len(trainer.weights)  # weights of one shape share an update
    large = {
        update: place
        for update, place in places.items()
        if math.prod(trainer.weights[place].shape) > optimization.BLOCK
    }
    width = config.model.hidden_size
    assert sorted(tuple(trainer.weights[place].shape) for place in large.values()) == [
        (width, 2048),
        (2048, width),
        (words,),
        (words, width),
    ]
    for update, place in large.items():
        variables = [group[place] for group in (trainer.weights, trainer.first, trainer.second)]
        hlo = update.experimental_get_compiler_ir(*variables, tf.zeros(variables[0].shape), decision)(
            stage="optimized_hlo"
        )
        header = hlo.partition("input_output_alias=")[2].partition("entry_computation")[0]
        aliases = re.findall(r"\{(\d)\}: \((\d)", header)
        # the memory of each variable is that of its result
        assert sorted(aliases) == [("0", "0"), ("1", "1"), ("2", "2")], hlo[:500]


@pytest.mark.slow
def test_updates_in_place_are_those_of_the_pure_step_which_tpus_run(tmp_path):
    trainer, source = trained_on(make_config(), write_records(tmp_path / "r.tfrecord", 50))
    groups = (trainer.weights, trainer.first, trainer.second)
    batch = next(iter(source.dataset()))

    def pure_step():
        state = State(
            *([tf.convert_to_tensor(variable) for variable in group] for group in groups),
            tf.convert_to_tensor(trainer.scale),
            tf.convert_to_tensor(trainer.finite_steps),
        )
        new, row = trainer.step.train(state, batch, tf.constant(0, tf.int64), tf.constant(0), list)
        return [*new.weights, *new.first, *new.second], row

    values, row = tf.function(pure_step)()
    rows = trainer.run_steps(iter(tf.data.Dataset.from_tensors(batch)), tf.constant(1)).numpy()
    np.testing.assert_allclose(rows[0], row, rtol=1e-6)
    for variable, value in zip([*trainer.weights, *trainer.first, *trainer.second], values):
        np.testing.assert_allclose(variable, value, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_trainings_of_one_process_share_the_compiled_updates(tmp_path):
    path = write_records(tmp_path / "r.tfrecord", 50)
    updates, counts = [], []
    for rate in (1e-4, 1e-3):  # the rate is an input of an update
        trainer, source = trained_on(make_config(optimizer={"learning_rate": rate}), path)
        trainer.run_steps(iter(source.dataset()), tf.constant(1))
        updates.append(trainer.step.updates_in_place)
        counts.append([update.experimental_get_tracing_count() for update in updates[-1]])
    assert updates[0] == updates[1]
    assert counts[0] == counts[1]
    other, _ = trained_on(make_config(optimizer={"beta_1": 0.8}), path)
    assert not set(other.step.updates_in_place) & set(updates[0])
