"""Which columns of a table are likely to hold its texts and labels, and whether its first line names them.

Labels repeat themselves, texts are the longest cells; names that people give to such columns decide between several.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence

TEXT_NAMES = frozenset(
    (
        "text",
        "texts",
        "sentence",
        "review",
        "comment",
        "content",
        "body",
        "message",
        "tweet",
        "document",
        "utterance",
        "kommentar",
        "nachricht",
        "satz",
        "inhalt",
        "rezension",
        "beschreibung",
        "texto",
        "comentario",
        "mensaje",
        "frase",
        "resena",
        "opinion",
        "contenido",
        "descripcion",
        "texte",
        "commentaire",
        "phrase",
        "avis",
        "contenu",
        "testo",
        "commento",
        "recensione",
        "tekst",
    )
)
LABEL_NAMES = frozenset(
    (
        "label",
        "labels",
        "class",
        "category",
        "target",
        "sentiment",
        "intent",
        "topic",
        "y",
        "tag",
        "tags",
        "stars",
        "rating",
        "score",
        "klasse",
        "kategorie",
        "etikett",
        "thema",
        "stimmung",
        "bewertung",
        "etiqueta",
        "clase",
        "categoria",
        "tema",
        "sentimiento",
        "valoracion",
        "etiquette",
        "classe",
        "categorie",
        "sujet",
        "etichetta",
        "kategoria",
    )
)
MOST_LABELS = 100  # different values of a column that may be labels
LONGEST_LABEL = 60  # characters, in the mean
AS_LONG = 0.5  # of the mean length of the longest texts: a column of such texts may be the one that is meant
WORD, MOST_WORDS = re.compile("[^\\W_]+"), 3  # of a name
SHORT_NAME = 0.25  # of the mean length of a column's cells: a first cell that is shorter is a name
MOST = 3  # ways to read a table that are named


def plain_name(name: str) -> str:
    """A column's name in lower case, without accents and spaces around it."""
    letters = unicodedata.normalize("NFKD", name.strip().casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def names_columns(first: Sequence[str], columns: Sequence[Sequence[str]]) -> bool | None:
    """Whether the first line of a table names its columns, whose other cells are `columns`; None if signs contradict.

    A name stands out: it is no number above numbers, no label that comes again, and short above long texts.
    """
    words = {word for cell in first if cell.count(" ") < MOST_WORDS for word in WORD.findall(plain_name(cell))}
    if words & (TEXT_NAMES | LABEL_NAMES):
        return True
    signs = {
        sign
        for cell, column in zip(first, columns)
        if cell.strip()
        and (sign := _is_name(cell.strip(), [value.strip() for value in column if value.strip()])) is not None
    }
    return None if len(signs) > 1 else next(iter(signs), True)


def _is_name(cell: str, values: Sequence[str]) -> bool | None:
    """Whether the first cell of a column is its name; None without a sign."""
    if values and all(map(_is_number, values)):
        return not _is_number(cell)
    if may_be_labels(values):
        return cell not in values
    mean = sum(map(len, values)) / max(len(values), 1)
    if len(cell) < SHORT_NAME * mean:
        return True
    return False if cell.count(" ") > 1 and len(cell) > AS_LONG * mean else None


def may_be_labels(values: Sequence[str]) -> bool:
    """Whether the cells of a column repeat themselves as labels do."""
    kinds = len({*values})
    return (
        2 <= kinds < len(values)
        and kinds <= max(2, min(MOST_LABELS, len(values) / 2))
        and sum(map(len, values)) <= LONGEST_LABEL * len(values)
    )


def likely_columns(columns: Mapping[str, Sequence[str]], text: str, label: str, scores: bool) -> list[tuple[str, str]]:
    """Returns the likely columns of (texts, labels), the likeliest first: one pair if there is no doubt.

    `text` and `label` are columns that are known, or "". Labels are `scores` if they should be numbers.
    """
    filled = {name: [value for value in map(str.strip, values) if value] for name, values in columns.items()}
    labels = [label] if label else _likely_labels(filled, text, scores)
    texts = [text] if text else _likely_texts({name: values for name, values in filled.items() if [name] != labels})
    pairs = [(one, other) for one in texts for other in labels if one != other]
    return pairs[:MOST]


def _likely_labels(filled: Mapping[str, Sequence[str]], text: str, scores: bool) -> list[str]:
    """The columns that may be labels; the only one with a usual name, if there is one."""
    likely = [
        name
        for name, values in filled.items()
        if name != text and values and (all(map(_is_number, values)) if scores else may_be_labels(values))
    ]
    named = [
        name
        for name, values in filled.items()
        if plain_name(name) in LABEL_NAMES and len({*values}) > 1 and name != text and (name in likely or not scores)
    ]
    return named[:1] if len(named) == 1 else sorted(named or likely, key=lambda name: len({*filled[name]}))


def _likely_texts(filled: Mapping[str, Sequence[str]]) -> list[str]:
    """The column of the longest texts, or several that are nearly as long; the only one of them with a usual name."""
    lengths = {name: length for name, values in filled.items() if (length := _mean_letters(values))}
    longest = sorted(
        (name for name, length in lengths.items() if length >= AS_LONG * max(lengths.values())),
        key=lengths.__getitem__,
        reverse=True,
    )
    named = [name for name in longest if plain_name(name) in TEXT_NAMES]
    return named if len(named) == 1 else longest


def _mean_letters(values: Sequence[str]) -> float:
    """Mean number of letters in the cells of a column; addresses and keys, single words of ASCII, count as one."""
    return sum(
        min(letters := sum(map(str.isalpha, value)), letters if not value.isascii() or " " in value else 1)
        for value in values
    ) / max(len(values), 1)


def _is_number(text: str) -> bool:
    try:
        float(text.replace(",", ".", 1))
    except ValueError:
        return False
    return True
