"""Runs that train adapters: what learns, what is saved, the base below, and every way to compute a step."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
import yaml
from made_finetuning import data_files, make_config

from official_bert.config import to_dict
from official_bert.interface.predictor import Predictor
from official_bert.model_config import ModelConfig
from official_bert.models import adapters, checkpoints
from official_bert.models.adaptation import ADAPTER
from official_bert.models.classifier import Classifier
from official_bert.models.encoder import make_encoder, weights_by_name
from official_bert.models.first_weights import draw_first_weights
from official_bert.models.interchange import formats
from official_bert.models.interchange.adapted_models import adapted
from official_bert.run_folder import RunFolder, prefixes_in
from official_bert.runs.fine_tuning import FineTuning
from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task, restore_model
from official_bert.training.machines.cluster import Placement
from official_bert.training_config import AdaptersConfig

LABELS = ["atlas", "copper"]
BASE_FIELDS = {"num_hidden_layers": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SETTINGS = {"rank": 3, "alpha": 6.0}


def config_of(**training):
    values = {"batch_size": 8, "eval_batch_size": 8, "epochs": 0.0, "steps": 4, "log_every": 1, "steps_per_loop": 1}
    return make_config(
        "classification",
        model=BASE_FIELDS,
        optimizer={"learning_rate": 0.02},
        options={"dev_share": 0.0, "labels": LABELS, "dropout": 0.0},
        training=values | training,
    )


@pytest.fixture(scope="module")
def train_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapters") / "train.csv"
    rows = [f"the {'number ' * (number % 7)}{word},{word}" for number in range(8) for word in LABELS]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A run's folder with random weights."""
    folder = tmp_path_factory.mktemp("base")
    write_base(folder, 1)
    return folder


def write_base(folder, seed):
    model = load_task(config_of()).build_model()
    draw_first_weights(model, seed)
    checkpoints.weights_checkpoint(model).write(str(folder / "ckpt-1"))
    RunFolder(str(folder)).write_config(config_of())


def run(train_file, folder, base="", steps=Steps(evaluate=False), said=None, **training):  # noqa: B008 (frozen)
    keras.backend.clear_session()
    files = data_files(train_file=train_file, eval_file=train_file, allow_same_data=True)
    task = load_task(config_of(**{"adapters": SETTINGS, **training}))
    return FineTuning(
        task,
        files,
        RunFolder(str(folder)),
        Placement(),
        str(base),
        steps,
        report=(said if said is not None else []).append,
    ).carry_out()


def losses(folder):
    rows = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [row["train/loss"] for row in rows if "train/loss" in row]


@pytest.fixture(scope="module")
def trained(train_file, base, tmp_path_factory):
    """A run of adapters, its metrics and the lines that it said."""
    folder, said = tmp_path_factory.mktemp("trained"), []
    return folder, run(train_file, folder, base, Steps(), said), said


def test_adapters_and_head_alone_learn_and_are_saved(trained, base):
    folder, _, said = trained
    assert any("adapters of rank 3 beside 4 products; the base is fixed; 418 of" in line for line in said)
    stored = [
        name.partition("/.ATTR")[0].replace(".S", "/")
        for name, _ in tf.train.list_variables(prefixes_in(str(folder))[0])
    ]
    learned = {
        f"layer_{layer}/attention/{name}/adapter/lora_{letter}"
        for layer in (0, 1)
        for name in ("query", "value")
        for letter in "AB"
    }
    learned |= {"classifier/output_weights", "classifier/output_bias"}
    for kind in ("weights", "first", "second"):
        assert {name.removeprefix(f"{kind}/") for name in stored if name.startswith(f"{kind}/")} == learned
    found, before = formats.read(str(folder)), formats.read(str(base))
    moved = {
        name for name in before.weights if not np.array_equal(before.weights[name].ravel(), found.weights[name].ravel())
    }
    kernels = {f"layer_{layer}/attention/{name}/kernel" for layer in (0, 1) for name in ("query", "value")}
    assert moved == kernels | {"classifier/output_weights", "classifier/output_bias"}
    assert found.adapters.products["layer_0/attention/query"].scale == 2.0
    assert losses(folder)[-1] < losses(folder)[0]


