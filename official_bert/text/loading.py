"""Makes the tokenizer of a vocabulary file, of whatever kind it is."""

import hashlib
import os

from official_bert.files import exists, open_bytes
from official_bert.text.subwords import tokenizer_files
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.tokenizer import Tokenizer

VOCAB_FILE = "vocab.txt"  # in a run, for WordPiece


def load(vocab_file: str, do_lower_case: bool = True) -> Tokenizer:
    """Returns the tokenizer of a file; see `subwords/tokenizer_files` for those that are no list of WordPieces.

    `do_lower_case` is read for lists of WordPieces alone: the files of other tokenizers say it. Raises ValueError for files that cannot
    be used.
    """
    if not tokenizer_files.is_subwords(vocab_file):
        return FullTokenizer(vocab_file, do_lower_case)
    from official_bert.text.subwords import host
    from official_bert.text.subwords.definition import read_definition
    definition = read_definition(tokenizer_files.read(vocab_file), vocab_file)
    by_model = definition.family.kind == "unigram" and definition.model is not None
    return (host.SentencePieceTokenizer if by_model else host.LibraryTokenizer)(vocab_file, definition)


def content_of(vocab_file: str) -> bytes:
    """Returns what a run keeps of a tokenizer: the content of its file, or its files in one."""
    if tokenizer_files.is_subwords(vocab_file) and not vocab_file.endswith(".zip"):
        return tokenizer_files.pack(tokenizer_files.read(vocab_file))
    with open_bytes(vocab_file) as file:
        return file.read()


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
