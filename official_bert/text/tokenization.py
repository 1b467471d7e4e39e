"""The tokenizer of 2018 (`tokenization.py`): clean, lower-case, split at punctuation, then WordPiece.

Plain, exact Python; the fast forms (`text/fast_tokenization`, `text/graph`) are tested against it.
"""

import unicodedata
from collections.abc import Mapping

from official_bert.text.tokenizer import Span, Tokenizer
from official_bert.text.vocab import load_vocab

UNKNOWN = "[UNK]"
MAX_WORD_LENGTH = 200  # characters; a longer word is one [UNK]

# 2018 `_is_chinese_char`: the blocks of CJK ideographs, which have no spaces between words.
CJK_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def is_whitespace(char: str) -> bool:
    """Returns whether `char` is a space, tab, newline, carriage return or space separator (2018 `_is_whitespace`)."""
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def is_control(char: str) -> bool:
    """Returns whether `char` is a control, a format such as the soft hyphen, or U+FFFD (2018 `_is_control`)."""
    return char not in "\t\n\r" and (unicodedata.category(char) in ("Cc", "Cf") or char == "\ufffd")


def is_punctuation(char: str) -> bool:
    """Returns whether `char` is Unicode punctuation or any printable ASCII symbol, such as $ and ~ (2018
    `_is_punctuation`).
    """
    return (
        "!" <= char <= "/"
        or ":" <= char <= "@"
        or "[" <= char <= "`"
        or "{" <= char <= "~"
        or unicodedata.category(char).startswith("P")
    )


def is_cjk(char: str) -> bool:
    """Returns whether `char` is a CJK ideograph (2018 `_is_chinese_char`); Hangul and kana are not."""
    code = ord(char)
    return code >= 0x3400 and any(first <= code <= last for first, last in CJK_RANGES)


class _CleanTable(dict):
    """For `str.translate`: deletes controls, makes whitespace a space, and sets CJK ideographs apart."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        self[code] = "" if is_control(char) else " " if is_whitespace(char) else f" {char} " if is_cjk(char) else char
        return self[code]


class _SplitTable(dict):
    """For `str.translate`: sets punctuation apart and, for lower-casing models, deletes accents."""

    def __init__(self, strip_accents: bool):
        super().__init__()
        self.strip_accents = strip_accents

    def __missing__(self, code: int) -> str:
        char = chr(code)
        accent = self.strip_accents and unicodedata.category(char) == "Mn"
        self[code] = "" if accent else f" {char} " if is_punctuation(char) else char
        return self[code]


class BasicTokenizer:
    """Splits text into words (2018 `BasicTokenizer`). Special tokens are split like other text: `[`, `mask`, `]`."""

    def __init__(self, do_lower_case: bool = True):
        self.do_lower_case = do_lower_case
        self._clean = _CleanTable()
        self._split = _SplitTable(do_lower_case)

    def tokenize(self, text: str) -> list[str]:
        """Returns the normalised words of `text`."""
        return self.normalise(text).split()

    def clean(self, text: str) -> str:
        """Deletes controls, makes all whitespace spaces, and puts spaces around CJK ideographs."""
        return text.translate(self._clean)

    def normalise(self, text: str) -> str:
        """Returns the normalised words of `text` with whitespace between them."""
        text = self.clean(text)
        if self.do_lower_case:
            text = unicodedata.normalize("NFD", text.lower())
        return text.translate(self._split)

    def tokenize_with_offsets(self, text: str) -> list[list[Span]]:
        """Returns the words of `text`, each as its normalised characters with their places in `text`.

        A character is (character, start, end). Deleted characters after it (accents, soft hyphens inside a word) count
        as part of it; those before or after the word do not.
        """
        words: list[list[Span]] = [[]]
        for char, start, end in self._normalised(text):
            if char.isspace():
                words.append([])
            elif self._split[ord(char)] == "":
                if words[-1]:  # an accent belongs to the character before it
                    base, base_start, base_end = words[-1][-1]
                    words[-1][-1] = (base, base_start, max(base_end, end))
            elif is_punctuation(char):
                words += [[(char, start, end)], []]
            else:
                words[-1].append((char, start, end))
        return [word for word in words if word]

    def _normalised(self, text: str) -> list[Span]:
        """Cleans, lower-cases and decomposes `text`; returns each character with its place in it."""
        chars = [(char, index, index + 1) for index, original in enumerate(text) for char in self.clean(original)]
        if not self.do_lower_case:
            return chars
        # Lower-casing a sigma looks at its neighbours, but the lengths depend on each character alone.
        lowered = iter("".join(char for char, _, _ in chars).lower())
        chars = [
            (char, start, end)
            for original, start, end in chars
            for _ in original.lower()
            for char in unicodedata.normalize("NFD", next(lowered))
        ]
        return _in_canonical_order(chars)


def _in_canonical_order(chars: list[Span]) -> list[Span]:
    """Sorts each run of combining characters by class, as NFD does in a whole text."""
    ordered: list[Span] = []
    run: list[Span] = []
    for item in chars:
        if unicodedata.combining(item[0]):
            run.append(item)
            continue
        ordered += sorted(run, key=lambda mark: unicodedata.combining(mark[0]))
        ordered.append(item)
        run = []
    return ordered + sorted(run, key=lambda mark: unicodedata.combining(mark[0]))


class FullTokenizer(Tokenizer):
    """Turns text into WordPieces and their ids (2018 `FullTokenizer`).

    `vocab`, if given, replaces the file's content and has its order. Raises ValueError for a vocabulary that cannot be
    used, see `load_vocab`.
    """

    kind = "wordpiece"

    def __init__(self, vocab_file: str, do_lower_case: bool = True, vocab: Mapping[str, int] | None = None):
        super().__init__(vocab_file, do_lower_case, load_vocab(vocab_file) if vocab is None else vocab)
        self.basic_tokenizer = BasicTokenizer(do_lower_case)
        self._longest = max(map(len, self.vocab))  # no piece of a word can be longer

    def _continues(self, token: str) -> bool:
        return token.startswith("##")

    def tokenize(self, text: str) -> list[str]:
        """Returns the WordPieces of `text`; pieces that continue a word begin with ##."""
        return [piece for word in self.basic_tokenizer.tokenize(text) for piece in self.split_word(word)]

    def tokenize_with_offsets(self, text: str) -> list[Span]:
        """Returns (token, start, end) for each token: `text[start:end]`, normalised, is the token without its ##.

        Offsets count code points of `text`, the end excluded. [UNK] spans the whole word, and accents belong to the
        character under them. If one character becomes several pieces (a decomposed Hangul syllable), each spans it.
        """
        tokens = []
        for word in self.basic_tokenizer.tokenize_with_offsets(text):
            first = 0
            for piece in self.split_word("".join(char for char, _, _ in word)):
                length = len(word) if piece == UNKNOWN else len(piece) - 2 * bool(first)
                spans = word[first : first + length]
                tokens.append((piece, min(start for _, start, _ in spans), max(end for _, _, end in spans)))
                first += length
        return tokens

    def split_word(self, word: str) -> list[str]:
        """Returns the WordPieces of one word: from the left, always the longest entry (2018 `WordpieceTokenizer`)."""
        if len(word) > MAX_WORD_LENGTH:
            return [UNKNOWN]
        pieces: list[str] = []
        start = 0
        while start < len(word):
            prefix = "##" if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                if (piece := prefix + word[start:end]) in self.vocab:
                    break
            else:
                return [UNKNOWN]
            pieces.append(piece)
            start = end
        return pieces
