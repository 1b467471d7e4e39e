"""The exported form of an encoder's layers against the layers themselves, which compute padding too."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.models.encoder import make_encoder
from official_bert.serving import real_tokens
from official_bert.serving.real_tokens import on_real_tokens, real_lengths

MASKS = {"full": [[1] * 9] * 3, "padded": [[1] * 9, [1] * 4 + [0] * 5, [1] + [0] * 8],
         "gaps": [[1, 0, 1, 0, 0, 0, 0, 0, 0], [0, 1, 1, 1, 0, 1, 0, 0, 0], [1] * 8 + [0]], "one row": [[1, 1, 1, 0]]}


def make_inputs(mask):
    rng = np.random.default_rng(4)
    mask = np.array(mask, np.int32)
    return {"input_ids": rng.integers(0, 3000, mask.shape).astype("int32"), "input_mask": mask,
            "segment_ids": rng.integers(0, 2, mask.shape).astype("int32")}


def compare(encoder, inputs, tolerance=1e-5):
    """Compares all outputs at real and wanted tokens."""
    wanted = encoder(inputs)
    with on_real_tokens(encoder):
        found = tf.function(encoder)({name: tf.constant(value) for name, value in inputs.items()})
    real = inputs["input_mask"].astype(bool)
    layers = [(f"layer {place}", *pair) for place, pair in enumerate(zip(wanted.pop("layer_outputs", ()), found.pop("layer_outputs", ())))]
    assert sorted(wanted) == sorted(found)
    for name, one, other in [*layers, *((name, wanted[name], found[name]) for name in wanted)]:
        one, other = (np.asarray(tf.cast(value, tf.float32)) for value in (one, other))
        assert one.shape == other.shape, name
        chosen = real if one.shape[:2] == real.shape else ...
        np.testing.assert_allclose(other[chosen], one[chosen], rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("few", [0, 256])
@pytest.mark.parametrize("attention", ["bidirectional", "left_to_right"])
def test_outputs_equal_those_of_the_layers(small_config, mask, few, attention, monkeypatch):
    monkeypatch.setattr(real_tokens, "FEW_TOKENS", few)
    encoder = make_encoder(small_config, return_layers=True)
    encoder.settings["attention"] = attention
    inputs = make_inputs(MASKS[mask])
    compare(encoder, inputs)
    places = np.tile([[0, 2, 2, 1]], (len(inputs["input_ids"]), 1)).astype("int32")
    compare(make_encoder(small_config), inputs | {"output_positions": places})
    compare(make_encoder(small_config), inputs | {"output_positions": places[:, :0]})


def test_a_wanted_row_may_stand_behind_the_real_tokens(small_config):
    inputs = make_inputs(MASKS["padded"])
    assert real_lengths(tf.constant(inputs["input_mask"]), tf.constant([[0], [7], [1]])).numpy().tolist() == [9, 8, 2]
    compare(make_encoder(small_config), inputs | {"output_positions": np.array([[8, 1], [6, 7], [3, 0]], "int32")})


def test_half_the_precision_gives_nearly_the_same(small_config):
    compare(make_encoder(small_config, dtype="mixed_bfloat16"), make_inputs(MASKS["padded"]), tolerance=0.15)


@pytest.mark.parametrize("few", [0, 256])
def test_layer_norm_keeps_its_epsilon_and_small_numbers(small_config, few, monkeypatch):
    """The optimizer's other patterns of a layer norm lose the epsilon: rows of tiny variance show it."""
    monkeypatch.setattr(real_tokens, "FEW_TOKENS", few)
    encoder = make_encoder(small_config)
    for table in ("word_embeddings", "token_type_embeddings", "position_embeddings"):
        variable = getattr(encoder.embeddings, table)
        variable.assign(variable * 1e-4)
    compare(encoder, make_inputs(MASKS["padded"]), tolerance=2e-5)


def test_the_layers_are_as_before_when_the_context_ends(small_config):
    encoder, inputs = make_encoder(small_config), make_inputs(MASKS["padded"])
    before = encoder(inputs)["sequence_output"].numpy()
    with pytest.raises(ZeroDivisionError), on_real_tokens(encoder):
        np.testing.assert_allclose(encoder(inputs)["sequence_output"][1, 4:], np.tile(encoder(inputs)["sequence_output"][1, 3], (5, 1)))
        _ = 1 / 0
    np.testing.assert_array_equal(encoder(inputs)["sequence_output"].numpy(), before)
