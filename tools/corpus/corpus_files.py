"""Writes the files of a corpus: documents in turn to several files, held out, or mixed by language."""

import array
import dataclasses
import json
import math
import os
from collections.abc import Iterator
from typing import TextIO

import numpy as np

from official_bert.data.pretraining.yield_report import YieldReport
from official_bert.data.raw_text import deduplication
from official_bert.tools.corpus import mixing
from official_bert.tools.corpus.cleaned_documents import Cleaned


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The shares of languages that --mix or --smoothing ask for. Raises ValueError if both are given."""

    mix: str
    smoothing: float | None

    def __post_init__(self) -> None:
        if self.mix and self.smoothing is not None:
            raise ValueError("--mix: expected no --smoothing with it")

    @property
    def is_asked(self) -> bool:
        """Whether documents are to be left out or repeated."""
        return bool(self.mix) or self.smoothing is not None

    def shares(self, sizes: dict[str, int]) -> dict[str, float]:
        """Returns the share of each language in the output, given the words of each in the input."""
        return (
            mixing.parse_mix(self.mix, list(sizes))
            if self.smoothing is None
            else mixing.smoothed_shares(sizes, self.smoothing)
        )


class HeldOutChoice:
    """Chooses a share of a corpus' documents: the first ones in the order of their hashes, at least one.

    Copies of a document have the same hash and stay together.
    """

    def __init__(self, share: float):
        self.share, self.report, self._hashes = share, YieldReport(), array.array("Q")

    def add(self, document: Cleaned) -> None:
        """Adds the hash of a document."""
        self._hashes.append(document.fingerprint.document)

    def finish(self) -> None:
        """Does nothing, because it writes no files."""

    @property
    def last(self) -> int:
        """The hash of the last document to hold out; -1 without documents."""
        hashes, count = np.array(self._hashes, np.uint64), max(1, round(self.share * len(self._hashes)))
        return int(np.partition(hashes, count - 1)[count - 1]) if len(hashes) else -1


class Writer:
    """Writes documents to the files in turn and counts them. For a mixture, it keeps them until the sizes are known."""

    def __init__(self, files: list[TextIO], choice: HeldOutChoice, folder: str, languages: list[str], mixture: Mixture):
        self.held_out = files[-1] if choice.share else None
        self.files = files[:-1] if choice.share else files
        self.report, self.mixture, self.choice, self.last_held_out = YieldReport(), mixture, choice, choice.last
        self.lines = deduplication.LineCounter(folder)
        self.written, self.number, self.number_held_out, self.holds_copies = 0, 0, 0, False
        self.sizes = dict.fromkeys(languages, 0)
        self.out = dict.fromkeys(languages, 0)
        self._waiting = (
            {language: os.path.join(folder, f"waiting-{language}") for language in languages}
            if mixture.is_asked
            else {}
        )

    def add(self, document: Cleaned) -> None:
        """Writes a document, or stores it for the mixture."""
        amounts, self.number = document.total(), self.number + 1
        sentences = [sentence for paragraph in document.paragraphs for sentence in paragraph]
        if self.held_out and document.fingerprint.document <= self.last_held_out:
            self.held_out.write("\n".join(sentences) + "\n\n")
            self.number_held_out += 1
            self.report.keep(**amounts)
            return
        self.sizes[document.language] += amounts["words"]
        if self._waiting:
            with open(self._waiting[document.language], "a", encoding="ascii") as file:
                file.write(json.dumps([sentences, amounts]) + "\n")
        else:
            self._write(sentences, amounts, document.language, 1)

    def _write(self, sentences: list[str], amounts: dict[str, int], language: str, copies: int) -> None:
        """Writes copies of a document, each to another file."""
        for _ in range(copies):
            self.files[self.written % len(self.files)].write("\n".join(sentences) + "\n\n")
            self.written += 1
        for unit in amounts:
            self.report.keep(**{unit: amounts[unit] * copies})
        self.out[language] += amounts["words"] * copies
        if copies:
            self.lines.add(sentences)

    def finish(self) -> None:
        """Writes the mixture. Raises ValueError if a document has more copies than there are files."""
        if not self._waiting:
            return
        factors = mixing.copy_factors(self.sizes, self.mixture.shares(self.sizes))
        if max(factors.values(), default=0) > len(self.files):
            most = max(factors, key=lambda name: factors[name])
            raise ValueError(
                f"--output_file: expected at least {math.ceil(factors[most])} files (name@"
                f"{math.ceil(factors[most])}), because a document of {most} has up to that many copies, each in "
                f"another file, got {len(self.files)}"
            )
        for language, factor in factors.items():
            for number, (sentences, amounts) in enumerate(_read_waiting(self._waiting[language])):
                copies = mixing.copies(factor, language, number)
                if copies > 1:
                    self.holds_copies = True
                    self.report.repeat(
                        "copies of documents (--mix, --smoothing)",
                        sentences[0],
                        **{unit: (copies - 1) * amount for unit, amount in amounts.items()},
                    )
                if not copies:
                    self.report.drop("documents left out (--mix, --smoothing)", sentences[0], expected=True, **amounts)
                self._write(sentences, amounts, language, copies)

    def check(self, input_file: str, count: int, shortest: int) -> int:
        """Returns the number of repeated lines.

        Raises ValueError if no document was written, or if all were held out.
        """
        if self.number and self.number_held_out == self.number:
            raise ValueError(
                f"--held_out={self.choice.share:g}: expected at least two different documents, so that one is kept, "
                f"got {self.number}, all held out"
            )
        if not self.written:
            raise ValueError(
                f"{input_file}: no document with {shortest} sentences of running text in {count} files "
                f"({self.report.balance('documents')['dropped']} dropped); see --shortest_document, --keep_everything "
                "and --format"
            )
        return self.lines.duplicates()

    def shares(self) -> dict[str, dict[str, float]]:
        """Returns the words and the share of each language in the input and in the output."""
        return {
            name: {
                "words_in": size,
                "share_in": round(size / max(1, sum(self.sizes.values())), 4),
                "words_out": self.out[name],
                "share_out": round(self.out[name] / max(1, sum(self.out.values())), 4),
            }
            for name, size in self.sizes.items()
        }


def _read_waiting(path: str) -> Iterator:
    """Yields the sentences and amounts of the documents in a file of this process, one per line."""
    with open(path, encoding="ascii") as file:
        yield from map(json.loads, file)
