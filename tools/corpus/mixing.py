"""Mixes corpora of several languages (or sources) in given shares, by leaving out and repeating documents.

The choice depends only on a document's place in the input. Copies of a document go to different output files. The
generator ensures that no copy becomes the random next sentence of another
(`pretraining/equal_documents.texts_of_documents`).
"""

import collections
import math
import re
from collections.abc import Mapping

from official_bert.data.raw_text.deduplication import hash_text
from official_bert.storage.files import find_files

_NAMED = re.compile(r"([A-Za-z]{2,3}(?:[-_]\w+)*|simple):(?!//)(.+)")


def split_languages(patterns: str, default: str = "") -> dict[str, list[str]]:
    """Returns {language: files} for a list such as `en:wiki/*,sw:other/*.txt`. Patterns without a language get
    `default`.

    A file counts once for a language, however many patterns match it. Raises ValueError that names a pattern without
    files, or a file with several languages.
    """
    files: dict[str, list[str]] = collections.defaultdict(list)
    for pattern in filter(None, patterns.split(",")):
        named = _NAMED.match(pattern)
        language, path = (named[1], named[2]) if named else (default, pattern)
        files[language] += find_files(path)
    languages: dict[str, str] = {}
    for language, paths in files.items():
        for path in paths:
            if (other := languages.setdefault(path, language)) != language:
                raise ValueError(
                    f"--input_file: expected one language for {path}, got {other or 'none'} and {language or 'none'}"
                )
    return {language: list(dict.fromkeys(paths)) for language, paths in files.items()}


def without_languages(patterns: str) -> str:
    """Returns a list of patterns for `split_languages` without the languages."""
    return ",".join(named[2] if (named := _NAMED.match(pattern)) else pattern for pattern in patterns.split(","))


def parse_mix(text: str, languages: list[str]) -> dict[str, float]:
    """Returns the shares in a text such as `en=3,sw=1`, scaled to add up to 1.

    Raises ValueError unless it has exactly one positive number for each of `languages`.
    """
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        if name in shares:
            raise ValueError(f"--mix: expected one weight for each language, got several for {name}: {text}")
        try:
            shares[name] = float(number)
        except ValueError:
            shares[name] = math.nan
        if not equals or not 0 < shares[name] < math.inf:
            raise ValueError(f"--mix: expected language=weight with commas between, got {part!r}")
    if sorted(shares) != sorted(languages):
        raise ValueError(f"--mix: expected weights for {', '.join(sorted(languages))}, got {', '.join(sorted(shares))}")
    return {name: weight / sum(shares.values()) for name, weight in shares.items()}


def smoothed_shares(sizes: Mapping[str, int], exponent: float) -> dict[str, float]:
    """Returns the shares p ** exponent, renormalised, for languages of these sizes (2018's multilingual model: 0.7)."""
    total = sum(sizes.values())
    powers = {name: (size / total) ** exponent for name, size in sizes.items() if size}
    return {name: power / sum(powers.values()) for name, power in powers.items()}


def copy_factors(sizes: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, float]:
    """Returns how often each language's documents are repeated to reach the wanted shares, at the same total size."""
    total = sum(sizes.values())
    return {name: shares.get(name, 0.0) * total / size for name, size in sizes.items() if size}


def smooth_languages(counts: Mapping[str, Mapping[str, int]], exponent: float = 0.7) -> dict[str, float]:
    """Returns merged word counts of several languages, weighted by `smoothed_shares`: large languages count less."""
    sizes = {language: sum(words.values()) for language, words in counts.items()}
    factors = copy_factors(sizes, smoothed_shares(sizes, exponent))
    merged: dict[str, float] = collections.defaultdict(float)
    for language, factor in factors.items():
        for word, count in counts[language].items():
            merged[word] += count * factor
    return merged


def copies(factor: float, language: str, number: int) -> int:
    """Returns the number of copies of document `number` of a language, on average `factor`."""
    return int(factor) + (hash_text(f"{language}:{number}") < (factor - int(factor)) * 2**64)
