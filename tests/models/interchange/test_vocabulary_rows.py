"""Rows for new entries: means worked out by hand, and a larger model that takes what was written."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.config import ModelConfig
from official_bert.models import checkpoints
from official_bert.models.interchange import vocabulary_rows
from official_bert.models.pretrainer import Pretrainer

SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
         "max_position_embeddings": 16}


def test_new_rows_are_means_of_the_old_rows_of_their_pieces():
    rows = np.array([[1.0, 2.0], [3.0, 4.0], [6.0, 0.0]], np.float32)
    # Row 1 is replaced by the mean of 0 and 1 as they were; row 4 is new; row 3 has no word yet.
    extended = vocabulary_rows.extend_rows(rows, {1: [0, 1], 4: [1, 2, 2]}, 5)
    np.testing.assert_allclose(extended, [[1, 2], [2, 3], [6, 0], [0, 0], [5, 4 / 3]], rtol=1e-6)
    np.testing.assert_array_equal(vocabulary_rows.extend_rows(rows[:, 0], {3: [0, 1]}, 4), [1, 3, 6, 2])


def test_a_checkpoint_of_ours_is_taken_whole_by_the_larger_model(tmp_path):
    model, larger = (Pretrainer.make(ModelConfig(vocab_size=size, **SMALL)) for size in (20, 23))
    model.masked_lm.output_bias.assign(np.arange(20))
    checkpoints.weights_checkpoint(model, step=tf.Variable(7)).save(str(tmp_path / "run" / "ckpt"))
    vocabulary_rows.extend_checkpoint(str(tmp_path / "run"), str(tmp_path / "out"), 20, {20: [3, 4], 22: [5]}, 23)
    assert "new:" not in checkpoints.initialize_from(larger, str(tmp_path / "out")).describe()
    was, now = checkpoints.named_weights(model), checkpoints.named_weights(larger)
    for name in was:
        np.testing.assert_array_equal(now[name][:20] if was[name].shape != now[name].shape else now[name], was[name])
    np.testing.assert_array_equal(now["masked_lm/output_bias"][20:], [3.5, 0, 5])
    rows = was["embeddings/word_embeddings"].numpy()
    np.testing.assert_allclose(now["embeddings/word_embeddings"][20], (rows[3] + rows[4]) / 2, rtol=1e-6)


def test_a_checkpoint_of_another_vocabulary_is_refused(golden, tmp_path):
    with pytest.raises(ValueError, match="has 3000 rows, but the configuration says vocab_size 3100"):
        vocabulary_rows.extend_checkpoint(str(golden / "tf1_bert/bert_model.ckpt"), str(tmp_path), 3100, {}, 3101)
    with pytest.raises(ValueError, match="no checkpoint found"):
        vocabulary_rows.extend_checkpoint(str(tmp_path), str(tmp_path), 3100, {}, 3101)
    tf.train.Checkpoint(weights={"kernel": tf.Variable([1.0])}).save(str(tmp_path / "other" / "ckpt"))
    with pytest.raises(ValueError, match="expected a BERT checkpoint with embeddings/word_embeddings, got kernel"):
        vocabulary_rows.extend_checkpoint(str(tmp_path / "other"), str(tmp_path), 1, {}, 2)
