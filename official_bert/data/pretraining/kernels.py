"""Next-sentence sampling and 80/10/10 masking over token ids, compiled, with CPython's random stream.

2018's `create_pretraining_data.py` draws everything from one `random.Random`. The kernels draw the same numbers in the
same order, so they give the same instances. They work on a corpus of contiguous token ids (`Corpus`): a segment is a
slice of it, and an instance is a row of fixed width:

    [length, start of segment B, label, number of predictions, ids * S, positions * P, original ids * P]

They draw from `words` (`instances.RandomStream`). If the numbers run out, the unfinished instance is taken back.

For speed, only functions that Python calls are cached and take arrays in tuples. The functions below them are inlined
and take arrays one by one (otherwise Numba would count references to them at each number drawn). All kernels are in one
file, because Numba's cache notices changes only in a function's own file; but for the draws, which CPython fixes once
and for all (`random_draws`).
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from official_bert.data.pretraining.random_draws import below, next_word, random, shuffle
from official_bert.text.compiling import compiled

HEADER = 4  # columns of a row before its ids
LENGTH, SECOND_START, LABEL, PREDICTIONS = 0, 1, 2, 3
NSP, SOP, SINGLE = 0, 1, 2  # sentence tasks
UNMASKED, TOKEN, WHOLE_WORD, SPAN, NGRAM = 0, 1, 2, 3, 4  # masking strategies
PASS, DOCUMENT, SENTENCE, TARGET = 0, 1, 2, 3  # the position of sampling
TRUNCATED, RANDOM, UNPAIRED = 4, 5, 6  # tokens so far: cut off, in random segments, in instances that make no pair
# slices [start, end] of the corpus' tokens that lost tokens, first TRUNCATED, then UNPAIRED
EXAMPLES, MOST_EXAMPLES = 7, 3
STATE_SIZE = EXAMPLES + 2 * 2 * MOST_EXAMPLES


class Corpus(NamedTuple):
    """Documents as slices of one array of token ids."""

    tokens: np.ndarray  # uint16 or uint32
    sentence_starts: np.ndarray  # [sentences + 1] int64, in tokens
    document_starts: np.ndarray  # [documents + 1] int64, in sentences
    order: np.ndarray  # [documents] int64: the document at each place
    texts: np.ndarray  # [documents] int64: equal for documents of the same text (see `texts_of_documents`)


class Plan(NamedTuple):
    """The settings of instances in the form that the kernels take."""

    dupe_factor: int
    max_seq_length: int
    max_predictions_per_seq: int
    short_seq_prob: float
    task: int
    strategy: int
    mask_share: float  # of the chosen tokens that become [MASK]
    keep_share: float  # of the other chosen tokens that stay
    cls_id: int
    sep_id: int
    mask_id: int
    vocab_size: int  # ids from there on are ids less it that continue a unit of the text (`units`)


class Tables(NamedTuple):
    """Lookup tables of the kernels for masking."""

    budgets: np.ndarray  # [S + 1] int64: predictions of an instance of 0, 1, ... S tokens
    continues_word: np.ndarray  # [V or 2V] bool: pieces that begin with ##, and tokens that continue a unit of the text
    replacements: np.ndarray  # int64: the ids among which a random replacement is drawn
    span_lengths: np.ndarray  # cumulative probabilities of span lengths 1, 2, ...


@njit(forceinline=True)
def _next_document(plan: Plan, documents: int, words: np.ndarray, state: np.ndarray) -> None:
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
def _truncate(
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
def _sample_pair(
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
def _count_left_out(
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


@njit(forceinline=True)
def _put_pair(
    plan: Plan, tokens: np.ndarray, a_start: int, a_end: int, b_start: int, b_end: int, label: bool, row: np.ndarray
) -> None:
    """Writes [CLS] A [SEP] B [SEP]."""
    second = HEADER + 2 + a_end - a_start
    end = second + b_end - b_start
    row[HEADER] = plan.cls_id
    for index in range(a_end - a_start):
        row[HEADER + 1 + index] = tokens[a_start + index]
    row[second - 1] = plan.sep_id
    for index in range(b_end - b_start):
        row[second + index] = tokens[b_start + index]
    row[end] = plan.sep_id
    row[LENGTH], row[SECOND_START], row[LABEL] = end + 1 - HEADER, second - HEADER, label


@njit
def _put_sentences(
    plan: Plan,
    tokens: np.ndarray,
    starts: np.ndarray,
    document_starts: np.ndarray,
    order: np.ndarray,
    state: np.ndarray,
    row: np.ndarray,
) -> None:
    """Writes [CLS], sentences that follow each other, and [SEP]; another [SEP] where a document ends (RoBERTa).

    A sentence that does not fit begins the next row; one that fits no row is cut. TARGET holds how many tokens of the
    sentence are written already.
    """
    most, end = plan.max_seq_length - 1, 1
    row[HEADER] = plan.cls_id
    while state[PASS] < plan.dupe_factor:
        document = order[state[DOCUMENT]]
        sentence = document_starts[document] + state[SENTENCE]
        first, last = starts[sentence] + state[TARGET], starts[sentence + 1]
        separator = int(end > 1 and state[SENTENCE] == 0 and state[TARGET] == 0)
        room = most - end - separator
        if last - first > room and end > 1:
            break
        if separator:
            row[HEADER + end] = plan.sep_id
            end += 1
        for token in tokens[first : min(last, first + room)]:
            row[HEADER + end] = token
            end += 1
        state[TARGET] += min(last - first, room)
        if last - first <= room and _ends_pass(document_starts[document + 1] - sentence, len(order), state):
            break
    row[HEADER + end] = plan.sep_id
    row[LENGTH], row[SECOND_START], row[LABEL] = end + 1, end + 1, 0


@njit
def _ends_pass(sentences_left: int, documents: int, state: np.ndarray) -> bool:
    """Goes to the next sentence; returns True if that ends a pass over the corpus."""
    state[TARGET] = 0
    state[SENTENCE] += 1
    if sentences_left > 1:
        return False
    state[SENTENCE] = 0
    state[DOCUMENT] = (state[DOCUMENT] + 1) % documents
    state[PASS] += state[DOCUMENT] == 0
    return state[DOCUMENT] == 0


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
def _mask_row(
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


@compiled(nogil=True)
def make_rows(
    plan: Plan, tables: Tables, corpus: Corpus, words: np.ndarray, state: np.ndarray, rows: np.ndarray
) -> int:
    """Fills `rows` with the next instances; returns their number, which is below `len(rows)` at the end of numbers or
    passes.
    """
    budgets, continues_word, replacements, span_lengths = tables
    tokens, starts, document_starts, order, texts = corpus
    places, begins, originals, turns = [np.empty(plan.max_seq_length + 1, np.int64) for _ in range(4)]
    count = 0
    while count < len(rows):
        row, used, before = rows[count], words[0], (state[PASS], state[DOCUMENT], state[SENTENCE], state[TARGET])
        if plan.task == SINGLE:
            if state[PASS] == plan.dupe_factor:
                break
            _put_sentences(plan, tokens, starts, document_starts, order, state, row)
            is_whole = True
        else:
            document = order[max(state[DOCUMENT], 0)]
            if state[DOCUMENT] < 0 or state[SENTENCE] == document_starts[document + 1] - document_starts[document]:
                _next_document(plan, len(order), words, state)
            if state[PASS] == plan.dupe_factor:
                break
            whole = _sample_pair(plan, tokens, continues_word, starts, document_starts, order, texts, words, state)
            pair = _truncate(words, whole[0], whole[1], whole[2], whole[3], plan.max_seq_length - 3)
            # False for sentence order with a sentence of one word alone: there is no pair.
            is_whole = pair[0] < pair[1] and pair[2] < pair[3]
            if is_whole:
                _put_pair(plan, tokens, pair[0], pair[1], pair[2], pair[3], whole[4], row)
        if is_whole and plan.strategy != UNMASKED:
            _mask_row(
                plan, budgets, continues_word, replacements, span_lengths, words, row, turns, places, begins, originals
            )
        if words[0] > len(words) - 2:
            words[0] = used
            state[PASS], state[DOCUMENT], state[SENTENCE], state[TARGET] = before
            break
        if plan.task != SINGLE:
            _count_left_out(whole, pair, is_whole, state)
        count += is_whole
    return count
