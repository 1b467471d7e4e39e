import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import make_config

from official_bert.layers.speed import fused
from official_bert.tasks.loading import load_task
from official_bert.tools.accelerator import self_check


def test_an_error_is_relative_to_the_tensor_or_to_a_tenth_of_all_of_its_kind():
    wanted = {"output a": np.array([3.0, 4.0, 0.0, 0.0]), "gradient b": np.array([30.0]), "gradient c": np.array([0.0])}
    got = {"output a": np.array([3.0, 4.0, 0.5, 0.0]), "gradient b": np.array([30.0]), "gradient c": np.array([0.1])}
    found = self_check.compare("head", "case", got, wanted, 0.05)
    assert (found.tensors, found.worst, found.first, found.agrees) == (3, "output a", "output a", False)
    assert found.error == pytest.approx(0.1)  # 0.5 / 5
    later = self_check.compare("head", "case", got | {"output a": wanted["output a"]}, wanted, 0.04)
    assert later.first == later.worst == "gradient c" and later.error == pytest.approx(0.1 / (0.1 * 30 / 2**0.5))
    assert self_check.compare("head", "case", got, wanted, 0.1).agrees


def test_an_error_of_16_bits_may_be_four_times_that_of_the_cpu():
    wanted = {"gradient a": np.array([1.0]), "gradient b": np.array([1.0])}
    rounded = {"gradient a": np.array([1.1]), "gradient b": np.array([1.0])}  # so 0.4 is allowed for a
    got = {"gradient a": np.array([0.65]), "gradient b": np.array([1.015])}
    found = self_check.compare("head", "case", got, wanted, 0.02, rounded)
    assert found.agrees and found.worst == "gradient a" and (found.error, found.tolerance) == pytest.approx((0.35, 0.4))
    assert (
        self_check.compare("head", "case", got | {"gradient b": np.array([1.03])}, wanted, 0.02, rounded).first
        == "gradient b"
    )


def test_numbers_that_are_not_finite_disagree_and_other_tensors_are_told():
    wanted = {"loss a": np.array(1.0), "loss b": np.array(1.0)}
    found = self_check.compare("head", "case", {"loss a": np.array(1.0), "loss b": np.array(np.nan)}, wanted, 1e9)
    assert found.first == "loss b" and found.error == float("inf")
    with pytest.raises(ValueError, match=r"head, case: expected the same tensors, got others: \['loss b'\]"):
        self_check.compare("head", "case", {"loss a": np.array(1.0)}, wanted, 1.0)


@pytest.mark.slow
def test_a_wrong_kernel_is_noticed_and_the_first_tensor_that_it_spoils_is_named(monkeypatch):
    sizes = {"intermediate_size": 128, "num_hidden_layers": 2}
    task = load_task(make_config("classification", options={"labels": ["a", "b"], "max_seq_length": 64}, model=sizes))
    weights, batch = self_check.draw_weights(task), self_check.made_batch(task.data.batch_spec(32), 50, 2)
    # else the first layer does not use the compiled pieces; the last one computes [CLS] alone
    assert fused.LEAST <= 32 * 64 * 128
    wanted = self_check.passes(task, weights, batch)["CPU"]

    def compared():
        ((place, got),) = self_check.passes(task, weights, batch, tf.distribute.get_strategy()).items()
        assert place.startswith("replica 0 (")
        return self_check.compare("head", place, got, wanted, 1e-3)

    right, derivative = compared(), fused._gelu_gradient
    assert right.agrees and right.tensors == len(weights) + 2
    # The forward pass is right, so that outputs and losses agree.
    monkeypatch.setattr(fused, "_gelu_gradient", lambda x: 1.05 * derivative(x))
    wrong = compared()
    assert wrong.first.startswith("gradient ") and wrong.error > 0.01


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("pretraining", {"pack": True, "max_instances_per_row": 3}),
        ("pretraining", {}),
        ("pretraining", {"objective": "replaced_tokens", "sentence_task": "none"}),
        ("squad", {}),
        ("swag", {}),
        ("reranking", {}),
        ("ner", {"labels": ["O", "B-X"]}),
        ("splade", {"group_size": 4}),
        ("classification", {"labels": ["a", "b"], "kind": "multi_label"}),
    ],
)
def test_a_made_batch_has_the_shapes_and_types_of_its_task(kind, options):
    spec = load_task(make_config(kind, options=options)).data.batch_spec(8)
    batch = self_check.made_batch(spec, 50, 2)
    assert {name: (value.shape, value.dtype) for name, value in batch.items()} == {
        name: (tuple(part.shape), part.dtype.as_numpy_dtype) for name, part in spec.items()
    }
    assert batch["example_weights"].sum() == 7 and batch["input_ids"].max() < 50
    assert (batch["input_ids"][batch["input_mask"] == 0] == 0).all()
