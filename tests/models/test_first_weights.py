"""The first values of weights: independent of each other, of the order of layers and of the strategy."""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.config import ModelConfig, load_config
from official_bert.models.classifier import ChoiceClassifier, Classifier
from official_bert.models.encoder import weights_by_name
from official_bert.models.first_weights import draw_first_weights
from official_bert.models.pretrainer import Pretrainer
from official_bert.models.span_predictor import SpanPredictor
from official_bert.models.tagger import Tagger
from official_bert.tasks.tagging.word_tagger import CRFTagger, FeatureTagger

CONFIGS = pathlib.Path(__file__).parent.parent.parent / "configs" / "model"
SPREAD = 0.02 * 0.8796  # standard deviation of a normal truncated at two deviations: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1))
SMALL = ModelConfig(vocab_size=600, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
HEADS = {"pretrainer": (Pretrainer, {}), "classifier": (Classifier, {"num_classes": 300}), "choice": (ChoiceClassifier, {}),
         "span": (SpanPredictor, {}), "tagger": (Tagger, {"num_tags": 9}), "crf": (CRFTagger, {"num_tags": 9}),
         "features": (FeatureTagger, {"num_tags": 9, "feature_layers": 2, "lstm_size": 8})}


def drawn(model, seed=1):
    """Returns the values of a model's weights, by name."""
    draw_first_weights(model, seed)
    return {name: np.array(variable) for name, variable in weights_by_name(model).items()}


def random_rows(values):
    """Returns the rows [rows,width] of the weights that are not constant at first, by name."""
    return {name: value.reshape(-1, value.shape[-1]) for name, value in values.items() if value.ndim > 1 and np.ptp(value) > 0}


def check(values):
    """No two rows are equal, within a table or between two; the spread is that of the truncated normal."""
    rows = random_rows(values)
    assert {"embeddings/word_embeddings", "embeddings/position_embeddings"} <= {name.removeprefix("encoder/") for name in rows}
    by_width = {}
    for name, table in rows.items():
        if "lstm" not in name:
            np.testing.assert_allclose(table.std(), SPREAD, rtol=max(0.01, 4 / np.sqrt(2 * table.size)), err_msg=name)
            assert np.abs(table).max() <= 0.04
        if table.shape[1] >= 8:
            by_width.setdefault(table.shape[1], []).append(table)
    for tables in by_width.values():
        starts = np.concatenate([np.ascontiguousarray(table[:, :4]) for table in tables])
        assert len(np.unique(starts.view("u8,u8"))) == len(starts)  # four numbers: two rows do not agree in them by chance


@pytest.mark.parametrize("size", ["tiny", *(
    pytest.param(size, marks=pytest.mark.slow) for size in ("mini", "small", "medium", "base", "large"))])
def test_no_two_rows_of_a_published_size_are_equal(size):
    check(drawn(Pretrainer.make(load_config(str(CONFIGS / f"{size}.yaml")).model)))


@pytest.mark.parametrize("head", HEADS)
def test_every_head_begins_with_weights_of_its_own(head):
    kind, settings = HEADS[head]
    keras.utils.set_random_seed(0)
    first = drawn(kind.make(SMALL, settings))
    check(first)
    keras.utils.set_random_seed(1)  # Keras' own seeds play no part
    again, other = drawn(kind.make(SMALL, settings)), drawn(kind.make(SMALL, settings), seed=2)
    for name, value in first.items():
        np.testing.assert_array_equal(value, again[name], err_msg=name)
        if name in random_rows(first):
            assert not np.array_equal(value, other[name]), name


def test_an_encoder_begins_the_same_under_any_head_and_with_any_number_of_layers():
    pretrainer, classifier = drawn(Pretrainer.make(SMALL)), drawn(Classifier.make(SMALL, {"num_classes": 3}))
    deeper = drawn(Pretrainer.make(dataclasses.replace(SMALL, num_hidden_layers=3)))
    shared = [name for name in pretrainer if name in classifier and name in deeper]
    assert len(shared) > 30
    for name in shared:
        np.testing.assert_array_equal(pretrainer[name], classifier[name])
        np.testing.assert_array_equal(pretrainer[name], deeper[name])


def test_replicas_begin_with_the_same_weights_as_one_device():
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = Classifier.make(SMALL, {"num_classes": 3})
        draw_first_weights(model, 1)
    for name, value in drawn(Classifier.make(SMALL, {"num_classes": 3})).items():
        np.testing.assert_array_equal(np.array(weights_by_name(model)[name]), value)
