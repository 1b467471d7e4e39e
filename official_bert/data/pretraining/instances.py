"""Next-sentence sampling: makes training instances from documents, for next-sentence prediction or other tasks.

`nsp` is 2018's task: segment B follows A or comes from another document. `sop` (ALBERT) swaps two segments that follow
each other. `none` (RoBERTa, full sentences) packs sentences that follow each other, across documents, into one segment.
"""

import dataclasses
import random
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np
from numba import njit

from official_bert.data.pretraining import kernels, random_draws
from official_bert.data.pretraining.kernels import Corpus as Corpus
from official_bert.data.pretraining.kernels import Plan, Tables
from official_bert.data.pretraining.masking import MASKING_STRATEGIES, MaskingConfig, VocabularyFacts
from official_bert.fields import Constraint, Count, Probability, check_fields
from official_bert.text.compiling import compiled, read_only

STATE = 624  # numbers of the generator's state, and of one step of it
FIRST_WORDS = 256 * STATE  # fit a second-level cache
DEFAULT_PREDICTIONS = 20  # 2018's; short instances use fewer
SENTENCE_TASKS = {"nsp": kernels.NSP, "sop": kernels.SOP, "none": kernels.SINGLE}


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceConfig:
    """Settings of instances; the defaults are 2018's."""

    max_seq_length: Annotated[
        int, Constraint("5 to 32767 (three special tokens and two others)", lambda value: 5 <= value < 1 << 15)
    ] = 128
    """Tokens of an instance."""
    max_predictions_per_seq: int = DEFAULT_PREDICTIONS
    """Most tokens of an instance that must be predicted."""
    dupe_factor: Count = 10
    """Passes over the corpus, each with new pairs and masks."""
    short_seq_prob: Probability = 0.1
    """Probability that a document's instances aim at a random shorter length, as texts of fine-tuning have."""
    sentence_task: Literal["nsp", "sop", "none"] = "nsp"
    """Task of the second segments: next sentence, sentence order, or none."""
    copies_apart: bool = False
    """No random next segment comes from a document of the same text; false: as in 2018."""
    masking: MaskingConfig | None = dataclasses.field(default_factory=MaskingConfig)
    """Masks of the instances; none: training masks them."""

    def __post_init__(self) -> None:
        check_fields(self, "")
        S, P = self.max_seq_length, self.max_predictions_per_seq
        if not 1 <= P <= max(S - 3, DEFAULT_PREDICTIONS):
            raise ValueError(
                f"max_predictions_per_seq: expected 1 to {max(S - 3, DEFAULT_PREDICTIONS)} (max_seq_length {S} less "
                f"[CLS] and two [SEP], or 2018's default), got {P}"
            )

    def plan(self, facts: VocabularyFacts) -> Plan:
        """Returns the configuration in the form that the kernels take."""
        S, P = self.max_seq_length, self.max_predictions_per_seq
        masking = self.masking or MaskingConfig()
        return Plan(
            self.dupe_factor,
            S,
            P if self.masking else 0,
            float(self.short_seq_prob),
            SENTENCE_TASKS[self.sentence_task],
            MASKING_STRATEGIES[masking.strategy] if self.masking else kernels.UNMASKED,
            float(masking.mask_rate),
            float(masking.keep_share),
            facts.cls_id,
            facts.sep_id,
            facts.mask_id,
            facts.size,
        )

    def tables(self, facts: VocabularyFacts) -> Tables:
        """Returns the lookup tables of the kernels."""
        masking = self.masking or MaskingConfig()
        return Tables(
            masking.budgets(self.max_seq_length, self.max_predictions_per_seq),
            facts.continues_word,
            facts.replacements,
            np.cumsum(masking.span_distribution()),
        )


class RandomStream:
    """The 32-bit numbers of `random.Random(seed)`, in order.

    Kernels take `words` (uint32): the count of used numbers, the numbers, and a 0. A kernel that needs more numbers
    reads the 0 and goes on counting; it must then undo what it did with the 0, and `refill` must be called.
    """

    def __init__(self, seed: int):
        _, state, _ = random.Random(seed).getstate()
        self._key = np.array(state[:STATE], np.uint32)  # a fresh generator has used up its first state
        self._room = FIRST_WORDS
        self.words = np.zeros(2, np.uint32)
        self.refill()

    def shuffle(self, items: np.ndarray) -> None:
        """Shuffles `items` in place, as `random.shuffle` does."""
        left = len(items)
        while (left := random_draws.shuffle(self.words, items, left)) > 1:
            self.refill()

    def refill(self) -> None:
        """Makes more numbers available; many more if none was used since the last call."""
        unread_words = self.words[1 + int(self.words[0]) : -1]
        if len(unread_words) and not self.words[0]:
            self._room *= 2
        steps = (self._room - len(unread_words)) // STATE
        words = np.zeros(1 + len(unread_words) + steps * STATE + 1, np.uint32)
        words[1 : 1 + len(unread_words)] = unread_words
        fill_words(self._key, words[1 + len(unread_words) : -1])
        self.words = words


