"""How probable a text is by a masked LM: pseudo-log-likelihoods, and the bound of masked diffusion.

`token` hides one token at a time (Salazar et al. 2020). `word_l2r` hides the later pieces of the same word, too, which
would give a piece away (Kauf and Ivanova 2023). `bound` is minus the upper bound of -log p(text) of masked diffusion:
the mean over all orders of the tokens of log p by the chain rule. Logarithms are natural.

R rows, S tokens, P places of a row.
"""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from official_bert.text.tokenizer import Span, Tokenizer

By = Literal["word_l2r", "token", "bound"]
KINDS = ("word_l2r", "token", "bound")
SAMPLES = 128  # rows of a text for its bound; so many sets of hidden places are all of a text of seven tokens


class Row(NamedTuple):
    """A row to compute: a text with `hidden` places, and the places among them that count, with their weight."""

    text: int
    hidden: Sequence[int]
    counted: Sequence[int]
    weight: float


@dataclasses.dataclass(frozen=True)
class ScoredText:
    """A text with its tokens and their places, their ids, and the number of each token's word."""

    text: str
    tokens: Sequence[Span]
    ids: Sequence[int]
    words: Sequence[int]

    @classmethod
    def of(cls, text: str, tokenizer: Tokenizer) -> "ScoredText":
        """Cuts a text into tokens and words."""
        tokens = tokenizer.tokenize_with_offsets(text)
        ids = tokenizer.convert_tokens_to_ids([token for token, _, _ in tokens])
        return cls(text, tokens, ids, tokenizer.word_numbers(text, ids))

    def rows(self, number: int, by: By) -> Iterator[Row]:
        """Yields the rows of the text, the `number` in its list."""
        count = len(self.ids)
        for place in range(count if by != "bound" else 0):
            later = [other for other in range(place + 1, count) if self.words[other] == self.words[place]]
            yield Row(number, [place, *(later if by == "word_l2r" else ())], [place], 1.0)
        if by != "bound" or not count:
            return
        if 2**count - 1 <= SAMPLES:
            for size in range(1, count + 1):
                weight = 1.0 / (size * math.comb(count, size))  # (m - 1)! (n - m)! / n!
                for hidden in itertools.combinations(range(count), size):
                    yield Row(number, hidden, hidden, weight)
            return
        seed = np.frombuffer(hashlib.sha256(np.array(self.ids, np.int64).tobytes()).digest(), np.uint32)
        for sample in range(SAMPLES):
            draw = np.random.default_rng([*seed.tolist(), sample])
            size = int(draw.integers(1, count + 1))
            hidden = draw.permutation(count)[:size].tolist()
            yield Row(number, hidden, hidden, count / size / SAMPLES)

    def answer(self, scores: np.ndarray, unknown: int) -> dict[str, Any]:
        """Returns the answer, given the score of each token."""
        words: dict[int, list[int]] = {}
        for place, word in enumerate(self.words):
            words.setdefault(word, []).append(place)
        spans = [
            (self.tokens[places[0]][1], max(self.tokens[place][2] for place in places)) for places in words.values()
        ]
        return {
            "score": float(scores.sum()),
            "tokens": [token for token, _, _ in self.tokens],
            "token_scores": scores.tolist(),
            "words": [self.text[start:end] for start, end in spans],
            "word_scores": [float(scores[places].sum()) for places in words.values()],
            "unknown": sum(index == unknown for index in self.ids),
        }