@pytest.mark.slow
def test_a_run_is_resumed_evaluated_and_answers(trained, train_file):
    folder, metrics, _ = trained
    said = []
    assert run(train_file, folder, steps=Steps(), said=said)["loss"] == pytest.approx(metrics["loss"], abs=1e-6)
    assert any(line.startswith("resumed: ") for line in said)
    assert run(train_file, folder, steps=Steps(train=False))["loss"] == pytest.approx(metrics["loss"], abs=1e-6)
    answers = Predictor(str(folder))([f"the {word}" for word in LABELS])
    assert {answer["label"] for answer in answers} <= set(LABELS)


def test_the_merged_model_gives_the_outputs_of_the_adapted_one(trained, base):
    folder, _, _ = trained
    model = load_task(config_of()).build_model()
    checkpoints.initialize_from(model, str(base))
    adapters.adapt(model, AdaptersConfig(**SETTINGS), trains_pooler=False)
    reader = tf.train.load_checkpoint(prefixes_in(str(folder))[0])
    for name, weight in weights_by_name(model).items():
        if weight.trainable:
            weight.assign(reader.get_tensor(f"weights/{name.replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"))
    rows = {
        name: np.arange(1, 13).reshape(2, 6) % most
        for name, most in (("input_ids", 50), ("input_mask", 2), ("segment_ids", 2))
    }
    rows["input_mask"][:] = 1
    np.testing.assert_allclose(model(rows)["logits"], restore_model(str(folder))[1](rows)["logits"], atol=1e-5)


def test_a_base_with_one_other_weight_is_refused(trained, base, tmp_path):
    folder, _, _ = trained
    stored = formats.read(str(base))
    stored.weights["layer_1/output/bias"][3] += 1e-3
    formats.write(stored, "ours", str(tmp_path / "other"))
    with pytest.raises(ValueError, match=r"other.*: expected the base of the adapters in .*, got a model with other"):
        adapters.find_base(RunFolder(str(folder)), str(tmp_path / "other"))
    record = json.loads((folder / "base.json").read_text())
    assert record["path"] == str(base)
    (folder / "base.json").write_text(json.dumps(record | {"path": str(tmp_path / "other")}))
    try:
        with pytest.raises(ValueError, match=r"expected the base with which its adapters were trained, but .*other"):
            Predictor(str(folder))
        (folder / "base.json").write_text('{"path": 3}')
        with pytest.raises(ValueError, match=r"base.json: expected the path of a base and its digest, got"):
            Predictor(str(folder))
    finally:
        (folder / "base.json").write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target_modules": ["query", "querry"]}, r"target_modules: expected all-linear, a list .*, got 'querry'"),
        ({"target_modules": "("}, r"target_modules: '\(': not a regular expression"),
    ],
)
def test_an_unknown_product_is_refused_before_work(settings, message, train_file, base, tmp_path):
    with pytest.raises(ValueError, match=message):
        run(train_file, tmp_path / "run", base, adapters=settings)
    with pytest.raises(ValueError, match="expected --init_checkpoint with it, the base that is fixed"):
        run(train_file, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_targets_follow_the_rules_of_peft():
    bert = ModelConfig(num_hidden_layers=2)
    assert adapted.targets(bert, "all-linear") == adapted.product_names(bert) and len(adapted.product_names(bert)) == 13
    assert adapted.targets(bert, ["attention.output.dense"]) == [f"layer_{n}/attention/output" for n in (0, 1)]
    assert adapted.targets(bert, r"bert\.encoder\.layer\.1\..*\.(key|value)") == [
        "layer_1/attention/key",
        "layer_1/attention/value",
    ]
    modern = ModelConfig(
        num_hidden_layers=1,
        norm="pre",
        feed_forward="gated",
        biases=False,
        pooler_norm=True,
        type_vocab_size=0,
        rotary=1e4,
        pooler_act="gelu_erf",
        layer_norm_epsilon=1e-5,
    )
    assert adapted.targets(modern, ["Wqkv"]) == [f"layer_0/attention/{name}" for name in ("query", "key", "value")]


@pytest.mark.parametrize(
    ("settings", "learned"),
    [
        ({"rank": 0}, set()),
        ({"bias": "lora_only"}, {"layer_0/attention/query/bias", "layer_0/attention/value/bias"}),
        ({"bias": "all"}, {"embeddings/LayerNorm/beta", "layer_0/output/bias", "pooler/bias"}),
    ],
)
def test_biases_learn_as_asked(settings, learned):
    model = Classifier(
        make_encoder(
            ModelConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
        )
    )
    model.build()
    adapters.adapt(model, AdaptersConfig(**settings), trains_pooler=False)
    found = {
        name
        for name, weight in weights_by_name(model).items()
        if weight.trainable and ADAPTER not in name and not name.startswith("classifier/")
    }
    assert learned <= found and (settings.get("bias") == "all" or learned == found)


@pytest.mark.slow
def test_packed_rows_are_computed_as_rows_of_their_own():
    encoder = make_encoder(
        ModelConfig(
            vocab_size=30,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            max_position_embeddings=8,
            initializer_range=0.5,
        )
    )
    adapters.adapt(encoder, AdaptersConfig(target_modules="all-linear"), trains_pooler=False)
    for name, weight in weights_by_name(encoder).items():
        if name.endswith("lora_B"):
            weight.assign(np.random.default_rng(0).normal(size=weight.shape))
    ids = np.array([[7, 8, 9], [4, 5, 6]])
    apart = encoder({"input_ids": ids, "input_mask": ids > 0, "segment_ids": 0 * ids})["sequence_output"]
    packed = encoder(
        {
            "input_ids": ids.reshape(1, 6),
            "input_mask": np.ones((1, 6), int),
            "segment_ids": np.zeros((1, 6), int),
            "position_ids": np.array([[0, 1, 2, 0, 1, 2]]),
            "instance_ids": np.array([[1, 1, 1, 2, 2, 2]]),
        }
    )
    np.testing.assert_allclose(np.reshape(packed["sequence_output"], (2, 3, 8)), apart, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        {"accumulation_steps": 2},
        {"recompute": True},
        {"recompute": "attention"},
        {"skip_padding": False},
        {"xla": True},
        {"recompute": True, "accumulation_steps": 4},
    ],
    ids=str,
)
def test_every_way_to_compute_a_step_is_the_same_training(training, trained, train_file, base, tmp_path):
    run(train_file, tmp_path / "run", base, **training)
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(trained[0]), rtol=1e-5)


