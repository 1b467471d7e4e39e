"""Rows for new entries: means worked out by hand."""

import dataclasses

import made_checkpoints
import numpy as np

from official_bert.tools.resizing import weights as resizing


def test_new_rows_are_means_of_the_old_rows_of_their_pieces():
    stored = made_checkpoints.stored_small("pretraining", vocab_size=3)
    rows = np.array([[1.0, 2.0], [3.0, 4.0], [6.0, 0.0]], np.float32)
    stored = dataclasses.replace(
        stored,
        weights={
            **stored.weights,
            "embeddings/word_embeddings": rows,
            "masked_lm/output_bias": np.array([1.0, 3.0, 6.0], np.float32),
        },
    )
    # Row 1 is replaced by the mean of 0 and 1 as they were; row 3 is new.
    changed = resizing.with_entries(stored, [[0], [0, 1], [2], [1, 2, 2]])
    np.testing.assert_allclose(
        changed.weights["embeddings/word_embeddings"], [[1, 2], [2, 3], [6, 0], [5, 4 / 3]], rtol=1e-6
    )
    np.testing.assert_allclose(changed.weights["masked_lm/output_bias"], [1, 2, 6, 5])
    assert changed.config.vocab_size == 4 and changed.weights["pooler/bias"] is stored.weights["pooler/bias"]
