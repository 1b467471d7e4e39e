"""Dynamic 80/10/10 masking: records are stored without masks, and `tf.data` masks them anew in each epoch.

Every random number is a hash of (seed, example, kind of draw). So the masks of a row do not depend on its batch or on
the rows read before: a resumed run, or another number of workers, sees the same masks. The statistics are those of
`masks`; the numbers differ.
"""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from official_bert.data.pretraining.masking import MaskingConfig, VocabularyFacts
from official_bert.data.record_files import records

ORDER, MASK, KEEP, REPLACEMENT, LENGTH, FIRST, PLACE, SAMPLE = range(8)  # kinds of draws
Batch = dict[str, tf.Tensor]


def of_this_schema(batch: Mapping[str, tf.Tensor]) -> Batch:
    """Returns a batch of `records.unmasked_features`; raises InvalidArgumentError for records of another schema
    version.
    """
    with tf.control_dependencies(
        [
            tf.debugging.assert_equal(
                batch["schema_version"], records.SCHEMA_VERSION, "records of another schema version: create them again"
            )
        ]
    ):
        return {**batch, "input_ids": tf.identity(batch["input_ids"])}


def sample_keys(examples: tf.Tensor, seed: int) -> tf.Tensor:
    """Returns each row's sampling key for a generator, a hash of the seed and the row's number in `examples`: [B] ->
    int32 [B,2].
    """
    bits = _mix(row_hashes(examples, seed) ^ _mix(tf.constant(SAMPLE, tf.uint64)))
    return tf.stack(
        [
            tf.cast(
                tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint64)) & tf.constant(2**31 - 1, tf.uint64),
                tf.int32,
            )
            for shift in (33, 2)
        ],
        axis=1,
    )


