"""Small models of every head over the golden vocabulary, and a way to serve them."""

import keras
import numpy as np
import pytest

from official_bert.config import ModelConfig
from official_bert.layers.heads import OutputLayer
from official_bert.models.encoder import make_encoder
from official_bert.text.graph import GraphTokenizer

SMALL = ModelConfig(vocab_size=3000, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
                    max_position_embeddings=32, initializer_range=0.5)


class PooledLogits(keras.Model):
    """Logits out of the pooled output, as fine-tuned classifiers have them; `choices`: rows [B,C,S] and one logit each."""

    def __init__(self, classes, choices=False):
        super().__init__()
        self.encoder = make_encoder(SMALL)
        self.choices = choices
        self.output_layer = OutputLayer(classes, initializer_range=0.5)
        self.output_layer.build((None, SMALL.hidden_size))
        self.built = True

    def call(self, inputs, training=None):
        shape = keras.ops.shape(inputs["input_ids"])
        rows = {name: keras.ops.reshape(value, (-1, shape[-1])) for name, value in inputs.items()}
        logits = self.output_layer(self.encoder(rows, training=training)["pooled_output"])
        return {"logits": keras.ops.reshape(logits, shape[:2]) if self.choices else logits}


class TokenLogits(keras.Model):
    """Logits of each token, as fine-tuned taggers have them, or under two names, as span predictors have them."""

    def __init__(self, classes, names=("logits",)):
        super().__init__()
        self.encoder = make_encoder(SMALL)
        self.names = names
        self.output_layer = OutputLayer(classes, initializer_range=0.5)
        self.output_layer.build((None, None, SMALL.hidden_size))
        self.built = True

    def call(self, inputs, training=None):
        logits = self.output_layer(self.encoder(inputs, training=training)["sequence_output"])
        if len(self.names) == 1:
            return {self.names[0]: logits}
        return {name: logits[:, :, index] for index, name in enumerate(self.names)}


@pytest.fixture(scope="package")
def token_logits():
    return TokenLogits


@pytest.fixture(scope="package")
def span_model():
    keras.utils.set_random_seed(1)
    return TokenLogits(2, ("start_logits", "end_logits"))


@pytest.fixture(scope="package")
def pooled_logits():
    return PooledLogits


@pytest.fixture(scope="package")
def small_config():
    return SMALL


@pytest.fixture(scope="session")
def graph_tokenizer(golden):
    return GraphTokenizer(str(golden / "vocab_uncased.txt"))


@pytest.fixture(scope="package")
def softmax():
    def of(x):
        exponents = np.exp(x - x.max(-1, keepdims=True))
        return exponents / exponents.sum(-1, keepdims=True)
    return of
