"""An encoder that attends from left to right, and BiLSTMs on an encoder, against hand-worked values and NumPy."""

import dataclasses

import keras
import numpy as np
import pytest

from official_bert.config import ModelConfig, load_config
from official_bert.layers.attention_mask import make_attention_mask
from official_bert.layers.relatives.bilstm import make_bilstm, run_bilstm
from official_bert.models.bi_encoder import text_vectors
from official_bert.models.classifier import Classifier
from official_bert.models.encoder import make_encoder, weights_by_name

SMALL = ModelConfig(
    vocab_size=50,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=12,
    initializer_range=0.3,
    attention="left_to_right",
)
WITH_BILSTM = dataclasses.replace(SMALL, bilstm_layers=2)
MASK = np.array([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]], "int32")
ROWS = {
    "input_ids": np.random.default_rng(0).integers(1, 50, MASK.shape).astype("int32") * MASK,
    "input_mask": MASK,
    "segment_ids": MASK * 0,
}


def test_a_row_sees_itself_and_the_real_rows_before_it():
    mask = np.asarray(make_attention_mask(np.array([[1, 1, 1, 0]]), left_to_right=True))
    assert mask.shape == (1, 1, 4, 4)
    np.testing.assert_array_equal(mask[0, 0], np.array([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]], bool))
    packed = make_attention_mask(np.array([[1, 1, 1, 1]]), np.array([[0, 0, 1, 1]]), left_to_right=True)
    np.testing.assert_array_equal(
        np.asarray(packed)[0, 0], np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]], bool)
    )


@pytest.mark.parametrize("place", range(7))
def test_a_token_changes_its_own_row_and_those_after_it_and_no_row_before(place):
    encoder = make_encoder(SMALL)
    before = encoder(ROWS)["sequence_output"].numpy()[0]
    ids = ROWS["input_ids"].copy()
    ids[0, place] = ids[0, place] % 49 + 1
    after = encoder({**ROWS, "input_ids": ids})["sequence_output"].numpy()[0]
    np.testing.assert_array_equal(after[:place], before[:place])
    assert (np.abs(after[place:] - before[place:]).max(axis=1) > 1e-4).all()


@pytest.mark.parametrize("config", [SMALL, WITH_BILSTM], ids=["left_to_right", "bilstm"])
def test_wanted_rows_and_the_pooled_one_are_those_of_the_whole_computation(config):
    encoder = make_encoder(config)
    whole = encoder(ROWS)
    positions = np.array([[3, 1], [0, 2]])
    pruned = encoder({**ROWS, "output_positions": positions})
    rows = np.take_along_axis(whole["sequence_output"].numpy(), positions[:, :, None], axis=1)
    np.testing.assert_allclose(pruned["sequence_output"], rows, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pruned["pooled_output"], whole["pooled_output"], rtol=1e-5, atol=1e-5)


def test_the_pooled_row_is_that_of_the_last_real_token():
    encoder = make_encoder(SMALL)
    found = encoder(ROWS)
    last = found["sequence_output"].numpy()[[0, 1], [6, 3]]
    kernel, bias = (variable.numpy() for variable in encoder.pooler.weights)
    np.testing.assert_allclose(found["pooled_output"], np.tanh(last @ kernel + bias), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(text_vectors(encoder, ROWS, "cls"), last, rtol=1e-5, atol=1e-6)


def lstm_in_numpy(x, kernel, recurrent, bias):
    """x [S,D] -> states [S,H]: the equations of an LSTM, gates in the order input, forget, candidate, output."""

    def sigmoid(z):
        return 1 / (1 + np.exp(-z))

    state = cell = np.zeros(recurrent.shape[0])
    states = []
    for row in x:
        i, f, c, o = np.split(row @ kernel + state @ recurrent + bias, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
        state = sigmoid(o) * np.tanh(cell)
        states.append(state)
    return np.array(states)


def bilstm_in_numpy(bilstm, x):
    forward, backward = (
        lstm_in_numpy(part, *(variable.numpy() for variable in layer.weights))
        for part, layer in ((x, bilstm.forward_layer), (x[::-1], bilstm.backward_layer))
    )
    return np.concatenate([forward, backward[::-1]], axis=1)


def test_a_bilstm_runs_over_the_real_rows_of_each_text():
    bilstm = make_bilstm(6, "bilstm")
    x = np.random.default_rng(1).normal(size=(2, 7, 5)).astype("float32")
    found = run_bilstm(bilstm, x, MASK > 0).numpy()
    for row, length in enumerate((7, 4)):
        np.testing.assert_allclose(found[row, :length], bilstm_in_numpy(bilstm, x[row, :length]), rtol=1e-4, atol=1e-5)
        assert not found[row, length:].any()


def test_heads_read_the_last_bilstm_and_the_pooler_its_last_states():
    encoder = make_encoder(WITH_BILSTM, return_layers=True)
    found = encoder(ROWS)
    x = found["layer_outputs"][-1].numpy()[1, :4]
    for bilstm in encoder.bilstms:
        x = bilstm_in_numpy(bilstm, x)
    np.testing.assert_allclose(found["sequence_output"].numpy()[1, :4], x, rtol=1e-4, atol=1e-5)
    kernel, bias = (variable.numpy() for variable in encoder.pooler.weights)
    wanted = np.tanh(np.concatenate([x[3, :4], x[0, 4:]]) @ kernel + bias)
    np.testing.assert_allclose(found["pooled_output"].numpy()[1], wanted, rtol=1e-4, atol=1e-5)


def test_both_come_back_from_a_keras_file_and_run_recomputed_and_in_bfloat16(tmp_path):
    model = Classifier.make(WITH_BILSTM, recompute=True)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.encoder.settings == model.encoder.settings
    np.testing.assert_array_equal(again(ROWS)["logits"], model(ROWS)["logits"])
    half = Classifier.make(WITH_BILSTM, dtype="mixed_bfloat16")
    for name, variable in weights_by_name(half).items():
        variable.assign(weights_by_name(model)[name])
    np.testing.assert_allclose(half(ROWS, training=False)["logits"], model(ROWS)["logits"], atol=0.1)


def test_what_cannot_be_is_refused():
    with pytest.raises(
        ValueError, match=r"config.model.attention: expected one of \['bidirectional', 'left_to_right'\], got 'right'"
    ):
        load_config(None, overrides=["model.attention=right"])
    with pytest.raises(ValueError, match="model.bilstm_layers: expected at least 0, and an even hidden_size"):
        load_config(None, overrides=["model.bilstm_layers=1", "model.hidden_size=9", "model.num_attention_heads=3"])
    with pytest.raises(ValueError, match="instance_ids: expected none"):
        make_encoder(WITH_BILSTM)({**ROWS, "instance_ids": MASK})
