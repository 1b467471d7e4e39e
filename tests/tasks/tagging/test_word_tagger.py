"""Taggers of words: the BiLSTM on frozen layers against NumPy, trained weights, cached features, the CRF's outputs."""

import keras
import numpy as np
import pytest

from official_bert.config import ModelConfig
from official_bert.objectives.tag_chains import CHAIN, chain_scores
from official_bert.tasks.tagging.word_tagger import CRFTagger, FeatureTagger

SMALL = ModelConfig(
    vocab_size=50,
    hidden_size=8,
    num_hidden_layers=3,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    initializer_range=0.3,
)
IDS = np.array([[2, 7, 8, 9, 10, 3, 0], [2, 11, 3, 0, 0, 0, 0]], np.int32)
INPUTS = {"input_ids": IDS, "input_mask": (IDS > 0).astype(np.int32), "segment_ids": np.zeros_like(IDS)}
FIRST_PIECES = np.array([[0, 1, 0, 1, 1, 0, 0], [0, 1, 0, 0, 0, 0, 0]], np.int32)


def lstm(x, kernel, recurrent, bias):
    """Runs Hochreiter and Schmidhuber's cell with a forget gate over x [W,D]; the gates' order is input, forget, new,
    output.
    """
    size = recurrent.shape[0]
    hidden, cell, found = np.zeros(size), np.zeros(size), []
    for row in x:
        given, forgotten, new, shown = np.split(row @ kernel + hidden @ recurrent + bias, 4)
        cell = cell / (1 + np.exp(-forgotten)) + np.tanh(new) / (1 + np.exp(-given))
        hidden = np.tanh(cell) / (1 + np.exp(-shown))
        found.append(hidden)
    return np.array(found)


def by_hand(model, words):
    """Returns logits [W,T] of one text's words from their mixed features [W,D]."""
    x = words
    for layer in model.lstms:
        weights = [weight.numpy() for weight in layer.weights]
        x = np.concatenate([lstm(x, *weights[:3]), lstm(x[::-1], *weights[3:])[::-1]], axis=-1)
    kernel, bias = sorted((weight.numpy() for weight in model.tagger.weights), key=np.ndim, reverse=True)
    return x @ (kernel if kernel.shape[1] == len(bias) else kernel.T) + bias


@pytest.fixture(scope="module")
def tagger():
    keras.utils.set_random_seed(0)
    return FeatureTagger.make(
        SMALL, {"num_tags": 5, "features": "concat", "feature_layers": 2, "lstm_size": 6, "lstm_layers": 2}
    )


def test_words_run_through_a_bilstm_in_their_order_and_padding_through_none(tagger):
    logits = np.asarray(tagger(INPUTS | {"first_pieces": FIRST_PIECES})["logits"])
    encoded = tagger.encoder(INPUTS, training=False)
    layers = np.concatenate([np.asarray(layer) for layer in encoded["layer_outputs"][-2:]], axis=-1)
    for text in range(2):
        pieces = np.flatnonzero(FIRST_PIECES[text])
        np.testing.assert_allclose(logits[text, pieces], by_hand(tagger, layers[text, pieces]), rtol=1e-4, atol=1e-5)


def test_features_computed_before_give_the_same_logits(tagger):
    features = np.asarray(tagger.features(INPUTS))  # [B,S,N,D]
    words = np.zeros((2, 3, *features.shape[2:]), np.float32)
    mask = np.array([[1, 1, 1], [1, 0, 0]], np.int32)
    words[mask > 0] = features[FIRST_PIECES > 0]
    found = np.asarray(tagger({"word_features": words.transpose(0, 2, 3, 1), "input_mask": mask})["logits"])
    wanted = np.asarray(tagger(INPUTS | {"first_pieces": FIRST_PIECES})["logits"])
    np.testing.assert_allclose(found[mask > 0], wanted[FIRST_PIECES > 0], rtol=1e-4, atol=1e-5)


def test_features_have_no_dropout_and_only_what_is_behind_the_encoder_learns(tagger):
    np.testing.assert_array_equal(tagger.features(INPUTS), tagger.features(INPUTS))
    trained = {variable.path for variable in tagger.trainable_variables}
    assert trained and not trained & {variable.path for variable in tagger.encoder.variables}


def test_without_first_pieces_every_piece_is_a_word(tagger):
    every = tagger(INPUTS | {"first_pieces": INPUTS["input_mask"]})["logits"]
    np.testing.assert_allclose(tagger(INPUTS)["logits"], every, rtol=1e-5, atol=1e-6)


def test_the_crf_gives_its_scores_beside_the_emissions():
    model = CRFTagger.make(SMALL, {"num_tags": 5, "boundary_scores": True})
    outputs = model(INPUTS, training=False)
    assert [tuple(outputs[name].shape) for name in CHAIN] == [(5, 5), (5,), (5,)]
    assert tuple(outputs["logits"].shape) == (2, 7, 5)
    assert chain_scores(outputs).transitions is outputs["transitions"]


def test_a_model_without_a_crf_has_scores_that_add_nothing(tagger):
    assert all(not np.asarray(scores).any() for scores in chain_scores(tagger(INPUTS)))


def test_an_odd_width_cannot_be_halved():
    with pytest.raises(ValueError, match="lstm_size: expected an even number"):
        FeatureTagger.make(SMALL, {"num_tags": 5, "features": "last", "lstm_size": 7})
