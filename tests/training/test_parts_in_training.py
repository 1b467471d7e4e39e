"""Frozen parts, rates by layer and layers made anew, in steps and in whole runs."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import ROOT, VOCAB, data_files, make_config, resolve

from official_bert.interface.predictor import Predictor
from official_bert.models import parameter_groups
from official_bert.models.encoder import weights_by_name
from official_bert.models.first_weights import draw_first_weights
from official_bert.models.interchange import formats
from official_bert.run_folder import RunFolder, prefixes_in
from official_bert.runs.fine_tuning import FineTuning
from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task
from official_bert.training.machines import distribution
from official_bert.training.machines.cluster import Placement
from official_bert.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("eager_predictors", "eager_steps")

LABELS = ["atlas", "copper"]
FREEZE = "embeddings, layer 0"
FROZEN = ("embeddings/", "layer_0/")
MODEL = {"num_hidden_layers": 2, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


@pytest.fixture(scope="module")
def train_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("parts") / "train.csv"
    rows = [f"the {word} number {number},{word}" for number in range(12) for word in LABELS]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def config_of(optimizer=None, **training):
    return make_config(
        "classification",
        model=MODEL,
        optimizer=optimizer or {},
        options={"dev_share": 0.0, "labels": LABELS},
        training={"batch_size": 8, "eval_batch_size": 8, **training},
    )


def one_step(train_file, optimizer=None, freeze=""):
    """Returns the weights before and after a step, by name, and the trainer and the step's metrics."""
    config = config_of({"warmup_proportion": 0.0, "schedule": "constant", **(optimizer or {})}, freeze=freeze)
    data = resolve(config, train_file=train_file)
    draw_first_weights(data.model, 1)
    parameter_groups.freeze(data.model, freeze)
    trainer = Trainer(data.recipe, tf.distribute.get_strategy(), 10)
    before = {name: weight.numpy() for name, weight in weights_by_name(data.model).items()}
    (row,) = trainer.run_steps(iter(distribution.distribute(data.train, trainer.strategy)), tf.constant(1)).numpy()
    after = {name: weight.numpy() for name, weight in weights_by_name(data.model).items()}
    return before, after, trainer, dict(zip(trainer.step.names, row))


@pytest.fixture(scope="module")
def plain(train_file):
    return one_step(train_file)


def test_frozen_weights_stay_bit_for_bit_and_have_neither_moments_nor_gradients(train_file, plain):
    before, after, trainer, metrics = one_step(train_file, freeze=FREEZE)
    for name in before:
        moved = not np.array_equal(before[name], after[name])
        # a softmax does not see that bias
        assert moved == (not name.startswith(FROZEN)) or name.endswith("key/bias"), name
    assert (
        len(trainer.first)
        == len(trainer.second)
        == len(trainer.weights)
        == sum(not name.startswith(FROZEN) for name in before)
    )
    # Dropout draws the same masks: the loss before the update is that of the model that is not frozen.
    assert metrics["loss"] == plain[3]["loss"]
    assert metrics["gradient_norm"] < plain[3]["gradient_norm"]
    assert len(plain[2].first) == len(before)


def test_the_backward_pass_ends_above_the_frozen_layers(train_file, plain):
    data = resolve(config_of(freeze=FREEZE), train_file=train_file)
    parameter_groups.freeze(data.model, FREEZE)
    frozen = Trainer(data.recipe, tf.distribute.get_strategy(), 10)

    def products(trainer):
        weights = [tf.convert_to_tensor(weight) for weight in trainer.weights]
        batch = {name: tf.constant(value) for name, value in data.train.batch(0).items()}
        others = trainer.step._others()
        graph = (
            tf.function(
                lambda: trainer.step.gradients(weights, others, batch, {"loss": tf.constant(8.0)}, tf.constant(1.0))[0],
                autograph=False,
            )
            .get_concrete_function()
            .graph
        )
        return sum(op.type in ("MatMul", "Einsum", "BatchMatMulV2") for op in graph.get_operations())

    assert products(frozen) < 0.75 * products(plain[2])


def test_each_layer_moves_by_its_share_of_the_rate(train_file, plain):
    before, after, trainer, _ = one_step(train_file, {"layer_decay": 0.5, "head_rate": 4.0})
    factors = dict(zip([name for name, weight in weights_by_name(trainer.model).items()], trainer.step.rate_factors))
    assert set(factors.values()) == {0.25, 0.5, 1.0, 4.0}
    for name, factor in factors.items():
        np.testing.assert_allclose(
            after[name] - before[name], factor * (plain[1][name] - plain[0][name]), atol=2e-6, err_msg=name
        )


def run(
    train_file,
    folder,
    init_checkpoint="",
    steps=Steps(evaluate=False),  # noqa: B008
    said=None,
    optimizer=None,
    **training,
):
    keras.backend.clear_session()
    task = load_task(config_of(optimizer, **{"epochs": 0.0, "steps": 2, **training}))
    files = data_files(train_file=train_file, eval_file=train_file, allow_same_data=True)
    return FineTuning(
        task,
        files,
        RunFolder(str(folder)),
        Placement(),
        str(init_checkpoint),
        steps,
        report=(said if said is not None else []).append,
    ).carry_out()


