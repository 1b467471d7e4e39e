"""Decodes logits to answers: best spans, their passage text, null odds and no answer (2018 `write_predictions`)."""

import dataclasses
import math
from collections.abc import Iterator, Sequence

import numpy as np

from official_bert.fields import Count, check_fields
from official_bert.tasks.squad.features import SquadFeature
from official_bert.tasks.squad.reading import Alignment, SquadExample
from official_bert.text.tokenization import BasicTokenizer

NOTHING = "empty"  # 2018's answer if no span at all is possible
NO_SPAN = 1e6  # the null odds in that case


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecodingRules:
    """The flags of 2018's `run_squad.py` for decoding, and how the text of an answer is found."""

    n_best_size: Count = 20
    """Answers of a question in nbest_predictions.json."""
    max_answer_length: Count = 30
    """Most tokens of an answer."""
    version_2_with_negative: bool = False
    """Questions may have no answer (SQuAD 2.0)."""
    null_score_diff_threshold: float = 0.0
    """No answer is given if its score exceeds that of the best answer by more than this."""
    answer_alignment: Alignment = 2018
    """How answers and pieces are aligned: answers are slices of the context, or as run_squad.py found them in 2018."""

    def __post_init__(self) -> None:
        check_fields(self)


@dataclasses.dataclass(frozen=True)
class Logits:
    """One feature's logits, float64 [length], of its real tokens only: the length of the padding depends on the batch.

    In 2018 padding took part in the choice of the n best positions (but never won); longer logits do the same here.
    """

    start: np.ndarray
    end: np.ndarray


@dataclasses.dataclass(frozen=True)
class Span:
    """A possible answer: positions in a feature of the example; position 0 is no answer."""

    feature: int
    start: int
    end: int
    start_logit: float
    end_logit: float

    @property
    def score(self) -> float:
        """The sum of both logits."""
        return self.start_logit + self.end_logit


@dataclasses.dataclass(frozen=True)
class Answer:
    """One of the n best answers."""

    text: str
    probability: float
    start_logit: float
    end_logit: float


@dataclasses.dataclass(frozen=True)
class Decoded:
    """The answers to a question."""

    prediction: str
    nbest: tuple[Answer, ...]
    null_odds: float  # null score - score of the best answer with text; only with version_2_with_negative
    best_text: str  # the best answer with text, whatever the threshold


def best_positions(logits: np.ndarray, count: int) -> np.ndarray:
    """Returns the positions of the `count` largest logits, the first of equal ones (2018 `_get_best_indexes`)."""
    return np.argsort(-logits, kind="stable")[:count]


def spans_of(feature: SquadFeature, number: int, logits: Logits, rules: DecodingRules) -> list[Span]:
    """Returns the possible spans among the best starts and ends of one feature, in 2018's order.

    A span counts only in the window that shows its start with the most context, so no span is found twice.
    """
    starts, ends = (best_positions(part, rules.n_best_size) for part in (logits.start, logits.end))
    first, behind = feature.first_position, feature.first_position + feature.window_length
    starts, ends = (part[(part >= first) & (part < behind)] for part in (starts, ends))
    starts = starts[feature.max_context[starts - first]] if len(starts) else starts
    lengths = ends[None, :] - starts[:, None] + 1
    return [
        Span(
            number,
            int(starts[row]),
            int(ends[column]),
            float(logits.start[starts[row]]),
            float(logits.end[ends[column]]),
        )
        for row, column in zip(*np.nonzero((lengths >= 1) & (lengths <= rules.max_answer_length)))
    ]


def best_spans(features: Sequence[SquadFeature], logits: Sequence[Logits], rules: DecodingRules) -> list[Span]:
    """Returns the possible spans of an example's features, best first; with version 2, the null span is one of them."""
    spans = [
        span
        for number, (feature, part) in enumerate(zip(features, logits))
        for span in spans_of(feature, number, part, rules)
    ]
    if rules.version_2_with_negative:
        spans.append(null_span(logits))
    return sorted(spans, key=lambda span: -span.score)


def null_span(logits: Sequence[Logits]) -> Span:
    """Returns the span for no answer: [CLS] in the feature that scores it lowest."""
    scores = [part.start[0] + part.end[0] for part in logits]
    lowest = int(np.argmin(scores))
    return Span(lowest, 0, 0, float(logits[lowest].start[0]), float(logits[lowest].end[0]))


