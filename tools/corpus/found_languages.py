"""Recognises the language of each file of a corpus from its beginning, with `py3langid`, a model of 97 languages."""

import collections
import functools
import itertools
from collections.abc import Sequence

from official_bert.data.pretraining.yield_report import YieldReport
from official_bert.data.raw_text import containers, documents

PARTS, PART = 4, 500  # of so many characters, are looked at in a file
LINES = 500
LEAST_LETTERS = 20
SURE = 0.8  # below, a file gets the language of most of the others
FEW, LOOKED_AT = 10, 200  # files: named, and looked at evenly; between two of other languages each is
DEFAULT = "en"
Found = tuple[str, float]  # a language and its probability


def of_files(paths: Sequence[str], form: documents.Format, text_key: str, encoding: str) -> tuple[list[str], list[str]]:
    """Returns the language of each file, and lines that report them."""

    @functools.cache
    def look(number: int) -> Found:
        try:
            return of_text(_beginning(paths[number], form, text_key, encoding))
        except ValueError:  # who reads the whole file says why
            return DEFAULT, 0.0

    found: list[Found] = []
    step = -(-len(paths) // LOOKED_AT)
    for start in range(0, len(paths), step):
        numbers = range(start, min(start + step, len(paths)))
        alike = look(start)[0] == look(numbers[-1])[0]
        found += [look(start if alike else number) for number in numbers]
    sure = collections.Counter(language for language, share in found if share >= SURE)
    usual = max(sure, key=sure.__getitem__, default=DEFAULT)
    return [language if share >= SURE else usual for language, share in found], _lines(paths, found, usual)


def of_text(text: str) -> Found:
    """Returns the language of most parts of a text, and its mean probability over them."""
    votes: collections.Counter = collections.Counter()
    if sum(map(str.isalpha, text)) >= LEAST_LETTERS:
        parts = [text[start : start + PART] for start in range(0, len(text), PART)]
        for language, probability in map(_classifier(), parts):
            votes[language] += probability / len(parts)
    return max(votes.items(), key=lambda vote: vote[1], default=(DEFAULT, 0.0))


@functools.cache
def _classifier():  # type: ignore[no-untyped-def]
    from py3langid import langid

    return langid.LanguageIdentifier.from_pickled_model(langid.MODEL_FILE, norm_probs=True).classify


def _beginning(path: str, form: documents.Format, text_key: str, encoding: str) -> str:
    """Returns the first characters of a file's text."""
    bad = containers.BadText("skip", allow_large_lines=True, encoding=encoding)
    form, lines = documents.open_lines(path, form, bad)
    if form in ("text", "book", "documents"):
        lines = documents.without_licence(lines, YieldReport())
    else:
        lines = itertools.chain.from_iterable(
            document.paragraphs for document in documents.read_documents(path, form, text_key, bad)
        )
    return "\n".join(line[: PARTS * PART] for line in itertools.islice(lines, LINES))[: PARTS * PART]


def _lines(paths: Sequence[str], found: Sequence[Found], usual: str) -> list[str]:
    """Returns lines with the language of each file; if there are many, of the least certain ones for each language."""
    lines = []
    for language in dict.fromkeys(language for language, _ in found):
        shares = sorted((share, path) for path, (name, share) in zip(paths, found) if name == language)
        for share, path in shares[:FEW]:
            doubt = f"; {usual} is used because that is uncertain, --language=... sets another" * (share < SURE)
            lines.append(f"{path}: {language} ({share:.0%} sure){doubt}")
        if len(shares) > FEW:
            lines.append(f"{len(shares) - FEW:,} more files: {language} (at least {shares[FEW][0]:.0%} sure)")
    return lines
