"""Answers to questions as slices of the raw text, with offsets in code points, instead of 2018's realigned words."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from official_bert.tasks.squad.alignment import Pieces
from official_bert.tasks.squad.decoding import DecodingRules, Logits, best_positions, null_span
from official_bert.tasks.squad.features import FeatureMaker
from official_bert.text.tokenization import FullTokenizer


@dataclasses.dataclass(frozen=True)
class RawFeature:
    """A question with one window of its context. Positions count tokens of the row."""

    row: int  # the number of the question
    input_ids: np.ndarray  # int32 [length]
    input_mask: np.ndarray
    segment_ids: np.ndarray
    starts: np.ndarray  # int32 [length], where the token begins in the context; -1: not of the context
    ends: np.ndarray  # int32 [length], where it ends
    may_start: np.ndarray  # bool [length]: of the context, and no other window shows it with more of it
    truncated: bool  # the question was cut

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields by name."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}


def raw_features(
    maker: FeatureMaker, tokenizer: FullTokenizer, row: int, question: str, context: str
) -> list[RawFeature]:
    """Makes the windows of one question's context; each token keeps its offsets."""
    found = tokenizer.tokenize_with_offsets(context)
    tokens = tuple(token for token, _, _ in found)
    offsets = np.array([(start, end) for _, start, end in found], np.int32).reshape(-1, 2)
    count = np.arange(len(tokens) + 1, dtype=np.int32)
    pieces = Pieces(tokens, np.array(tokenizer.convert_tokens_to_ids(tokens), np.int32), count[:-1], count, *offsets.T)
    asked = tokenizer.tokenize(question)
    features = []
    for feature in maker.windows(row, asked, pieces):
        length = len(feature.input_ids)
        window = slice(feature.first_position, feature.first_position + feature.window_length)
        places = np.full((2, length), -1, np.int32)
        places[:, window] = offsets[feature.window_start : feature.window_start + feature.window_length].T
        may_start = np.zeros(length, bool)
        may_start[window] = feature.max_context
        segment_ids = (np.arange(length) >= feature.first_position).astype(np.int32)
        features.append(
            RawFeature(
                row,
                feature.input_ids,
                np.ones(length, np.int32),
                segment_ids,
                *places,
                may_start,  # type: ignore[call-arg]
                len(asked) > maker.max_query_length,
            )
        )
    return features


def answer_slice(
    context: str, features: list[RawFeature], logits: list[Logits], rules: DecodingRules
) -> dict[str, Any]:
    """The best span of all windows, as `answer` = context[`start`:`end`], `score`, `null_score`, `truncated`; pure.

    `score` is the sum of the span's two logits (0 where no span is possible), `null_score` that of [CLS], the lowest of
    all windows. Where there is no answer (no possible span; with version 2 a null score above the span's by more than
    the threshold) the answer is empty and lies at 0. Of equally good spans the first window's wins, then the better
    start's.
    """
    best: tuple[float, int, int] | None = None
    for feature, part in zip(features, logits):
        starts, ends = (best_positions(values, rules.n_best_size) for values in (part.start, part.end))
        lengths = ends[None, :] - starts[:, None] + 1
        possible = (lengths >= 1) & (lengths <= rules.max_answer_length) & feature.may_start[starts][:, None]
        possible &= (feature.starts[ends] >= 0)[None, :]
        scores = np.where(possible, part.start[starts][:, None] + part.end[ends][None, :], -np.inf)
        row, column = np.unravel_index(np.argmax(scores), scores.shape)
        if np.isfinite(scores[row, column]) and (best is None or scores[row, column] > best[0]):
            best = (float(scores[row, column]), int(feature.starts[starts[row]]), int(feature.ends[ends[column]]))
    null_score = null_span(logits).score
    answered = best is not None and not (
        rules.version_2_with_negative and null_score - best[0] > rules.null_score_diff_threshold
    )
    start, end = (best[1], best[2]) if best is not None and answered else (0, 0)
    return {
        "answer": context[start:end],
        "start": start,
        "end": end,
        "score": best[0] if best is not None else 0.0,
        "null_score": null_score,
        "truncated": any(feature.truncated for feature in features),
    }


def encode(task, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Makes the features of all windows of questions and contexts."""
    maker = FeatureMaker(
        task.tokenizer, task.options.max_seq_length, task.options.doc_stride, task.options.max_query_length
    )
    return [
        feature.as_dict()
        for index, row in enumerate(rows)
        for feature in raw_features(maker, task.tokenizer, index, row["question"], row["context"])
    ]


def decode(
    task,
    rows: Sequence[Mapping[str, Any]],
    features: Sequence[Mapping[str, Any]],
    predictions: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Returns `answer` (context[start:end]), `start`, `end`, `score`, `null_score`, `truncated` of each question."""
    found = [([], []) for _ in rows]
    for values, prediction in zip(features, predictions, strict=True):
        feature = RawFeature(**values)
        found[feature.row][0].append(feature)
        found[feature.row][1].append(
            Logits(
                *(
                    np.asarray(prediction[name][: len(feature.input_ids)], np.float64)
                    for name in ("start_logits", "end_logits")
                )
            )
        )
    return [answer_slice(row["context"], own, logits, task.options) for row, (own, logits) in zip(rows, found)]