def weights_of(folder):
    return formats.read(str(folder)).weights


@pytest.mark.slow
def test_the_last_layers_are_made_anew_as_the_seed_says(train_file, tmp_path):
    first = resolve(config_of(), train_file=train_file).model
    draw_first_weights(first, 12345)
    wanted = {name: weight.numpy() for name, weight in weights_by_name(first).items()}
    run(train_file, tmp_path / "first")
    said = []
    run(
        train_file,
        tmp_path / "second",
        tmp_path / "first",
        said=said,
        optimizer={"learning_rate": 0.0},
        reinitialize_layers=1,
    )
    assert "reinitialized (seed 12345): the last 1 layers and the pooler" in said
    found, taken = weights_of(tmp_path / "second"), weights_of(tmp_path / "first")
    for name, value in found.items():
        source = wanted if name.startswith(("layer_1/", "pooler/")) else taken
        np.testing.assert_array_equal(value, source[name].reshape(value.shape), err_msg=name)
    with pytest.raises(ValueError, match="reinitialize_layers: expected --init_checkpoint with it"):
        run(train_file, tmp_path / "third", reinitialize_layers=1)


@pytest.mark.slow
def test_a_frozen_run_is_resumed_evaluated_answers_and_initialises_another(train_file, tmp_path):
    run(train_file, tmp_path / "first")
    run(train_file, tmp_path / "frozen", tmp_path / "first", freeze=FREEZE)
    said = []
    resumed = run(train_file, tmp_path / "frozen", tmp_path / "first", freeze=FREEZE, steps=Steps(), said=said)
    assert any(line.startswith("resumed: ") for line in said) and any(
        line.startswith("frozen: embeddings, layer_0; ") for line in said
    )
    alone = run(train_file, tmp_path / "frozen", freeze=FREEZE, steps=Steps(train=False))
    assert alone["loss"] == pytest.approx(resumed["loss"])
    first, frozen = weights_of(tmp_path / "first"), weights_of(tmp_path / "frozen")
    for name in first:
        if name.startswith(FROZEN):
            np.testing.assert_array_equal(first[name], frozen[name])
    stored = [name for name, _ in tf.train.list_variables(prefixes_in(str(tmp_path / "frozen"))[0])]
    assert not [name for name in stored if name.startswith(("first/", "second/")) and "layer_0" in name]
    assert Predictor(str(tmp_path / "frozen"))("the atlas")["label"] in LABELS
    said.clear()
    run(train_file, tmp_path / "other", tmp_path / "frozen", said=said)
    assert any("initialized (weights only)" in line and "new:" not in line for line in said)
    with pytest.raises(ValueError, match=r"another configuration \(training.freeze: 'embeddings, layer 0' -> ''\)"):
        run(train_file, tmp_path / "frozen", tmp_path / "first")


@pytest.mark.slow
def test_two_replicas_train_as_one_with_weights_of_labels_frozen_parts_and_rates_by_layer(train_file, tmp_path):
    (tmp_path / "bert_config.json").write_text(
        json.dumps(
            {
                "vocab_size": 3000,
                "hidden_size": 16,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 32,
                "max_position_embeddings": 64,
                "type_vocab_size": 2,
                "initializer_range": 0.2,
                "hidden_act": "gelu",
                "hidden_dropout_prob": 0.0,
                "attention_probs_dropout_prob": 0.0,
            }
        )
    )
    command = [
        sys.executable,
        "-m",
        "official_bert.run_finetuning",
        "--task=classification",
        f"--train_file={train_file}",
        f"--vocab_file={VOCAB}",
        f"--bert_config_file={tmp_path}/bert_config.json",
        "--cache_dir=",
        "--num_train_epochs=2",
        "--max_seq_length=32",
        "--train_batch_size=8",
        "--learning_rate=3e-3",
        "--set=options.dropout=0.0",
        "--set=options.class_weights=[1.0, 5.0]",
        "--set=options.label_smoothing=0.1",
        "--set=training.freeze=[embeddings]",
        "--set=optimizer.layer_decay=0.8",
        "--set=optimizer.head_rate=3.0",
    ]
    for name, more in (
        ("one", []),
        ("two", ["--strategy=mirrored", "--num_cpu_devices=2", "--set=training.accumulation_steps=2"]),
    ):
        done = subprocess.run(
            [*command, f"--output_dir={tmp_path}/{name}", *more], capture_output=True, text=True, cwd=ROOT.parent
        )
        assert done.returncode == 0, done.stderr
    one, two = weights_of(tmp_path / "one"), weights_of(tmp_path / "two")
    for name in one:
        np.testing.assert_allclose(one[name], two[name], atol=2e-5, err_msg=name)
