"""Classifier, choices, tagger, span predictor, bi-encoder: against whole encoders and a product worked out in NumPy."""

import keras
import numpy as np
import pytest

from official_bert.config import ModelConfig
from official_bert.models.bi_encoder import BiEncoder
from official_bert.models.classifier import ChoiceClassifier, Classifier, SpanPredictor, Tagger
from official_bert.models.encoder import weights_by_name

SMALL = ModelConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=24,
    initializer_range=0.3,
)
MAKERS = {
    "classifier": lambda **more: Classifier.make(SMALL, {"num_classes": 3}, **more),
    "choice": lambda **more: ChoiceClassifier.make(SMALL, **more),
    "tagger": lambda **more: Tagger.make(SMALL, {"num_tags": 5}, **more),
    "embeddings": lambda **more: BiEncoder.make(SMALL, **more),
    "embeddings of [CLS]": lambda **more: BiEncoder.make(SMALL, {"pooling": "cls"}, **more),
    "span": lambda **more: SpanPredictor.make(SMALL, **more),
}
RNG = np.random.default_rng(0)
MASK = (np.arange(9) < np.array([[9], [6], [4], [7]])).astype("int32")
ROWS = {
    "input_ids": RNG.integers(1, 50, (4, 9)).astype("int32") * MASK,
    "input_mask": MASK,
    "segment_ids": (np.arange(9) > 3).astype("int32") * MASK,
}
CHOICES = {name: value.reshape(2, 2, 9) for name, value in ROWS.items()}


def linear(layer, x):
    """2018's product with transposed weights."""
    return x @ layer.output_weights.numpy().T + layer.output_bias.numpy()


def randomize_biases(model):
    for name, variable in weights_by_name(model).items():
        if name.endswith("bias"):
            variable.assign(RNG.normal(size=variable.shape))


def test_a_classifier_reads_the_pooled_output_of_the_whole_encoder():
    model = Classifier.make(SMALL, {"num_classes": 3})
    randomize_biases(model)
    wanted = linear(model.classifier, model.encoder(ROWS)["pooled_output"].numpy())
    np.testing.assert_allclose(model(ROWS)["logits"], wanted, rtol=1e-4, atol=1e-5)


def test_a_choice_is_scored_as_if_it_were_alone():
    model = ChoiceClassifier.make(SMALL)
    randomize_biases(model)
    wanted = linear(model.classifier, model.encoder(ROWS)["pooled_output"].numpy()).reshape(2, 2)
    np.testing.assert_allclose(model(CHOICES)["logits"], wanted, rtol=1e-4, atol=1e-5)


def test_a_tagger_tags_every_row_or_those_wanted():
    model = Tagger.make(SMALL, {"num_tags": 5})
    randomize_biases(model)
    every = linear(model.tagger, model.encoder(ROWS)["sequence_output"].numpy())
    np.testing.assert_allclose(model(ROWS)["logits"], every, rtol=1e-4, atol=1e-4)
    first_pieces = np.array([[1, 4], [2, 3], [0, 0], [6, 5]])
    rows = np.take_along_axis(every, first_pieces[:, :, None], axis=1)
    np.testing.assert_allclose(model({**ROWS, "output_positions": first_pieces})["logits"], rows, rtol=1e-4, atol=1e-4)


def test_a_span_predictor_gives_start_and_end_of_every_row():
    model = SpanPredictor.make(SMALL)
    randomize_biases(model)
    outputs, wanted = model(ROWS), linear(model.span, model.encoder(ROWS)["sequence_output"].numpy())
    np.testing.assert_allclose(outputs["start_logits"], wanted[:, :, 0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outputs["end_logits"], wanted[:, :, 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_a_bi_encoder_gives_each_text_its_own_vector_of_length_1(pooling):
    model = BiEncoder.make(SMALL, {"pooling": pooling})
    rows = model.encoder(ROWS)["sequence_output"].numpy()
    wanted = rows[:, 0] if pooling == "cls" else (rows * MASK[:, :, None]).sum(axis=1) / MASK.sum(axis=1, keepdims=True)
    wanted /= np.linalg.norm(wanted, axis=-1, keepdims=True)
    np.testing.assert_allclose(model(CHOICES)["embedding"], wanted.reshape(2, 2, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", MAKERS)
def test_models_save_load_and_run_in_training_mode_and_bfloat16(kind, tmp_path):
    inputs = CHOICES if kind == "choice" or kind.startswith("embeddings") else ROWS
    model = MAKERS[kind]()
    outputs = model(inputs)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert list(weights_by_name(again)) == list(weights_by_name(model))
    half = MAKERS[kind](dtype="mixed_bfloat16")
    half.set_weights(model.get_weights())
    for name, value in outputs.items():
        np.testing.assert_array_equal(again(inputs)[name], value)
        assert keras.backend.standardize_dtype(half(inputs)[name].dtype) == "float32"
        assert np.abs(half(inputs)[name].numpy() - value.numpy()).max() < 0.1 * np.abs(value).max()
        assert np.abs(model(inputs, training=True)[name].numpy() - value.numpy()).max() > 1e-3
