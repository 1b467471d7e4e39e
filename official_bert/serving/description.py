"""Describes an exported model for its users: `assets/about.json`, which the server's page shows."""

import collections
from collections.abc import Iterable

from official_bert.config import Config
from official_bert.serving.served_model import ServedModel

WORDS, LEAST_PARTS, SHARE = 100, 5, 0.6  # words that are classified together; parts, and their share for one language


def describe_model(served: ServedModel, config: Config) -> dict[str, str | int]:
    """Returns a model's task, language and size, and the first and last id of its rows."""
    sizes, template = served.encoder.config, served.tokenizer.template
    return {
        "task": config.task,
        "language": language_of(served.tokenizer.tokens),
        "layers": sizes.num_hidden_layers,
        "hidden_size": sizes.hidden_size,
        "weights": int(served.model.count_params()),
        "max_seq_length": served.max_seq_length,
        "first_id": template.cls_id,
        "last_id": template.sep_id,
    }


def language_of(tokens: Iterable[str]) -> str:
    """Returns the language (ISO 639-1) of most words of a vocabulary; "" for several languages or too few words.

    Words are classified a hundred at a time in the vocabulary's order, which is usually by frequency or alphabetical.
    """
    import py3langid

    words = [token.lstrip("▁Ġ") for token in tokens if not token.startswith("##")]
    words = [word for word in words if word.isalpha() and (len(word) > 2 or not word.isascii())]
    parts = [" ".join(words[first : first + WORDS]) for first in range(0, len(words) - WORDS + 1, WORDS)]
    if len(parts) < LEAST_PARTS:
        return ""
    ((language, count),) = collections.Counter(py3langid.classify(part)[0] for part in parts).most_common(1)
    return language if count >= SHARE * len(parts) else ""
