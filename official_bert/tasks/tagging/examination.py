"""The report on an evaluation of tags: the scores of each type of entity (or of each tag), what is taken for what, the
worst sentences.
"""

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from official_bert.data.tagged.chunk_tags import UNNAMED, Chunk, read_chunks
from official_bert.reports import statistics
from official_bert.reports.calibrated import calibrated_sections
from official_bert.reports.calibration import tune
from official_bert.reports.sections import Mistake, Section, mistakes_section

__all__ = ["examine", "tune"]
NOTHING = "(nothing)"
MOST_PAIRS = 20
Tagged = tuple[Sequence[str], Sequence[str], Sequence[str]]  # words, gold tags, answered tags


def examine(sentences: Sequence[Tagged], plain: bool, *words: Any) -> Iterator[Section]:
    """Yields the sections about sentences; `plain`: each word's tag stands for itself. `words` are what
    `calibrated_sections` takes, for a calibrated model.
    """
    yield from _of_tags(sentences) if plain else _of_entities(sentences)
    if words:
        yield from calibrated_sections(*words)


def _of_entities(sentences: Sequence[Tagged]) -> Iterator[Section]:
    counts: dict[str, np.ndarray] = {}  # by type: right, answered, gold
    pairs: collections.Counter = collections.Counter()
    mistakes = []
    for words, gold, answered_tags in sentences:
        right, answered = (
            [dataclasses.replace(chunk, kind=chunk.kind or UNNAMED) for chunk in read_chunks(tags)]
            for tags in (gold, answered_tags)
        )
        for column, chunks in enumerate((set(right) & set(answered), answered, right)):
            for chunk in chunks:
                counts.setdefault(chunk.kind, np.zeros(3, int))[column] += 1
        wrong = list(confusions(right, answered))
        pairs.update(wrong)
        if wrong:
            mistakes.append(Mistake([" ".join(words)], _named(words, right), _named(words, answered), len(wrong)))
    scores = {
        kind: {
            "precision": _share(right, answered),
            "recall": _share(right, gold),
            "f1": _share(2 * right, answered + gold),
            "support": int(gold),
        }
        for kind, (right, answered, gold) in sorted(counts.items())
    }
    yield _scores_section(scores, "Types of entities", "type")
    yield _pairs_section(pairs, "A type in brackets overlaps the right entity, with other boundaries.")
    yield mistakes_section(mistakes, "entities wrong", title="The worst sentences")


def confusions(gold: Sequence[Chunk], answered: Sequence[Chunk]) -> Iterator[tuple[str, str]]:
    """Yields (right type, answered type) of each entity that is not answered exactly, and of each answer where there is
    none.

    The answered type is in brackets if the boundaries differ.
    """
    for chunk in gold:
        near = [answer for answer in answered if answer.start < chunk.end and chunk.start < answer.end]
        if chunk not in near:
            exact = next((answer.kind for answer in near if (answer.start, answer.end) == (chunk.start, chunk.end)), "")
            yield chunk.kind, exact or (f"[{near[0].kind}]" if near else NOTHING)
    for answer in answered:
        if not any(answer.start < chunk.end and chunk.start < answer.end for chunk in gold):
            yield NOTHING, answer.kind


def _of_tags(sentences: Sequence[Tagged]) -> Iterator[Section]:
    gold = [tag for _, tags, _ in sentences for tag in tags]
    predicted = [tag for _, _, tags in sentences for tag in tags]
    labels = sorted({*gold, *predicted})
    numbers = {label: number for number, label in enumerate(labels)}
    scores = statistics.class_scores(
        np.array([numbers[tag] for tag in gold]), np.array([numbers[tag] for tag in predicted]), labels
    )
    yield _scores_section(scores, "Tags", "tag")
    yield _pairs_section(
        collections.Counter((right, answer) for right, answer in zip(gold, predicted) if right != answer), ""
    )
    mistakes = []
    for words, tags, answers in sentences:
        if wrong := [place for place, (right, answer) in enumerate(zip(tags, answers)) if right != answer]:
            mistakes.append(
                Mistake(
                    [" ".join(words)],
                    ", ".join(f"{words[place]} {tags[place]}" for place in wrong),
                    ", ".join(f"{words[place]} {answers[place]}" for place in wrong),
                    len(wrong),
                )
            )
    yield mistakes_section(mistakes, "words wrong", title="The worst sentences")


def _scores_section(scores: dict[str, dict[str, float]], title: str, what: str) -> Section:
    return Section(
        name="classes",
        title=title,
        values=scores,
        on_screen=True,
        header=(what, "precision", "recall", "F1", "support"),
        rows=[[kind, *score.values()] for kind, score in scores.items()],
    )


def _pairs_section(pairs: collections.Counter, note: str) -> Section:
    most = [{"wanted": wanted, "got": got, "times": times} for (wanted, got), times in pairs.most_common(MOST_PAIRS)]
    return Section(
        name="confusion",
        title="The most common confusions",
        values=most,
        note=note if most else "none",
        header=("wanted", "got", "times"),
        rows=[list(pair.values()) for pair in most],
    )


def _share(part: int, whole: int) -> float:
    return float(part / whole) if whole else 0.0


def _named(words: Sequence[str], chunks: Sequence[Chunk]) -> str:
    return ", ".join(f"{' '.join(words[chunk.start : chunk.end])} {chunk.kind}" for chunk in chunks) or NOTHING
