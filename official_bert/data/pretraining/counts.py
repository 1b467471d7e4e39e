"""Counts of the tokens and instances of pre-training data, and estimates of their bytes."""

import dataclasses
from typing import Any

import numpy as np

from official_bert.data.pretraining.instances import InstanceConfig
from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.data.pretraining.record_writing import RowEncoder
from official_bert.data.pretraining.rows import (
    EXAMPLES,
    HEADER,
    LABEL,
    LENGTH,
    MOST_EXAMPLES,
    RANDOM,
    TRUNCATED,
    UNPAIRED,
    Corpus,
)


@dataclasses.dataclass(frozen=True)
class Counts:
    """Counts the used, repeated and omitted tokens of a corpus; examples are token ids. Counts of parts can be
    added.
    """

    instances: int = 0
    second_labels: int = 0  # labels that are 1
    tokens: int = 0  # in instances, special tokens not counted
    random_tokens: int = 0  # drawn as random next segments, before they are cut
    truncated: int = 0  # cut off to fit the length
    unpaired: int = 0  # of instances of one word, which make no pair (sentence order)
    copies: int = 0  # documents that are kept apart from an earlier one of the same text
    truncated_examples: list[list[int]] = dataclasses.field(default_factory=list)
    unpaired_examples: list[list[int]] = dataclasses.field(default_factory=list)

    @classmethod
    def of_corpus(cls, corpus: Corpus, config: InstanceConfig) -> "Counts":
        """Counts the copies and, if instances are no pairs, the tokens of all passes: their [SEP] vary in number."""
        order, copies, tokens = corpus.order, 0, 0
        if config.copies_apart:
            copies = len(order) - len(np.unique(corpus.texts[order]))
        if config.sentence_task == "none":  # nothing is cut off
            firsts, ends = (corpus.sentence_starts[corpus.document_starts[order + last]] for last in (0, 1))
            tokens = config.dupe_factor * int((ends - firsts).sum())
        return cls(tokens=tokens, copies=copies)

    @classmethod
    def of_rows(cls, rows: np.ndarray, config: InstanceConfig) -> "Counts":
        """Counts instances, labels and, in pairs, tokens."""
        tokens = 0 if config.sentence_task == "none" else int(rows[:, LENGTH].sum()) - 3 * len(rows)
        return cls(len(rows), int(rows[:, LABEL].sum()), tokens)

    @classmethod
    def of_omissions(cls, position: np.ndarray, tokens: np.ndarray) -> "Counts":
        """Counts what the sampler at `position` drew and left out of the corpus' `tokens`."""
        slices = position[EXAMPLES:].reshape(-1, 2).tolist()
        examples = [tokens[first:end].tolist() for first, end in slices]
        return cls(
            random_tokens=int(position[RANDOM]),
            truncated=int(position[TRUNCATED]),
            unpaired=int(position[UNPAIRED]),
            truncated_examples=list(filter(None, examples[:MOST_EXAMPLES])),
            unpaired_examples=list(filter(None, examples[MOST_EXAMPLES:])),
        )

    def __add__(self, other: "Counts") -> "Counts":
        sums: dict[str, Any] = {
            field.name: getattr(self, field.name) + getattr(other, field.name) for field in dataclasses.fields(self)
        }
        for name in ("truncated_examples", "unpaired_examples"):
            sums[name] = sums[name][:MOST_EXAMPLES]
        return Counts(**sums)

    def require_instances(self) -> None:
        """Raises ValueError if there is no instance."""
        if not self.instances:
            raise ValueError("expected documents that make instances, but every document has only one word")


def expected_bytes(config: InstanceConfig, facts: VocabularyFacts, tokens: int) -> tuple[int, int]:
    """Estimates the least bytes of rows and of uncompressed records for a corpus of `tokens` tokens."""
    instances = config.dupe_factor * tokens // config.max_seq_length
    row = HEADER + config.max_seq_length + 2 * config.plan(facts).max_predictions_per_seq
    return (
        instances * (row * np.dtype(facts.token_type).itemsize + 8),  # 8: its place in the order
        instances * RowEncoder(config, facts).least_bytes,
    )


def likely_bytes(config: InstanceConfig, facts: VocabularyFacts, tokens: int) -> tuple[int, int, int]:
    """Estimates the bytes of token store, rows and uncompressed records for articles of about `tokens` tokens.

    Instances are shorter than the longest possible ones, so there are a third more of them. A value of a record takes
    more than a byte.
    """
    rows, records = expected_bytes(config, facts, tokens)
    return int(1.15 * tokens * np.dtype(facts.token_type).itemsize), rows * 4 // 3, int(2.4 * records)
