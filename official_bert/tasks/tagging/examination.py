"""The report on an evaluation of tags: the scores of each type of entity (or of each tag), what is taken for what, the
worst sentences.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from official_bert.data.tagged.chunk_tags import UNNAMED, Chunk, read_chunks
from official_bert.reports.calibrated import calibrated_sections
from official_bert.reports.calibration import tune
from official_bert.reports.sections import Mistake, Section, mistakes_section, table_section
from official_bert.reports.statistics import SCORES, Pairs, class_scores, most_confused

__all__ = ["examine", "tune"]
NOTHING = "(nothing)"
MOST_PAIRS = 20
OTHER_BOUNDARIES = "A type in brackets overlaps the right entity, with other boundaries."
Tagged = tuple[Sequence[str], Sequence[str], Sequence[str]]  # words, gold tags, answered tags
Classes = tuple[str, str]  # the right one, and the answered one; "": no entity


def examine(sentences: Iterable[Tagged], plain: bool, *words: Any) -> Iterator[Section]:
    """Yields the sections about sentences; `plain`: each word's tag stands for itself. `words` are what
    `calibrated_sections` takes, for a calibrated model.
    """
    compare, title, what = (_tags, "Tags", "tag") if plain else (_entities, "Types of entities", "type")
    answers, confused, mistakes = Pairs(), Pairs(), []
    for sentence in sentences:
        pairs, wrong, right, got = compare(*sentence)
        answers.update(pairs)
        confused.update(wrong)
        if wrong:
            mistakes.append(Mistake([" ".join(sentence[0])], right, got, len(wrong)))
    labels = sorted({label for pair in answers for label in pair if label})
    yield table_section(
        name="classes",
        title=title,
        values=class_scores(answers, labels),
        on_screen=True,
        header=(what, *SCORES),
    )
    most = most_confused(confused, MOST_PAIRS, "times")
    yield table_section(
        name="confusion",
        title="The most common confusions",
        values=most,
        note="none" if not most else "" if plain else OTHER_BOUNDARIES,
        header=("wanted", "got", "times"),
    )
    yield mistakes_section(mistakes, f"{'words' if plain else 'entities'} wrong", title="The worst sentences")
    if words:
        yield from calibrated_sections(*words)


def _entities(
    words: Sequence[str], gold: Sequence[str], answered_tags: Sequence[str]
) -> tuple[list[Classes], list[Classes], str, str]:
    """Returns the types of each entity, those that are confused, and the right and the answered entities as text."""
    right, answered = (
        [dataclasses.replace(chunk, kind=chunk.kind or UNNAMED) for chunk in read_chunks(tags)]
        for tags in (gold, answered_tags)
    )
    pairs = [
        (chunk.kind if chunk in right else "", chunk.kind if chunk in answered else "") for chunk in {*right, *answered}
    ]
    return pairs, list(confusions(right, answered)), _named(words, right), _named(words, answered)


def confusions(gold: Sequence[Chunk], answered: Sequence[Chunk]) -> Iterator[tuple[str, str]]:
    """Yields (right type, answered type) of each entity that is not answered exactly, and of each answer where there is
    none.

    The answered type is in brackets if the boundaries differ.
    """
    for chunk in gold:
        near = [*filter(chunk.overlaps, answered)]
        if chunk not in near:
            exact = next((answer.kind for answer in near if (answer.start, answer.end) == (chunk.start, chunk.end)), "")
            yield chunk.kind, exact or (f"[{near[0].kind}]" if near else NOTHING)
    for answer in answered:
        if not any(map(answer.overlaps, gold)):
            yield NOTHING, answer.kind


def _tags(
    words: Sequence[str], gold: Sequence[str], answered: Sequence[str]
) -> tuple[list[Classes], list[Classes], str, str]:
    """Returns the tags of each word, those that are confused, and the right and the answered tags of these words."""
    pairs = list(zip(gold, answered))
    wrong = [place for place, (right, answer) in enumerate(pairs) if right != answer]
    right, got = (", ".join(f"{words[place]} {tags[place]}" for place in wrong) for tags in (gold, answered))
    return pairs, [pairs[place] for place in wrong], right, got


def _named(words: Sequence[str], chunks: Sequence[Chunk]) -> str:
    return ", ".join(f"{' '.join(words[chunk.start : chunk.end])} {chunk.kind}" for chunk in chunks) or NOTHING
