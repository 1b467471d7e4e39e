"""Guesses the contents of a table's columns from evidence for and against: texts, pairs, labels, scores, names.

A column's content decides whether it may be the text or the label; conventional column names rank the readings, and
decide only if the other columns are named as something else.
"""

import functools
import itertools
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from official_bert.data.labelled.labelled_texts import ABSENT, LIST_AS_TEXT, TRUTH, as_number

TEXT_NAMES = re.compile(
    """text|texts|sentence|review|comment|content|body|message|tweet|document|utterance|passage|kommentar|
    nachricht|satz|inhalt|rezension|beschreibung|texto|comentario|mensaje|frase|resena|opinion|contenido|
    descripcion|texte|commentaire|phrase|avis|contenu|testo|commento|recensione|tekst""",
    re.VERBOSE,
)
LABEL_NAMES = re.compile(
    """category|target|class|klasse|clase|classe|y|sentiment|intent|topic|tag|tags|stars|rating|score|stance|
    emotion|verdict|similarity|kategorie|thema|stimmung|bewertung|note|categoria|tema|sentimiento|
    valoracion|categorie|sujet|kategoria|quality""",
    re.VERBOSE,
)
SURE_LABEL_NAMES = re.compile("label|labels|gold|etikett|etiqueta|etiquette|etichetta")
OTHER_NAMES = re.compile(
    """id|ids|idx|index|nr|no|num|number|nummer|uuid|key|url|link|email|date|datum|fecha|time|timestamp|year|
    jahr|created|author|autor|user|username|annotator|rater|worker|reviewer|customer|kunde|name|source|
    split|fold|lang|language|sprache|country|land|region|city|store|file|filename|path|price|preis|amount|
    betrag|umsatz|revenue|count|votes|likes|age|length|parse|address|answer""",
    re.VERBOSE,
)
NAMES = (TEXT_NAMES, LABEL_NAMES, SURE_LABEL_NAMES, OTHER_NAMES)
# Beginnings of names of two texts that belong together; of a title and its text, the text may do alone.
PAIRS = (
    ("premise", "hypo"),
    ("question", "passage sentence context answer paragraph"),
    ("query", "passage doc text"),
    ("claim", "evidence"),
)
COUNTED = re.compile(r"(.*?)[ _.-]?(1|2|a|b|first|second|left|right)([ _.-].*)?|#(1|2) (.*)", re.IGNORECASE)
OF_PAIRS = re.compile("(not?[ _-]?)?(entail|contradict|paraphrase|duplicate)", re.IGNORECASE)
MONTHS = "jan|feb|m[aä]r|apr|ma[iy]|jun|jul|aug|sep|o[ck]t|nov|de[cz]|ene|abr|ago|dic"
DATE = re.compile(
    rf"\d{{1,4}}([-./])\d{{1,2}}\1\d{{1,4}}([T ,].{{1,24}})?|\d\d?:\d\d.{{,9}}|(19|20)\d\d([ -]?(0\d|1[012]))?"
    rf"([0-3]\d)?|1[0-9]{{9}}|(?=.*\d\d?\b)[\w,. :]{{,9}}\b({MONTHS})\w{{,6}}\b[\w,. :+-]{{1,24}}",
    re.IGNORECASE,
)
KEY = re.compile(r"\w+://\S+|\S+@\S+\.\w+|(?=\S*\d)[!-~]{12,}")
AMOUNT = re.compile(r"[€$£¥]\s?\d\S*|\d[\d.,]*\s?([€$£¥%]|[A-Z]{3})|\d{1,3}(,\d{3})+")
LONGEST = 1000  # characters of a cell that are compared with forms
SEPARATORS = (" | ", "|", "; ", ";", ", ", ",")
MARGIN = 2  # a reading for which so much less speaks than for the best one is not plausible
LONGEST_LABEL = 60  # characters, in the mean
FEW = 20  # different numbers that may be classes
WORDS = 2.5  # of a text, in the mean
SHORT_SCALE = 10  # whose whole numbers are classes
LARGEST = 100  # of a scale; larger numbers are amounts
WORD = re.compile(r"[^\W\d_]+|\d+")


