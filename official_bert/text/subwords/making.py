"""Makes the tokenizer of files that are no list of WordPieces."""

from collections.abc import Mapping

from official_bert.text.subwords import host, japanese, word_pieces
from official_bert.text.subwords.definition import read_definition
from official_bert.text.tokenizer import Tokenizer


def make_tokenizer(files: Mapping[str, bytes], vocab_file: str) -> Tokenizer:
    """Returns the tokenizer of its files, which messages call `vocab_file`."""
    definition = read_definition(files, vocab_file)
    classes: dict[str, type[host.SubwordTokenizer]] = {
        "wordpiece": word_pieces.WordPieceTokenizer,
        "japanese": japanese.JapaneseTokenizer,
        "byte_bpe": host.LibraryTokenizer,
        "unigram": host.SentencePieceTokenizer if definition.model is not None else host.LibraryTokenizer,
    }
    return classes[definition.family.kind](vocab_file, definition)  # type: ignore[call-arg]
