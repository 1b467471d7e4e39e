"""Fills the [MASK]s of rows together, in a few passes of the masked LM: the most confident words first.

A pass predicts all blanks that are left, keeps the words of which it is most confident, and leaves the others to the
next pass, which sees the words that were kept (Chang et al. 2022, MaskGIT; masked diffusion, Sahoo et al. 2024). Filled
words stay. Ties are decided for the lowest place and the lowest id.

B rows, S tokens, M blanks of a row, V words, K best words, P passes.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf
from jaxtyping import Bool, Float, Int

Schedule = Literal["linear", "cosine"]
# ids [B,S], the places of the blanks [B,M] -> logits [B,M,V]
LogitsAt = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
# the number of the pass, logits [B,M,V] -> logits from which words are chosen
Perturb = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
NO_BLOCK = 2**30
NEVER_WRITTEN = ("[PAD]", "[UNK]", "[CLS]", "[MASK]")  # [SEP] ends an answer; within a text it is not written either
NO_LOOP = "filling blanks together asks the model several times, in a loop that these formats lack (--passes, --beams)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passes:
    """The number of model passes, and the order in which blanks are filled.

    `block_size` places from the left are a block, which is full before the next one begins; 0: all blanks are one.
    `passes` are divided among the blocks of a row, rounded up; 0: as many as it has blanks. `linear` fills about as
    many in each pass, `cosine` few at first.
    """

    passes: int = 0
    block_size: int = 0
    schedule: Schedule = "linear"

    @classmethod
    def of_answer(cls, width: int, passes: int = 0, block_size: int = 0) -> "Passes":
        """Returns the passes that write an answer of `width` places: by default `width` passes, in blocks of a quarter.

        The [SEP]s at its end are the most confident: in one block they are written first, and may fix too short an
        answer. With fewer passes than places one block is better, because its words know more of each other.
        """
        passes = min(passes or width, width)
        return cls(passes=passes, block_size=block_size or (math.ceil(width / 4) if passes == width else width))

    def of_block(self, blanks: Int[Any, " B"]) -> Int[Any, " B"]:
        """Returns the number of passes per block [B] for rows with `blanks` [B]."""
        blocks = tf.maximum(-(-blanks // (self.block_size or NO_BLOCK)), 1)
        passes = tf.fill(tf.shape(blanks), self.passes) if self.passes else blanks
        return -(-passes // blocks)


class Filled(NamedTuple):
    """Rows without blanks. `words` and `probabilities` are those of the pass that filled a blank, best first."""

    input_ids: Int[Any, "B S"]
    words: Int[Any, "B M K"]
    probabilities: Float[Any, "B M K"]
    passes: Int[Any, "B M"]  # in which each blank was filled, from 1; 0 where there is none


def next_pass(
    blanks: Int[Any, " B"], left: Int[Any, " B"], passes: Int[Any, " B"], schedule: Schedule
) -> tuple[Int[Any, " B"], Int[Any, " B"]]:
    """Returns the number of `blanks` that the next non-empty pass fills, and the number of `passes` left after it.

    With k passes left, linear fills blanks / k, rounded half to even in whole numbers; cosine fills the share of the
    hidden places that cos(pi/2 (1 - t)) loses from t = k / passes to (k - 1) / passes.
    """
    k = tf.range(1, tf.reduce_max(tf.concat([passes, [1]], 0)) + 1)  # [P]
    if schedule == "linear":
        whole, rest = blanks[:, None] // k, blanks[:, None] % k
        counts = whole + tf.cast((2 * rest > k) | (tf.equal(2 * rest, k) & tf.equal(whole % 2, 1)), tf.int32)
    else:
        steps, all_steps = tf.cast(k, tf.float64), tf.cast(tf.maximum(passes, 1), tf.float64)[:, None]
        before, after = (tf.cos(math.pi / 2 * (1 - tf.minimum(t / all_steps, 1))) for t in (steps, steps - 1))
        counts = tf.cast(tf.round(tf.cast(blanks[:, None], tf.float64) * (1 - after / before)), tf.int32)
    number = tf.reduce_max(tf.where((k <= left[:, None]) & (counts > 0), k, 0), axis=1)
    return tf.gather(counts, tf.maximum(number - 1, 0), batch_dims=1), number - 1


def fill(
    logits_at: LogitsAt,
    ids: Int[Any, "B S"],
    places: Int[Any, "B M"],
    present: Bool[Any, "B M"],
    allowed: Bool[Any, " V"],
    how: Passes,
    best: int = 1,
    perturb: Perturb | None = None,
) -> Filled:
    """Fills the blanks of rows, which are at `places` in order; those not `present` are skipped.

    `allowed` marks the words that may be written; probabilities are normalised over these. `perturb` changes the logits
    from which words are chosen, not their probabilities. A row gets the same words alone and in any batch.
    """
    count = how.of_block(tf.reduce_sum(tf.cast(present, tf.int32), axis=1))
    block_of = tf.where(present, tf.range(tf.shape(places)[1]) // (how.block_size or NO_BLOCK), NO_BLOCK)
    best = min(best, allowed.shape[0])

    def one_pass(number, ids, open_, block, left, words, probabilities, when):  # type: ignore[no-untyped-def]
        current = tf.reduce_min(tf.where(open_, block_of, NO_BLOCK), axis=1)
        left = tf.where(tf.equal(current, block), left, count)
        candidates = open_ & tf.equal(block_of, current[:, None])
        size, left = next_pass(tf.reduce_sum(tf.cast(candidates, tf.int32), axis=1), left, count, how.schedule)
        logits = tf.where(allowed, tf.cast(logits_at(ids, places), tf.float32)[:, :, : allowed.shape[0]], -np.inf)
        shares = tf.nn.softmax(logits)
        chances, ranked = tf.math.top_k(shares, best)
        if perturb is None:
            chosen, confidence = ranked[:, :, 0], chances[:, :, 0]
        else:
            chosen = tf.argmax(perturb(number, logits), axis=-1, output_type=tf.int32)
            confidence = tf.gather(shares, chosen, batch_dims=2)
            ranked, chances = chosen[:, :, None], confidence[:, :, None]
        order = tf.argsort(tf.where(candidates, -confidence, np.inf), axis=1, stable=True)
        now = candidates & (tf.argsort(order, axis=1, stable=True) < size[:, None])
        where = tf.where(now)
        row_and_place = tf.stack([where[:, 0], tf.cast(tf.gather_nd(places, where), tf.int64)], axis=1)
        ids = tf.tensor_scatter_nd_update(ids, row_and_place, tf.boolean_mask(chosen, now))
        words, probabilities = (
            tf.where(now[:, :, None], new, old) for new, old in ((ranked, words), (chances, probabilities))
        )
        when = tf.where(now, number + 1, when)
        return number + 1, ids, open_ & ~now, current, left, words, probabilities, when

    shape = tf.concat([tf.shape(places), [1 if perturb else best]], axis=0)
    rows = tf.zeros(tf.shape(places)[:1], tf.int32)
    written = (tf.zeros(shape, tf.int32), tf.zeros(shape, tf.float32), tf.zeros_like(places))
    begin = (tf.constant(0), ids, present, rows - 1, rows, *written)
    of_words = tf.TensorShape([None, None, None])
    shapes = (*(value.shape for value in begin[:-3]), of_words, of_words, tf.TensorShape([None, None]))
    result = tf.while_loop(
        lambda number, ids, open_, *_: tf.reduce_any(open_), one_pass, begin, shapes, parallel_iterations=1
    )
    return Filled(result[1], *result[-3:])


class Beams(NamedTuple):
    """The best fillings of rows, best first: words [B,K,M], and the sums of their log-probabilities [B,K].

    A filling that does not exist, because a row has fewer, has the score -inf.
    """

    words: Int[Any, "B K M"]
    scores: Float[Any, "B K"]


def beam_fill(
    logits_at: LogitsAt,
    ids: Int[Any, "B S"],
    places: Int[Any, "B M"],
    present: Bool[Any, "B M"],
    allowed: Bool[Any, " V"],
    beams: int,
) -> Beams:
    """Fills the blanks of rows from left to right, and keeps the `beams` best fillings of each.

    All fillings have the same order, so that their scores are sums of log p(word | the words before it, the others
    [MASK]) and can be compared, and no filling is found twice. `logits_at` gets B * K rows, and one place of each.
    """
    B, M = tf.shape(places)[0], tf.shape(places)[1]
    size = allowed.shape[0]

    def one_blank(index, rows, words, scores):  # type: ignore[no-untyped-def]
        place = places[:, index]  # [B]
        flat = tf.reshape(rows, (B * beams, -1))
        logits = logits_at(flat, tf.repeat(place, beams)[:, None])[:, 0, :size]
        logs = tf.nn.log_softmax(tf.where(allowed, tf.cast(logits, tf.float32), -np.inf))
        totals = tf.reshape(scores[:, :, None] + tf.reshape(logs, (B, beams, size)), (B, beams * size))
        best, chosen = tf.math.top_k(totals, beams)
        parent, word = chosen // size, chosen % size
        filled = tf.tensor_scatter_nd_update(
            tf.gather(rows, parent, batch_dims=1),
            tf.stack([tf.repeat(tf.range(B), beams), tf.tile(tf.range(beams), [B]), tf.repeat(place, beams)], axis=1),
            tf.reshape(word, [-1]),
        )
        at = tf.one_hot(index, M, on_value=True, off_value=False, dtype=tf.bool)
        extended = tf.where(at, word[:, :, None], tf.gather(words, parent, batch_dims=1))
        here = present[:, index]
        return (
            index + 1,
            tf.where(here[:, None, None], filled, rows),
            tf.where(here[:, None, None], extended, words),
            tf.where(here[:, None], best, scores),
        )

    begin = (
        tf.constant(0),
        tf.repeat(ids[:, None], beams, axis=1),
        tf.zeros(tf.stack([B, beams, M]), tf.int32),
        tf.tile(tf.constant([[0.0] + [-np.inf] * (beams - 1)]), [B, 1]),
    )
    of_rows = tf.TensorShape([None, beams, None])
    shapes = (begin[0].shape, of_rows, of_rows, tf.TensorShape([None, beams]))
    _, _, words, scores = tf.while_loop(lambda index, *_: index < M, one_blank, begin, shapes, parallel_iterations=1)
    return Beams(words, scores)


def writable(tokens: Sequence[str], forbidden: Iterable[int]) -> np.ndarray:
    """Returns a mask [V] of the words that may be written: those that exist and are not `forbidden`."""
    allowed = np.array([bool(token) for token in tokens])
    allowed[[index for index in forbidden if 0 <= index < len(allowed)]] = False
    return allowed
