"""The first values of weights: independent of each other, of the order of layers and of the strategy."""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

from official_bert.config import ModelConfig, load_config
from official_bert.models.classifier import ChoiceClassifier, Classifier, SpanPredictor, Tagger
from official_bert.models.encoder import encoder_settings, weights_by_name
from official_bert.models.first_weights import begin_with_neighbours, draw_first_weights
from official_bert.models.pretrainer import Pretrainer
from official_bert.models.replaced_tokens import ReplacedTokenPretrainer, generator_config
from official_bert.tasks.tagging.word_tagger import CRFTagger, FeatureTagger

CONFIGS = pathlib.Path(__file__).parent.parent.parent / "configs" / "model"
# standard deviation of a normal truncated at two deviations: sqrt(1 - 4 phi(2) / (2 Phi(2) - 1))
SPREAD = 0.02 * 0.8796
SMALL = ModelConfig(vocab_size=600, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128)
HEADS = {
    "pretrainer": (Pretrainer, {}),
    "classifier": (Classifier, {"num_classes": 300}),
    "choice": (ChoiceClassifier, {}),
    "span": (SpanPredictor, {}),
    "tagger": (Tagger, {"num_tags": 9}),
    "crf": (CRFTagger, {"num_tags": 9}),
    "features": (FeatureTagger, {"num_tags": 9, "feature_layers": 2, "lstm_size": 8}),
}


def drawn(model, seed=1):
    """Returns the values of a model's weights, by name."""
    draw_first_weights(model, seed)
    return {name: np.array(variable) for name, variable in weights_by_name(model).items()}


def random_rows(values):
    """Returns the rows [rows,width] of the weights that are not constant at first, by name."""
    return {
        name: value.reshape(-1, value.shape[-1])
        for name, value in values.items()
        if value.ndim > 1 and np.ptp(value) > 0
    }


def check(values):
    """No two rows are equal, within a table or between two; the spread is that of the truncated normal."""
    rows = random_rows(values)
    assert {"embeddings/word_embeddings", "embeddings/position_embeddings"} <= {
        name.removeprefix("encoder/") for name in rows
    }
    by_width = {}
    for name, table in rows.items():
        if "lstm" not in name:
            np.testing.assert_allclose(table.std(), SPREAD, rtol=max(0.01, 4 / np.sqrt(2 * table.size)), err_msg=name)
            assert np.abs(table).max() <= 0.04
        if table.shape[1] >= 8:
            by_width.setdefault(table.shape[1], []).append(table)
    for tables in by_width.values():
        starts = np.concatenate([np.ascontiguousarray(table[:, :4]) for table in tables])
        # four numbers: two rows do not agree in them by chance
        assert len(np.unique(starts.view("u8,u8"))) == len(starts)


@pytest.mark.parametrize(
    "size",
    ["tiny", *(pytest.param(size, marks=pytest.mark.slow) for size in ("mini", "small", "medium", "base", "large"))],
)
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
        model = Pretrainer.make(SMALL)
        draw_first_weights(model, 1)
        begin_with_neighbours(model, 1)
    one = Pretrainer.make(SMALL)
    draw_first_weights(one, 1)
    begin_with_neighbours(one, 1)
    for name, variable in weights_by_name(one).items():
        np.testing.assert_array_equal(np.array(weights_by_name(model)[name]), np.array(variable))


