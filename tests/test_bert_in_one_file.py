"""docs/bert_in_one_file.py is short, imports nothing of the package, and computes what it and the 2018 code compute."""

import ast
import importlib.util
import json
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from oracles.weights import variables_by_name

from official_bert.config import load_config
from official_bert.models import checkpoints
from official_bert.models.pretrainer import Pretrainer

PATH = pathlib.Path(__file__).parent.parent / "docs" / "bert_in_one_file.py"
SIZES = {"num_layers": 3, "num_heads": 4}
GENERATED = {"base": "text_a.txt", "short": "text_b.txt"}


@pytest.fixture(scope="module")
def bert():
    spec = importlib.util.spec_from_file_location("bert_in_one_file", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def weights(bert, golden):
    return bert.read_weights(str(golden / "tf1_bert/bert_model.ckpt"))


@pytest.fixture(scope="module")
def batch(golden):
    return dict(np.load(golden / "tf1_bert/inputs.npz"))


@pytest.fixture(scope="module")
def gradients(bert, weights, batch):
    variables = {name: tf.constant(value) for name, value in weights.items()}
    with tf.GradientTape() as tape:
        tape.watch(variables)
        losses = bert.losses(variables, batch, **SIZES)
    found = tape.gradient(losses, variables)
    return {name: tf.convert_to_tensor(gradient).numpy() for name, gradient in found.items()}


def error(found, wanted):
    """Returns the length of the difference over that of the wanted array, which is rounded to float32."""
    wanted = np.asarray(wanted, np.float64)
    return np.linalg.norm(np.reshape(found, wanted.shape) - wanted) / np.linalg.norm(wanted)


def assert_close(found, wanted, bound=1e-6):
    assert set(found) == set(wanted)
    errors = {name: error(found[name], wanted[name]) for name in wanted}
    assert {name: value for name, value in errors.items() if not value <= bound} == {}


def named(outputs, words, pair):
    layers = {f"encoder_layer_{number}": layer for number, layer in enumerate(outputs[1:])}
    ends = {"embedding_output": outputs[0], "sequence_output": outputs[-1]}
    return layers | ends | {"masked_lm_log_probs": words, "next_sentence_log_probs": pair}


def test_it_is_short_and_imports_nothing_of_the_package():
    text = PATH.read_text(encoding="utf-8")
    assert text.count("\n") <= 250
    imported = [name.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import) for name in node.names]
    assert (
        imported == ["random", "re", "unicodedata", "numpy", "tensorflow"] and "from " not in text.split('"""')[2][:200]
    )
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(ast.parse(text)))


@pytest.mark.parametrize("form", ["uncased", "cased"])
def test_tokens_are_those_of_2018(bert, golden, form):
    vocabulary = bert.read_vocabulary(golden / f"vocab_{form}.txt")
    for row in json.loads((golden / "tokenizer.json").read_text(encoding="utf-8")):
        assert bert.tokenize(row["text"], vocabulary, form == "cased") == row[form]


@pytest.mark.parametrize("name", GENERATED)
def test_instances_are_those_of_2018(bert, golden, name):
    flags = json.loads((golden / f"generator_{name}.json").read_text())["flags"]
    vocabulary = bert.read_vocabulary(golden / "vocab_uncased.txt")
    made = bert.make_instances(
        bert.read_documents(golden / GENERATED[name], vocabulary),
        vocabulary,
        flags["random_seed"],
        flags["dupe_factor"],
        flags["max_seq_length"],
        flags["max_predictions_per_seq"],
        flags.get("masked_lm_prob", 0.15),
        flags.get("short_seq_prob", 0.1),
    )
    wanted = np.load(golden / f"generator_{name}.npz")
    assert set(made[0]) == set(wanted.files)
    for feature in wanted.files:
        np.testing.assert_array_equal([row[feature] for row in made], wanted[feature], err_msg=feature)


def test_outputs_and_losses_are_those_of_2018(bert, golden, weights, batch):
    wanted = dict(np.load(golden / "tf1_bert/outputs.npz"))
    outputs, pooled = bert.encode(weights, batch, **SIZES)
    found = named(outputs, *bert.log_probabilities(weights, batch, outputs[-1], pooled))
    words, pairs = bert.losses(weights, batch, **SIZES)
    assert_close(found | {"pooled_output": pooled, "masked_lm_loss": words, "next_sentence_loss": pairs}, wanted)


def without_key_biases(arrays):
    """Their gradients are 0 in exact arithmetic; in 2018's float32, Adam makes steps of what rounding leaves."""
    return {name: arrays[name] for name in arrays if not name.endswith("key/bias")}


def test_gradients_are_those_of_2018(golden, gradients):
    wanted = np.load(golden / "tf1_bert/gradients.npz")
    assert set(gradients) == set(wanted.files)
    assert_close(without_key_biases(gradients), without_key_biases(wanted))
    assert all(np.abs(gradients[name]).max() < 1e-7 for name in gradients if name.endswith("key/bias"))


def test_six_steps_are_those_of_2018(bert, golden, weights, batch):
    wanted, moments, losses = dict(np.load(golden / "tf1_bert/after_6_steps.npz")), {}, []
    for step in range(1, 7):  # the run of 2018 counted from 1
        weights, both = bert.train_step(weights, batch, moments, bert.rate_at(step, 5e-3, 3, 10), **SIZES)
        losses.append(both)
    losses.append(np.array(bert.losses(weights, batch, **SIZES)))
    assert error(losses, wanted.pop("losses")) <= 1e-6
    # The 2018 code rounded each of the six steps to float32; the furthest weight, a bias, is at 1.4e-6.
    assert_close(without_key_biases(weights), without_key_biases(wanted), bound=2e-6)


def test_the_package_computes_the_same(bert, golden, weights, batch, gradients):
    model = Pretrainer.make(
        load_config(bert_config_file=str(golden / "tf1_bert/bert_config.json")).model, return_layers=True
    )
    checkpoints.initialize_from(model, str(golden / "tf1_bert/bert_model.ckpt"))
    outputs, pooled = bert.encode(weights, batch, **SIZES)
    wanted = named(outputs, *bert.log_probabilities(weights, batch, outputs[-1], pooled)) | {"pooled_output": pooled}
    variables = variables_by_name(model)
    with tf.GradientTape() as tape:
        encoded = model.encoder({name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")})
        heads = model(batch)
        words, pairs = tf.nn.log_softmax(heads["mlm_logits"]), tf.nn.log_softmax(heads["nsp_logits"])
        of_words = -tf.gather(words, batch["masked_lm_ids"], batch_dims=2) * batch["masked_lm_weights"]
        of_pairs = -tf.gather(pairs, batch["next_sentence_labels"], batch_dims=1)
        loss = tf.reduce_sum(of_words) / (batch["masked_lm_weights"].sum() + 1e-5) + tf.reduce_mean(of_pairs)
    found = named([encoded["embedding_output"], *encoded["layer_outputs"]], words, pairs)
    assert_close(found | {"pooled_output": encoded["pooled_output"]}, wanted)
    of_package = dict(zip(variables, tape.gradient(loss, [variable.value for variable in variables.values()])))
    of_package = {name: tf.convert_to_tensor(gradient).numpy() for name, gradient in of_package.items()}
    assert_close(without_key_biases(of_package), without_key_biases(gradients), bound=2e-6)
