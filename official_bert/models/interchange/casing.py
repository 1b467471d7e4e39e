"""Decides whether a checkpoint's text is lower-cased: by its files, or by its folder's name and vocabulary."""

import dataclasses
import os
import re
from collections.abc import Iterable, Sequence

from official_bert.models.interchange.stored_models import StoredModel
from official_bert.text import loading
from official_bert.text.subwords import tokenizer_files
from official_bert.text.vocab import UNUSED, has_capitals, read_entries

# Of Google's models whose names do not say it (2018 `validate_case_matches_checkpoint`).
GOOGLES_CASING = {"multilingual_L-12_H-768_A-12": True, "chinese_L-12_H-768_A-12": True}


def by_name(prefix: str) -> bool | None:
    """Returns the casing in a checkpoint folder's name (`uncased_L-12...`: True, `cased_L-12...`: False), or None."""
    name = os.path.basename(os.path.dirname(os.path.abspath(prefix)))
    if match := re.search(r"(?:^|[_.-])(un)?cased(?:[_.-]|$)", name, re.IGNORECASE):
        return match[1] is not None
    return GOOGLES_CASING.get(name)


def of_folder(prefix: str, vocab: Iterable[str] | None) -> bool | None:
    """Returns whether a checkpoint's text is lower-cased if its format has no field for that; None if unknown.

    A vocabulary with capital letters is cased; otherwise the folder's name decides. Raises ValueError if the two
    contradict.
    """
    casing_of_name = by_name(prefix)
    if vocab is None or not has_capitals(vocab):
        return casing_of_name
    if casing_of_name:
        raise ValueError(
            f"{prefix}: its folder's name says that text is lower-cased, but more than 1 % of the entries in its "
            "vocabulary have capital letters; expected the vocabulary that goes with it"
        )
    return False


def is_lower_case(stored: StoredModel) -> bool | None:
    """Returns whether text is lower-cased: by the model's files, or else False if its vocabulary has capitals; None if
    unknown.
    """
    if stored.do_lower_case is None and stored.vocab is not None and has_capitals(stored.vocab):
        return False
    return stored.do_lower_case


def with_vocabulary(stored: StoredModel, vocab_file: str) -> StoredModel:
    """Returns the model with the user's vocabulary, or with its own for "".

    Raises ValueError for a vocabulary with capitals if the checkpoint's text is lower-cased. Also raises it for a
    vocabulary of the same size with other entries, because these would get wrong rows of the embeddings, unless they
    fill `[unused]` slots.
    """
    if not vocab_file:
        return stored
    if tokenizer_files.is_subwords(vocab_file):
        return dataclasses.replace(
            stored,
            vocab=None,
            tokenizer=tokenizer_files.read(vocab_file),
            do_lower_case=loading.lower_cases(vocab_file),
        )
    vocab = read_entries(vocab_file)
    own = stored.vocab is not None and has_capitals(stored.vocab)
    if stored.do_lower_case and has_capitals(vocab) and not own:
        raise ValueError(
            f"{vocab_file}: more than 1 % of its entries have capital letters, but text is lower-cased for "
            f"{stored.origin}; expected the vocabulary that goes with it"
        )
    check_entries(vocab_file, vocab, stored.vocab, stored.origin)
    return dataclasses.replace(stored, vocab=vocab, tokenizer={})


def check_entries(vocab_file: str, vocab: Sequence[str], model_vocab: Sequence[str] | None, origin: str) -> None:
    """Raises ValueError if a vocabulary is as long as `model_vocab` but differs in more than its `[unused]` slots."""
    if model_vocab is not None and len(vocab) == len(model_vocab):
        for number, (theirs, entry) in enumerate(zip(model_vocab, vocab), 1):
            if entry != theirs and not UNUSED.fullmatch(theirs):
                raise ValueError(
                    f"{vocab_file}:{number}: expected {theirs!r:.80}, as in the vocabulary of {origin}, "
                    f"got {entry!r:.80}"
                )


def agreed(lower_case: bool | None, asked_lower_case: bool | None, origin: str) -> bool | None:
    """Returns whether text is lower-cased, by the checkpoint and --do_lower_case.

    Raises ValueError if the two contradict.
    """
    if None not in (lower_case, asked_lower_case) and lower_case != asked_lower_case:
        raise ValueError(
            f"--do_lower_case={str(asked_lower_case).lower()}: text is {'' if lower_case else 'not '}lower-cased for "
            f"{origin}"
        )
    return lower_case if asked_lower_case is None else asked_lower_case
