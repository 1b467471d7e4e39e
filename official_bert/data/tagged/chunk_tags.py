"""Tags of words: the schemes by which they mark chunks such as entities, chunks read and written, legal sequences,
scores.

A tag is `O`, a letter and a type (`B-PER`), a letter alone where there is one type without a name (BioBERT's own data),
or a type alone (Few-NERD), whose words in a row are one chunk.
"""

import collections
import dataclasses
import itertools
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from official_bert.data.labelled.labelled_texts import check_forms
from official_bert.data.tagged.tag_letters import OUTSIDE, PREFIXES, has_prefix

# plain: each word's tag stands for itself
Scheme = Literal["iob1", "iob2", "iobes", "bilou", "bmes", "bmewo", "io", "plain"]
NOT_LABELLED = ""  # of a word that counts neither in training nor in scores
UNNAMED = "entity"  # what the type of tags without one is called in answers
# Of a chunk's first, inner and last word, and of a chunk of one word.
LETTERS: Mapping[str, str] = {
    "iob1": "BIIB",
    "iob2": "BIIB",
    "iobes": "BIES",
    "bilou": "BILU",
    "bmes": "BMES",
    "bmewo": "BMEW",
}
LIKE_SUFFIX = re.compile(r"[_.:/|][BIMESLUW]$")  # if all tags end so, it ends no type
LIKE_PREFIX = re.compile(r"[A-Z]-|[BIMESLUW][_.:/|]")  # begins no type
HINT = " (options.scheme=plain reads tags without prefixes, such as parts of speech)"
FORM = "a tag such as O, B-PER or I-PER"


@dataclasses.dataclass(frozen=True)
class Chunk:
    """A run of words of one type, the end excluded."""

    kind: str
    start: int
    end: int

    def overlaps(self, other: "Chunk") -> bool:
        """Returns whether both have a word."""
        return self.start < other.end and other.start < self.end


def split_tag(tag: str) -> tuple[str, str]:
    """Returns a word's place in its chunk (B, I, E, S, or O outside), and the chunk's type, "" if it has no name."""
    if tag in (OUTSIDE, NOT_LABELLED):
        return OUTSIDE, ""
    letter = letter_of(tag)
    return (PREFIXES[letter], tag[2:]) if letter else ("I", tag)


def letter_of(tag: str) -> str:
    """Returns the letter of a tag, which it has before its type or alone; "" if it has none."""
    return tag[0] if has_prefix(tag) or tag in PREFIXES else ""


def has_suffix(tag: str) -> bool:
    """Returns whether a tag is a type and a letter, such as `PER-B`."""
    kind, dash, letter = tag.rpartition("-")
    return bool(kind and dash) and letter in PREFIXES


def with_prefixes(tags: Iterable[str]) -> dict[str, str]:
    """Returns the tags of a file as B-PER if they are spelled PER-B, by their spelling; {} unless all are that have a
    type.
    """
    names = {*tags}
    typed = names - {OUTSIDE, NOT_LABELLED}
    if not all(map(has_suffix, typed)) or all(map(has_prefix, typed)):
        return {}
    return {tag: f"{tag[-1]}-{tag[:-2]}" if tag in typed else tag for tag in names}


def meaningless(labels: Sequence[str]) -> list[str]:
    """Returns the labels of a model that mark no chunk: beside `B-PER`, an unknown letter or a type alone; beside
    letters alone, others.

    Letters alone beside `B-PER` that continue a chunk (I, M, E, L) continue that of the word before.
    """
    if not any(map(letter_of, labels)):
        return []
    beginnings = {letter for letter, place in PREFIXES.items() if place in "BS"}
    nothing = beginnings if any(map(has_prefix, labels)) else ()
    return [label for label in labels if label in nothing or not (label == OUTSIDE or letter_of(label))]


def remarks(labels: Sequence[str]) -> list[str]:
    """Returns warnings about the labels of a model that mark no chunk, or whose letters are not known and so belong to
    their types.
    """
    if nothing := meaningless(labels):
        return [f"its labels {', '.join(nothing)} mark no entity, unlike the others: they count as O"]
    if any(map(has_prefix, labels)) or not (types := [*filter(LIKE_PREFIX.match, labels)]):
        return []
    return [
        f"its labels {', '.join(types)} begin with no known letter (B, I, M, E, L, S, U, W) and a -: they are read as "
        "types"
    ]


