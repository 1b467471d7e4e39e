"""What lower-casing loses: the accents that 2018's tokenizer deletes, and the different words that become the same.

The tokenizer of an uncased model decomposes lower-cased text and deletes its marks (2018 `_run_strip_accents`): of bán,
bàn and bạn it leaves ban, of й it leaves и, of a Thai word the consonants. Marks are counted after decomposition, so
that composed (NFC) and decomposed (NFD) text give the same counts.
"""

import collections
import dataclasses
import itertools
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from official_bert.storage.files import open_bytes
from official_bert.text.tokenization import BasicTokenizer, FullTokenizer
from official_bert.text.tokenizer import Tokenizer
from official_bert.text.vocab import CASED_SHARE, has_capitals

KEPT, MARKS, CONTROLS = "kept", "accents and vowel signs that lower-casing deletes", "control characters"
MOST_MERGED = 0.001  # a larger share of the words that become another word is told; English has 0.0004, Russian 0.002
MOST_DELETED = 0.05  # a larger share of the characters too
EXAMPLES, SHOWN = 3, 5  # groups, and words of each
TEXTS_LOOKED_AT = 5000
FILES_LOOKED_AT, BYTES_LOOKED_AT = 32, 1 << 18
KEEPING = "--do_lower_case=False"


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
    for line in lines:
        squeezed = "".join(line.split())
        if squeezed.isascii():
            totals[KEPT] += len(squeezed)
            continue
        for char, count in collections.Counter(squeezed).items():
            kept, marks, control = _KINDS[char]
            if do_lower_case:
                totals[MARKS] += marks * count
            elif not (kept or control):
                kept = 1
            totals[KEPT] += kept * count
            totals[CONTROLS] += control * count
    return totals


def count_chunks(lines: Iterable[str]) -> collections.Counter:
    """Counts what stands between spaces: each different chunk is then split into words once.

    No step of the tokenizer looks beyond a space.
    """
    return collections.Counter(itertools.chain.from_iterable(line.split(" ") for line in lines))


def count_accented(chunks: Mapping[str, int]) -> collections.Counter:
    """Counts the words that lose an accent: lower-cased, in NFC, with their accents."""
    counts: collections.Counter = collections.Counter()
    for chunk, count in chunks.items():
        if not chunk.isascii():
            for word in _KEEPS_ACCENTS.tokenize(unicodedata.normalize("NFC", chunk.lower())):
                if not word.isascii() and any(_KINDS[char][1] for char in word):
                    counts[word] += count
    return counts


@dataclasses.dataclass(frozen=True)
class Merged:
    """Words that lower-casing makes the same as others; all but the most frequent of a group count as lost."""

    different: int  # words in such groups
    share: float  # of the words of the text that are lost
    examples: Sequence[str]  # the groups that lose the most: `bạn, bán, bàn -> ban`

    def describe(self, deleted: float) -> str:
        """Says what is lost, also by the share of the characters that are `deleted`; "" if it is little."""
        if self.share > MOST_MERGED:
            return (
                f"lower-casing deletes accents and makes {self.different:,} different words the same as others: "
                f"{self.share:.1%} of the words become another ({'; '.join(self.examples)})"
            )
        if deleted > MOST_DELETED:
            return f"lower-casing deletes {deleted:.1%} of the text's characters: accents and vowel signs"
        return ""


def merged(accented: Mapping[str, int], counts: Mapping[str, int]) -> Merged:
    """Returns what becomes of the `accented` words of a text; `counts` has all its words without accents."""
    groups: dict[str, dict[str, int]] = collections.defaultdict(dict)
    for word, count in accented.items():
        for bare in _DELETES_ACCENTS.tokenize(word)[:1]:
            groups[bare][word] = count
    lost: dict[str, int] = {}
    for bare, group in groups.items():
        if (plain := counts.get(bare, 0) - sum(group.values())) > 0:
            group[bare] = plain
        if len(group) > 1:
            lost[bare] = sum(group.values()) - max(group.values())
    worst = sorted(lost, key=lambda bare: (-lost[bare], bare))[:EXAMPLES]
    ranked = (sorted(groups[bare], key=lambda word, bare=bare: (-groups[bare][word], word)) for bare in worst)
    return Merged(
        sum(len(groups[bare]) for bare in lost),
        sum(lost.values()) / max(1, sum(counts.values())),
        [f"{', '.join(words[:SHOWN])} -> {bare}" for words, bare in zip(ranked, worst)],
    )


def what_lower_casing_loses(lines: Iterable[str]) -> str:
    """Says that lower-casing makes many words of `lines` the same, or deletes many characters; "" if it does not."""
    lines = list(lines)
    characters, chunks = count_characters(lines), count_chunks(lines)
    if not characters[MARKS]:
        return ""
    counts: collections.Counter = collections.Counter()
    for chunk, count in chunks.items():
        for word in _DELETES_ACCENTS.tokenize(chunk):
            counts[word] += count
    return merged(count_accented(chunks), counts).describe(characters[MARKS] / characters.total())


def casing_warnings(tokenizer: Tokenizer, texts: Iterable[str]) -> list[str]:
    """Returns a warning if `tokenizer` lower-cases and that loses much of the first texts, else []."""
    if not (isinstance(tokenizer, FullTokenizer) and tokenizer.do_lower_case):
        return []
    loss = what_lower_casing_loses(itertools.islice(texts, TEXTS_LOOKED_AT))
    hint = casing_that_helps(tokenizer.vocab, True) or "a cased checkpoint keeps them"
    return [f"warning: {loss}; {hint}"] if loss else []


def casing_that_helps(entries: Iterable[str], do_lower_case: bool) -> str:
    """Says which casing suits a vocabulary better than `do_lower_case`; "" if none does."""
    entries = list(entries)
    if do_lower_case and has_accents(entries):
        return f"the vocabulary has accents, and {KEEPING} keeps those of the text"
    if not do_lower_case and not has_capitals(entries):
        return (
            "the vocabulary has no capital letters, and --do_lower_case=False keeps those of the text; "
            "--do_lower_case=True helps"
        )
    return ""


def beginnings(paths: Sequence[str]) -> list[str]:
    """Returns the lines at the beginnings of the first files."""
    lines: list[str] = []
    for path in paths[:FILES_LOOKED_AT]:
        with open_bytes(path) as file:
            lines += file.read(BYTES_LOOKED_AT).decode("utf-8", "replace").splitlines()
    return lines


def has_accents(entries: Iterable[str]) -> bool:
    """Tells whether more than 1 % of a vocabulary's entries have accents, which lower-cased text never has."""
    entries = list(entries)
    accented = sum(any(_KINDS[char][1] for char in entry) for entry in entries if not entry.isascii())
    return accented > CASED_SHARE * len(entries)
