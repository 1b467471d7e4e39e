"""Features of words that are computed once: the same for any batches, and cached by their inputs."""

import errno
import os
import tempfile

import numpy as np
import pytest

from official_bert.config import ModelConfig
from official_bert.tasks.tagging import frozen_features
from official_bert.tasks.tagging.features import TaggingFeatureMaker
from official_bert.tasks.tagging.frozen_features import WordFeatures, batches_by_length
from official_bert.tasks.tagging.word_tagger import FeatureTagger
from official_bert.text.tokenization import FullTokenizer

SMALL = ModelConfig(
    vocab_size=3000,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=16,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.3,
)
TEXTS = [
    [
        "the",
        "glassblower",
        "from",
        "Brno",
        "borrowed",
        "the",
        "thermometer",
        "while",
        "it",
        "rained",
        "in",
        "the",
        "harbour",
    ],
    ["Brno"],
    ["the", "atlas"],
]


@pytest.fixture(scope="module")
def rows(golden):
    return TaggingFeatureMaker(FullTokenizer(str(golden / "vocab_uncased.txt"), True), 12, 4).make(TEXTS)


@pytest.fixture(scope="module")
def model():
    return FeatureTagger.make(SMALL, {"num_tags": 3, "features": "concat", "feature_layers": 2, "lstm_size": 4})


def test_each_word_has_the_layers_at_its_first_piece_in_the_window_that_shows_it_best(rows, model):
    assert len(rows) > len(TEXTS)  # the first text has windows
    found = WordFeatures(rows, [len(text) for text in TEXTS], model)
    seen = 0
    for row in rows:
        ids = row.input_ids[None]
        alone = np.asarray(
            model.features({"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": np.zeros_like(ids)})
        )[0]
        for word, position in zip(row.words, row.positions):
            np.testing.assert_allclose(found[row.text][:, :, word], alone[position], rtol=1e-4, atol=1e-5)
            seen += 1
    assert seen == sum(map(len, TEXTS)) and found[1].shape == (2, 8, 1)


def test_a_second_run_reads_the_file_and_other_weights_make_another(rows, model, tmp_path, monkeypatch):
    lengths = [len(text) for text in TEXTS]
    first = WordFeatures(rows, lengths, model, str(tmp_path))[0].copy()
    other = FeatureTagger.make(SMALL, {"num_tags": 3, "features": "concat", "feature_layers": 2, "lstm_size": 4})
    WordFeatures(rows, lengths, other, str(tmp_path))[0]
    assert len(list(tmp_path.iterdir())) == 2
    monkeypatch.setattr(frozen_features, "compute_features", lambda *_: pytest.fail("computed again"))
    np.testing.assert_array_equal(WordFeatures(rows, lengths, model, str(tmp_path))[0], first)


def test_batches_hold_every_row_once_and_no_more_tokens_than_told():
    lengths = np.random.default_rng(0).integers(1, 60, 200).tolist() + [500]
    batches = [batch.tolist() for batch in batches_by_length(lengths, 256)]
    assert sorted(index for batch in batches for index in batch) == list(range(201))
    assert all(len(batch) * max(lengths[index] for index in batch) <= 256 for batch in batches if len(batch) > 1)
    assert [200] in batches


def test_a_full_disk_names_the_folder_before_anything_is_computed(rows, model, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        WordFeatures(rows, [len(text) for text in TEXTS], model, str(tmp_path))[0]
    assert caught.value.filename == str(tmp_path) and os.listdir(tmp_path) == []
    with pytest.raises(OSError, match="No space left on device") as caught:
        WordFeatures(rows, [len(text) for text in TEXTS], model)[0]
    assert caught.value.filename == tempfile.gettempdir()