class Scorer:
    """Scores texts with a model that has a masked-LM head."""

    def __init__(self, model: keras.Model, tokenizer: Tokenizer, max_seq_length: int):
        self.tokenizer, self.max_seq_length = tokenizer, max_seq_length
        self.mask = tokenizer.special["[MASK]"]
        self.log_probabilities = _compiled(model)

    def score(
        self, texts: Sequence[str], by: By = "word_l2r", batch_size: int = 32, first: int = 1
    ) -> list[dict[str, Any]]:
        """Returns for each text its `score` (a sum), `tokens` and `token_scores`, `words` (parts of the text) and
        `word_scores`, and how many tokens are `unknown` ([UNK] is scored as the token that it is).

        `batch_size` are the rows in a batch: a text has one for each token. Raises ValueError, naming the row from
        `first`, for a text that is longer than a row, or that has a [MASK].
        """
        if by not in KINDS:
            raise ValueError(f"by: expected one of {', '.join(KINDS)}, got {by!r:.80}")
        scored = [self._cut(text, number) for number, text in enumerate(texts, first)]
        sums = [np.zeros(len(text.ids)) for text in scored]
        by_length = sorted(range(len(scored)), key=lambda number: len(scored[number].ids))
        rows = (row for number in by_length for row in scored[number].rows(number, by))
        while batch := list(itertools.islice(rows, batch_size)):
            for row, logs in zip(batch, self._run(batch, scored)):
                sums[row.text][list(row.counted)] += row.weight * logs[: len(row.counted)]
        answers = [text.answer(values, self.tokenizer.special_id("[UNK]")) for text, values in zip(scored, sums)]
        _warn(answers)
        return answers

    def _cut(self, text: str, number: int) -> ScoredText:
        if self.mask in text:
            raise ValueError(f"row {number}: a score needs a text without {self.mask}, got {text!r:.80}")
        scored = ScoredText.of(text, self.tokenizer)
        if len(scored.ids) > (room := self.max_seq_length - self.tokenizer.template.extra(False)):
            raise ValueError(
                f"row {number}: expected at most {room} tokens, because the score of a part of a text would be wrong, "
                f"got {len(scored.ids)}"
            )
        return scored

    def _run(self, rows: Sequence[Row], scored: Sequence[ScoredText]) -> np.ndarray:
        """Returns log p of the counted places of rows, [R,P]."""
        packed = [self.tokenizer.template.pack(scored[row.text].ids, []) for row in rows]
        length = -(-max(len(ids) for ids, _ in packed) // 8) * 8  # few lengths: each is planned anew
        ids = np.full((len(rows), length), self.tokenizer.template.pad_id, np.int32)
        mask = np.zeros_like(ids)
        places = np.zeros((len(rows), max(len(row.counted) for row in rows)), np.int32)
        words = np.zeros_like(places)
        hidden_id = self.tokenizer.special_id("[MASK]")
        for number, (row, (own, _)) in enumerate(zip(rows, packed)):
            ids[number, : len(own)], mask[number, : len(own)] = own, 1
            at = np.array(row.counted) + 1  # behind [CLS]
            words[number, : len(at)] = ids[number, at]
            ids[number, np.array(row.hidden) + 1] = hidden_id
            places[number, : len(at)] = at
        return self.log_probabilities(ids, mask, places, words).numpy()


def _compiled(model: keras.Model) -> Callable[..., tf.Tensor]:
    """Returns the function that computes log p of words [R,P] at places [R,P] of rows [R,S]."""

    def compute(ids: tf.Tensor, mask: tf.Tensor, places: tf.Tensor, words: tf.Tensor) -> tf.Tensor:
        inputs = {"input_ids": ids, "input_mask": mask, "segment_ids": tf.zeros_like(ids)}
        logits = tf.cast(model({**inputs, "masked_lm_positions": places}, training=False)["mlm_logits"], tf.float32)
        return tf.gather(logits, words, batch_dims=2) - tf.reduce_logsumexp(logits, axis=-1)

    spec = tf.TensorSpec([None, None], tf.int32)
    return tf.function(compute, autograph=False, input_signature=[spec] * 4)


def _warn(answers: Sequence[dict[str, Any]]) -> None:
    if empty := sum(not answer["tokens"] for answer in answers):
        logging.warning("%d of %d texts have no token: their score is 0", empty, len(answers))
    if unknown := sum(answer["unknown"] for answer in answers):
        logging.warning(
            "%d tokens are unknown to the vocabulary: the scores of their texts are those of [UNK], not of the texts",
            unknown,
        )
