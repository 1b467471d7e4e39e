"""Splits paragraphs into sentences with the `sentencex` library, and limits their length for any text.

The library never ends a sentence inside quotation marks or brackets. So a single stray mark merges hundreds of
sentences, up to the next mark of its kind, and reverses the roles of all later marks. For this reason the library sees
only marks that open and close a short span, and a sentence that is still too long is split at the best place in reach.
"""

import re
from collections.abc import Iterator

import sentencex

from official_bert.data.raw_text import languages, scripts

BLOCK = 5_000  # characters shown to the library at once: in longer texts it misses sentence ends
LONGEST_QUOTE = 300  # characters of a quotation or bracket that is not split
MARKS_WITHIN = 20  # the most other marks inside it
# characters: in a longer one each full stop ends a sentence, without the library's exceptions
SUSPICIOUS_SENTENCE = 500

# Marks that can open a span, each with its closing marks.
_CLOSERS = {
    '"': '"',
    "“": "”",
    "„": "“”",
    "‟": "”",
    "«": "»",
    "»": "«",
    "‹": "›",
    "‘": "’",
    "‚": "‘’",
    "'": "'",
    "`": "'`",
    "「": "」",
    "『": "』",
    "《": "》",
    "(": ")",
    "（": "）",
    "[": "]",
    "{": "}",
    "<": ">",
}
_ALWAYS_CLOSE = "”»›’」』》)）]}>"
_MARK = re.compile(r"[\"“”„‟«»‹›‚「」『』《》()（）\[\]{}<>'‘’`]")
_APOSTROPHES = "'’"  # inside a word these are no marks, and the library knows it
_STRAIGHT = "\"'`"
_BEFORE_OPENING = " ([{—–-“‘'\"„«"
_STOP = "!?.…։؟۔।॥။።፧᙮᱾꯫‼‽⁇⁈⁉．。！？｡"
_CLOSING = r"[\"'”’»›)\]}」』》）]*"
# Places to split at, best first: after a full stop, a semicolon, a comma, a space.
_FULL_STOP = re.compile(rf"(?:(?<=\w\w)\.|[{_STOP.replace('.', '')}])[{_STOP}]*{_CLOSING}\s+|[。！？｡]{_CLOSING}\s*")
_PLACES = (
    _FULL_STOP,
    re.compile(r"[;:؛]\s+|[；：།༎]\s*"),
    re.compile(r"[,،၊]\s+|[、，]\s*|\s[–—-]+\s"),
    re.compile(r"\s+"),
)


def split_sentences(paragraph: str, language: str = "en") -> list[str]:
    """Returns the sentences of a paragraph in order, with single spaces; together they are the whole paragraph.

    Sentences end by the rules of `language` (a Wikipedia code) and have at most `scripts.longest_sentence` characters.
    Raises ValueError for an unknown language.
    """
    text = " ".join(paragraph.split())
    pieces = _split_blocks(text, languages.splitting_rule(language))
    return [
        sentence
        for piece in pieces
        for part in _split_suspicious(piece)
        for cut in _split_long(part)
        if (sentence := cut.strip())
    ]


def _split_blocks(text: str, rule: str) -> Iterator[str]:
    """Gives the library's sentences of a text of any length, block by block; the last sentence of a block begins the
    next block.
    """
    start = 0
    while len(text) - start > BLOCK:
        *sentences, _ = _split_by_library(text[start : start + BLOCK], rule)
        for sentence in sentences or [text[start : start + BLOCK]]:
            yield sentence
            start += len(sentence)
    if start < len(text):
        yield from _split_by_library(text[start:], rule)