def check_tags(places: Mapping[str, str]) -> None:
    """Raises ValueError, naming the place, for tags of a file that are of no scheme or of several; `places` has the
    first of each tag.
    """
    other_tags = [tag for tag in places if not (tag in (OUTSIDE, NOT_LABELLED) or letter_of(tag))]
    if not other_tags:
        return
    wrong = next(filter(LIKE_PREFIX.match, other_tags), other_tags[0])
    has_letters = bool(LIKE_PREFIX.match(wrong)) or all(map(LIKE_SUFFIX.search, other_tags))
    if scheme_tag := next(filter(letter_of, places), ""):
        raise ValueError(
            f"{places[wrong]}: expected {FORM}, got {wrong!r}; the file has {scheme_tag!r} in {places[scheme_tag]}: "
            "all tags must be of one scheme"
        )
    if OUTSIDE not in places or has_letters:
        raise ValueError(f"{places[wrong]}: expected {FORM}, got {wrong!r}{'' if has_letters else HINT}")


def of_scheme(tag: str, scheme_tags: Iterable[str]) -> bool:
    """Returns whether a tag is one of the scheme of the `scheme_tags` ones."""
    names = {*scheme_tags}
    return tag in (names | {OUTSIDE}) or has_prefix(tag) or (tag in PREFIXES and not names - {*PREFIXES, OUTSIDE})


def with_types(tags: Sequence[str]) -> list[str | None]:
    """Gives letters alone beside tags with types (`I` behind `B-LOC`) the type that they continue; None for one that
    continues nothing.
    """
    spelled: list[str | None] = []
    kind, ended = "", True
    for tag in tags:
        place, tag_kind = split_tag(tag)
        if tag in PREFIXES:
            spelled.append(f"{tag}-{kind}" if place in "IE" and not ended else None)
            ended = ended or place == "E"
            continue
        if tag != NOT_LABELLED:
            kind, ended = tag_kind, place in "ESO"
        spelled.append(tag)
    return spelled


def read_chunks(tags: Sequence[str]) -> list[Chunk]:
    """Reads the chunks of a sentence's tags in any scheme, legal or not, as conlleval does.

    A chunk begins at B and S, at I and E after O or another type, and after E and S.
    """
    chunks: list[Chunk] = []
    begin, kind, is_open, ended = 0, "", False, True
    for index, tag in enumerate([*tags, OUTSIDE]):
        place, tag_kind = split_tag(tag)
        continues = place in "IE" and not ended and tag_kind == kind
        if is_open and not continues:
            chunks.append(Chunk(kind, begin, index))
            is_open = False
        if place != OUTSIDE and not continues:
            begin, kind, is_open = index, tag_kind, True
        ended = place in "ESO"
    return chunks


def write_tags(chunks: Iterable[Chunk], length: int, scheme: Scheme) -> list[str]:
    """Returns the tags of a sentence with these chunks (IOB1 has B only between two neighbours of one type)."""
    tags = [OUTSIDE] * length
    before: Chunk | None = None
    for chunk in chunks:
        size = chunk.end - chunk.start
        first, inner, last, only = [*LETTERS.get(scheme, "IIII")]
        letters = only if size == 1 else first + inner * (size - 2) + last
        if scheme == "iob1" and not (before and before.end == chunk.start and before.kind == chunk.kind):
            letters = "I" + letters[1:]
        tags[chunk.start : chunk.end] = [_spelled(letter, chunk.kind, scheme) for letter in letters]
        before = chunk
    return tags


def _spelled(letter: str, kind: str, scheme: Scheme) -> str:
    if not kind:
        return letter
    return kind if scheme == "io" else f"{letter}-{kind}"


