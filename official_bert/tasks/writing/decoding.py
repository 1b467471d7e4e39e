"""The second generator of `text_to_text`: an encoder reads the source, and a decoder writes the answer word by word.

S tokens of a source, W tokens of an answer with its end.
"""

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from official_bert.data.batches.sources import ExampleSource
from official_bert.data.batches.text_features import tokenize_all
from official_bert.generation.word_search import Search
from official_bert.model_config import ModelConfig
from official_bert.models.encoder_decoder.model import EncoderDecoder
from official_bert.models.interchange import formats
from official_bert.models.interchange.stored_models import require_config
from official_bert.objectives.written_words import IGNORED
from official_bert.tasks.data import row_spec
from official_bert.tasks.writing.corruptions import LAST_TOKENS, Corruption, Words, damage, hide_span
from official_bert.text.packing import Template
from official_bert.text.tokenizer import Tokenizer
from official_bert.training.held_out import Predictions

SEVERAL_BEAMS = 4  # which a report compares with greedy answers


def search_of(task: Any, **more: Any) -> Search:
    """Returns the search of a run: its options, with the tokenizer's own tokens and the places of an answer."""
    options, special = task.options, task.tokenizer.special_id
    if not options.search.eos_token_id:
        more |= {"eos_token_id": (special("[SEP]"),), "pad_token_id": special("[PAD]")}
        more["decoder_start_token_id"] = special("[CLS]")
    if options.answer_length:
        more["max_length"] = options.answer_length + 1
    return dataclasses.replace(options.search, num_return_sequences=1, **more)


def shift_right(labels: np.ndarray, start: int, pad: int) -> np.ndarray:
    """Returns a decoder's inputs [T] for labels [T]: the start token, and each label one place later; labels that do
    not count become padding.
    """
    shifted = np.concatenate([[start], labels[:-1]])
    return np.where(shifted == IGNORED, pad, shifted)


@dataclasses.dataclass(frozen=True)
class DecodedRows(Sequence):
    """`rows[i]` is the dict of row i: `input_ids`, `input_mask`, `segment_ids` int32 [S] of its source, and
    `target_ids`, `labels` int32 [W] of its answer; for a hidden span also `target_positions` [W].

    Damage is a function of (seed, epoch, row).
    """

    sources: Sequence[np.ndarray]
    answers: Sequence[np.ndarray]
    template: Template
    width: int
    room: int
    search: Search
    kind: Corruption = "none"
    rate: float = 0.0
    words: Any = None  # `Words`, for damage
    seed: int = 0
    epoch: int = 0

    @classmethod
    def of(cls, task: Any, sources: Sequence[str], answers: Sequence[str]) -> "DecodedRows":
        """Returns the rows of texts."""
        options, tokenizer = task.options, task.tokenizer
        damaged: Any = options.corruption, options.corruption_rate, words_of(tokenizer), task.config.seed
        room = options.max_seq_length - tokenizer.template.extra(False)
        ids = tokenize_all(tokenizer, sources), tokenize_all(tokenizer, answers)
        return cls(*ids, tokenizer.template, options.answer_length, room, search_of(task), *damaged)

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        ids, rng = self.sources[index][: self.room], np.random.default_rng((self.seed, self.epoch, index))
        labels, search = np.full(self.width, IGNORED), self.search
        if self.kind == "mass":
            span = hide_span(np.append(self.template.cls_id, ids), self.rate, self.words, rng)
            target, positions = np.full(self.width, search.pad_token_id), np.zeros(self.width)
            for row, values in ((target, span.decoder_ids), (positions, span.decoder_positions), (labels, span.labels)):
                row[: len(values)] = values[: self.width]
            ids, more = span.encoder_ids[1:], {"target_positions": positions}
        else:
            # no longer than the source, so that batches keep the lengths of their plan
            ids, more = damage(ids, self.kind, self.rate, self.words, rng)[: len(ids)], {}
            answer = self.answer(index)
            labels[: len(answer)] = answer
            target = shift_right(labels, search.decoder_start_token_id, search.pad_token_id)
        packed = np.array(self.template.pack(ids.tolist())[0])
        inputs = {"input_ids": packed, "input_mask": np.ones_like(packed), "segment_ids": np.zeros_like(packed)}
        arrays: dict[str, np.ndarray] = {**inputs, "target_ids": target, "labels": labels, **more}
        return {name: array.astype(np.int32) for name, array in arrays.items()}

    def answer(self, index: int) -> np.ndarray:
        """Returns the tokens of an answer with its end, at most W."""
        return np.append(self.answers[index][: self.width - 1], self.search.eos_token_id[0])

    @property
    def cut_sources(self) -> int:
        """The sources that are longer than there is room for."""
        return sum(len(ids) > self.room for ids in self.sources)

    @property
    def cut_answers(self) -> int:
        """The answers that are longer than there is room for."""
        return sum(len(ids) >= self.width for ids in self.answers)