def _split_by_library(text: str, rule: str) -> Iterator[str]:
    """Gives the library's sentences, after hiding the marks that open or close nothing."""
    hidden = _unpaired_marks(text)
    shown = text
    if hidden:
        characters = list(text)
        for position in hidden:
            characters[position] = " "
        shown = "".join(characters)
    start = end = 0
    for sentence in sentencex.segment(rule, shown):
        end += len(sentence)
        cut = _move_behind_closers(text, start, end, hidden) if hidden else end
        if cut > start:
            yield text[start:cut]
            start = cut
    if start < len(text):
        yield text[start:]


def _unpaired_marks(text: str) -> set[int]:
    """Returns the positions of quotation marks and brackets, except pairs around a short outermost span."""
    marks = [match.start() for match in _MARK.finditer(text) if not _is_apostrophe(text, match.start())]
    paired: set[int] = set()
    covered = -1  # the end of the last span: marks inside of it would end it too soon if the library saw them
    for index, position in enumerate(marks):
        if position <= covered or not _opens(text, position):
            continue
        closers = _CLOSERS[text[position]]
        kind = closers + text[position]
        partner = next((other for other in marks[index + 1 : index + MARKS_WITHIN] if text[other] in kind), None)
        if (
            partner is not None
            and partner - position <= LONGEST_QUOTE
            and text[partner] in closers
            and _closes(text, partner)
        ):
            paired.update((position, partner))
            covered = partner
    return set(marks) - paired


def _is_apostrophe(text: str, position: int) -> bool:
    """Tells whether the mark at `position` is inside a word."""
    return (
        text[position] in _APOSTROPHES
        and text[position - 1 : position].isalnum()
        and text[position + 1 : position + 2].isalnum()
    )


def _opens(text: str, position: int) -> bool:
    """Tells if the mark at `position` can open a span; a straight one can after a space or mark and before a word."""
    mark, before, after = text[position], text[position - 1 : position], text[position + 1 : position + 2]
    if mark not in _CLOSERS or not after:
        return False
    return mark not in _STRAIGHT + "»" or (not after.isspace() and (not before or before in _BEFORE_OPENING))


def _closes(text: str, position: int) -> bool:
    """Tells whether the mark at `position` can close a span; a straight one can after a word or mark, not before a
    word.
    """
    return text[position] not in _STRAIGHT or not (
        text[position - 1].isspace() or text[position + 1 : position + 2].isalnum()
    )


def _move_behind_closers(text: str, start: int, end: int, hidden: set[int]) -> int:
    """Returns where to cut near `end` so that hidden closing marks stay with their sentence and opening ones do not."""
    gap = end
    while gap > start and (text[gap - 1].isspace() or gap - 1 in hidden):
        gap -= 1
    cut = gap
    for position in range(gap, end):
        if position in hidden:
            if text[position] not in _ALWAYS_CLOSE and (text[position] not in "\"'`“" or text[position - 1].isspace()):
                return cut
            cut = position + 1
    return end


def _split_suspicious(sentence: str) -> list[str]:
    """Returns a sentence as it is, or split after each full stop if it is so long that the library may have missed
    some.
    """
    if len(sentence) <= SUSPICIOUS_SENTENCE:
        return [sentence]
    ends = [match.end() for match in _FULL_STOP.finditer(sentence)]
    return [sentence[start:end] for start, end in zip([0, *ends], [*ends, len(sentence)])]


def _split_long(sentence: str) -> Iterator[str]:
    """Gives parts of a sentence that are no longer than its script allows, split at the best place in reach."""
    start = 0
    if len(sentence) > scripts.LONGEST_UNMARKED:  # the smallest limit
        longest = scripts.longest_sentence(sentence)
        while len(sentence) - start > longest:
            end = _best_place(sentence, start, longest)
            yield sentence[start:end]
            start = end
    yield sentence[start:]


def _best_place(sentence: str, start: int, longest: int) -> int:
    """Returns the last place of the best kind after a third of `longest`; between two letters if there is none."""
    for places in _PLACES:
        ends = [match.end() for match in places.finditer(sentence, start + longest // 3, start + longest)]
        if ends:
            return ends[-1]
    return start + longest