@pytest.mark.slow
def test_replicas_train_the_same(trained, train_file, base, tmp_path):
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(to_dict(config_of(adapters=SETTINGS))))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "official_bert.run_finetuning",
            f"--config={tmp_path / 'run.yaml'}",
            f"--train_file={train_file}",
            f"--init_checkpoint={base}",
            f"--output_dir={tmp_path / 'run'}",
            "--strategy=mirrored",
            "--num_cpu_devices=2",
            "--nodo_eval",
        ],
        check=True,
    )
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(trained[0]), rtol=1e-5)


@pytest.mark.slow
def test_a_stopped_run_goes_on_as_one_that_was_not_stopped_with_dropout(train_file, base, tmp_path):
    settings = {"adapters": {**SETTINGS, "dropout": 0.3}, "xla": False}
    run(train_file, tmp_path / "whole", base, **settings)
    run(train_file, tmp_path / "whole_again", base, **settings, recompute=True)
    run(train_file, tmp_path / "cut", base, **settings, save_every=2)
    cut = RunFolder(str(tmp_path / "cut"))
    for name in tmp_path.joinpath("cut").glob("ckpt-4*"):
        name.unlink()
    run(train_file, tmp_path / "cut", base, **settings, save_every=2)
    assert cut.steps_done == 4
    np.testing.assert_allclose(losses(tmp_path / "cut")[-2:], losses(tmp_path / "whole")[-2:], rtol=1e-6)
    np.testing.assert_allclose(losses(tmp_path / "whole_again"), losses(tmp_path / "whole"), rtol=1e-5)


@pytest.mark.slow
def test_a_student_of_a_teacher_learns_adapters(train_file, base, tmp_path):
    run(train_file, tmp_path / "teacher", base, adapters=None)
    run(train_file, tmp_path / "student", base, teacher=str(tmp_path / "teacher"))
    found = losses(tmp_path / "student")
    assert found[-1] < found[0] and RunFolder(str(tmp_path / "student")).base["path"] == str(base)
