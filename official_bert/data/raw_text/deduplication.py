"""Finds exact and near duplicates of paragraphs and documents in bounded memory.

Two documents are near duplicates if the sets of their words and word pairs (four characters at a time in scripts
without spaces) have at least the wanted Jaccard similarity. MinHash signatures (`datasketch`) estimate it. The
signatures are on disk; memory holds an index of 16 numbers per document, about 200 MB for a million documents.
"""

import dataclasses
import hashlib
import itertools
import math
import os
import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from official_bert.data.raw_text import scripts

PERMUTATIONS = 64
ROWS_OF_BAND = 4  # two documents are compared if four numbers of their signatures, in the same place, are equal
RECENT = 1 << 16  # entries in a Python dict before they become a sorted array
KINDS = ("paragraphs", "documents", "near")
HASH_PARTS, HASHES_AT_ONCE = 64, 1 << 16  # of lines


@dataclasses.dataclass
class Fingerprint:
    """The data by which a document's duplicates are found: hashes of its paragraphs and of its text, and its
    signature.
    """

    paragraphs: np.ndarray
    document: int
    signature: np.ndarray  # empty unless near duplicates are wanted


def hash_text(text: str) -> int:
    """Returns 64 bits of a text's BLAKE2 hash, the same in every process."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


class Fingerprinter:
    """Makes fingerprints of documents, with signatures if near duplicates are wanted."""

    def __init__(self, near: bool):
        self._near = near
        self._words = scripts.WordCounter()

    def __call__(self, paragraphs: list[list[str]]) -> Fingerprint:
        texts = [" ".join(sentences) for sentences in paragraphs]
        whole = "\n".join(texts)
        return Fingerprint(
            np.array([hash_text(text) for text in texts], np.uint64),
            hash_text(whole),
            self.signature(whole) if self._near else np.array([], np.uint32),
        )

    def signature(self, text: str) -> np.ndarray:
        """Returns the MinHash signature of a text: `PERMUTATIONS` numbers of 32 bits."""
        import datasketch  # imports SciPy, which takes a second; few runs need it

        counter = datasketch.MinHash(num_perm=PERMUTATIONS, seed=1, hashfunc=zlib.crc32)
        counter.update_batch([feature.encode("utf-8", "surrogatepass") for feature in sorted(self.features(text))])
        return counter.hashvalues.astype(np.uint32)

    def features(self, text: str) -> set[str]:
        """Returns the words of a text and pairs of neighbours; four characters at a time in scripts without spaces."""
        words = self._words.words(text.lower())
        if scripts.script_of(text) == "unspaced":
            letters = "".join(words)
            return {letters[start : start + 4] for start in range(max(1, len(letters) - 3))}
        return {*words, *(f"{first} {second}" for first, second in itertools.pairwise(words))}


class Index:
    """Maps 64-bit keys to entries, in sorted arrays that are merged as they grow."""

    def __init__(self) -> None:
        self._recent: dict[int, int] = {}
        self._levels: list[tuple[np.ndarray, np.ndarray]] = []

    def find(self, keys: np.ndarray) -> set[int]:
        """Returns the entries of those `keys` that were added."""
        candidates = {self._recent[key] for key in keys.tolist() if key in self._recent}
        return candidates.union(*(entries[is_known].tolist() for is_known, entries in self._found(keys)))

    def contains(self, keys: np.ndarray) -> np.ndarray:
        """Returns, for each of `keys`, whether it was added."""
        is_known = np.fromiter((key in self._recent for key in keys.tolist()), bool, len(keys))
        return np.any([is_known, *(level for level, _ in self._found(keys))], axis=0)

    def _found(self, keys: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields for each level which of `keys` it holds, and an entry for each key."""
        for level, entries in self._levels:
            places = np.minimum(np.searchsorted(level, keys), len(level) - 1)
            yield level[places] == keys, entries[places]

    def add(self, keys: np.ndarray, entry: int = 0) -> None:
        """Adds `keys` for an entry; a known key keeps its first entry."""
        for key in keys.tolist():
            self._recent.setdefault(key, entry)
        if len(self._recent) >= RECENT:
            order = np.argsort(fresh := np.fromiter(self._recent, np.uint64, len(self._recent)))
            level = fresh[order], np.fromiter(self._recent.values(), np.uint32, len(fresh))[order]
            self._recent = {}
            while self._levels and len(self._levels[-1][0]) <= 2 * len(level[0]):
                level = _merge(self._levels.pop(), level)
            self._levels.append(level)


