"""Measures what lower-casing loses: the accents that 2018's tokenizer deletes, and words that become identical.

The tokenizer of an uncased model decomposes lower-cased text and deletes its marks (2018 `_run_strip_accents`): bán,
bàn and bạn become ban, й becomes и, and a Thai word keeps only its consonants. Marks are counted after decomposition,
so that composed (NFC) and decomposed (NFD) text give the same counts.
"""

import collections
import itertools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from official_bert.storage.files import open_bytes
from official_bert.text.tokenization import BasicTokenizer, FullTokenizer
from official_bert.text.tokenizer import Tokenizer
from official_bert.text.vocab import casing_that_helps

KEPT, MARKS, CONTROLS = "kept", "accents and vowel signs that lower-casing deletes", "control characters"
MOST_MERGED = 0.001  # a larger share of the words that become another word is told; English has 0.0004, Russian 0.002
MOST_DELETED = 0.05  # a larger share of the characters too
EXAMPLES, SHOWN = 3, 5  # groups, and words of each
TEXTS_LOOKED_AT = 5000
FILES_LOOKED_AT, BYTES_LOOKED_AT = 32, 1 << 18


class _Kinds(dict):
    """By character: whether it is kept (0 or 1), how many marks its decomposition has, whether it is a control."""

    def __missing__(self, char: str) -> tuple[int, int, int]:
        category = unicodedata.category(char)
        control = category in ("Cf", "Cc") or char == "\ufffd"
        marks = sum(unicodedata.category(part) == "Mn" for part in unicodedata.normalize("NFD", char))
        self[char] = (int(category != "Mn" and not control), marks, int(control))
        return self[char]


_KINDS = _Kinds()
_KEEPS_ACCENTS, _DELETES_ACCENTS = BasicTokenizer(do_lower_case=False), BasicTokenizer(do_lower_case=True)


def count_characters(lines: Iterable[str], do_lower_case: bool = True) -> collections.Counter:
    """Returns how many characters of `lines`, white space apart, the tokenizer keeps (`KEPT`) and deletes (`MARKS`,
    `CONTROLS`): é counts as a letter and a mark, in either form.
    """
    totals: collections.Counter = collections.Counter()
    others = []
    for line in map(str.strip, lines):
        if line.isascii() and line.isprintable():  # most lines of English: nothing to look up
            totals[KEPT] += len(line) - line.count(" ")
        else:
            others.append(line)
    for char, count in collections.Counter("".join("".join(others).split())).items():
        kept, marks, control = _KINDS[char]
        totals[KEPT] += (kept if do_lower_case else 1 - control) * count
        totals[MARKS] += (marks if do_lower_case else 0) * count
        totals[CONTROLS] += control * count
    return totals


def count_chunks(lines: Iterable[str]) -> collections.Counter:
    """Counts the chunks of text between spaces, so that each distinct chunk is split into words only once.

    This is exact because no step of the tokenizer looks beyond a space.
    """
    return collections.Counter(itertools.chain.from_iterable(line.split(" ") for line in lines))


def count_words(chunks: Mapping[str, int], tokenizer: BasicTokenizer) -> collections.Counter:
    """Counts the words of the chunks."""
    counts: collections.Counter = collections.Counter()
    for chunk, count in chunks.items():
        for word in tokenizer.tokenize(chunk):
            counts[word] += count
    return counts


def count_accented(chunks: Mapping[str, int]) -> collections.Counter:
    """Counts the words that lose an accent: lower-cased, in NFC, with their accents."""
    counts: collections.Counter = collections.Counter()
    for chunk, count in chunks.items():
        if not chunk.isascii():
            for word in _KEEPS_ACCENTS.tokenize(unicodedata.normalize("NFC", chunk.lower())):
                if any(_KINDS[char][1] for char in word):
                    counts[word] += count
    return counts


def describe_loss(accented: Mapping[str, int], counts: Mapping[str, int], deleted: float) -> str:
    """Returns a warning about the distinct words that lower-casing merges, or about the characters that it deletes; ""
    if it loses little.

    `accented` counts a text's words with accents, `counts` all its words without them; `deleted` is the share of
    deleted characters. In each group of merged words, all but the most frequent are lost.
    """
    groups: dict[str, collections.Counter] = collections.defaultdict(collections.Counter)
    for word, count in accented.items():
        for bare in _DELETES_ACCENTS.tokenize(word)[:1]:
            groups[bare][word] = count
    lost: collections.Counter = collections.Counter()
    for bare, group in groups.items():
        if plain := max(0, counts.get(bare, 0) - group.total()):
            group[bare] = plain
        if len(group) > 1:
            lost[bare] = group.total() - max(group.values())
    if lost.total() > MOST_MERGED * sum(counts.values()):
        worst = [
            f"{', '.join(word for word, _ in groups[bare].most_common(SHOWN))} -> {bare}"
            for bare, _ in lost.most_common(EXAMPLES)
        ]
        return (
            f"lower-casing deletes accents and makes {sum(len(groups[bare]) for bare in lost):,} different words the "
            f"same as others: {lost.total() / sum(counts.values()):.1%} of the words become another "
            f"({'; '.join(worst)})"
        )
    return f"lower-casing deletes {deleted:.1%} of the text's characters: accents and vowel signs" * (
        deleted > MOST_DELETED
    )


def what_lower_casing_loses(lines: Iterable[str]) -> str:
    """Returns the warning of `describe_loss` for `lines`."""
    lines = list(lines)
    characters, chunks = count_characters(lines), count_chunks(lines)
    words = count_words(chunks, _DELETES_ACCENTS)
    return describe_loss(count_accented(chunks), words, characters[MARKS] / max(1, characters.total()))


def casing_warnings(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Returns a one-line warning if `tokenizer` lower-cases and thereby loses much of the first texts, else []."""
    if not (isinstance(tokenizer, FullTokenizer) and tokenizer.do_lower_case):
        return []
    loss = what_lower_casing_loses(itertools.islice(texts, TEXTS_LOOKED_AT))
    hint = casing_that_helps(tokenizer.vocab, True) or "a cased checkpoint keeps them"
    return [f"{loss}; {hint}"] if loss else []


def beginnings(paths: Sequence[str]) -> list[str]:
    """Returns the lines at the beginnings of the first files."""
    lines: list[str] = []
    for path in paths[:FILES_LOOKED_AT]:
        with open_bytes(path) as file:
            lines += file.read(BYTES_LOOKED_AT).decode("utf-8", "replace").splitlines()
    return lines
