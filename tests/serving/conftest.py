"""Small models of every head over the golden vocabulary, with weights large enough to make them differ."""

import os

import keras
import made_serving
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


@pytest.fixture(scope="session")
def demo_root(tmp_path_factory):
    """Models that need no BERT: two versions of demo, and the configuration files to serve them."""
    root = tmp_path_factory.mktemp("served")
    (root / "demo").mkdir()
    for version in (1, 2):
        made_serving.write_model(root / "demo", version)
    made_serving.write_configs(root)
    return root


@pytest.fixture(scope="session", params=["embedded", "tf_serving"])
def server(request, demo_root):
    """Where the demo models are served: here, and by the real server where TF_MODEL_SERVER names it."""
    if request.param == "embedded":
        from official_bert.serving import server_config
        from official_bert.serving.server import ServerOptions
        options = ServerOptions(models=server_config.read_models(str(demo_root / "models.config")), rest_port=0, grpc_port=0,
                                batching=server_config.read_batching(str(demo_root / "batching.config")),
                                poll_seconds=0.2, drain_seconds=5)
        serving = made_serving.embedded(options)
    else:
        binary = os.environ.get("TF_MODEL_SERVER")
        if not binary:
            pytest.skip("TF_MODEL_SERVER does not name a tensorflow_model_server: the same tests were not run against it")
        serving = made_serving.tf_serving(binary, demo_root)
    with serving as running:
        yield running