def plain_name(name: str) -> str:
    """Returns a column's name in lower case, without accents and surrounding spaces."""
    letters = unicodedata.normalize("NFKD", re.sub("(?<=[a-z])(?=[A-Z])", "_", name.strip()).casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


class Reading(NamedTuple):
    """Options to read columns with, and the strength of the evidence for them."""

    score: float
    values: Mapping[str, Any]


class Column:
    """A column of a table: the cells of its first rows, as text."""

    def __init__(self, name: str, cells: Sequence[str]):
        self.name, self.cells = name, cells
        self.words = {*WORD.findall(plain_name(name))}
        self.values = [cell for cell in cells if cell.casefold() not in ABSENT]
        self.kinds = {*self.values}

    def is_named(self, names: re.Pattern[str]) -> bool:
        """Returns whether a word of the column's name matches `names`."""
        return any(map(names.fullmatch, self.words))

    @functools.cached_property
    def numbers(self) -> tuple[list[float], str]:
        """The numbers in the cells, and the mark of their decimals; [] if other cells are among them."""
        for mark in ".,":
            try:
                return [as_number(value, mark) for value in self.values], mark
            except ValueError:
                continue
        return [], "."

    def all_match(self, pattern: re.Pattern[str]) -> bool:
        """Returns whether nearly all cells match `pattern`."""
        return sum(bool(pattern.fullmatch(value[:LONGEST])) for value in self.values) > 0.9 * len(self.values)

    @functools.cached_property
    def length(self) -> float:
        """The mean number of words of a cell; in scripts without spaces two letters count as one."""
        total = sum(
            max(value.count(" ") + 1, 0 if value.isascii() or " " in value else sum(map(str.isalpha, value)) / 2)
            for value in self.values
        )
        return total / max(len(self.values), 1)

    @functools.cached_property
    def is_short(self) -> bool:
        """Whether cells are as short as labels."""
        return sum(map(len, self.values)) <= LONGEST_LABEL * len(self.values)

    @property
    def is_other(self) -> bool:
        """Whether cells are dates, keys, addresses or amounts."""
        return any(map(self.all_match, (DATE, AMOUNT))) or (self.all_match(KEY) and not self.repeats)

    @functools.cached_property
    def is_text(self) -> bool:
        """Whether most cells are texts, and mostly distinct."""
        is_new = 2 * len(self.kinds) >= len(self.values) > 0.4 * len(self.cells) or not self.is_short
        return is_new and self.length >= WORDS and not (self.numbers[0] or self.is_other or self.is_list)

    @property
    def is_list(self) -> bool:
        """Whether cells are lists, or their text."""
        return self.all_match(LIST_AS_TEXT)

    @property
    def repeats(self) -> bool:
        """Whether cells repeat as labels do."""
        kinds, count = len(self.kinds), len(self.values)
        return 2 <= kinds < count and kinds <= max(2, count / 2) and self.is_short

    @property
    def hint(self) -> int:
        """The evidence in the column's name for labels."""
        if self.is_named(SURE_LABEL_NAMES):
            return 4 if "gold" in self.words else 3
        return 1 if self.is_named(LABEL_NAMES) else -2 if self.is_named(OTHER_NAMES) else 0

    def are_classes(self, may_be_once: bool = False) -> bool:
        """Returns whether the numbers look like classes: repeated whole numbers on a short scale, or few or without
        gaps.
        """
        numbers = self.numbers[0]
        few = self.repeats and (len(self.kinds) <= FEW or len(self.kinds) == max(numbers) - min(numbers) + 1)
        short = max(map(abs, numbers)) <= SHORT_SCALE and (may_be_once or len(self.kinds) < len(numbers))
        return all(number.is_integer() for number in numbers) and (few or short)

    @property
    def are_scores(self) -> bool:
        """Whether numbers are on a scale, and not all different whole ones."""
        numbers = self.numbers[0]
        whole = all(number.is_integer() for number in numbers)
        ids = whole and len(self.kinds) > 0.9 * len(numbers)
        return len(self.kinds) > 1 and max(map(abs, numbers)) <= LARGEST and not ids

    @property
    def may_be_grades(self) -> bool:
        """Whether cells may grade how well two texts match."""
        numbers = self.numbers[0]
        if not numbers or len(self.kinds) < 2 or self.hint < 0:
            return len(self.kinds) == 2 and {*map(str.casefold, self.kinds)} <= TRUTH.keys()
        on_scale = self.are_scores and (self.hint > 0 or max(map(abs, numbers)) <= 1)
        return on_scale or (self.are_classes() and min(numbers) <= 0)

    @property
    def tells_pairs(self) -> bool:
        """Whether cells are labels of text pairs, such as entailment."""
        return any(map(OF_PAIRS.match, self.kinds))

    def separator(self) -> str | None:
        """Returns the text between the labels of a cell; "" for lists, None if cells have one label."""
        if self.is_list:
            return ""
        for mark in SEPARATORS:
            parts = [[*filter(None, map(str.strip, kind.split(mark)))] for kind in self.kinds]
            different = {part for kind in parts for part in kind}
            several = sum(mark in value for value in self.values)
            if (
                several > max(1, 0.02 * len(self.values))
                and several == sum(mark.strip() in value for value in self.values)
                and len(different) < sum(map(len, parts))
                and len(different) <= min(len(parts), len(self.values) / 4)
                and sum(map(len, different)) <= LONGEST_LABEL / 2 * len(different)
            ):
                return mark
        return None

    def as_label(self, kind: str, is_given: bool) -> list[Reading]:
        """Returns the readings as labels or scores; `kind` is known unless it is "", and so may be the column."""
        if len(self.kinds) < 2 or (not is_given and self.is_other and not self.is_named(SURE_LABEL_NAMES)):
            return []
        return (self._numbers_as_label if self.numbers[0] else self._words_as_label)(kind, is_given)

    def _numbers_as_label(self, kind: str, is_given: bool) -> list[Reading]:
        if kind != "regression" and (kind or self.are_classes(is_given or self.hint > 2)):
            return [self._reading()] if is_given or self.are_classes(self.hint > 2) else []
        if not (is_given or self.are_scores):
            return []
        scores: dict[str, Any] = {} if kind else {"kind": "regression"}
        if (mark := self.numbers[1]) != ".":
            scores["decimal"] = mark
        may_be_classes = not kind and self.repeats and len(self.kinds) < 11
        classes = [self._reading(-0.5, kind="classifier")] if may_be_classes else []
        return [self._reading(**scores), *classes]

    def _words_as_label(self, kind: str, is_given: bool) -> list[Reading]:
        if kind == "regression":
            return []
        if kind != "classifier" and (mark := self.separator()) is not None:
            several = {"label_separator": mark} if mark else {}
            if kind:
                return [self._reading(1, **several)]
            one = [self._reading(kind="classifier")] if mark else []
            return [self._reading(1, **several, kind="multi_label"), *one]
        is_label = self.repeats and not (len(self.kinds) > FEW and self.length >= 4)
        return [self._reading()] if is_given or is_label or self.hint > 2 else []

    def _reading(self, more: float = 0, **values: Any) -> Reading:
        """The column as the label, with options; the evidence is in its name, and in how few labels it has."""
        return Reading(self.hint - 0.001 * len(self.kinds) + more, {"label_column": self.name, **values})


def label_readings(columns: Sequence[Column], known: str, kind: str) -> list[Reading]:
    """Returns the likely columns of labels or scores, or the `known` one; `kind` is "" if it is not known."""
    if known:
        return next(
            (column.as_label(kind, True) for column in columns if column.name == known),
            [Reading(0, {"label_column": known})],
        )
    likely = sorted(
        ((column, reading) for column in columns for reading in column.as_label(kind, False)),
        key=lambda pair: -pair[1].score,
    )
    chosen: list[tuple[Column, Reading]] = []
    for column, reading in likely:  # names of classes beside their numbers are the same labels
        if all(one is column or not _same_classes(one, column) for one, _ in chosen):
            chosen.append((column, reading))
    return [reading for _, reading in chosen]


def _same_classes(one: Column, other: Column) -> bool:
    both = {*zip(one.cells, other.cells)}
    return len({*one.cells}) == len({*other.cells}) == len(both)


def text_readings(
    columns: Sequence[Column], label: Mapping[str, Any], text: str, pair: str | None
) -> Iterator[Reading]:
    """Yields the likely columns of the text or of both texts, beside a `label`; `text` and `pair` are known columns, ""
    and None if they are not.
    """
    labels = {label.get("label_column"), *label.get("label_columns", ())}
    others = [column for column in columns if column.name not in labels and column.values]
    found = [column for column in others if column.is_text]
    found = [column for column in found if column.length >= 4 or not column.is_named(OTHER_NAMES)] or found
    if text:
        yield Reading(0, {"text_column": text})
        return
    if not found:
        if name := _of_longest_words(others):
            yield Reading(-MARGIN, {"text_column": name})  # it does not look like a text
        return
    found.sort(key=lambda column: (column.is_named(TEXT_NAMES), sum(map(len, column.values))), reverse=True)
    for number, column in enumerate(found):
        yield Reading(-0.5 * number, {"text_column": column.name})
    if pair is None:
        of_pairs = any(column.tells_pairs for column in columns if column.name in labels)
        yield from _pair_readings([column.name for column in others if column in found], of_pairs)


def _of_longest_words(columns: Sequence[Column]) -> str:
    """The name of the column with most text; "" if there is none, or rows are too few to tell it from others."""
    words = [column for column in columns if not (column.numbers[0] or column.is_other or column.is_list)]
    if not words or (len(words) > 1 and len(words[0].cells) < 3):
        return ""
    return max(words, key=lambda column: sum(map(len, column.values))).name


def _pair_readings(names: Sequence[str], of_pairs: bool) -> Iterator[Reading]:
    """Yields the readings of each two of these columns as texts that belong together; labels may be `of_pairs`."""
    pairs = [*itertools.combinations(names, 2)]
    for one, other in pairs:
        turned = _are_pair(other, one)
        named = turned or _are_pair(one, other)
        yield Reading(
            2.5 * named + 1.5 * of_pairs - 0.3 * (len(pairs) > 1),
            dict(zip(("text_column", "text_pair_column"), (other, one) if turned else (one, other))),
        )


def _are_pair(first: str, second: str) -> bool:
    """Whether names are those of two texts that belong together, in this order."""
    one, other = (COUNTED.fullmatch(name) for name in (first, second))
    if one and other and [one[1], one[3], one[5]] == [other[1], other[3], other[5]]:
        return one[0].casefold() < other[0].casefold()
    names = plain_name(first), plain_name(second)
    return any(names[0].startswith(begin) and any(end in names[1] for end in ends.split()) for begin, ends in PAIRS)


def header_signs(columns: Sequence[Sequence[str]]) -> int:
    """Returns a score of whether the first cells of columns are a header: 2 or more if so, -2 or less if they are a
    row.

    A header is not a number above numbers, not a label that is repeated, and is short above long texts.
    """
    signs: list[int] = []
    for cells in columns:
        cell, column = cells[0].strip(), Column("", cells[1:])
        if not cell or not column.values:
            continue
        here = Column("", [cell])
        if column.numbers[0] or column.is_other:
            like = bool(here.numbers[0]) if column.numbers[0] else here.is_other
            signs.append(-3 if like else 3)
        elif cell in column.kinds and len(column.kinds) < len(column.values):
            signs.append(-3)
        elif column.repeats and not column.is_text:
            signs.append(1 + (len(column.values) >= 5 * len(column.kinds)))
        elif here.length > 3:
            signs.append(-2)
        else:
            signs.append(len(cell) < 0.25 * sum(map(len, column.values)) / len(column.values))
        is_name = any(known.fullmatch(plain_name(cell)) for known in NAMES)
        signs.append(2 * (is_name and cell not in column.kinds))
    total = sum(signs)
    return total if min(signs, default=0) < 0 < max(signs) else 2 * total or 2
