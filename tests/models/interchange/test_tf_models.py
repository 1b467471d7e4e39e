"""tf-models-official's BertEncoderV2, a separate implementation, gives the same outputs with the same weights."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.models import checkpoints
from official_bert.models.encoder import make_encoder
from official_bert.models.interchange import formats
from official_bert.models.interchange.projects import tf_models


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("official.nlp.modeling")


@pytest.fixture(scope="module")
def encoder(library):
    made = library.networks.BertEncoderV2(
        vocab_size=50,
        hidden_size=16,
        num_layers=3,
        num_attention_heads=4,
        inner_dim=32,
        max_sequence_length=24,
        type_vocab_size=2,
        output_dropout=0.0,
        attention_dropout=0.0,
    )
    made(as_theirs(features()))
    rng = np.random.default_rng(2)
    for weight in made.weights:
        weight.assign(rng.normal(scale=0.3, size=weight.shape))
    return made


def features():
    rng, mask = np.random.default_rng(1), np.array([[1] * 9, [1] * 6 + [0] * 3], "int32")
    return {
        "input_ids": rng.integers(0, 50, (2, 9)).astype("int32") * mask,
        "input_mask": mask,
        "segment_ids": rng.integers(0, 2, (2, 9)).astype("int32") * mask,
    }


def as_theirs(inputs):
    return {
        "input_word_ids": inputs["input_ids"],
        "input_mask": inputs["input_mask"],
        "input_type_ids": inputs["segment_ids"],
    }


@pytest.mark.parametrize("key", ["encoder", "model"])
def test_an_object_checkpoint_gives_the_encoders_outputs(encoder, key, tmp_path):
    prefix = tf.train.Checkpoint(**{key: encoder}).save(str(tmp_path / "ckpt"))
    found = formats.read(str(tmp_path))
    assert found.origin == f"tf-models checkpoint {prefix}" and found.config.num_attention_heads == 4
    ours, theirs = formats.make_model(found)(features()), encoder(as_theirs(features()))
    seen = features()["input_mask"].astype(bool)
    np.testing.assert_allclose(
        ours["sequence_output"].numpy()[seen], theirs["sequence_output"].numpy()[seen], atol=1e-5
    )
    np.testing.assert_allclose(ours["pooled_output"], theirs["pooled_output"], atol=1e-5)
    said = checkpoints.initialize_from(make_encoder(found.config), str(tmp_path)).describe()
    assert "tf-models checkpoint" in said and "new" not in said


def test_the_head_of_masked_words_comes_along(library, encoder, tmp_path):
    pretrainer = library.models.BertPretrainerV2(
        encoder, mlm_activation=lambda x: tf.nn.gelu(x, approximate=True), classification_heads=[]
    )
    inputs = features() | {"masked_lm_positions": np.array([[1, 3], [2, 0]], "int32")}
    theirs = pretrainer(as_theirs(inputs) | {"masked_lm_positions": inputs["masked_lm_positions"]})
    tf.train.Checkpoint(model=pretrainer, **pretrainer.checkpoint_items).save(str(tmp_path / "ckpt"))
    found = formats.read(str(tmp_path))
    assert not found.unknown and found.head == "pretraining"
    np.testing.assert_allclose(formats.make_model(found)(inputs)["mlm_logits"], theirs["mlm_logits"], atol=1e-4)


def test_missing_variables_are_named(encoder, tmp_path):
    with pytest.raises(ValueError, match="_transformer_layers/0/_intermediate_dense/kernel is missing"):
        weights = {
            name: np.zeros((2, 2))
            for name in (
                "embeddings/word_embeddings",
                "embeddings/position_embeddings",
                "embeddings/token_type_embeddings",
                "layer_0/attention/query/kernel",
            )
        }
        tf_models.infer_config(weights, "ckpt-1")
    tf.train.Checkpoint(layer=encoder._transformer_layers[0], other=tf.Variable(1.0)).save(str(tmp_path / "ckpt"))
    with pytest.raises(ValueError, match="expected a BERT checkpoint, got an object checkpoint with layer/"):
        formats.read(str(tmp_path))
