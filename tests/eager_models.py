"""Predictors and steps that compute eagerly, for tests of other things than graphs: a model is traced longer than it
answers, or takes a few steps.

    pytestmark = pytest.mark.usefixtures("eager_predictors", "eager_steps")

The graphs are the subject of tests/tasks/test_served_models.py, tests/serving, tests/training/test_step.py and the
journeys. tests/conftest.py says where TensorFlow optimises them.
"""

import contextlib
import functools
from collections.abc import Callable

import tensorflow as tf

from official_bert.serving.loading import ModelFunction
from official_bert.serving.served_model import ServedModel
from official_bert.text.graph import GraphTokenizer


class EagerSignature:
    """A served model in place of its traced function; what it gives is learned from an empty text."""

    def __init__(self, answer: Callable, inputs: dict[str, tf.TensorSpec]):
        self.answer, self.structured_input_signature = answer, ((), dict(inputs))

    def __call__(self, **tensors):
        return self.answer(tensors)

    @functools.cached_property
    def structured_outputs(self):
        """Shapes and types by name."""
        empty = {name: tf.fill([1] * spec.shape.rank, "") for name, spec in self.structured_input_signature[1].items()}
        return {name: tf.TensorSpec.from_tensor(value) for name, value in self.answer(empty).items()}


def eager_function_of(served: ServedModel) -> ModelFunction:
    """Does the same as `serving.loading.function_of`."""

    def prompted(prompt):
        return lambda: EagerSignature(lambda tensors: served.answer_prompted(tensors, prompt), served.text_inputs)

    return ModelFunction(
        EagerSignature(served.answer_text, served.text_inputs),
        served,
        "this model",
        {name: prompted(prompt) for name, prompt in served.prompts.items()},
    )


def trace_eager_calls(tokenizer: GraphTokenizer) -> GraphTokenizer:
    """Has a tokenizer answer eager calls by a graph too, because it has many small operations; returns it."""

    def by_graph(method):
        traced = tf.function(method, autograph=False, input_signature=[tf.TensorSpec([None], tf.string)])
        return lambda text: traced(text) if tf.executing_eagerly() else method(text)

    for name in ("tokenize", "tokenize_with_offsets"):
        vars(tokenizer)[name] = by_graph(getattr(tokenizer, name))
    return tokenizer


@contextlib.contextmanager
def eager_functions():
    """Runs every `tf.function` as plain Python, but for those of `tf.data`."""
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(False)
