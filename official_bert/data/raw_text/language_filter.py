"""Tells whether text is in its language, by `py3langid`: a small statistical model of 97 languages, part of the package."""

import functools

CHARACTERS = 4000  # of a document are looked at, from its beginning
# Codes of Wikipedia that mean a language of the model, and languages that it takes for each other because they are written alike.
_ALIASES = {"simple": "en", "als": "de", "sh": "sr", "be-tarask": "be", "be-x-old": "be", "zh-classical": "zh", "zh-yue": "zh", "yue": "zh",
            "wuu": "zh", "lzh": "zh", "gan": "zh"}
_ALIKE = ({"no", "nb", "nn"}, {"bs", "hr", "sr"}, {"id", "ms"})


@functools.cache
def accepted_labels(language: str) -> frozenset[str]:
    """Returns the labels of the model that mean `language`, the code of a Wikipedia.

    Raises ValueError for a language that the model does not know.
    """
    import py3langid
    label = _ALIASES.get(language, language)
    languages = {name for name, _ in py3langid.rank("")}
    if label not in languages:
        raise ValueError(f"--same_language: expected languages that can be told apart ({' '.join(sorted(languages))}), got {language!r}")
    return frozenset(next((group for group in _ALIKE if label in group), {label}))


def is_in_language(text: str, language: str) -> bool:
    """Tells whether the most probable language of a text is `language`. Raises what `accepted_labels` raises."""
    import py3langid
    return py3langid.classify(text[:CHARACTERS])[0] in accepted_labels(language)