def words_of(tokenizer: Tokenizer) -> Words:
    """Returns the tokens of a vocabulary that corruptions put in, or look for."""
    ordinary = np.setdiff1d(list(tokenizer.vocab.values()), [*map(tokenizer.special_id, tokenizer.special)])
    ends = [tokenizer.vocab[token] for token in LAST_TOKENS if token in tokenizer.vocab]
    return Words(tokenizer.special_id("[MASK]"), ordinary, np.array(ends))


class DecodedSource(ExampleSource):
    """Batches of `DecodedRows`, whose damage is another one in each epoch of training."""

    def __init__(self, rows: DecodedRows, *arguments: Any, **options: Any):
        super().__init__(dataclasses.replace(rows, kind="none"), *arguments, **options)
        self.examples = rows  # damaged ones are no longer

    def batch(self, number: int) -> dict[str, np.ndarray]:
        """Makes batch `number`, counted over all epochs."""
        epoch = number // self.batches_per_epoch
        self.plan(epoch)  # kept for the next batch
        source: Any = copy.copy(self)
        source.examples = dataclasses.replace(source.examples, epoch=epoch if self.shuffle else 0)
        return super(DecodedSource, source).batch(number)


def batch_spec(options: Any, batch_size: int) -> dict[str, tf.TensorSpec]:
    """Returns the shapes of a batch at full length."""
    names = ("target_ids", "labels", *(["target_positions"] if options.corruption == "mass" else []))
    spec = tf.TensorSpec((batch_size, options.answer_length), tf.int32)
    return row_spec(batch_size, options.max_seq_length) | dict.fromkeys(names, spec)


def make_model(task: Any) -> EncoderDecoder:
    """Builds encoder and decoder. Raises ValueError for answers longer than the decoder's positions."""
    options, config = task.options, task.config.model
    decoder = options.decoder or config
    if options.shared and decoder != config:
        raise ValueError("config.options.decoder: expected none beside shared: the layers are the encoder's")
    if options.answer_length > decoder.longest_row:
        raise ValueError(
            f"config.options.answer_length: expected at most the decoder's {decoder.longest_row} positions, got "
            f"{options.answer_length}"
        )
    settings = {
        "decoder": None if options.shared else dataclasses.asdict(decoder),
        "transforms": options.head_transform,
        "search": dataclasses.asdict(search_of(task)),
    }
    model = EncoderDecoder.make(config, settings, recompute=task.config.training.recompute)
    model.decoder_checkpoint = options.decoder_checkpoint
    return model


def decoder_of(path: str) -> dict[str, Any]:
    """Returns the options that say what a decoder is, for a checkpoint of one, or of an encoder."""
    try:
        stored = formats.read(path)
    except ValueError as error:
        raise ValueError(f"config.options.decoder_checkpoint: {error}") from None
    if stored.head != "decoder":
        return {"decoder": require_config(stored)}
    values = {name: stored.objective_options[name] for name in ("decoder", "shared", "head_transform")}
    return values | {"decoder": values["decoder"] and ModelConfig(**values["decoder"])}


def write(model: keras.Model, rows: Sequence[Mapping[str, np.ndarray]], pad: int, search: Search) -> np.ndarray:
    """Writes answers for rows: their ids behind the start token [B,T]."""
    length = max(len(row["input_ids"]) for row in rows)
    batch = {
        name: np.stack([np.pad(row[name], (0, length - len(row[name])), constant_values=fill) for row in rows])
        for name, fill in (("input_ids", pad), ("input_mask", 0), ("segment_ids", 0))
    }
    return model.generate(batch, **vars(search))["sequences"][:, 1:]


def likelihood(predictions: Predictions) -> dict[str, float]:
    """Returns the mean loss of the true answers, in nats for each token, and its perplexity."""
    sums = np.sum([row["sums"][0] for row in predictions], axis=0, dtype=np.float64)
    nats = float(sums[0] / max(sums[2], 1.0))
    return {"nats_per_token": nats, "perplexity": math.exp(min(nats, 700.0))}
