"""Settings of 80/10/10 masking, of tokens, whole words or spans: 80 % of the predicted become [MASK], 10 % others.

`masks` masks the instances of records; `dynamic_masking` masks records without masks during training.
"""

import dataclasses
from typing import Annotated, Literal

import numpy as np

from official_bert.data.cache import text_digest
from official_bert.data.pretraining import rows
from official_bert.fields import Constraint, Count, Share, check_fields
from official_bert.text.tokenizer import Tokenizer

FEW_CONTINUE = 0.02  # of the tokens: in English it is a tenth
MASKING_STRATEGIES = {
    "token": rows.TOKEN,
    "whole_word": rows.WHOLE_WORD,
    "span": rows.SPAN,
    "ngram": rows.NGRAM,
}
LEAST_SHARE = 0.75  # of the predictions asked for: fewer are worth a warning


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """How the inputs of the masked-LM objective are corrupted (paper 3.1; spans: SpanBERT 3.1; n-grams: ALBERT 3.2)."""

    strategy: Literal["token", "whole_word", "span", "ngram", "token_draws"] = "token"
    """Tokens that are chosen together; token_draws: tokens drawn with replacement, so that one may be predicted twice
    (ELECTRA), of records without masks alone."""
    rate: Share = 0.15
    """Share of an instance's tokens, [CLS] and [SEP] counted as in 2018, that must be predicted."""
    mask_rate: Share = 0.8
    """Share of those that becomes [MASK]."""
    keep_rate: Share = 0.1
    """Share of those that stays."""
    random_rate: Share = 0.1
    """Share of those that becomes a random token."""
    span_p: Annotated[float, Constraint("a number between 0 and 1", lambda value: 0 < value < 1)] = 0.2
    """Parameter of the geometric distribution of the lengths of spans, in words."""
    span_longest: Count = 10
    """Words of the longest span; the distribution is cut off here and renormalised."""
    ngram_longest: Count = 3
    """Words of the longest n-gram; a length n has a probability in proportion to 1/n."""

    def __post_init__(self) -> None:
        check_fields(self, "masking.")
        total = self.mask_rate + self.keep_rate + self.random_rate
        if abs(total - 1) > 1e-9:
            raise ValueError(f"masking: expected mask_rate, keep_rate and random_rate to make 1 together, got {total}")

    @property
    def keep_share(self) -> float:
        """The share of kept tokens among the chosen tokens that do not become [MASK]: 2018's second draw."""
        rest = self.keep_rate + self.random_rate
        return self.keep_rate / rest if rest else 1.0

    def span_distribution(self) -> np.ndarray:
        """Returns the probabilities of the lengths 1, 2, ... of spans, or of n-grams, in words."""
        weights = self.span_p * (1 - self.span_p) ** np.arange(self.span_longest)
        if self.strategy == "ngram":
            weights = 1 / np.arange(1, self.ngram_longest + 1)
        return weights / weights.sum()

    def budgets(self, max_seq_length: int, max_predictions_per_seq: int) -> np.ndarray:
        """Returns [S + 1]: the number of predictions in an instance of 0, 1, ... S tokens.

        At least one; halves are rounded to the even number, as Python 3 rounds.
        """
        return np.array(
            [min(max_predictions_per_seq, max(1, round(length * self.rate))) for length in range(max_seq_length + 1)],
            np.int64,
        )

    def doubts(self, max_seq_length: int, max_predictions_per_seq: int) -> list[str]:
        """Returns a warning if `max_predictions_per_seq` leaves full instances clearly fewer predictions than `rate`
        asks for.
        """
        if max_predictions_per_seq >= LEAST_SHARE * max_seq_length * self.rate:
            return []
        return [
            f"at most max_predictions_per_seq {max_predictions_per_seq} of {max_seq_length} tokens are predicted, "
            f"{max_predictions_per_seq / max_seq_length:.1%}, although the share to predict is {self.rate:.1%}"
        ]


def single_token_doubts(strategy: str, continuing: float) -> list[str]:
    """Returns a warning if hardly any token continues a word (share `continuing`), so that whole words are single
    tokens.
    """
    if strategy != "whole_word" or continuing >= FEW_CONTINUE:
        return []
    return [
        f"only {continuing:.1%} of the tokens continue a word (##), so masking whole words hardly differs from masking "
        "tokens: as in 2018, a word is what stands between spaces, and each Chinese ideograph is a word of its own"
    ]


@dataclasses.dataclass(frozen=True)
class VocabularyFacts:
    """Facts about a vocabulary for sampling and masking."""

    size: int  # one more than the highest id
    cls_id: int
    sep_id: int
    mask_id: int
    # [size] bool: the pieces that begin with ##; with units of the text, twice as many (`units`)
    continues_word: np.ndarray
    replacements: np.ndarray  # int64, in the order of the file: a random replacement is any of them, as in 2018
    digest: str = ""  # of the entries with their ids
    unk_id: int = -1

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "VocabularyFacts":
        """Returns the facts of any tokenizer."""
        vocab, template, mask_id = tokenizer.vocab, tokenizer.template, tokenizer.special_id("[MASK]")
        return cls(
            tokenizer.size,
            template.cls_id,
            template.sep_id,
            mask_id,
            tokenizer.continues_word,
            np.fromiter(vocab.values(), np.int64, len(vocab)),
            text_digest(f"{index} {token}" for token, index in sorted(vocab.items(), key=lambda item: item[1])),
            tokenizer.special_id("[UNK]"),
        )

    def with_units(self) -> "VocabularyFacts":
        """Returns the facts for a text with units, in which ids from `size` on continue a unit."""
        return dataclasses.replace(
            self, continues_word=np.concatenate([self.continues_word, np.ones(self.size, np.bool_)])
        )

    @property
    def is_unknown(self) -> np.ndarray:
        """Whether each id is [UNK], also as the rest of a unit: bool [2V]."""
        return np.arange(2 * self.size) % self.size == self.unk_id

    @property
    def token_type(self) -> type:
        """The smallest unsigned type that holds every id."""
        return np.uint16 if len(self.continues_word) <= 1 << 16 else np.uint32
