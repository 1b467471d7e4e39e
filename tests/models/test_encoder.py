import dataclasses
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles.weights import variables_by_name

from official_bert.config import ModelConfig, load_config
from official_bert.models import checkpoints
from official_bert.models.encoder import make_encoder
from official_bert.models.pretrainer import Pretrainer

SMALL = ModelConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=24,
    initializer_range=0.3,
)


@pytest.fixture(scope="module")
def golden_model(golden):
    config = load_config(bert_config_file=str(golden / "tf1_bert/bert_config.json")).model
    model = Pretrainer.make(config, return_layers=True)
    said = checkpoints.initialize_from(model, str(golden / "tf1_bert/bert_model.ckpt")).describe()
    assert "TF 1 checkpoint" in said and "62 of 62 variables" in said
    return model


def batch_of(golden):
    return dict(np.load(golden / "tf1_bert/inputs.npz"))


def features(length=12, rows=3, seed=1):
    rng = np.random.default_rng(seed)
    mask = (np.arange(length) < rng.integers(length // 2, length + 1, (rows, 1))).astype("int32")
    return {
        "input_ids": rng.integers(0, 50, (rows, length)).astype("int32") * mask,
        "input_mask": mask,
        "segment_ids": (np.arange(length) > 4).astype("int32") * mask,
    }


def test_every_output_is_that_of_the_2018_code(golden, golden_model):
    wanted, batch = np.load(golden / "tf1_bert/outputs.npz"), batch_of(golden)
    encoded = golden_model.encoder({name: batch[name] for name in ("input_ids", "input_mask", "segment_ids")})
    for name in ("embedding_output", "sequence_output", "pooled_output"):
        np.testing.assert_allclose(encoded[name], wanted[name], atol=1e-5)
    for index, layer in enumerate(encoded["layer_outputs"]):
        np.testing.assert_allclose(layer, wanted[f"encoder_layer_{index}"], atol=1e-5)
    outputs = golden_model(batch)
    words = tf.nn.log_softmax(outputs["mlm_logits"]).numpy().reshape(wanted["masked_lm_log_probs"].shape)
    np.testing.assert_allclose(words, wanted["masked_lm_log_probs"], atol=1e-5)
    np.testing.assert_allclose(tf.nn.log_softmax(outputs["nsp_logits"]), wanted["next_sentence_log_probs"], atol=1e-5)


def test_every_gradient_is_that_of_the_2018_code(golden, golden_model):
    wanted, batch = np.load(golden / "tf1_bert/gradients.npz"), batch_of(golden)
    variables = variables_by_name(golden_model)
    assert set(variables) == set(wanted.files)
    with tf.GradientTape() as tape:
        outputs = golden_model(batch)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["masked_lm_ids"], outputs["mlm_logits"])
        weights = tf.cast(batch["masked_lm_weights"], tf.float32)
        loss = tf.reduce_sum(losses * weights) / (tf.reduce_sum(weights) + 1e-5) + tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(batch["next_sentence_labels"][:, 0], outputs["nsp_logits"])
        )
    gradients = tape.gradient(loss, [variable.value for variable in variables.values()])
    for name, gradient in zip(variables, gradients):
        got = tf.convert_to_tensor(gradient).numpy().reshape(wanted[name].shape)
        # The gradient of a key bias is zero in exact arithmetic.
        scale = 1.0 if name.endswith("key/bias") else np.abs(wanted[name]).max()
        assert np.abs(got - wanted[name]).max() <= 1e-5 * scale, name


def test_output_positions_give_the_rows_of_the_whole_computation():
    encoder, inputs = make_encoder(SMALL), features()
    whole = encoder(inputs)
    positions = np.array([[3, 1, 1], [5, 0, 2], [2, 4, 3]])
    pruned = encoder({**inputs, "output_positions": positions})
    rows = np.take_along_axis(whole["sequence_output"].numpy(), positions[:, :, None], axis=1)
    np.testing.assert_allclose(pruned["sequence_output"], rows, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pruned["pooled_output"], whole["pooled_output"], rtol=1e-5, atol=1e-5)


