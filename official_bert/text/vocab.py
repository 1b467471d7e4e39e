"""Vocabulary files: a WordPiece a line; its id is the number of the line, from 0."""

import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence

from official_bert.limits import MOST_JSON
from official_bert.storage.files import folder_of, read_json, read_lines, require_size

UNUSED = re.compile(r"\[unused\d+\]")  # free entries, for new words
CASED_SHARE = 0.01  # of a vocabulary's entries: with more capitals it is cased (the Chinese one has <S> and <T>)
KEEPING = "--do_lower_case=False"  # the flag that keeps capitals and accents
TOKENIZER_FILES = ("tokenizer_config.json", "config.json")  # of Hugging Face
# Classes there, also with Fast behind, that split words as BERT of 2018 does.
WORDPIECE_CLASSES = (
    "BertTokenizer",
    "ConvBertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "FunnelTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
    "PreTrainedTokenizer",
)
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def load_vocab(path: str) -> dict[str, int]:
    """Reads a vocabulary as {token: id}, in the order of the file (2018 `load_vocab`).

    Blank lines keep their ids (the published Chinese vocabulary has one, others U+2028 and U+3000): the first is the
    entry "", others are one of spaces each, which no text has. Empty lines at the end are ignored. Raises ValueError
    for a file that is missing, not UTF-8 or empty, that lacks a special token, or that repeats an entry: 2018 silently
    used the last line of a repeated word, so that the embeddings of the others were never trained. Also raises
    ValueError if a file of Hugging Face beside it names a class that splits text otherwise, such as
    BertJapaneseTokenizer.
    """
    if not path:
        raise ValueError("--vocab_file: expected a vocabulary, got none, and there is none beside the model")
    _check_tokenizer(folder_of(path))
    return number_entries(_lines(path), path)


def _lines(path: str) -> Iterator[str]:
    require_size(path, MOST_JSON)
    return read_lines(path, "vocabulary file")


def number_entries(lines: Iterable[str], path: str, special: Sequence[str] = SPECIAL_TOKENS) -> dict[str, int]:
    """Returns {token: id} of the lines of vocabulary file `path`, as `load_vocab` does."""
    vocab: dict[str, int] = {}
    blanks = 0
    for index, token in enumerate(_without_end([line.strip() for line in lines])):
        blanks += not token
        if not token:
            token = " " * (blanks - 1)
        if token in vocab:
            raise ValueError(
                f"{path}:{index + 1}: vocabulary entry {token!r:.80} is repeated; it is also in line {vocab[token] + 1}"
            )
        vocab[token] = index
    if missing := [token for token in special if token not in vocab]:
        raise ValueError(
            f"{path}: expected a BERT vocabulary with {' '.join(special)}, "
            f"got {len(vocab)} entries without {' '.join(missing)}"
        )
    return vocab


def _check_tokenizer(folder: str) -> None:
    """Raises ValueError if Hugging Face's files in a folder name another tokenizer than BERT's; the tokenizer's own
    file comes first.
    """
    for path in (os.path.join(folder, name) for name in TOKENIZER_FILES):
        try:
            values = read_json(path, missing={}, of_model=True)
        except ValueError:  # not of Hugging Face
            continue
        class_name = values.get("tokenizer_class") if isinstance(values, dict) else None
        if isinstance(class_name, str) and class_name.removesuffix("Fast") not in WORDPIECE_CLASSES:
            raise ValueError(
                f"{path}: tokenizer_class: expected BertTokenizer, got {class_name!r:.80}: the vocabulary beside it is "
                f"for text "
                "that another tokenizer has split; the folder as --vocab_file gives that one, if it is computed here"
            )
        if class_name is not None:
            return


def check_size(path: str, entries: int, vocab_size: int) -> None:
    """Raises ValueError if a vocabulary has more `entries` than the model has embeddings."""
    if entries > vocab_size:
        raise ValueError(f"{path}: expected at most model.vocab_size = {vocab_size} entries, got {entries}")


def has_capitals(vocab: Iterable[str]) -> bool:
    """Returns whether more than 1 % of a vocabulary's entries, without special tokens, have capital letters."""
    words = [entry for entry in vocab if not re.fullmatch(r"\[.*\]", entry)]
    return sum(entry != entry.lower() for entry in words) > CASED_SHARE * len(words)


def casing_that_helps(entries: Iterable[str], do_lower_case: bool) -> str:
    """Returns advice on the casing that suits a vocabulary better than `do_lower_case`; "" if none does."""
    entries = list(entries)
    if not do_lower_case:
        text = "the vocabulary has no capital letters, and --do_lower_case=False keeps those of the text"
        return "" if has_capitals(entries) else text
    # Lower-cased text has no marks.
    accented = sum("Mn" in map(unicodedata.category, unicodedata.normalize("NFD", entry)) for entry in entries)
    text = f"the vocabulary has accents, and {KEEPING} keeps those of the text"
    return text if accented > CASED_SHARE * len(entries) else ""


def check_casing(path: str, vocab: Iterable[str], do_lower_case: bool) -> None:
    """Raises ValueError for lower-casing with a vocabulary that has capitals, which would never match."""
    if do_lower_case and has_capitals(vocab):
        raise ValueError(
            f"{path}: more than 1 % of its entries have capital letters, but text is lower-cased; expected "
            "--do_lower_case=False (tokenizer.do_lower_case: false) beside it, or a lower-cased vocabulary"
        )


def extend_vocab(vocab: Mapping[str, int], words: Iterable[str], grow: bool = True) -> tuple[list[str], dict[str, int]]:
    """Adds `words` to a vocabulary; returns all entries, and the ids of the new words.

    New words take the [unusedN] slots, which 2018 left for this, in the order of their ids; further words go to the
    end. No other entry changes its id, and so no row of a checkpoint moves. Raises ValueError if there are not enough
    slots and the vocabulary may not `grow`.
    """
    entries = list(vocab)
    slots = [index for token, index in vocab.items() if UNUSED.fullmatch(token)]
    new = [word for word in dict.fromkeys(words) if word not in vocab]
    if len(new) > len(slots) and not grow:
        raise ValueError(
            f"the vocabulary has {len(slots)} [unusedN] slots for {len(new)} new words; give fewer, or let it grow"
        )
    ids = dict(zip(new, [*slots, *range(len(entries), len(entries) + len(new))]))
    entries += [""] * max(0, len(new) - len(slots))
    for word, index in ids.items():
        entries[index] = word
    return entries, ids


def read_entries(path: str) -> list[str]:
    """Reads the lines of a vocabulary file, without the empty ones at its end; raises what `read_lines` raises."""
    return _without_end(list(_lines(path)))


def _without_end(lines: list[str]) -> list[str]:
    while lines and not lines[-1]:
        lines.pop()
    return lines
