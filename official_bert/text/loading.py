"""Makes the tokenizer of a vocabulary file, of whatever kind it is."""

import functools
import hashlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from official_bert.dotted_names import by_name
from official_bert.storage.files import exists, read_bytes
from official_bert.storage.temporaries import original_paths
from official_bert.text.subwords import tokenizer_files
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.tokenizer import Tokenizer
from official_bert.text.vocab import check_size, load_vocab

if TYPE_CHECKING:
    from official_bert.text.fast_tokenization import FastTokenizer
    from official_bert.text.subwords.lines import LineTokenizer

VOCAB_FILE = tokenizer_files.WORDPIECE_FILE  # in a run, for WordPiece


def load(vocab_file: str, do_lower_case: bool = True) -> Tokenizer:
    """Returns the tokenizer of a file; `subwords/tokenizer_files` describes files other than WordPiece lists.

    Only WordPiece lists use `do_lower_case`: other tokenizers' files specify the casing. Raises ValueError for unusable
    files.
    """
    if not tokenizer_files.is_subwords(vocab_file):
        return FullTokenizer(vocab_file, do_lower_case)
    try:
        return _load_subwords(vocab_file, content_of(vocab_file))
    except (
        ValueError
    ) as error:  # names a temporary copy where the files were in another one, such as a checkpoint's folder
        raise ValueError(original_paths(str(error))) from None


def load_lines(vocab_file: str, do_lower_case: bool) -> "FastTokenizer | LineTokenizer":
    """Returns a tokenizer for whole corpora: `FastTokenizer` for WordPiece, else `LineTokenizer`."""
    if tokenizer_files.is_subwords(vocab_file):
        of_lines: Callable[[Tokenizer], LineTokenizer] = by_name("official_bert.text.subwords.lines:LineTokenizer")
        return of_lines(load(vocab_file))
    fast: type[FastTokenizer] = by_name("official_bert.text.fast_tokenization:FastTokenizer")
    return fast(vocab_file, do_lower_case)


def of_files(files: Mapping[str, bytes], where: str) -> Tokenizer:
    """Returns the tokenizer of files that are no list of WordPieces."""
    return _load_subwords(where, tokenizer_files.pack(files))


@functools.lru_cache(2)
def _load_subwords(vocab_file: str, content: bytes) -> Tokenizer:
    make: Callable[[Mapping[str, bytes], str], Tokenizer] = by_name("official_bert.text.subwords.making:make_tokenizer")
    return make(tokenizer_files.unpack(content, vocab_file), vocab_file)


def content_of(vocab_file: str) -> bytes:
    """Returns the bytes that a run keeps of a tokenizer: the content of its file, or a bundle of its files."""
    if tokenizer_files.is_subwords(vocab_file) and not vocab_file.endswith(".zip"):
        return tokenizer_files.pack(tokenizer_files.read(vocab_file))
    return read_bytes(vocab_file)


def digest(vocab_file: str) -> str:
    """Returns the SHA-256 of `content_of`."""
    return hashlib.sha256(content_of(vocab_file)).hexdigest()


def stored_name(vocab_file: str) -> str:
    """Returns the name under which a run keeps a tokenizer."""
    return tokenizer_files.BUNDLE if tokenizer_files.is_subwords(vocab_file) else VOCAB_FILE


def stored_in(folder: str) -> str:
    """Returns the path of the tokenizer that a run or an exported model keeps in a folder, "" if there is none."""
    paths = (os.path.join(folder, name) for name in (VOCAB_FILE, tokenizer_files.BUNDLE))
    return next((path for path in paths if exists(path)), "")


def entries(vocab_file: str) -> Mapping[str, int]:
    """Returns {token: id} of a tokenizer; raises ValueError as `load` does."""
    return load(vocab_file).vocab if tokenizer_files.is_subwords(vocab_file) else load_vocab(vocab_file)


def check_rows(vocab_file: str, vocab_size: int) -> None:
    """Raises ValueError if a tokenizer has ids without an embedding in the model; the model may have more."""
    check_size(vocab_file, max(entries(vocab_file).values()) + 1, vocab_size)


def lower_cases(vocab_file: str) -> bool | None:
    """Returns whether a tokenizer's files ask for lower-casing; None for a WordPiece list, which does not say."""
    return load(vocab_file).do_lower_case if tokenizer_files.is_subwords(vocab_file) else None
