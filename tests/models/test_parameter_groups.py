"""Parts of models by name: frozen, made anew, with rates of their own."""

import keras
import numpy as np
import pytest
from made_finetuning import make_config

from official_bert.models import parameter_groups
from official_bert.models.bi_encoder import BiEncoder
from official_bert.models.classifier import Classifier
from official_bert.models.encoder import weights_by_name
from official_bert.tasks.tagging.word_tagger import FeatureTagger

THREE_LAYERS = make_config("classification", model={"num_hidden_layers": 3}).model


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return Classifier.make(THREE_LAYERS)


def test_parts_are_named_one_by_one_or_in_ranges():
    for given, wanted in (
        ("embeddings, layers 0-1", {"embeddings", "layer_0", "layer_1"}),
        (("layer 2", "pooler"), {"layer_2", "pooler"}),
        ("encoder", {"embeddings", "layer_0", "layer_1", "layer_2", "pooler"}),
        ("", set()),
        ((), set()),
    ):
        assert parameter_groups.frozen_parts(given, 3) == wanted
    for wrong, said in (
        ("layers 0-3", "layers 0-3: expected layers from 0 to 2"),
        ("layers 2-1", "the last one not before the first"),
        ("embedings", r"expected embeddings, layers 0-2 \(or any of them\), pooler, encoder, got 'embedings'"),
        ("layers", "got 'layers'"),
    ):
        with pytest.raises(ValueError, match=f"config.training.freeze: .*{said}"):
            parameter_groups.frozen_parts(wrong, 3)


def test_a_layer_learns_at_a_share_of_the_rate_of_the_one_above_it(model):
    factors = dict(
        zip(
            (name for name, weight in weights_by_name(model).items() if weight.trainable),
            parameter_groups.rate_factors(model, 0.5, 10.0),
        )
    )
    wanted = {
        "embeddings/word_embeddings": 0.125,
        "layer_0/attention/query/kernel": 0.25,
        "layer_1/output/bias": 0.5,
        "layer_2/intermediate/kernel": 1.0,
        "pooler/kernel": 1.0,
        "classifier/output_weights": 10.0,
    }
    assert {name: factors[name] for name in wanted} == wanted
    assert set(parameter_groups.rate_factors(model, 1.0, 1.0)) == {1.0}
    with pytest.raises(ValueError, match="head_rate: expected 1.0 for a model without a head, got 2.0"):
        parameter_groups.rate_factors(BiEncoder.make(THREE_LAYERS), 1.0, 2.0)
    with pytest.raises(ValueError, match="expected a model with a BertEncoder as its encoder"):
        parameter_groups.rate_factors(keras.Sequential([keras.layers.Dense(2)]), 0.5, 1.0)


def test_the_last_layers_get_their_first_values_back(model):
    before = {name: np.array(weight.value) for name, weight in weights_by_name(model).items()}
    kept = parameter_groups.first_values(model, 2)
    for weight in model.weights:
        weight.assign(weight + 1.0)
    parameter_groups.put_back(model, kept)
    for name, weight in weights_by_name(model).items():
        added = 0.0 if name.startswith(("layer_1/", "layer_2/", "pooler/")) else 1.0
        np.testing.assert_array_equal(weight.value, before[name] + np.float32(added), err_msg=name)
    assert parameter_groups.first_values(model, 0) == {}
    with pytest.raises(ValueError, match="reinitialize_layers: expected at most the 3 layers of the model, got 4"):
        parameter_groups.check_parts((), 4, 1.0, 3)


def test_a_frozen_encoder_has_neither_layers_made_anew_nor_a_decay():
    tagger = FeatureTagger.make(THREE_LAYERS, {"features": "last", "lstm_layers": 0})
    classifier = Classifier.make(THREE_LAYERS)
    parameter_groups.freeze(classifier, "embeddings, layers 0-1")
    assert len(parameter_groups.first_values(classifier, 1)) == 18  # 16 of a layer, 2 of the pooler
    for model, frozen, count, layer in (
        (tagger, "encoder", 1, "layer_2"),
        (classifier, "embeddings, layers 0-1", 2, "layer_1"),
    ):
        parameter_groups.check_parts(frozen, 0, 1.0, 3)
        with pytest.raises(
            ValueError, match=rf"reinitialize_layers: {layer} would be reinitialized and frozen \(.*options\.features\)"
        ):
            parameter_groups.check_parts(frozen, count, 1.0, 3)
        with pytest.raises(
            ValueError, match=r"optimizer\.layer_decay: expected 1\.0, .* frozen \(.*options\.features\), got 0\.5"
        ):
            parameter_groups.check_parts(frozen, 0, 0.5, 3)
        assert set(parameter_groups.rate_factors(model, 1.0, 3.0)) == ({3.0} if model is tagger else {1.0, 3.0})


def test_something_is_left_to_train():
    with pytest.raises(ValueError, match="config.training.freeze: expected something left to train"):
        parameter_groups.freeze(BiEncoder.make(THREE_LAYERS), "encoder")
    model = Classifier.make(THREE_LAYERS)
    (line,) = parameter_groups.freeze(model, "encoder")
    assert [weight.path.rpartition("/")[2] for weight in model.trainable_variables] == ["output_weights", "output_bias"]
    assert line.startswith("frozen: embeddings, layer_0, layer_1, layer_2, pooler; 34 of ")
