"""Next-sentence sampling: 2018's pairs of segments, drawn with its random numbers in its order.

The functions draw from `words` (`random_draws.RandomStream`) and are inlined into `instances.make_rows`.
"""

import numpy as np
from numba import njit

from official_bert.data.pretraining.random_draws import below, next_word, random
from official_bert.data.pretraining.rows import (
    DOCUMENT,
    EXAMPLES,
    MOST_EXAMPLES,
    NSP,
    PASS,
    RANDOM,
    SENTENCE,
    TARGET,
    TRUNCATED,
    UNPAIRED,
    Plan,
)


@njit(forceinline=True)
def next_document(plan: Plan, documents: int, words: np.ndarray, state: np.ndarray) -> None:
    """Goes to the next document, or to the next pass; draws the document's target length (2018: mostly the maximum)."""
    state[SENTENCE] = 0
    state[DOCUMENT] += 1
    if state[DOCUMENT] == documents:
        state[DOCUMENT] = 0
        state[PASS] += 1
    if state[PASS] < plan.dupe_factor:
        most = plan.max_seq_length - 3
        state[TARGET] = most
        # Texts of fine-tuning are often short: a model that has only seen full rows would meet them, and their
        # positions, anew.
        if random(words) < plan.short_seq_prob:
            state[TARGET] = 2 + below(words, most - 1)


@njit(forceinline=True)
def _random_segment(
    starts: np.ndarray,
    document_starts: np.ndarray,
    order: np.ndarray,
    texts: np.ndarray,
    words: np.ndarray,
    place: int,
    length: int,
) -> tuple[int, int]:
    """Returns a slice of at least `length` tokens, if possible, from a random sentence of a random document with
    another text.
    """
    drawn_place = place
    # 2018 gives up after ten tries and takes the document itself. Here a copy is never taken, and counts as a failed
    # try.
    for turn in range(1000):
        drawn_place = below(words, len(order))
        if texts[order[drawn_place]] != texts[order[place]] or (turn >= 9 and drawn_place == place):
            break
    first, last = document_starts[order[drawn_place]], document_starts[order[drawn_place] + 1]
    first += below(words, last - first)
    return starts[first], starts[_reach(starts, first, last, length)]


@njit(forceinline=True)
def _reach(starts: np.ndarray, first: int, last: int, length: int) -> int:
    """Returns the end of the sentences from `first` that have `length` tokens together, at most `last`."""
    end = first + 1
    while end < last and starts[end] - starts[first] < length:
        end += 1
    return end


@njit(forceinline=True)
def truncate(
    words: np.ndarray, a_start: int, a_end: int, b_start: int, b_end: int, most: int
) -> tuple[int, int, int, int]:
    """Drops tokens of the longer segment, at its front or its end, until both fit (2018 `truncate_seq_pair`)."""
    # At either end by chance: else models would see only beginnings, or only ends, of what is too long.
    for _ in range(a_end - a_start + b_end - b_start - most):
        at_front = next_word(words) < 0x80000000  # random() < 0.5, by its highest bit
        next_word(words)
        if a_end - a_start > b_end - b_start:
            a_start, a_end = a_start + at_front, a_end - (not at_front)
        else:
            b_start, b_end = b_start + at_front, b_end - (not at_front)
    return a_start, a_end, b_start, b_end


@njit(forceinline=True)
def _word_start(words: np.ndarray, tokens: np.ndarray, continues_word: np.ndarray, first: int, end: int) -> int:
    """Returns the start of a word behind the first one of a slice of tokens, by chance; `first` if there is none."""
    count = 0
    for place in range(first + 1, end):
        count += not continues_word[tokens[place]]
    before = below(words, count) if count else 0
    for place in range(first + 1, end):
        if not continues_word[tokens[place]]:
            if before == 0:
                return place
            before -= 1
    return first


@njit(forceinline=True)
def sample_pair(
    plan: Plan,
    tokens: np.ndarray,
    continues_word: np.ndarray,
    starts: np.ndarray,
    document_starts: np.ndarray,
    order: np.ndarray,
    texts: np.ndarray,
    words: np.ndarray,
    state: np.ndarray,
) -> tuple[int, int, int, int, bool, int]:
    """Returns (start and end of A, of B, label, tokens drawn at random) of the next instance, before truncation.

    2018 `create_instances_from_document`.
    """
    document = order[state[DOCUMENT]]
    first = document_starts[document] + state[SENTENCE]
    end = _reach(starts, first, document_starts[document + 1], state[TARGET])
    alone = end - first == 1
    # Between two sentences, by chance: a cut within a sentence would tell, from its words alone, that B follows A.
    split = first + 1 if alone else first + 1 + below(words, end - first - 1)
    a_start, a_end, b_start, b_end = starts[first], starts[split], starts[split], starts[end]
    drawn = 0
    if plan.task == NSP:
        label = alone or random(words) < 0.5
        if label:
            length = state[TARGET] - (a_end - a_start)
            b_start, b_end = _random_segment(starts, document_starts, order, texts, words, state[DOCUMENT], length)
            end, drawn = split, b_end - b_start  # the unused sentences are put back, so that no text is lost
    else:
        if alone:  # between two words of the sentence: a segment that began inside a word would be the second
            a_end = b_start = _word_start(words, tokens, continues_word, a_start, b_end)
        label = random(words) < 0.5
        if label:
            a_start, a_end, b_start, b_end = b_start, b_end, a_start, a_end
    state[SENTENCE] = end - document_starts[document]
    return a_start, a_end, b_start, b_end, label, drawn


@njit
def count_left_out(
    whole: tuple[int, int, int, int, bool, int], cut: tuple[int, int, int, int], is_pair: bool, state: np.ndarray
) -> None:
    """Counts the tokens of the slices `whole` that are missing in `cut` (all of them without a pair); keeps some as
    examples.
    """
    a_size, b_size = whole[1] - whole[0], whole[3] - whole[2]
    left_out = a_size + b_size - (cut[1] - cut[0] + cut[3] - cut[2] if is_pair else 0)
    state[TRUNCATED if is_pair else UNPAIRED] += left_out
    state[RANDOM] += whole[5]
    if left_out:
        first = EXAMPLES + (0 if is_pair else 2 * MOST_EXAMPLES)
        for place in range(first, first + 2 * MOST_EXAMPLES, 2):
            if state[place + 1] == 0:
                state[place], state[place + 1] = (whole[0], whole[1]) if a_size > b_size else (whole[2], whole[3])
                break
