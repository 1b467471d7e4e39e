"""80/10/10 masking of tokens, whole words, spans and n-grams, drawn with 2018's random numbers in its order.

The functions draw from `words` (`random_draws.RandomStream`) and are inlined into `instances.make_rows`. `masking` has
the settings.
"""

import numpy as np
from numba import njit

from official_bert.data.pretraining.random_draws import below, random, shuffle
from official_bert.data.pretraining.rows import HEADER, LENGTH, NGRAM, PREDICTIONS, SECOND_START, SPAN, TOKEN, Plan


@njit(forceinline=True)
def _find_words(plan: Plan, continues_word: np.ndarray, row: np.ndarray, places: np.ndarray, begins: np.ndarray) -> int:
    """Lists the places that may be masked, and the first of them for each word; returns the number of words."""
    count, word_count = 0, 0
    for place in range(row[LENGTH]):
        token = row[HEADER + place]
        if token != plan.cls_id and token != plan.sep_id:
            # 2018: a piece with ## joins the word before it, even across [SEP]. The rest of a unit of the text that was
            # cut does not.
            rest = token >= plan.vocab_size and place == row[SECOND_START]
            if plan.strategy == TOKEN or word_count == 0 or rest or not continues_word[token]:
                begins[word_count] = count
                word_count += 1
            places[count] = place
            count += 1
    begins[word_count] = count
    return word_count


@njit(forceinline=True)
def _draw_action(plan: Plan, words: np.ndarray) -> int:
    """Draws the replacement of a chosen token: 0 [MASK], 1 the token itself, 2 a random token."""
    if random(words) < plan.mask_share:
        return 0
    return 1 if random(words) < plan.keep_share else 2


@njit(forceinline=True)
def _corrupt(
    plan: Plan,
    replacements: np.ndarray,
    words: np.ndarray,
    row: np.ndarray,
    place: int,
    action: int,
    originals: np.ndarray,
) -> None:
    """Replaces the token at `place` and keeps the original."""
    originals[place] = row[HEADER + place]
    if action == 0:
        row[HEADER + place] = plan.mask_id
    elif action == 2:
        row[HEADER + place] = replacements[below(words, len(replacements))]


@njit(forceinline=True)
def _mask_words(
    plan: Plan,
    replacements: np.ndarray,
    words: np.ndarray,
    row: np.ndarray,
    budget: int,
    word_count: int,
    order: np.ndarray,
    places: np.ndarray,
    begins: np.ndarray,
    originals: np.ndarray,
) -> None:
    """Masks words in random order while they fit the budget (2018 `create_masked_lm_predictions`)."""
    for word in range(word_count):
        order[word] = word
    if shuffle(words, order, word_count) > 1:
        words[0] = len(words)  # ran out
    masked = 0
    for turn in range(word_count):
        if masked >= budget:
            break
        first, last = begins[order[turn]], begins[order[turn] + 1]
        if masked + last - first <= budget:
            for index in range(first, last):
                _corrupt(plan, replacements, words, row, places[index], _draw_action(plan, words), originals)
            masked += last - first


@njit(forceinline=True)
def _mask_spans(
    plan: Plan,
    replacements: np.ndarray,
    span_lengths: np.ndarray,
    words: np.ndarray,
    row: np.ndarray,
    budget: int,
    word_count: int,
    places: np.ndarray,
    begins: np.ndarray,
    originals: np.ndarray,
) -> None:
    """Masks spans of whole words until the budget is spent (SpanBERT 3.1); all tokens of a span get the same kind of
    replacement.

    In n-grams (ALBERT 3.2), whose lengths are others, each token has a replacement of its own. A span ends early at a
    [SEP], at a masked word, or if the next word would exceed the budget. After as many failed tries as there are words,
    the rest of the budget stays unspent.
    """
    masked, vain = 0, 0
    while masked < budget and vain < word_count:
        draw, length = random(words), 1
        while length < len(span_lengths) and draw >= span_lengths[length - 1]:
            length += 1
        first, before = below(words, word_count), masked
        action = _draw_action(plan, words) if plan.strategy == SPAN else 0
        for word in range(first, min(first + length, word_count)):
            size, place = begins[word + 1] - begins[word], places[begins[word]]
            apart = word > first and place != places[begins[word] - 1] + 1
            if apart or originals[place] >= 0 or masked + size > budget:
                break
            for index in range(begins[word], begins[word + 1]):
                if plan.strategy == NGRAM:
                    action = _draw_action(plan, words)
                _corrupt(plan, replacements, words, row, places[index], action, originals)
            masked += size
        vain += masked == before


@njit(forceinline=True)
def _put_predictions(plan: Plan, row: np.ndarray, originals: np.ndarray) -> None:
    """Writes places and originals of the masked tokens, in ascending order of the places."""
    S, P, count = plan.max_seq_length, plan.max_predictions_per_seq, 0
    for place in range(row[LENGTH]):
        if originals[place] >= 0:
            row[HEADER + S + count] = place
            row[HEADER + S + P + count] = originals[place]
            count += 1
    row[PREDICTIONS] = count


@njit(forceinline=True)
def mask_row(
    plan: Plan,
    budgets: np.ndarray,
    continues_word: np.ndarray,
    replacements: np.ndarray,
    span_lengths: np.ndarray,
    words: np.ndarray,
    row: np.ndarray,
    order: np.ndarray,
    places: np.ndarray,
    begins: np.ndarray,
    originals: np.ndarray,
) -> None:
    """Masks tokens of a row by the plan's strategy, and writes the predictions."""
    originals[:] = -1
    word_count, budget = _find_words(plan, continues_word, row, places, begins), budgets[row[LENGTH]]
    if plan.strategy >= SPAN:
        _mask_spans(plan, replacements, span_lengths, words, row, budget, word_count, places, begins, originals)
    else:
        _mask_words(plan, replacements, words, row, budget, word_count, order, places, begins, originals)
    _put_predictions(plan, row, originals)