@compiled(nogil=True)
def fill_words(key: np.ndarray, words: np.ndarray) -> None:
    """Fills `words` (a multiple of 624 numbers) and updates `key` (Matsumoto and Nishimura's `genrand_int32`)."""
    for start in range(0, len(words), STATE):
        for i in range(STATE - 397):
            key[i] = _twist(key[i], key[i + 1], key[i + 397])
        for i in range(STATE - 397, STATE - 1):
            key[i] = _twist(key[i], key[i + 1], key[i - (STATE - 397)])
        key[STATE - 1] = _twist(key[STATE - 1], key[0], key[396])
        for i in range(STATE):
            word = key[i]
            word ^= word >> np.uint32(11)
            word ^= (word << np.uint32(7)) & np.uint32(0x9D2C5680)
            word ^= (word << np.uint32(15)) & np.uint32(0xEFC60000)
            words[start + i] = word ^ (word >> np.uint32(18))


@njit(forceinline=True)
def _twist(word: np.uint32, following: np.uint32, distant: np.uint32) -> np.uint32:
    bits = (word & np.uint32(0x80000000)) | (following & np.uint32(0x7FFFFFFF))
    return distant ^ (bits >> np.uint32(1)) ^ (np.uint32(0x9908B0DF) * (bits & np.uint32(1)))


class InstanceSampler:
    """Draws the instances of one corpus, in 2018's order of draws: shuffle documents, sample, shuffle instances."""

    def __init__(self, config: InstanceConfig, facts: VocabularyFacts, corpus: Corpus, seed: int):
        """`corpus.order` is shuffled in place."""
        self.plan, self._tables = config.plan(facts), config.tables(facts)
        self.corpus = corpus._replace(
            **{name: read_only(getattr(corpus, name)) for name in ("tokens", "sentence_starts", "document_starts")}
        )
        self._stream = RandomStream(seed)
        self.position = np.zeros(kernels.STATE_SIZE, np.int64)
        self.position[kernels.DOCUMENT] = 0 if self.plan.task == kernels.SINGLE else -1
        self._stream.shuffle(corpus.order)

    @property
    def row_width(self) -> int:
        """Columns of a row of instances (see `kernels`)."""
        return kernels.HEADER + self.plan.max_seq_length + 2 * self.plan.max_predictions_per_seq

    @property
    def progress(self) -> float:
        """The share of the work that is done, over all passes."""
        documents = len(self.corpus.order)
        done = int(self.position[kernels.PASS]) * documents + max(0, int(self.position[kernels.DOCUMENT]))
        return done / (documents * self.plan.dupe_factor)

    def blocks(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Fills `rows` again and again and yields the filled part; the next block overwrites it."""
        count = 0
        while self.position[kernels.PASS] < self.plan.dupe_factor:
            new_rows = kernels.make_rows(
                self.plan, self._tables, self.corpus, self._stream.words, self.position, rows[count:]
            )
            count += new_rows
            if count == len(rows):
                yield rows
                count = 0
            elif self.position[kernels.PASS] < self.plan.dupe_factor:
                self._stream.refill()
        yield rows[:count]

    def shuffle(self, indices: np.ndarray) -> None:
        """Shuffles `indices` in place, with the random numbers that follow those of the last instance."""
        self._stream.shuffle(indices)


def texts_of_documents(tokens: np.ndarray, sentence_starts: np.ndarray, document_starts: np.ndarray) -> np.ndarray:
    """Returns, for each document, the number of the first document with the same tokens, [documents] int64.

    It is a document's own number unless it is a copy of an earlier one. How the tokens are split into sentences does
    not matter.
    """
    tokens, ends = read_only(tokens), sentence_starts[document_starts]
    _, first_of_hash, hash_numbers = np.unique(_hash_documents(tokens, ends), return_index=True, return_inverse=True)
    firsts = first_of_hash[hash_numbers]
    _compare(tokens, ends, firsts)
    return firsts


@compiled(nogil=True)
def _hash_documents(tokens: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Returns 64 bits of hash of the tokens between neighbouring `ends`."""
    hashes = np.empty(len(ends) - 1, np.uint64)
    for document in range(len(hashes)):
        value = np.uint64(ends[document + 1] - ends[document])
        for place in range(ends[document], ends[document + 1]):
            value = (value ^ np.uint64(tokens[place])) * np.uint64(0x9E3779B97F4A7C15)
            value ^= value >> np.uint64(32)
        hashes[document] = value
    return hashes


@compiled(nogil=True)
def _compare(tokens: np.ndarray, ends: np.ndarray, firsts: np.ndarray) -> None:
    """Resets a document to its own number if it has the hash, but not the text, of another."""
    for document in range(len(firsts)):
        first, size = ends[firsts[document]], ends[document + 1] - ends[document]
        same = ends[firsts[document] + 1] - first == size
        place = 0
        while same and place < size:
            same = tokens[first + place] == tokens[ends[document] + place]
            place += 1
        if not same:
            firsts[document] = document
