"""Small models of every head over the golden vocabulary, with weights large enough to make them differ."""

import keras
import numpy as np
import pytest

from official_bert.config import ModelConfig
from official_bert.models.classifier import make_choice_classifier, make_classifier
from official_bert.models.span_predictor import make_span_predictor
from official_bert.models.tagger import make_tagger
from official_bert.text.graph import GraphTokenizer

SMALL = ModelConfig(vocab_size=3000, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                    max_position_embeddings=32, initializer_range=0.5)


@pytest.fixture(scope="package")
def small_config():
    return SMALL


@pytest.fixture(scope="package")
def classifier():
    return lambda num_classes: make_classifier(SMALL, num_classes)


@pytest.fixture(scope="package")
def choice_classifier():
    return make_choice_classifier(SMALL)


@pytest.fixture(scope="package")
def token_tagger():
    keras.utils.set_random_seed(2)
    return make_tagger(SMALL, 5)


@pytest.fixture(scope="package")
def span_model():
    keras.utils.set_random_seed(1)
    return make_span_predictor(SMALL)


@pytest.fixture(scope="session")
def graph_tokenizer(golden):
    return GraphTokenizer(str(golden / "vocab_uncased.txt"))


@pytest.fixture(scope="package")
def softmax():
    def of(x):
        exponents = np.exp(x - x.max(-1, keepdims=True))
        return exponents / exponents.sum(-1, keepdims=True)
    return of
