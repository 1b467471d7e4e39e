"""Pre-training instances, compiled: CPython's random stream, sentence pairs and masks over token ids.

2018's `create_pretraining_data.py` draws everything from one `random.Random`. The kernels draw the same numbers in the
same order, so that they give the same instances. They work on a corpus of contiguous token ids (`data/token_store`): a
segment is a slice of it, and an instance is a row of fixed width:

    [length, start of segment B, label, number of predictions, ids * S, positions * P, original ids * P]

All kernels call only each other and stand in one file: Numba's cache notices changes of a function's own file alone.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

WORDS = 624  # of the Mersenne Twister's state
HEADER = 4  # columns of a row before its ids
LENGTH, SECOND_START, LABEL, PREDICTIONS = 0, 1, 2, 3
NSP, SOP, SINGLE = 0, 1, 2  # sentence tasks
UNMASKED, TOKEN, WHOLE_WORD, SPAN = 0, 1, 2, 3  # masking strategies
PASS, DOCUMENT, SENTENCE, TARGET = 0, 1, 2, 3  # where sampling stands


class Stream(NamedTuple):
    """A Mersenne Twister: its state, the next 624 numbers, and how many of them are used."""

    key: np.ndarray  # [624] uint32
    words: np.ndarray  # [624] uint32
    used: np.ndarray  # [1] int64


class Corpus(NamedTuple):
    """Documents as slices of one array of token ids."""

    tokens: np.ndarray  # uint16 or uint32
    sentence_starts: np.ndarray  # [sentences + 1] int64, in tokens
    document_starts: np.ndarray  # [documents + 1] int64, in sentences
    order: np.ndarray  # [documents] int64: the document that stands at each place


class Plan(NamedTuple):
    """What instances to make, as numbers and tables."""

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
    budgets: np.ndarray  # [S + 1] int64: predictions of an instance of so many tokens
    continues_word: np.ndarray  # [V] bool: pieces that begin with ##
    replacements: np.ndarray  # int64: the ids among which a random replacement is drawn
    span_lengths: np.ndarray  # cumulative probabilities of span lengths 1, 2, ...


@njit(cache=True, nogil=True)
def refill(stream):
    """Makes the next 624 numbers (Matsumoto and Nishimura's `genrand_int32`)."""
    key, words = stream.key, stream.words
    for i in range(WORDS):
        bits = (key[i] & np.uint32(0x80000000)) | (key[(i + 1) % WORDS] & np.uint32(0x7FFFFFFF))
        twist = np.uint32(0x9908B0DF) if bits & np.uint32(1) else np.uint32(0)
        key[i] = key[(i + 397) % WORDS] ^ (bits >> np.uint32(1)) ^ twist
    for i in range(WORDS):
        word = key[i]
        word ^= word >> np.uint32(11)
        word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
        word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
        words[i] = word ^ (word >> np.uint32(18))
    stream.used[0] = 0


@njit(cache=True, nogil=True)
def next_word(stream):
    """The next 32 bits."""
    if stream.used[0] == WORDS:
        refill(stream)
    stream.used[0] += 1
    return np.int64(stream.words[stream.used[0] - 1])


@njit(cache=True, nogil=True)
def random(stream):
    """CPython's `random()`: 53 bits in [0, 1)."""
    high = next_word(stream) >> 5
    return (high * 67108864.0 + (next_word(stream) >> 6)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def bit_length(number):
    """Bits of a positive number."""
    bits = 0
    while number >> bits:
        bits += 1
    return bits


@njit(cache=True, nogil=True)
def below(stream, limit):
    """CPython's `_randbelow`: as many bits as `limit` has, drawn again while they are not below it."""
    shift = 32 - bit_length(limit)
    value = next_word(stream) >> shift
    while value >= limit:
        value = next_word(stream) >> shift
    return value


@njit(cache=True, nogil=True)
def shuffle(stream, items, count):
    """CPython's `shuffle` of `items[:count]`."""
    used = stream.used[0]
    last = count - 1
    while last > 0:
        bits = bit_length(last + 1)
        shift, lowest = np.uint32(32 - bits), max((1 << (bits - 1)) - 1, 1)
        while last >= lowest:  # numbers of as many bits
            if used == WORDS:
                refill(stream)
                used = 0
            other = np.int64(stream.words[used] >> shift)
            used += 1
            if other <= last:
                items[last], items[other] = items[other], items[last]
                last -= 1
    stream.used[0] = used


@njit(cache=True, nogil=True)
def _next_document(plan, corpus, stream, state):
    """Goes to the next document, of the next pass after the last; draws its target length (2018: mostly the most)."""
    state[SENTENCE] = 0
    state[DOCUMENT] += 1
    if state[DOCUMENT] == len(corpus.order):
        state[DOCUMENT] = 0
        state[PASS] += 1
    if state[PASS] < plan.dupe_factor:
        most = plan.max_seq_length - (2 if plan.task == SINGLE else 3)
        short = random(stream) < plan.short_seq_prob
        state[TARGET] = 2 + below(stream, most - 1) if short else most


@njit(cache=True, nogil=True)
def _random_segment(corpus, stream, place, wanted):
    """A slice of at least `wanted` tokens, if it can be, from a random sentence on of a random other document."""
    other = place
    for _ in range(10):  # 2018: ten tries to find another document
        other = below(stream, len(corpus.order))
        if other != place:
            break
    document = corpus.order[other]
    first, last = corpus.document_starts[document], corpus.document_starts[document + 1]
    first += below(stream, last - first)
    start = corpus.sentence_starts[first]
    first += 1
    while first < last and corpus.sentence_starts[first] - start < wanted:
        first += 1
    return start, corpus.sentence_starts[first]


@njit(cache=True, nogil=True)
def _truncate(stream, a_start, a_end, b_start, b_end, most):
    """Drops tokens of the longer segment, at its front or its end, until both fit (2018 `truncate_seq_pair`)."""
    for _ in range(a_end - a_start + b_end - b_start - most):
        at_front = next_word(stream) < 0x80000000  # random() < 0.5 by its highest bit
        next_word(stream)
        if a_end - a_start > b_end - b_start:
            a_start, a_end = a_start + at_front, a_end - (not at_front)
        else:
            b_start, b_end = b_start + at_front, b_end - (not at_front)
    return a_start, a_end, b_start, b_end


@njit(cache=True, nogil=True)
def _chunk_end(corpus, first, last, target):
    """The end of the sentences from `first` on, before `last`, that reach `target` tokens together."""
    starts = corpus.sentence_starts
    end = first + 1
    while end < last and starts[end] - starts[first] < target:
        end += 1
    return end


@njit(cache=True, nogil=True)
def _sample_pair(plan, corpus, stream, state):
    """(start and end of A, of B, label) of the next instance, and moves on (2018 `create_instances_from_document`)."""
    starts, document = corpus.sentence_starts, corpus.order[state[DOCUMENT]]
    first = corpus.document_starts[document] + state[SENTENCE]
    end = _chunk_end(corpus, first, corpus.document_starts[document + 1], state[TARGET])
    split = first + 1
    if end - first >= 2:
        split = first + 1 + below(stream, end - first - 1)
    a_start, a_end, b_start, b_end = starts[first], starts[split], starts[split], starts[end]
    if plan.task == NSP:
        label = end - first == 1 or random(stream) < 0.5
        if label:
            wanted = state[TARGET] - (a_end - a_start)
            b_start, b_end = _random_segment(corpus, stream, state[DOCUMENT], wanted)
            end = split  # what was not used is put back
    else:
        if end - first == 1:  # a sentence alone is split between two of its tokens
            a_end = b_start = a_start + min(b_end - a_start, 1 + below(stream, max(1, b_end - a_start - 1)))
        label = random(stream) < 0.5
        if label:
            a_start, a_end, b_start, b_end = b_start, b_end, a_start, a_end
    state[SENTENCE] = end - corpus.document_starts[document]
    a_start, a_end, b_start, b_end = _truncate(stream, a_start, a_end, b_start, b_end, plan.max_seq_length - 3)
    return a_start, a_end, b_start, b_end, label


@njit(cache=True, nogil=True)
def _put_pair(plan, corpus, stream, state, row):
    """Writes [CLS] A [SEP] B [SEP] of the next instance."""
    a_start, a_end, b_start, b_end, label = _sample_pair(plan, corpus, stream, state)
    second = HEADER + 2 + a_end - a_start
    end = second + b_end - b_start
    row[HEADER] = plan.cls_id
    row[HEADER + 1:second - 1] = corpus.tokens[a_start:a_end]
    row[second - 1] = plan.sep_id
    row[second:end] = corpus.tokens[b_start:b_end]
    row[end] = plan.sep_id
    row[LENGTH], row[SECOND_START], row[LABEL] = end + 1 - HEADER, second - HEADER, label
    return end + 1 - HEADER


@njit(cache=True, nogil=True)
def _put_sentences(plan, corpus, state, row):
    """Writes [CLS], sentences that follow each other, and [SEP]; another [SEP] where a document ends (RoBERTa).

    A sentence that does not fit begins the next row; one that fits no row is cut. TARGET holds the tokens of the
    sentence that are written already.
    """
    starts, most = corpus.sentence_starts, plan.max_seq_length - 1
    row[HEADER] = plan.cls_id
    end = 1
    while state[PASS] < plan.dupe_factor:
        document = corpus.order[state[DOCUMENT]]
        sentence = corpus.document_starts[document] + state[SENTENCE]
        first, last = starts[sentence] + state[TARGET], starts[sentence + 1]
        separator = int(end > 1 and state[SENTENCE] == 0 and state[TARGET] == 0)
        room = most - end - separator
        if last - first > room and end > 1:
            break
        if separator:
            row[HEADER + end] = plan.sep_id
            end += 1
        count = min(last - first, room)
        row[HEADER + end:HEADER + end + count] = corpus.tokens[first:first + count]
        end += count
        state[TARGET] += count
        if first + count == last and _finish_sentence(corpus, state, sentence + 1, document):
            break
    row[HEADER + end] = plan.sep_id
    row[LENGTH], row[SECOND_START], row[LABEL] = end + 1, end + 1, 0
    return end + 1


@njit(cache=True, nogil=True)
def _finish_sentence(corpus, state, following, document):
    """Goes to the next sentence; true where a pass over the corpus ends with this one."""
    state[TARGET] = 0
    state[SENTENCE] += 1
    if following < corpus.document_starts[document + 1]:
        return False
    state[SENTENCE] = 0
    state[DOCUMENT] = (state[DOCUMENT] + 1) % len(corpus.order)
    state[PASS] += state[DOCUMENT] == 0
    return state[DOCUMENT] == 0


@njit(cache=True, nogil=True)
def _find_words(plan, row, places, words):
    """Lists the places that may be masked and where among them each word begins; returns their numbers."""
    count, found = 0, 0
    for place in range(row[LENGTH]):
        token = row[HEADER + place]
        if token != plan.cls_id and token != plan.sep_id:
            # 2018: a piece with ## joins the word before it, even across [SEP].
            if plan.strategy == TOKEN or found == 0 or not plan.continues_word[token]:
                words[found] = count
                found += 1
            places[count] = place
            count += 1
    words[found] = count
    return found


@njit(cache=True, nogil=True)
def _draw_action(plan, stream):
    """What becomes of a chosen token: 0 [MASK], 1 it stays, 2 a random one."""
    if random(stream) < plan.mask_share:
        return 0
    return 1 if random(stream) < plan.keep_share else 2


@njit(cache=True, nogil=True)
def _corrupt(plan, stream, row, place, action, originals):
    """Replaces the token at `place` and keeps the original."""
    originals[place] = row[HEADER + place]
    if action == 0:
        row[HEADER + place] = plan.mask_id
    elif action == 2:
        row[HEADER + place] = plan.replacements[below(stream, len(plan.replacements))]


@njit(cache=True, nogil=True)
def _mask_words(plan, stream, row, budget, order, scratch):
    """Masks words in random order while they fit the budget (2018 `create_masked_lm_predictions`)."""
    places, words, originals = scratch
    masked = 0
    for word in order:
        if masked >= budget:
            break
        if masked + words[word + 1] - words[word] <= budget:
            for index in range(words[word], words[word + 1]):
                _corrupt(plan, stream, row, places[index], _draw_action(plan, stream), originals)
            masked += words[word + 1] - words[word]


@njit(cache=True, nogil=True)
def _mask_spans(plan, stream, row, budget, found, scratch):
    """Masks spans of whole words until the budget is spent (SpanBERT 3.1); a span is replaced as one.

    A span ends early at a [SEP], at a masked word, and where the next word would exceed the budget. After as many
    vain tries as there are words, the rest of the budget stays unspent.
    """
    places, words, originals = scratch
    masked, vain = 0, 0
    while masked < budget and vain < found:
        draw, length = random(stream), 1
        while length < len(plan.span_lengths) and draw >= plan.span_lengths[length - 1]:
            length += 1
        first = below(stream, found)
        action, before = _draw_action(plan, stream), masked
        for word in range(first, min(first + length, found)):
            size, place = words[word + 1] - words[word], places[words[word]]
            apart = word > first and place != places[words[word] - 1] + 1
            if apart or originals[place] >= 0 or masked + size > budget:
                break
            for index in range(words[word], words[word + 1]):
                _corrupt(plan, stream, row, places[index], action, originals)
            masked += size
        vain += masked == before


@njit(cache=True, nogil=True)
def _mask(plan, stream, row, order, scratch):
    """Chooses and corrupts tokens; writes their places and originals in ascending order of the places."""
    places, words, originals = scratch
    length, S, P = np.int64(row[LENGTH]), plan.max_seq_length, plan.max_predictions_per_seq
    originals[:length] = -1
    found = _find_words(plan, row, places, words)
    if plan.strategy == SPAN:
        _mask_spans(plan, stream, row, plan.budgets[length], found, scratch)
    else:
        for word in range(found):
            order[word] = word
        shuffle(stream, order, found)
        _mask_words(plan, stream, row, plan.budgets[length], order[:found], scratch)
    count = 0
    for place in range(length):
        if originals[place] >= 0:
            row[HEADER + S + count] = place
            row[HEADER + S + P + count] = originals[place]
            count += 1
    row[PREDICTIONS] = count


@njit(cache=True, nogil=True)
def make_rows(plan, corpus, stream, state, rows):
    """Fills `rows` with the next instances; returns how many, less than `len(rows)` at the end only."""
    scratch = (np.empty(plan.max_seq_length, np.int64), np.empty(plan.max_seq_length + 1, np.int64),
               np.empty(plan.max_seq_length, np.int64))
    order = np.empty(plan.max_seq_length, np.int64)
    count = 0
    while count < len(rows):
        if plan.task != SINGLE:
            document = corpus.order[max(state[DOCUMENT], 0)]
            sentences = corpus.document_starts[document + 1] - corpus.document_starts[document]
            if state[DOCUMENT] < 0 or state[SENTENCE] == sentences:
                _next_document(plan, corpus, stream, state)
        if state[PASS] == plan.dupe_factor:
            break
        row = rows[count]
        if plan.task == SINGLE:
            _put_sentences(plan, corpus, state, row)
        elif _put_pair(plan, corpus, stream, state, row) <= row[SECOND_START] + 1:
            continue  # sentence order of a single token: there is no pair
        if plan.strategy != UNMASKED:
            _mask(plan, stream, row, order, scratch)
        count += 1
    return count


@njit(cache=True, nogil=True)
def expand_rows(rows, chosen, plan, columns, version, values):
    """Writes the features of `rows[chosen]` to `values` [n, W], each from its column on (-1: not wanted).

    `columns`: input_ids, input_mask, segment_ids, masked_lm_positions, masked_lm_ids, masked_lm_weights,
    next_sentence_labels, word_starts, schema_version.
    """
    S, P = plan.max_seq_length, plan.max_predictions_per_seq
    one = np.int32(0x3F800000)  # the bits of 1.0
    values[:len(chosen)] = 0
    for n in range(len(chosen)):
        row, out = rows[chosen[n]], values[n]
        length, second = np.int64(row[LENGTH]), np.int64(row[SECOND_START])
        out[columns[0]:columns[0] + length] = row[HEADER:HEADER + length]
        out[columns[1]:columns[1] + length] = 1
        out[columns[2] + second:columns[2] + length] = 1
        out[columns[6]] = row[LABEL]
        if plan.strategy != UNMASKED:
            count = np.int64(row[PREDICTIONS])
            out[columns[3]:columns[3] + count] = row[HEADER + S:HEADER + S + count]
            out[columns[4]:columns[4] + count] = row[HEADER + S + P:HEADER + S + P + count]
            out[columns[5]:columns[5] + count] = one
        else:
            for place in range(length):
                token = row[HEADER + place]
                special = token == plan.cls_id or token == plan.sep_id
                out[columns[7] + place] = not special and not plan.continues_word[token]
            out[columns[8]] = version
