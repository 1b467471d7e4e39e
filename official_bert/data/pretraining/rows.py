"""Rows of fixed width, one for each instance, and the corpus that they are made from, as compiled functions take them.

A corpus is contiguous token ids, a segment is a slice of it, and an instance is a row:

    [length, start of segment B, label, number of predictions, ids * S, positions * P, original ids * P]
"""

from typing import NamedTuple

import numpy as np
from numba import njit

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
    """The settings of instances in the form that compiled functions take."""

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
    """Lookup tables for masking."""

    budgets: np.ndarray  # [S + 1] int64: predictions of an instance of 0, 1, ... S tokens
    continues_word: np.ndarray  # [V or 2V] bool: pieces that begin with ##, and tokens that continue a unit of the text
    replacements: np.ndarray  # int64: the ids among which a random replacement is drawn
    span_lengths: np.ndarray  # cumulative probabilities of span lengths 1, 2, ...


@njit(forceinline=True)
def put_pair(
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
def put_sentences(
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