def convert_tags(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Converts tags to another scheme with the same chunks; words that are not labelled stay so, and chunks go on
    behind them.
    """
    if scheme == "plain":
        return list(tags)
    labelled = [tag for tag in tags if tag != NOT_LABELLED]
    converted = iter(write_tags(read_chunks(labelled), len(labelled), scheme))
    return [tag if tag == NOT_LABELLED else next(converted) for tag in tags]


def label_list(types: Iterable[str], scheme: Scheme) -> list[str]:
    """Returns O and then every tag of the scheme for the sorted types; plain tags are their own types.

    Raises ValueError for types that look alike, see `check_forms`.
    """
    types = set(types)
    check_forms(types, "tags")
    if scheme == "plain":
        return sorted(types - {NOT_LABELLED})
    return [
        OUTSIDE,
        *(
            _spelled(letter, kind, scheme)
            for kind in sorted(types)
            for letter in dict.fromkeys(LETTERS.get(scheme, "I"))
        ),
    ]


def scheme_of(labels: Iterable[str], usual: Scheme) -> Scheme:
    """Returns the scheme of a model's labels: the usual one, unless they have types without letters, or letters of
    another scheme.
    """
    names = {*labels} - {OUTSIDE}
    if usual == "plain" or not names:
        return usual
    letters = {*map(letter_of, names)} - {""}
    if not letters:
        return "io"
    schemes: list[Scheme] = [usual, "iob2", "iobes", "bilou", "bmes", "bmewo"]
    return next((scheme for scheme in schemes if letters <= {*LETTERS.get(scheme, "")}), usual)


def describe_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """Returns the scheme that the tags' letters tell, and the entities of each type: `IOB2 tags: LOC 2, PER 13`."""
    letters: set[str] = set()
    type_counts: collections.Counter = collections.Counter()
    same: set[Scheme] = {"iob1", "iob2"}
    for tags in sentences:
        labelled = [tag for tag in tags if tag != NOT_LABELLED]
        letters |= {*map(letter_of, labelled)} - {""}
        chunks = read_chunks(labelled)
        type_counts.update(chunk.kind or UNNAMED for chunk in chunks)
        same = {scheme for scheme in same if write_tags(chunks, len(labelled), scheme) == labelled}
    if letters <= {"B", "I"}:
        name = "IO" if letters <= {"I"} else "IOB2" if "iob2" in same else "IOB1" if "iob1" in same else "IOB"
    else:
        name = next(
            (scheme.upper() for scheme, known in LETTERS.items() if letters <= {*known}), f"{''.join(sorted(letters))}O"
        )
    counted = ", ".join(f"{kind} {count}" for kind, count in sorted(type_counts.items()))
    return f"{name} tags: {counted or 'no entity'}"


def legal_transitions(labels: Sequence[str], scheme: Scheme) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """bool [T,T] (from the row's tag to the column's), [T] (may begin a sentence), [T] (may end one)."""
    between = np.array([[_may_follow(before, after, scheme) for after in labels] for before in labels])
    start = np.array([_may_follow(OUTSIDE, label, scheme) for label in labels])
    end = np.array([_may_follow(label, OUTSIDE, scheme) for label in labels])
    return between, start, end


def _may_follow(before: str, after: str, scheme: Scheme) -> bool:
    if scheme in ("plain", "io"):
        return True
    place, kind = split_tag(before)
    letter, this_kind = split_tag(after)
    same = place != OUTSIDE and kind == this_kind
    if scheme == "iob1":  # B only between two chunks of one type
        return letter != "B" or same
    if scheme == "iob2":
        return letter != "I" or same
    inside = place in ("B", "I")  # a chunk is open
    return same and letter in ("I", "E") if inside else letter not in ("I", "E")


def chunk_scores(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, float]:
    """`precision`, `recall`, `f1` of whole chunks, from 0 to 1, as conlleval counts them, `f1_TYPE` of each type,
    `tag_accuracy`.

    Both are sentences of tags, in any schemes.
    """
    right, answered, expected = (collections.Counter[str]() for _ in range(3))  # by type
    same = total = 0
    for tags, answered_tags in zip(gold, predicted, strict=True):
        gold_chunks, answered_chunks = set(read_chunks(tags)), set(read_chunks(answered_tags))
        for counter, chunks in (
            (right, gold_chunks & answered_chunks),
            (answered, answered_chunks),
            (expected, gold_chunks),
        ):
            counter.update(chunk.kind or UNNAMED for chunk in chunks)
        same += sum(map(operator.eq, tags, answered_tags))
        total += len(tags)
    scores = {
        "precision": _share(right.total(), answered.total()),
        "recall": _share(right.total(), expected.total()),
        "f1": _share(2 * right.total(), (answered + expected).total()),
        "tag_accuracy": _share(same, total),
    }
    return scores | {
        f"f1_{kind}": _share(2 * right[kind], count) for kind, count in sorted((answered + expected).items())
    }


def plain_scores(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> dict[str, float]:
    """`tag_accuracy` and `macro_f1` (the mean over the tags in gold or predicted) of plain tags, from 0 to 1."""
    from sklearn.metrics import f1_score  # takes a second; few runs need it

    tags, answers = (list(itertools.chain.from_iterable(sentences)) for sentences in (gold, predicted))
    return {
        "tag_accuracy": _share(sum(map(operator.eq, tags, answers)), len(tags)),
        "macro_f1": float(f1_score(tags, answers, average="macro", zero_division=0)) if tags else 0.0,
    }


def _share(part: int, whole: int) -> float:
    return float(part) / max(float(whole), 1.0)
