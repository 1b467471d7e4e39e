"""Embeddings against the encoder's own rows; the refusals of all served models."""

import numpy as np
import pytest
import tensorflow as tf
from oracles.rows import rows_by_hand

from official_bert.models.encoder import make_encoder
from official_bert.serving.served_embeddings import ServedEmbeddings
from official_bert.serving.served_model import ID_INPUTS
from official_bert.text.tokenization import FullTokenizer

TEXTS = ["The surveyor asked for the price.", "", "Señora Núñez misplaced the harbour ledger. " * 5, "中国 12%"]


@pytest.fixture(scope="module")
def tokenizers(golden, graph_tokenizer):
    return FullTokenizer(str(golden / "vocab_uncased.txt")), graph_tokenizer


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_an_embedding_is_the_first_row_or_the_mean_of_the_real_rows(tokenizers, pooling, small_config):
    model = make_encoder(small_config)
    served = ServedEmbeddings(model, tokenizers[1], 32, pooling)
    rows, _ = rows_by_hand(tokenizers[0], TEXTS)
    output = model(rows)["sequence_output"].numpy()
    real = rows["input_mask"].astype(bool)
    wanted = output[:, 0] if pooling == "cls" else np.stack([o[mask].mean(0) for o, mask in zip(output, real)])
    found = served.answer_text({"text": tf.constant(TEXTS)})
    np.testing.assert_allclose(found["embedding"], wanted, atol=1e-5)


def test_rows_longer_than_the_model_are_refused_by_name(tokenizers, small_config):
    served = ServedEmbeddings(make_encoder(small_config), tokenizers[1], 32)
    answer = tf.function(lambda **rows: served.answer_ids(rows), autograph=False).get_concrete_function(**ID_INPUTS)
    assert answer(**{name: tf.ones([1, 32], tf.int32) for name in ID_INPUTS})["embedding"].shape == [1, 16]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"input_ids: expected rows of 1 to 32 tokens, got\] \[33\]"
    ):
        answer(**{name: tf.ones([1, 33], tf.int32) for name in ID_INPUTS})