def test_packed_instances_are_computed_as_if_alone():
    encoder = make_encoder(SMALL)
    first, second = features(7, rows=1, seed=2), features(5, rows=1, seed=3)
    for part in (first, second):
        part["input_mask"][:] = 1
    packed = {name: np.concatenate([first[name], second[name]], axis=1) for name in first}
    packed["instance_ids"] = np.array([[0] * 7 + [1] * 5])
    packed["position_ids"] = np.array([[*range(7), *range(5)]])
    together = encoder(packed)["sequence_output"].numpy()
    np.testing.assert_allclose(together[:, :7], encoder(first)["sequence_output"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(together[:, 7:], encoder(second)["sequence_output"], rtol=1e-4, atol=1e-5)
    rows = encoder({**packed, "output_positions": np.array([[2, 8]])})["sequence_output"].numpy()
    np.testing.assert_allclose(rows, together[:, [2, 8]], rtol=1e-4, atol=1e-5)


def test_padding_changes_nothing_and_an_empty_row_is_finite():
    encoder, inputs = make_encoder(SMALL), features(12)
    padded = {name: np.pad(value, [(0, 0), (0, 6)]) for name, value in inputs.items()}
    padded["input_ids"][:, 12:] = 7
    real = inputs["input_mask"].astype(bool)
    np.testing.assert_allclose(
        encoder(padded)["sequence_output"].numpy()[:, :12][real],
        encoder(inputs)["sequence_output"].numpy()[real],
        rtol=1e-4,
        atol=1e-5,
    )
    empty = {name: np.zeros_like(value) for name, value in inputs.items()}
    assert np.isfinite(encoder(empty)["sequence_output"]).all()


def parameter_count(model: ModelConfig) -> int:
    """Counts the parameters with both heads, from the paper's description."""
    d, f = model.hidden_size, model.intermediate_size
    embeddings = (model.vocab_size + model.max_position_embeddings + model.type_vocab_size) * d + 2 * d
    layer = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 4 * d
    heads = (d * d + d) + (d * d + d + 2 * d + model.vocab_size) + (2 * d + 2)
    return embeddings + model.num_hidden_layers * layer + heads


@pytest.mark.parametrize(
    ("name", "words", "count"),
    [
        ("tiny", 30522, 4_433_468),
        ("mini", 30522, 11_267_900),
        ("small", 30522, 29_058_876),
        ("medium", 30522, 41_668_412),
        ("base", 30522, 110_106_428),
        ("large", 30522, 336_226_108),
        ("base_cased", 28996, 108_932_934),
        ("multilingual_cased", 119547, 178_566_653),
        ("chinese", 21128, 102_882_442),
    ],
)
def test_parameter_counts_of_the_published_sizes(root, name, words, count):
    assert (
        parameter_count(load_config(str(root / f"configs/model/{name}.yaml"), count_entries=lambda _: words).model)
        == count
    )


@pytest.mark.parametrize("name", ["tiny", "mini", "small"])
def test_the_models_have_as_many_parameters_as_counted_by_hand(root, name):
    config = load_config(str(root / f"configs/model/{name}.yaml")).model
    assert Pretrainer.make(config).count_params() == parameter_count(config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "words", "sentences", "count"),
    [
        ("base", 30522, True, 110_106_428),
        ("large", 30522, True, 336_226_108),
        ("modern_base", 50368, False, 149_655_232),
    ],
)
def test_the_papers_models_have_their_parameters(root, name, words, sentences, count):
    config = load_config(str(root / f"configs/model/{name}.yaml"), count_entries=lambda _: words).model
    assert Pretrainer.make(config, {"next_sentence": sentences}).count_params() == count


def save_small(folder):
    """Writes a small pretrainer as .keras, and its inputs and outputs as .npz."""
    model = Pretrainer.make(SMALL)
    inputs = features() | {"masked_lm_positions": np.array([[1, 2], [3, 1], [0, 2]], "int32")}
    outputs = model(inputs)
    model.save(folder / "model.keras")
    np.savez(folder / "inputs.npz", **inputs)
    return inputs, {name: np.asarray(value) for name, value in outputs.items()}


def test_a_model_saves_and_loads_as_keras(tmp_path):
    inputs, wanted = save_small(tmp_path)
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for name, value in loaded(inputs).items():
        np.testing.assert_array_equal(value, wanted[name])


OTHER_BACKEND = """
import sys, numpy as np, keras
assert keras.backend.backend() == "jax"
import official_bert.models.pretrainer
model = keras.saving.load_model(sys.argv[1] + "/model.keras")
outputs = model(dict(np.load(sys.argv[1] + "/inputs.npz")))
np.savez(sys.argv[1] + "/outputs.npz", **{name: np.asarray(value) for name, value in outputs.items()})
"""


@pytest.mark.slow
def test_a_model_gives_the_same_on_another_keras_backend(tmp_path):
    _, wanted = save_small(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", OTHER_BACKEND, str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        env={"KERAS_BACKEND": "jax", "PATH": "", "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for name, value in np.load(tmp_path / "outputs.npz").items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-5)


def test_mixed_bfloat16_and_training_mode_run():
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        model = Pretrainer.make(SMALL)
    finally:
        keras.config.set_dtype_policy("float32")
    inputs = features() | {"masked_lm_positions": np.array([[1, 2], [3, 1], [0, 2]])}
    full = Pretrainer.make(SMALL)
    full.set_weights(model.get_weights())
    outputs, exact = model(inputs), full(inputs)
    for name, value in outputs.items():
        assert value.dtype == tf.float32
        assert np.abs(value.numpy() - exact[name].numpy()).max() < 0.05 * max(1, np.abs(exact[name]).max())
    trained = full(inputs, training=True)["mlm_logits"].numpy()
    assert np.isfinite(trained).all() and np.abs(trained - exact["mlm_logits"].numpy()).max() > 1e-3


@pytest.mark.parametrize(
    ("recompute", "compiled"), [(True, False), pytest.param(True, True, marks=pytest.mark.slow), ("attention", False)]
)
def test_recomputation_changes_no_gradient_of_a_step_with_dropout(recompute, compiled):
    inputs = {name: tf.constant(value) for name, value in features().items()}
    inputs["masked_lm_positions"] = tf.constant([[1, 2], [3, 1], [0, 2]])
    config = dataclasses.replace(SMALL, num_hidden_layers=2)
    models = Pretrainer.make(config), Pretrainer.make(config, recompute=recompute)
    weights = [tf.convert_to_tensor(variable.value) for variable in models[0].trainable_variables]
    seeds = [tf.cast([5, index], variable.dtype) for index, variable in enumerate(models[0].non_trainable_variables)]

    def step(model):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            outputs, states = model.stateless_call(weights, seeds, inputs, training=True)
            loss = tf.reduce_sum(tf.nn.log_softmax(outputs["mlm_logits"])[..., 0])
        gradients = tape.gradient(loss, weights, unconnected_gradients="zero")
        return loss, [tf.convert_to_tensor(gradient) for gradient in gradients], states

    graph = tf.function(step, jit_compile=compiled, autograph=False)
    plain, recomputed = (graph if compiled else step)(models[0]), graph(models[1])
    assert float(plain[0]) == pytest.approx(float(recomputed[0]), rel=1e-6)
    for one, other in zip(plain[1], recomputed[1]):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    for one, other in zip(plain[2], recomputed[2]):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("recompute", [True, "attention"])
def test_recomputed_layers_draw_other_masks_at_each_call(recompute):
    model = Pretrainer.make(SMALL, recompute=recompute)
    inputs = features() | {"masked_lm_positions": np.array([[1, 2], [3, 1], [0, 2]])}
    first, second = (model(inputs, training=True)["mlm_logits"].numpy() for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


@pytest.mark.parametrize("packed", [False, True])
def test_pruned_rows_are_the_same_in_a_graph_that_knows_no_shapes(small_config, packed):
    encoder = make_encoder(dataclasses.replace(small_config, num_hidden_layers=2))
    rng = np.random.default_rng(0)
    inputs = {
        "input_ids": rng.integers(0, 3000, (2, 9)),
        "input_mask": np.ones((2, 9)),
        "segment_ids": np.zeros((2, 9)),
        "output_positions": np.array([[1, 3, 8], [0, 2, 4]]),
    }
    if packed:
        inputs |= {"instance_ids": np.array([[1] * 5 + [2] * 4] * 2), "cls_positions": np.array([[0, 5]] * 2)}
    inputs = {name: tf.constant(value, tf.int32) for name, value in inputs.items()}
    graph = tf.function(
        encoder, input_signature=[{name: tf.TensorSpec([None, None], tf.int32) for name in inputs}], autograph=False
    )
    wanted, found = encoder(inputs), graph(inputs)
    assert wanted["sequence_output"].shape == (2, 3, 16) and wanted["pooled_output"].shape == (
        (2, 2, 16) if packed else (2, 16)
    )
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, err_msg=name)
