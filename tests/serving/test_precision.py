"""Products of integers against NumPy's; graphs in bfloat16 and int8 against those of float32."""

import dataclasses
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from commands import run_here
from made_checkpoints import stored_small

from official_bert.layers.dense import Dense
from official_bert.layers.speed.extension_points import overridden
from official_bert.models.interchange import formats
from official_bert.models.pretrainer import Pretrainer
from official_bert.serving.loading import load_exported
from official_bert.serving.precision import Int8Product, policy_of, weights_in
from official_bert.serving.served_layers import kernel_and_bias
from official_bert.tasks.pretraining.served import ServedFillMask


def product_by_hand(x, kernel, bias):
    """x [M,K], kernel [K,N], bias [N] -> [M,N]: integers of 8 bits, summed in whole numbers."""
    step = np.maximum(np.abs(x).max(1, keepdims=True) / np.float32(127), np.float32(1e-30))
    scale = np.abs(kernel).max(0) / np.float32(127)
    rows = np.floor(x / step + np.float32(0.5)).astype(np.int64)
    return (rows @ np.rint(kernel / scale).astype(np.int64)) * (step.astype(np.float64) * scale) + bias


def made(layer, shape):
    layer.build(shape)
    rng = np.random.default_rng(0)
    layer.set_weights([rng.normal(size=weight.shape) for weight in layer.get_weights()])
    return layer


def test_a_product_in_int8_is_that_of_rounded_rows_and_weights():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(7, 24)).astype("float32") * np.array([[1], [1e3], [1e-3], [1], [1], [1], [1]], "float32")
    x[3] = 0
    layer = made(keras.layers.Dense(10), (None, 24))
    kernel, bias = layer.get_weights()
    found = Int8Product(kernel, bias)(tf.constant(x)).numpy()
    np.testing.assert_allclose(found, product_by_hand(x, kernel, bias), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(found[3], bias)
    assert 1e-4 < np.abs(found[4:] - (x @ kernel + bias)[4:]).max() < 0.1


@pytest.mark.parametrize(("row_shape", "contracted_axes", "shape"), [((2, 5), 1, (3, 4, 6)), (8, 2, (3, 4, 2, 3))])
def test_a_dense_layer_in_int8_keeps_its_shape_and_a_row_its_result_in_any_batch(row_shape, contracted_axes, shape):
    layer = made(Dense(row_shape, contracted_axes), shape)
    x = tf.constant(np.random.default_rng(2).normal(size=shape).astype("float32"))
    wanted = layer(x)
    with overridden({(layer, "multiply"): Int8Product(*kernel_and_bias(layer))}):
        product = tf.function(layer, input_signature=[tf.TensorSpec([None, None, *shape[2:]])], autograph=False)
        product.get_concrete_function()
    found = product(x).numpy()
    np.testing.assert_allclose(found, wanted, atol=0.1)
    np.testing.assert_array_equal(product(x[1:2, 2:3]).numpy(), found[1:2, 2:3])


def made_in(precision, config):
    """Returns a model of a precision's policy, with the same weights every time."""
    keras.utils.set_random_seed(4)
    with policy_of(precision):
        return Pretrainer.make(config)


@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_graph_has_its_weights_in_its_precision_and_the_model_is_left_alone(precision, small_config, graph_tokenizer):
    config = dataclasses.replace(small_config, num_hidden_layers=2)
    model = made_in(precision, config)
    served = ServedFillMask(model, graph_tokenizer, 32)
    rows = {
        name: tf.constant(value)
        for name, value in {
            "input_ids": [[5, 6, 7, 8], [9, 5, 5, 0]],
            "input_mask": [[1] * 4, [1, 1, 1, 0]],
            "segment_ids": [[0, 0, 1, 1], [0] * 4],
            "masked_lm_positions": [[0, 2], [1, 1]],
        }.items()
    }
    before = model(rows)["mlm_logits"].numpy()
    weights = weights_in(precision, model)
    with weights.scope():
        graph = tf.function(lambda **inputs: served.answer_ids(inputs), autograph=False).get_concrete_function(
            **served.ids_inputs
        )
    nodes = [node for function in graph.graph.as_graph_def().library.function for node in function.node_def]
    if precision == "bfloat16":
        assert {value.dtype for value in graph.graph.variables} == {tf.bfloat16, tf.float32}
        wide = [value.name for value in graph.graph.variables if value.dtype == tf.float32 and value.shape.rank > 1]
        assert wide and not any("/bert/" in name for name in wide)  # those of heads, which are small
    else:
        # queries, keys and values are one; in the last layer, two
        assert sum(node.op.startswith("QuantizedMatMul") for node in nodes) == 9
    found = graph(**rows)["logits"]
    assert found.dtype == tf.float32
    exact = made_in("float32", config)(rows)["mlm_logits"].numpy()
    assert 0 < np.abs(found - exact).mean() < 0.05 * exact.std()
    np.testing.assert_array_equal(model(rows)["mlm_logits"].numpy(), before)


def test_a_model_of_another_policy_is_no_bfloat16_model(small_config):
    with pytest.raises(AssertionError, match="float32"):
        weights_in("bfloat16", Pretrainer.make(small_config))


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_the_command_writes_a_smaller_model_that_says_its_precision(tmp_path, precision):
    formats.write(stored_small(""), "hugging_face", str(tmp_path / "hf"))
    sizes, answers = {}, {}
    for name in ("float32", precision):
        finished = run_here(
            "-m",
            "official_bert.run_export",
            f"--checkpoint={tmp_path / 'hf'}",
            "--head=embeddings",
            f"--precision={name}",
            f"--output={tmp_path / name}",
            "--warmup_batch_sizes=2",
        )
        assert finished.returncode == 0, finished.stderr
        told = "" if name == "float32" else f"{name}; "
        assert f" -> embedding; {told}2 warm-up requests; custom ops: none" in finished.stdout
        folder = tmp_path / name / "ids" / "1"
        assert (folder / "assets" / "precision.txt").read_text() == f"{name}\n"
        sizes[name] = os.path.getsize(folder / "variables" / "variables.data-00000-of-00001")
        answers[name] = load_exported(str(tmp_path / name))(text=["a b", "b"])["embedding"]
    assert sizes[precision] < sizes["float32"]
    np.testing.assert_allclose(answers[precision], answers["float32"], atol=0.03 * answers["float32"].std())
    assert keras.config.dtype_policy().name == "float32"


def test_int8_is_refused_without_kernels_for_it(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    refused = pytest.raises(ValueError, match="--precision=int8: expected an x86 processor.*got arm64")
    with refused, policy_of("int8"):
        pass
    with policy_of("bfloat16"):
        pass
