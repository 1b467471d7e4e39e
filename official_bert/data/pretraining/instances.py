"""Makes training instances from documents: samples pairs of segments, writes them as rows and masks them.

2018's `create_pretraining_data.py` draws everything from one `random.Random`. Here compiled functions draw the same
numbers in the same order, so they give the same instances.

`nsp` is 2018's task: segment B follows A or comes from another document. `sop` (ALBERT) swaps two segments that follow
each other. `none` (RoBERTa, full sentences) packs sentences that follow each other, across documents, into one segment.
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np

from official_bert.data.pretraining import masks, pairs, random_draws
from official_bert.data.pretraining import rows as row_layout
from official_bert.data.pretraining.masking import MASKING_STRATEGIES, MaskingConfig, VocabularyFacts
from official_bert.data.pretraining.random_draws import RandomStream
from official_bert.data.pretraining.rows import (
    DOCUMENT,
    HEADER,
    NSP,
    PASS,
    SENTENCE,
    SINGLE,
    SOP,
    STATE_SIZE,
    TARGET,
    UNMASKED,
    Corpus,
    Plan,
    Tables,
)
from official_bert.fields import Constraint, Count, Probability, check_fields
from official_bert.text.compiling import compiled, read_only

DEFAULT_PREDICTIONS = 20  # 2018's; short instances use fewer
SENTENCE_TASKS = {"nsp": NSP, "sop": SOP, "none": SINGLE}


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
        """Returns the configuration in the form that the compiled functions take."""
        S, P = self.max_seq_length, self.max_predictions_per_seq
        masking = self.masking or MaskingConfig()
        return Plan(
            self.dupe_factor,
            S,
            P if self.masking else 0,
            float(self.short_seq_prob),
            SENTENCE_TASKS[self.sentence_task],
            MASKING_STRATEGIES[masking.strategy] if self.masking else UNMASKED,
            float(masking.mask_rate),
            float(masking.keep_share),
            facts.cls_id,
            facts.sep_id,
            facts.mask_id,
            facts.size,
        )

    def tables(self, facts: VocabularyFacts) -> Tables:
        """Returns the lookup tables of masking."""
        masking = self.masking or MaskingConfig()
        return Tables(
            masking.budgets(self.max_seq_length, self.max_predictions_per_seq),
            facts.continues_word,
            facts.replacements,
            np.cumsum(masking.span_distribution()),
        )


@compiled((masks, pairs, random_draws, row_layout), nogil=True)
def make_rows(
    plan: Plan, tables: Tables, corpus: Corpus, words: np.ndarray, state: np.ndarray, rows: np.ndarray
) -> int:
    """Fills `rows` with the next instances; returns their number, which is below `len(rows)` at the end of numbers or
    passes.

    If the numbers run out, the unfinished instance is taken back. For speed, only functions that Python calls are
    cached and take arrays in tuples. The functions below them are inlined and take arrays one by one: otherwise Numba
    would count references to them at each number drawn.
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
            row_layout.put_sentences(plan, tokens, starts, document_starts, order, state, row)
            is_whole = True
        else:
            document = order[max(state[DOCUMENT], 0)]
            if state[DOCUMENT] < 0 or state[SENTENCE] == document_starts[document + 1] - document_starts[document]:
                pairs.next_document(plan, len(order), words, state)
            if state[PASS] == plan.dupe_factor:
                break
            whole = pairs.sample_pair(plan, tokens, continues_word, starts, document_starts, order, texts, words, state)
            pair = pairs.truncate(words, whole[0], whole[1], whole[2], whole[3], plan.max_seq_length - 3)
            # False for sentence order with a sentence of one word alone: there is no pair.
            is_whole = pair[0] < pair[1] and pair[2] < pair[3]
            if is_whole:
                row_layout.put_pair(plan, tokens, pair[0], pair[1], pair[2], pair[3], whole[4], row)
        if is_whole and plan.strategy != UNMASKED:
            masks.mask_row(
                plan, budgets, continues_word, replacements, span_lengths, words, row, turns, places, begins, originals
            )
        if words[0] > len(words) - 2:
            words[0] = used
            state[PASS], state[DOCUMENT], state[SENTENCE], state[TARGET] = before
            break
        if plan.task != SINGLE:
            pairs.count_left_out(whole, pair, is_whole, state)
        count += is_whole
    return count


class InstanceSampler:
    """Draws the instances of one corpus, in 2018's order of draws: shuffle documents, sample, shuffle instances."""

    def __init__(self, config: InstanceConfig, facts: VocabularyFacts, corpus: Corpus, seed: int):
        """`corpus.order` is shuffled in place."""
        self.plan, self._tables = config.plan(facts), config.tables(facts)
        self.corpus = corpus._replace(
            **{name: read_only(getattr(corpus, name)) for name in ("tokens", "sentence_starts", "document_starts")}
        )
        self._stream = RandomStream(seed)
        self.position = np.zeros(STATE_SIZE, np.int64)
        self.position[DOCUMENT] = 0 if self.plan.task == SINGLE else -1
        self._stream.shuffle(corpus.order)

    @property
    def row_width(self) -> int:
        """Columns of a row of instances (see `rows`)."""
        return HEADER + self.plan.max_seq_length + 2 * self.plan.max_predictions_per_seq

    @property
    def progress(self) -> float:
        """The share of the work that is done, over all passes."""
        documents = len(self.corpus.order)
        done = int(self.position[PASS]) * documents + max(0, int(self.position[DOCUMENT]))
        return done / (documents * self.plan.dupe_factor)

    def blocks(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Fills `rows` again and again and yields the filled part; the next block overwrites it."""
        count = 0
        while self.position[PASS] < self.plan.dupe_factor:
            new_rows = make_rows(self.plan, self._tables, self.corpus, self._stream.words, self.position, rows[count:])
            count += new_rows
            if count == len(rows):
                yield rows
                count = 0
            elif self.position[PASS] < self.plan.dupe_factor:
                self._stream.refill()
        yield rows[:count]

    def shuffle(self, indices: np.ndarray) -> None:
        """Shuffles `indices` in place, with the random numbers that follow those of the last instance."""
        self._stream.shuffle(indices)