def first_layer(values, ids, left_to_right=False):
    """The weights of the first layer's attention in NumPy, after the paper: ids [S] -> [N,S,S]."""
    rows = values["embeddings/word_embeddings"][ids] + values["embeddings/position_embeddings"][: len(ids)]
    rows = rows + values["embeddings/token_type_embeddings"][0]
    rows = (rows - rows.mean(axis=1, keepdims=True)) / rows.std(axis=1, keepdims=True)
    if "embeddings/projection/kernel" in values:
        rows = rows @ values["embeddings/projection/kernel"]
    query, key = (
        np.einsum("sd,dnh->nsh", rows, values[f"layer_0/attention/{name}/kernel"]) for name in ("query", "key")
    )
    scores = np.einsum("nqh,nsh->nqs", query, key) / np.sqrt(query.shape[-1])
    if left_to_right:
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize(
    ("change", "shifts", "least"),
    [
        ({}, (1, -1), 0.7),
        ({"num_attention_heads": 6}, (1, -1, 2, -2), 0.7),
        ({"num_hidden_layers": 2, "layer_groups": 1}, (1, -1), 0.7),  # ALBERT's layers
        ({"attention": "left_to_right"}, (-1, -2), 0.7),
        ({"hidden_size": 768, "num_attention_heads": 12, "max_position_embeddings": 512}, (1, -1, 2, -2), 0.7),
        ({"max_position_embeddings": 512}, (1, -1), 0.2),  # more positions than directions; by chance 0.02
        ({"max_position_embeddings": 1}, (), 1.0),
    ],
)
def test_heads_that_begin_with_neighbours_look_at_them(change, shifts, least):
    size = {
        "hidden_size": 192,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "max_position_embeddings": 64,
    } | change
    model = Pretrainer.make(dataclasses.replace(SMALL, **size))
    before = drawn(model)
    begin_with_neighbours(model, 1)
    values = {name: np.array(variable) for name, variable in weights_by_name(model).items()}
    changed = {name for name in values if not np.array_equal(values[name], before[name])}
    assert changed == {
        "embeddings/position_embeddings",
        "layer_0/attention/query/kernel",
        "layer_0/attention/key/kernel",
        "masked_lm/transform/kernel",
    }
    untouched = values["layer_0/attention/query/kernel"][:, 4:]
    np.testing.assert_array_equal(untouched, before["layer_0/attention/query/kernel"][:, 4:])
    ids = np.random.default_rng(0).integers(5, 600, size=min(48, model.encoder.settings["max_position_embeddings"]))
    weights = first_layer(values, ids, model.encoder.settings["attention"] == "left_to_right")
    for head, shift in zip(weights, shifts):
        assert np.diagonal(head, shift).mean() > least, (shift, np.diagonal(head, shift).mean())
    np.testing.assert_array_equal(values["masked_lm/transform/kernel"], np.eye(size["hidden_size"]))
    np.testing.assert_allclose(values["embeddings/position_embeddings"].std(), 0.02, rtol=0.1)
    begin_with_neighbours(model, 1)
    np.testing.assert_array_equal(
        np.array(model.encoder.embeddings.position_embeddings), values["embeddings/position_embeddings"]
    )


@pytest.mark.parametrize("sharing", ["shared", "disentangled", "separate"])
@pytest.mark.parametrize("change", [{}, {"embedding_size": 96}])
def test_a_model_that_tells_replaced_tokens_and_its_generator_look_at_neighbours(sharing, change):
    config = dataclasses.replace(
        SMALL, hidden_size=192, num_attention_heads=3, num_hidden_layers=1, max_position_embeddings=64, **change
    )
    model = ReplacedTokenPretrainer.make(
        config, {"generator": encoder_settings(generator_config(config, 1 / 3, 1.0)), "embedding_sharing": sharing}
    )
    before = drawn(model)
    begin_with_neighbours(model, 1)
    values = {name: np.array(variable) for name, variable in weights_by_name(model).items()}
    ids = np.random.default_rng(0).integers(5, 600, size=48)
    own = {
        name.removeprefix("generator/encoder/"): value
        for name, value in values.items()
        if name.startswith("generator/encoder/")
    }
    lent = {name: value for name, value in own.items() if "projection" not in name}
    for part, shifts in ((lent | values, (1, -1, 2)), (values | own, (1,))):  # a part without tables reads the other's
        for head, shift in zip(first_layer(part, ids), shifts, strict=True):
            assert np.diagonal(head, shift).mean() > 0.7, (shift, np.diagonal(head, shift).mean())
    for name, value in values.items():
        if "embedding" in name:  # as long as they were
            np.testing.assert_allclose(value.std(), before[name].std(), rtol=0.15, err_msg=name)
    projection, transform = own["embeddings/projection/kernel"], values["generator/masked_lm/transform/kernel"]
    # the given word
    np.testing.assert_allclose(transform @ projection, np.trace(transform @ projection) / 64 * np.eye(64), atol=1e-4)


def test_relatives_with_other_first_layers_are_refused():
    with pytest.raises(ValueError, match="an encoder of BERT's parts, got model.norm 'pre'"):
        begin_with_neighbours(Pretrainer.make(dataclasses.replace(SMALL, norm="pre")), 1)
