"""Annotated shapes are checked in eager calls, and nowhere else."""

import importlib
import sys

import jaxtyping
import keras
import numpy as np
import pytest
import shape_checks
import tensorflow as tf

SOURCE = """
import dataclasses
from typing import Any, Self

import keras
from jaxtyping import Bool, Float, Int
from keras import ops


def product(x: Float[Any, "B S D"], w: Float[Any, "D E"] | None = None) -> Float[Any, "B S E"]:
    return x if w is None else ops.matmul(x, w)


def plain(x: int) -> int:
    return x


def lengths(inputs: dict[str, Int[Any, "B S"]]) -> Int[Any, " B"]:
    return ops.sum(inputs["input_mask"], axis=1)


class Masked(keras.layers.Layer):
    def call(self, x: Float[Any, "B S D"], attention_mask: Bool[Any, "B 1 #Q S"], training: bool = False
             ) -> Float[Any, "B S D"]:
        assert callable(self.like)
        return x * ops.cast(attention_mask[:, 0, 0, :, None], x.dtype)

    def like(self, x: Float[Any, "B D"]) -> Self:
        return self

    @staticmethod
    def first(x: Float[Any, "B S D"]) -> Float[Any, "B D"]:
        return x[:, 0]


@dataclasses.dataclass(frozen=True)
class Layout:
    mask: Bool[Any, "B S"]
    places: Int[Any, "B P"] | None = None
"""
X, MASK = np.ones((2, 3, 4), "float32"), np.ones((2, 1, 1, 3), "bool")


@pytest.fixture(scope="module")
def annotated(tmp_path_factory):
    """Returns a module of the source above, imported under the checks."""
    folder = tmp_path_factory.mktemp("annotated")
    (folder / "annotated_shapes.py").write_text(SOURCE)
    shape_checks.switch_on(("annotated_shapes",))
    sys.path.insert(0, str(folder))
    yield importlib.import_module("annotated_shapes")
    sys.path.remove(str(folder))
    sys.meta_path.pop(0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_eager_calls_with_right_shapes_pass(annotated, dtype):
    x = tf.cast(X, dtype)
    assert annotated.product(x).shape == (2, 3, 4)
    assert annotated.product(x, tf.ones((4, 5), dtype)).shape == (2, 3, 5)
    assert annotated.product(X, keras.Variable(np.ones((4, 5), "float32"))).shape == (2, 3, 5)
    assert annotated.Masked(dtype=dtype)(x, attention_mask=MASK).shape == (2, 3, 4)
    assert annotated.Masked.first(x).shape == (2, 4)
    assert annotated.Layout(tf.ones((2, 3), tf.bool)).places is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda module: module.product(tf.constant(X[0])), "parameter 'x'"),
        (lambda module: module.product(tf.constant(X), tf.ones((3, 4))), "parameter 'w'"),
        (lambda module: module.product(tf.constant(X, tf.int32)), "parameter 'x'"),
        (lambda module: module.lengths({"input_mask": tf.ones((2, 3))}), "parameter 'inputs'"),
        (lambda module: module.Masked()(tf.constant(X), attention_mask=MASK[:1]), "parameter 'attention_mask'"),
        (lambda module: module.Masked()(tf.constant(X), attention_mask=MASK[:, 0]), "parameter 'attention_mask'"),
        (lambda module: module.Masked.first(tf.constant(X[0])), "parameter 'x'"),
        (lambda module: module.Layout(tf.ones((2, 3), tf.bool), tf.zeros((3, 1), tf.int32)), "parameter 'places'"),
    ],
)
def test_eager_calls_with_wrong_shapes_raise(annotated, call, said):
    with pytest.raises(jaxtyping.TypeCheckError, match=said):
        call(annotated)


def test_a_wrong_result_raises(annotated, monkeypatch):
    monkeypatch.setattr(annotated.ops, "sum", lambda x, axis: x)
    with pytest.raises(jaxtyping.TypeCheckError, match="return value"):
        annotated.lengths({"input_mask": tf.ones((2, 3), tf.int32)})


@pytest.mark.parametrize("shape", [(2, 3, 4), (None, None, 4), None])
def test_graphs_are_not_checked_and_get_no_operation(annotated, shape):
    def operations(function):
        graph = tf.function(function, autograph=False).get_concrete_function(tf.TensorSpec(shape)).graph
        return [operation.type for operation in graph.get_operations()]

    w = tf.ones((4, 5))
    assert operations(lambda x: annotated.product(x, w)) == operations(lambda x: annotated.product.__wrapped__(x, w))


def test_symbolic_tensors_of_keras_pass(annotated):
    x, mask = keras.Input((None, 4)), keras.Input((1, 1, None), dtype="bool")
    assert annotated.product(x).shape == (None, None, 4)
    model = keras.Model([x, mask], annotated.Masked()(x, attention_mask=mask))
    np.testing.assert_array_equal(model([X, MASK]), X)
    assert annotated.lengths({"input_mask": keras.Input((3,), dtype="int32")}).shape == (None,)


def test_functions_without_shapes_are_left_alone(annotated):
    assert not hasattr(annotated.plain, "__wrapped__") and annotated.product.__wrapped__.__name__ == "product"


def test_it_is_switched_on_for_the_encoder_steps_losses_tasks_and_serving():
    def is_checked(name):
        return isinstance(importlib.import_module(f"official_bert.{name}").__spec__.loader, shape_checks._Loader)

    for name in (
        "layers.attention",
        "layers.embeddings",
        "models.encoder",
        "objectives.losses",
        "training.step",
        "tasks.squad.task",
        "tasks.texts.base",
        "serving.bounds",
        "serving.formats.dense",
    ):
        assert is_checked(name), name
    assert not is_checked("models.pretrainer") and not is_checked("training.trainer")


def test_losses_tasks_and_serving_are_checked():
    from official_bert.objectives import losses, tags
    from official_bert.serving import served_model

    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'weights'"):
        losses.cross_entropy(tf.zeros((2, 3, 5)), tf.zeros((2, 3), tf.int32), tf.ones(2))
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'labels'"):
        losses.accuracy(tf.zeros((2, 5)), tf.zeros(2), tf.ones(2))
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'batch'"):
        tags.word_weights({"tag_mask": tf.ones(()), "example_weights": tf.ones(2)})
    with pytest.raises(jaxtyping.TypeCheckError, match="parameter 'input_mask'"):
        served_model.real_lengths(tf.ones((2, 3)))