def _merge(older: tuple[np.ndarray, np.ndarray], newer: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Returns two sorted levels as one, equal keys in the order of age; takes little more memory than the result."""
    places = np.searchsorted(older[0], newer[0], side="right")
    return np.insert(older[0], places, newer[0]), np.insert(older[1], places, newer[1])


class Deduplicator:
    """Finds duplicates among documents in their order. The same documents in the same order give the same answers.

    `kinds` are some of `KINDS`; `similarity` is the threshold of near duplicates. Estimates up to three standard errors
    below it count, so more than 95 of 100 pairs with exactly that similarity are found. Signatures are in `folder`.
    """

    def __init__(self, kinds: Iterable[str], folder: str, similarity: float = 0.8):
        self.kinds = frozenset(kinds)
        self._paragraphs, self._documents, self._bands = Index(), Index(), Index()
        self._least_equal = PERMUTATIONS * (similarity - 3 * math.sqrt(similarity * (1 - similarity) / PERMUTATIONS))
        self._path = os.path.join(folder, "signatures")
        self._count = 0

    def repeated_paragraphs(self, document: Fingerprint) -> list[bool]:
        """Returns for each paragraph whether it occurred before, in an earlier document or in this one."""
        if "paragraphs" not in self.kinds:
            return [False] * len(document.paragraphs)
        _, first = np.unique(document.paragraphs, return_index=True)
        repeated = self._paragraphs.contains(document.paragraphs)
        self._paragraphs.add(document.paragraphs[~repeated])
        is_repeated = np.ones(len(repeated), bool)
        is_repeated[first] = False  # repeated within the document
        return (repeated | is_repeated).tolist()

    def is_duplicate(self, document: Fingerprint) -> str:
        """Returns "exact" or "near" for a duplicate of an earlier document; remembers a new one and returns ""."""
        key = np.array([document.document], np.uint64)
        if "documents" in self.kinds:
            if self._documents.find(key):
                return "exact"
            self._documents.add(key)
        if "near" in self.kinds:
            keys = np.array(
                [
                    hash_text(f"{band}:{numbers.tobytes().hex()}")
                    for band, numbers in enumerate(document.signature.reshape(-1, ROWS_OF_BAND))
                ],
                np.uint64,
            )
            if any(
                np.count_nonzero(self._signature(entry) == document.signature) >= self._least_equal
                for entry in sorted(self._bands.find(keys))
            ):
                return "near"
            with open(self._path, "ab") as file:
                document.signature.tofile(file)
            self._bands.add(keys, self._count)
            self._count += 1
        return ""

    def _signature(self, entry: int) -> np.ndarray:
        """Returns the signature of an earlier document."""
        return np.fromfile(self._path, np.uint32, PERMUTATIONS, offset=4 * PERMUTATIONS * entry)


class LineCounter:
    """Counts exact duplicates of lines, with hashes on disk: memory does not grow with the corpus."""

    def __init__(self, folder: str):
        self.paths = [os.path.join(folder, f"hashes-{part}") for part in range(HASH_PARTS)]
        self.lines = 0
        self._waiting: list[int] = []

    def add(self, lines: list[str]) -> None:
        """Adds `lines`."""
        self.lines += len(lines)
        self._waiting.extend(map(hash, lines))
        if len(self._waiting) >= HASHES_AT_ONCE:
            self._write()

    def _write(self) -> None:
        """Adds the hashes that wait to the files."""
        hashes = np.array(self._waiting, np.int64).view(np.uint64)
        file_numbers = hashes % HASH_PARTS
        for part in np.unique(file_numbers):
            with open(self.paths[part], "ab") as file:
                hashes[file_numbers == part].tofile(file)
        self._waiting = []

    def duplicates(self) -> int:
        """Returns how many lines are copies of earlier ones."""
        self._write()
        return self.lines - sum(
            len(np.unique(np.fromfile(path, np.uint64))) for path in self.paths if os.path.exists(path)
        )
