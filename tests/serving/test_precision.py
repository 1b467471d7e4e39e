"""Graphs in bfloat16 against those of float32."""

import dataclasses
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from commands import run_here
from made_checkpoints import stored_small

from official_bert.models.interchange import formats
from official_bert.models.pretrainer import Pretrainer
from official_bert.serving.loading import load_exported
from official_bert.serving.precision import policy_of, weights_in
from official_bert.tasks.pretraining.served import ServedFillMask


def made_in(precision, config):
    """Returns a model of a precision's policy, with the same weights every time."""
    keras.utils.set_random_seed(4)
    with policy_of(precision):
        return Pretrainer.make(config)


@pytest.mark.slow
def test_a_graph_has_its_weights_in_bfloat16_and_the_model_is_left_alone(small_config, graph_tokenizer):
    config = dataclasses.replace(small_config, num_hidden_layers=2)
    model = made_in("bfloat16", config)
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
    weights = weights_in("bfloat16", model)
    with weights.scope():
        graph = tf.function(lambda **inputs: served.answer_ids(inputs), autograph=False).get_concrete_function(
            **served.ids_inputs
        )
    assert {value.dtype for value in graph.graph.variables} == {tf.bfloat16, tf.float32}
    wide = [value.name for value in graph.graph.variables if value.dtype == tf.float32 and value.shape.rank > 1]
    assert wide and not any("/bert/" in name for name in wide)  # those of heads, which are small
    found = graph(**rows)["logits"]
    assert found.dtype == tf.float32
    exact = made_in("float32", config)(rows)["mlm_logits"].numpy()
    assert 0 < np.abs(found - exact).mean() < 0.05 * exact.std()
    np.testing.assert_array_equal(model(rows)["mlm_logits"].numpy(), before)


def test_a_model_of_another_policy_is_no_bfloat16_model(small_config):
    with pytest.raises(AssertionError, match="float32"):
        weights_in("bfloat16", Pretrainer.make(small_config))


@pytest.mark.slow
def test_the_command_writes_a_smaller_model_that_says_its_precision(tmp_path):
    precision = "bfloat16"
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


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        (
            "int8",
            "^--precision: expected float32 or bfloat16, got 'int8'; --format=openvino_int8 and onnx_int8 compute",
        ),
        ("float64", "^--precision: expected float32 or bfloat16, got 'float64'$"),
    ],
)
def test_another_precision_is_refused_and_the_removed_one_names_its_replacement(precision, message):
    with pytest.raises(ValueError, match=message), policy_of(precision):
        pass
