"""Vectors of texts: encoded at once, in chunks that are computed again, and cut to their own lengths."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.config import ModelConfig
from official_bert.models.bi_encoder import BiEncoder
from official_bert.objectives import ranking_losses

SMALL = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 32,
    "initializer_range": 0.3,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def make_model(dropout=0.0, **settings):
    config = ModelConfig(**{**SMALL, "hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout})
    model = BiEncoder.make(config, settings)
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(scale=0.3, size=variable.shape) + (variable.path.endswith("gamma")))
    return model


def make_batch(rows=6, texts=3):
    rng = np.random.default_rng(1)
    lengths = rng.integers(3, [8, 24, 24][:texts], (rows, texts))
    mask = (np.arange(24) < lengths[..., None]).astype(np.int32)
    return {
        "input_ids": rng.integers(1, 50, mask.shape).astype(np.int32) * mask,
        "input_mask": mask,
        "segment_ids": np.zeros_like(mask),
    }


def gradients_of(model, batch, length=24, compiled=False):
    """The loss and its gradients as the step computes them: in a graph, by XLA or, if `compiled` is None, eagerly;
    `length` None: of batches of any length.
    """
    texts = tf.constant(np.arange(18).reshape(6, 3), tf.int32)
    seeds = [tf.convert_to_tensor(variable.value) for variable in model.non_trainable_variables]
    spec = tf.TensorSpec((6, 3, length), tf.int32)

    def run(inputs):
        weights = [tf.convert_to_tensor(variable.value) for variable in model.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs, _ = model.stateless_call(weights, seeds, inputs, training=True)
            total, weight = ranking_losses.contrastive(outputs["embedding"], texts, tf.ones(6), 6, 0.1)
            loss = total / weight
        gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients], outputs["embedding"]

    if compiled is not None:
        run = tf.function(run, input_signature=[dict.fromkeys(batch, spec)], autograph=False, jit_compile=compiled)
    return run(batch)


@pytest.mark.parametrize(
    ("settings", "length", "compiled"),
    [
        ({"texts_at_once": 5}, 24, False),
        pytest.param({"cuts": True, "texts_at_once": 4}, None, False, marks=pytest.mark.slow),
        pytest.param({"texts_at_once": 5}, 24, True, marks=pytest.mark.slow),
    ],
)
def test_cached_gradients_are_those_of_the_whole_group(settings, length, compiled, monkeypatch):
    batch = make_batch()
    wanted = gradients_of(make_model(), batch, compiled=None)
    watched, watch = [], tf.GradientTape.watch
    monkeypatch.setattr(
        tf.GradientTape, "watch", lambda tape, values: (watched.extend(tf.nest.flatten(values)), watch(tape, values))
    )
    found = gradients_of(make_model(**settings), batch, length, compiled)
    # TensorFlow would warn of each integer that is watched.
    assert len(watched) > 10 and all(value.dtype.is_floating for value in watched)
    assert float(found[0]) == pytest.approx(float(wanted[0]), abs=1e-5)
    assert max(float(tf.reduce_max(tf.abs(gradient))) for gradient in wanted[1]) > 0.01
    for one, other in zip(found[1], wanted[1]):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.slow
def test_chunks_have_dropout_of_their_own_and_the_second_pass_repeats_it():
    model, batch = make_model(dropout=0.5, texts_at_once=3), make_batch()
    same = {name: np.repeat(np.repeat(value[:1, :1], 6, axis=0), 3, axis=1) for name, value in batch.items()}
    vectors = gradients_of(model, same)[2].numpy().reshape(18, -1)
    assert len({tuple(np.round(row, 5)) for row in vectors}) == 18
    # The gradient is that of the loss with these masks: a small step along it lowers the loss as it predicts.
    loss, gradients, _ = gradients_of(model, batch)
    size, norm = 1e-3, float(tf.linalg.global_norm(gradients))
    for variable, gradient in zip(model.trainable_variables, gradients):
        variable.assign(variable.value - size * gradient / norm)
    again = gradients_of(model, batch)[0]
    assert float(loss - again) == pytest.approx(size * norm, rel=0.1)
