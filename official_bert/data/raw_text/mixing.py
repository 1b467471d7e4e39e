"""Mixes corpora of several languages (or sources) in wanted shares, by leaving documents out and by repeating them.

Which documents, depends on their place in the input and nothing else. A document's copies go to different output files; that
none serves as the random next sentence of another is the generator's work (`pretraining/copies`).
"""

import collections
import math
import re
from collections.abc import Mapping

from official_bert.data.raw_text.deduplication import hash_text
from official_bert.files import find_files

_NAMED = re.compile(r"([A-Za-z]{2,3}(?:[-_]\w+)*|simple):(.+)")


def split_languages(patterns: str, default: str = "") -> dict[str, list[str]]:
    """Returns the files of each language of a list as `en:wiki/*,sw:other/*.txt`; `default` is that of patterns without one.

    Raises ValueError naming the pattern that matches no file.
    """
    files: dict[str, list[str]] = collections.defaultdict(list)
    for pattern in filter(None, patterns.split(",")):
        named = _NAMED.match(pattern)
        language, path = (named[1], named[2]) if named else (default, pattern)
        files[language] += find_files(path)
    return dict(files)


def without_languages(patterns: str) -> str:
    """Returns the list of patterns that `split_languages` takes without the languages."""
    return ",".join(named[2] if (named := _NAMED.match(pattern)) else pattern for pattern in patterns.split(","))


def parse_mix(text: str, languages: list[str]) -> dict[str, float]:
    """Returns the wanted shares in a text such as `en=3,sw=1`, adding up to 1.

    Raises ValueError unless it has a positive number for each of `languages`, and for nothing else.
    """
    wanted = {}
    for part in text.split(","):
        name, equals, number = part.partition("=")
        try:
            wanted[name] = float(number)
        except ValueError:
            wanted[name] = math.nan
        if not equals or not 0 < wanted[name] < math.inf:
            raise ValueError(f"--mix: expected language=weight with commas between, got {part!r}")
    if sorted(wanted) != sorted(languages):
        raise ValueError(f"--mix: expected weights for {', '.join(sorted(languages))}, got {', '.join(sorted(wanted))}")
    return {name: weight / sum(wanted.values()) for name, weight in wanted.items()}


def smoothed_shares(sizes: Mapping[str, int], exponent: float) -> dict[str, float]:
    """Returns the shares p ** exponent, renormalised, of languages with these sizes (2018's multilingual model: 0.7)."""
    total = sum(sizes.values())
    powers = {name: (size / total) ** exponent for name, size in sizes.items() if size}
    return {name: power / sum(powers.values()) for name, power in powers.items()}


def copy_factors(sizes: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, float]:
    """Returns how often a document of each language stands in a mixture of the wanted shares and of the same size in all."""
    total = sum(sizes.values())
    return {name: shares.get(name, 0.0) * total / size for name, size in sizes.items() if size}


def copies(factor: float, language: str, number: int) -> int:
    """Returns how many copies document `number` of a language gets, `factor` on average."""
    return int(factor) + (hash_text(f"{language}:{number}") < (factor - int(factor)) * 2**64)
