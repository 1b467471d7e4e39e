"""A frozen encoder's outputs for each word (the feature-based approach, paper 5.3), computed once, kept in a file."""

import collections
import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from official_bert.data.array_files import make_array
from official_bert.data.cache import check_own, mapped
from official_bert.storage.files import exists, full_disk_names, make_folder, written_beside
from official_bert.tasks.tagging.features import TaggingFeature

BATCH_TOKENS = 8192  # of one call of the encoder


class WordFeatures:
    """float32 [N,D,words] of each text, computed by `model.features` at the first access: load the model's weights
    before.

    They are in a file of `cache_dir`, named by a hash of everything that they depend on, or in a temporary file.
    """

    def __init__(
        self, features: Sequence[TaggingFeature], lengths: Sequence[int], model: keras.Model, cache_dir: str = ""
    ):
        self.features, self.model, self.cache_dir = features, model, cache_dir
        self.starts = np.cumsum([0, *lengths])
        self._stored: np.ndarray | None = None
        self._temporary: tempfile.TemporaryDirectory | None = None

    def __getitem__(self, text: int) -> np.ndarray:
        if self._stored is None:
            self._stored = self._load()
        return self._stored[self.starts[text] : self.starts[text + 1]].transpose(1, 2, 0)

    def _load(self) -> np.ndarray:
        if self.cache_dir:
            check_own(self.cache_dir)
            make_folder(self.cache_dir)
        else:
            self._temporary = tempfile.TemporaryDirectory(prefix="features-")
        folder = self.cache_dir or self._temporary.name  # type: ignore[union-attr]
        path = os.path.join(folder, f"words-{self._digest()}.npy")
        if not exists(path):
            with (
                full_disk_names(self.cache_dir or tempfile.gettempdir(), os.path.dirname(path)),
                written_beside(path) as temporary,
            ):
                compute_features(self.model, self.features, self.starts, temporary)
        return mapped(path)

    def _digest(self) -> str:
        digest = hashlib.sha256(str(self.model.layers_used).encode())
        for variable in self.model.encoder.weights:
            digest.update(np.asarray(variable.value).tobytes())
        for feature in self.features:
            digest.update(feature.input_ids.tobytes() + feature.positions.tobytes() + feature.words.tobytes())
        return digest.hexdigest()[:32]


class WordRow(collections.UserDict):
    """A text as a row of word features, which are computed at the first access; a tag -1 means that the word is not
    labelled.
    """

    def __init__(self, stored: WordFeatures, number: int, tags: np.ndarray, starts: np.ndarray | None = None):
        super().__init__(
            {"tags": np.maximum(tags, 0), "input_mask": np.ones_like(tags), "tag_mask": (tags >= 0).astype(tags.dtype)}
        )
        self.stored, self.number = stored, number
        if starts is not None:
            self["sentence_starts"] = starts
        self["word_features"] = None

    def __getitem__(self, key: str) -> np.ndarray:
        return self.stored[self.number] if key == "word_features" else super().__getitem__(key)


def compute_features(model: keras.Model, features: Sequence[TaggingFeature], starts: np.ndarray, path: str) -> None:
    """Writes float32 [words of all texts,N,D] to a .npy file; batches rows of about equal length.

    `starts` are the numbers of each text's first word, and of all words.
    """
    layers, width = len(model.layers_used), model.encoder.config.hidden_size
    stored = make_array(path, (int(starts[-1]), layers, width))
    run = tf.function(lambda batch: tf.cast(model.features(batch), tf.float32), reduce_retracing=True, autograph=False)
    for part in batches_by_length([len(feature.input_ids) for feature in features], BATCH_TOKENS):
        layers_of_rows = run(padded([features[index] for index in part])).numpy()
        for row, index in zip(layers_of_rows, part):
            stored[starts[features[index].text] + features[index].words] = row[features[index].positions]
    stored.flush()


def batches_by_length(lengths: Sequence[int], tokens: int) -> Iterator[np.ndarray]:
    """Yields indices of rows, short ones first, in batches of at most `tokens` with padding (or of one row)."""
    order = np.argsort(lengths, kind="stable")
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - begin) * lengths[order[end]] > tokens:
            yield order[begin:end]
            begin = end


def padded(features: Sequence[TaggingFeature]) -> Mapping[str, tf.Tensor]:
    """Pads some rows to the encoder's inputs."""
    rows = [feature.input_ids for feature in features]
    ids = tf.RaggedTensor.from_row_lengths(np.concatenate(rows), list(map(len, rows)))
    mask = tf.sequence_mask(ids.row_lengths(), dtype=tf.int32)
    return {"input_ids": ids.to_tensor(), "input_mask": mask, "segment_ids": tf.zeros_like(mask)}