def decode(
    example: SquadExample,
    features: Sequence[SquadFeature],
    logits: Sequence[Logits],
    rules: DecodingRules,
    do_lower_case: bool = True,
) -> Decoded:
    """Returns the decoded answer to one question from the logits of its features."""

    def answer_text(feature: SquadFeature, span: Span) -> str:
        if not span.start:
            return ""
        exact = rules.answer_alignment == "characters"
        return span_slice(example, feature, span) if exact else span_text(example, feature, span, do_lower_case)

    span_of: dict[str, Span] = {}
    for span in best_spans(features, logits, rules):
        if len(span_of) >= rules.n_best_size:
            break
        text = answer_text(features[span.feature], span)
        span_of.setdefault(text, span)
    if rules.version_2_with_negative:
        span_of.setdefault("", null_span(logits))
    entries = [(text, span.start_logit, span.end_logit) for text, span in span_of.items()] or [
        (NOTHING if rules.answer_alignment == 2018 else "", 0.0, 0.0)
    ]
    probabilities = softmax([start + end for _, start, end in entries])
    nbest = tuple(
        Answer(text, probability, start, end) for (text, start, end), probability in zip(entries, probabilities)
    )
    if not rules.version_2_with_negative:
        return Decoded(nbest[0].text, nbest, 0.0, nbest[0].text)
    best = next((answer for answer in nbest if answer.text), None)
    if best is None:  # 2018 fails here
        return Decoded("", nbest, NO_SPAN, "")
    odds = null_span(logits).score - best.start_logit - best.end_logit
    return Decoded("" if odds > rules.null_score_diff_threshold else best.text, nbest, odds, best.text)


def softmax(scores: Sequence[float]) -> list[float]:
    """Returns the probabilities of the n best, by 2018's formula."""
    largest = max(scores)
    exponents = [math.exp(score - largest) for score in scores]
    return [value / sum(exponents) for value in exponents]


def span_slice(example: SquadExample, feature: SquadFeature, span: Span) -> str:
    """Returns the context from the first to the last character of a span's pieces."""
    starts, ends = feature.pieces.starts, feature.pieces.ends
    return example.passage.context[starts[feature.piece_at(span.start)] : ends[feature.piece_at(span.end)]]


def span_text(example: SquadExample, feature: SquadFeature, span: Span, do_lower_case: bool) -> str:
    """Returns the text of a span; its first and last word are cut to the span if possible."""
    tokens = feature.tokens[span.start : span.end + 1]
    text = " ".join(" ".join(tokens).replace(" ##", "").replace("##", "").split())
    words = example.passage.words[feature.word_at(span.start) : feature.word_at(span.end) + 1]
    return align(text, " ".join(words), do_lower_case)


def align(predicted: str, original: str, do_lower_case: bool = True) -> str:
    """Returns the part of `original` whose normalised tokens are `predicted` (2018 `get_final_text`).

    Compares both without spaces. Returns all of `original` if `predicted` is not found, or if normalising changed
    lengths (by stripping accents).
    """
    normalised = " ".join(BasicTokenizer(do_lower_case).tokenize(original))
    start = normalised.find(predicted)
    if start < 0:
        return original
    kept_normalised, kept_original = (
        [index for index, char in enumerate(text) if char != " "] for text in (normalised, original)
    )
    if len(kept_normalised) != len(kept_original):
        return original
    place = {index: order for order, index in enumerate(kept_normalised)}
    first, last = place.get(start), place.get(start + len(predicted) - 1)
    if first is None or last is None:
        return original
    return original[kept_original[first] : kept_original[last] + 1]


def by_example(features: Sequence[SquadFeature]) -> Iterator[tuple[int, slice]]:
    """Yields (example's index, its features) over features in order."""
    start = 0
    for end in range(1, len(features) + 1):
        if end == len(features) or features[end].example_index != features[start].example_index:
            yield features[start].example_index, slice(start, end)
            start = end


def decode_all(
    examples: Sequence[SquadExample],
    features: Sequence[SquadFeature],
    logits: Sequence[Logits],
    rules: DecodingRules,
    do_lower_case: bool = True,
) -> dict[str, Decoded]:
    """Returns the decoded answers to all questions, by id."""
    assert len(features) == len(logits)
    return {
        examples[index].qas_id: decode(examples[index], features[part], logits[part], rules, do_lower_case)
        for index, part in by_example(features)
    }