class DynamicMasking:
    """Masks batches of records without masks; B rows of S tokens, W = S + 1 words at most, P predictions at most."""

    def __init__(
        self,
        config: MaskingConfig,
        facts: VocabularyFacts,
        max_seq_length: int,
        max_predictions_per_seq: int,
        seed: int,
    ):
        self.config, self.facts, self.seed = config, facts, seed
        self.max_seq_length, self.max_predictions_per_seq = max_seq_length, max_predictions_per_seq
        self.budgets = config.budgets(max_seq_length, max_predictions_per_seq).astype(np.int32)
        self._replacements = facts.replacements.astype(np.int32)
        self._span_lengths = np.cumsum(config.span_distribution())

    def __call__(self, batch: Mapping[str, tf.Tensor], examples: tf.Tensor) -> Batch:
        """Masks a `batch` of `records.unmasked_features`; returns a batch with the features of 2018's records.

        The masks of a row depend on the seed and on its number in `examples` (int64 [B]): epoch * size of the data +
        the record's number, for masks that change each epoch. Raises InvalidArgumentError for records of another schema
        version.
        """
        batch = of_this_schema(batch)
        ids, input_mask = batch["input_ids"], batch["input_mask"]
        special = (ids == self.facts.cls_id) | (ids == self.facts.sep_id)
        candidates = (input_mask == 1) & ~special  # [B,S]
        budgets = self.count_predictions(batch)  # [B]
        rows = row_hashes(examples, self.seed)
        copied = {name: batch[name] for name in ("input_mask", "segment_ids", "next_sentence_labels")}
        if self.config.strategy == "token_draws":
            return copied | self._draw_tokens(rows, ids, candidates & (ids != self.facts.mask_id), budgets)
        if self.config.strategy == "token":
            selection, draws = self.choose_tokens(rows, candidates, budgets)
        else:
            selection, draws = self._choose_words(rows, batch, candidates, budgets)
        corrupted = self._replacements_of(rows, draws, tf.range(self.max_seq_length), self.facts.mask_id, ids)
        # In ascending order of their positions.
        S = self.max_seq_length
        places = tf.sort(tf.where(selection, tf.range(S)[None], S), axis=1)[:, : self.max_predictions_per_seq]  # [B,P]
        return copied | {"input_ids": tf.where(selection, corrupted, ids)} | _predictions(ids, places, places < S)

    def count_predictions(self, batch: Batch) -> tf.Tensor:
        """Returns how many tokens of each row to predict, int32 [B]; with `pack`, never more than `budgets` has."""
        return tf.gather(self.budgets, tf.reduce_sum(batch["input_mask"], axis=1))

    def choose_tokens(self, rows: tf.Tensor, candidates: tf.Tensor, budgets: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (chosen [B,S], the number of the draw that decides each token's replacement [S] or [B,S])."""
        places = tf.range(self.max_seq_length)
        scores = tf.where(candidates, uniform(rows, ORDER, places), 2.0)
        ranks = tf.argsort(tf.argsort(scores, axis=1), axis=1)
        return candidates & (ranks < budgets[:, None]), places

    def _draw_tokens(self, rows: tf.Tensor, ids: tf.Tensor, candidates: tf.Tensor, budgets: tf.Tensor) -> Batch:
        """Draws places with replacement, and returns the corrupted row and its predictions, in the order of the draws.

        As in ELECTRA's code, a place that is drawn twice is predicted twice, and becomes [MASK] if one of its draws
        says so.
        """
        draws, (count, length) = tf.range(self.max_predictions_per_seq), (tf.shape(ids)[0], self.max_seq_length)
        number = tf.reduce_sum(tf.cast(candidates, tf.int32), axis=1)  # [B]
        used = (draws < budgets[:, None]) & (number > 0)[:, None]  # [B,P]
        # the places of candidates, in order
        first = tf.argsort(tf.where(candidates, 0, 1), axis=1, stable=True)
        ranks = tf.cast(uniform(rows, PLACE, draws) * tf.cast(number, tf.float64)[:, None], tf.int32)
        places = tf.where(used, tf.gather(first, ranks, batch_dims=1), 0)
        # The larger of two replacements wins: [MASK] is above all words here, and "stays" below them.
        words = self._replacements_of(rows, draws, draws, self.facts.size, -1)
        cells = tf.stack([tf.range(count)[:, None] + tf.zeros_like(places), places], axis=-1)
        decided = tf.tensor_scatter_nd_max(tf.fill([count, length], -1), cells, tf.where(used, words, -1))
        corrupted = tf.where(decided < 0, ids, tf.where(decided == self.facts.size, self.facts.mask_id, decided))
        return {"input_ids": corrupted} | _predictions(ids, places, used)

    def _replacements_of(
        self, rows: tf.Tensor, draws: tf.Tensor, numbers: tf.Tensor, masked: int | tf.Tensor, kept: int | tf.Tensor
    ) -> tf.Tensor:
        """Draws what a token becomes: `masked`, `kept` or a random word. Tokens of one draw get the same of these.

        `draws`, and the `numbers` of the random words, are [N] or [B,N]; the result is [B,N].
        """
        random_ids = tf.gather(
            self._replacements, tf.cast(uniform(rows, REPLACEMENT, numbers) * len(self._replacements), tf.int32)
        )
        return tf.where(
            uniform(rows, MASK, draws) < self.config.mask_rate,
            masked,
            tf.where(uniform(rows, KEEP, draws) < self.config.keep_share, kept, random_ids),
        )

    def _choose_words(
        self, rows: tf.Tensor, batch: Batch, candidates: tf.Tensor, budgets: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Does the same as `choose_tokens` for whole words, and for spans and n-grams of words."""
        # As in 2018, a piece with ## joins the word before it, even across [SEP].
        words = tf.cumsum(tf.where(candidates, batch["word_starts"], 0), axis=1)  # [B,S], 0 to S
        sizes = tf.math.bincount(
            words,
            weights=tf.cast(candidates, tf.int32),
            axis=-1,
            minlength=self.max_seq_length + 1,
            maxlength=self.max_seq_length + 1,
        )  # [B,W]
        draws = tf.range(self.max_seq_length)  # each token has a replacement of its own
        if self.config.strategy == "whole_word":
            selection = self._choose_whole_words(rows, sizes, budgets)
        else:
            segments = tf.math.unsorted_segment_max(
                tf.reshape(tf.where(candidates, batch["segment_ids"], -1), [-1]),
                tf.reshape(words + tf.range(tf.shape(words)[0])[:, None] * (self.max_seq_length + 1), [-1]),
                tf.size(sizes),
            )
            selection, numbers = self._choose_spans(rows, sizes, tf.reshape(segments, tf.shape(sizes)), budgets)
            if self.config.strategy == "span":
                draws = tf.gather(numbers, words, batch_dims=1)
        return candidates & tf.gather(selection, words, batch_dims=1), draws

    def _choose_whole_words(self, rows: tf.Tensor, sizes: tf.Tensor, budgets: tf.Tensor) -> tf.Tensor:
        """Chooses words in random order, each if it fits the rest of the budget: [B,W] bool."""
        scores = tf.where(sizes > 0, uniform(rows, ORDER, tf.range(self.max_seq_length + 1)), 2.0)
        order = tf.argsort(scores, axis=1)  # [B,W]
        ordered = tf.transpose(tf.gather(sizes, order, batch_dims=1))  # [W,B]

        def take(budget: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
            return budget - tf.where(size <= budget, size, 0)

        budget = tf.scan(take, ordered, initializer=budgets)  # [W,B], after each word
        before = tf.concat([budgets[None], budget[:-1]], axis=0)
        taken = tf.transpose((budget < before) & (ordered > 0))
        return tf.gather(taken, tf.argsort(order, axis=1), batch_dims=1)

    def _choose_spans(
        self, rows: tf.Tensor, sizes: tf.Tensor, segments: tf.Tensor, budgets: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Chooses spans of words until the budget is spent, or until as many tries have failed as there are words (see
        `masks`).

        Returns (chosen [B,W], number of the try that chose each word [B,W]).
        """
        filled = tf.cast(sizes > 0, tf.int32)
        # A word without candidates can only be the one before the first word start.
        lowest, count = 1 - filled[:, 0], tf.reduce_sum(filled, axis=1)
        places = tf.range(self.max_seq_length + 1)[None]
        begins_segment = tf.concat([tf.ones_like(segments[:, :1], tf.bool), segments[:, 1:] != segments[:, :-1]], 1)

        def is_open(
            selection: tf.Tensor, numbers: tf.Tensor, budget: tf.Tensor, vain: tf.Tensor, step: tf.Tensor
        ) -> tf.Tensor:
            return tf.reduce_any((budget > 0) & (vain < count))

        def choose(
            selection: tf.Tensor, numbers: tf.Tensor, budget: tf.Tensor, vain: tf.Tensor, step: tf.Tensor
        ) -> tuple[tf.Tensor, ...]:
            length = 1 + tf.searchsorted(self._span_lengths[:-1], uniform(rows, LENGTH, step[None])[:, 0], "right")
            first = uniform(rows, FIRST, step[None])[:, 0] * tf.cast(count, tf.float64)
            first = (lowest + tf.minimum(tf.cast(first, tf.int32), count - 1))[:, None]
            within = (places >= first) & (places < first + length[:, None]) & (sizes > 0)
            stops = within & (selection | (begins_segment & (places > first)))
            free = within & (tf.cumsum(tf.cast(stops, tf.int32), axis=1) == 0)
            span = free & (tf.cumsum(tf.where(within, sizes, 0), axis=1) <= budget[:, None])
            span &= ((budget > 0) & (vain < count))[:, None]
            taken = tf.reduce_sum(tf.where(span, sizes, 0), axis=1)
            return (
                selection | span,
                tf.where(span, step, numbers),
                budget - taken,
                vain + tf.cast(taken == 0, tf.int32),
                step + 1,
            )

        state = (tf.zeros_like(sizes, tf.bool), tf.zeros_like(sizes), budgets, tf.zeros_like(budgets), tf.constant(0))
        selection, numbers, _, _, _ = tf.while_loop(is_open, choose, state)
        return selection, numbers


def _predictions(ids: tf.Tensor, places: tf.Tensor, used: tf.Tensor) -> Batch:
    """Returns the features of the predictions at `places` [B,P], as far as they are `used` [B,P]."""
    places = tf.where(used, places, 0)
    return {
        "masked_lm_positions": places,
        "masked_lm_ids": tf.where(used, tf.gather(ids, places, batch_dims=1), 0),
        "masked_lm_weights": tf.cast(used, tf.float32),
    }


def row_hashes(examples: tf.Tensor, seed: int) -> tf.Tensor:
    """Returns the hash of each row, from which all its draws are derived: int64 [B] -> uint64 [B]."""
    return _mix(tf.cast(examples, tf.uint64) ^ _mix(tf.constant(seed % 2**64, tf.uint64)))


def _mix(bits: tf.Tensor) -> tf.Tensor:
    """A hash of uint64: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    bits += tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    bits = (bits ^ tf.bitwise.right_shift(bits, tf.constant(30, tf.uint64))) * tf.constant(
        0xBF58476D1CE4E5B9, tf.uint64
    )
    bits = (bits ^ tf.bitwise.right_shift(bits, tf.constant(27, tf.uint64))) * tf.constant(
        0x94D049BB133111EB, tf.uint64
    )
    return bits ^ tf.bitwise.right_shift(bits, tf.constant(31, tf.uint64))


def uniform(rows: tf.Tensor, what: int, numbers: tf.Tensor) -> tf.Tensor:
    """Draws float64 numbers in [0, 1) for each row [B] and each draw's number ([N] or [B,N]): [B,N]."""
    salt = tf.cast(numbers, tf.uint64) * tf.constant(8, tf.uint64) + tf.constant(what, tf.uint64)
    bits = _mix(rows[:, None] ^ _mix(salt if salt.shape.rank == 2 else salt[None]))
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(11, tf.uint64)), tf.float64) * 2.0**-53
