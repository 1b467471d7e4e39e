"""Maps answers from characters to pieces of the passage, as training labels (2018 `_improve_answer_span`, or exact)."""

import dataclasses

import numpy as np

from official_bert.tasks.squad.reading import Alignment, SquadExample
from official_bert.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Pieces:
    """A passage in WordPieces, word by word. Offsets count code points of the context."""

    tokens: tuple[str, ...]
    ids: np.ndarray  # int32 [pieces]
    word: np.ndarray  # int32 [pieces], the word of each piece
    first: np.ndarray  # int32 [words + 1], the first piece of each word
    starts: np.ndarray  # int32 [pieces]
    ends: np.ndarray  # int32 [pieces]

    def covering(self, start: int, end: int) -> tuple[int, int]:
        """Returns the first and last piece of the shortest run that covers `context[start:end]`; first > last if there
        is none.
        """
        covered = np.flatnonzero((self.ends > start) & (self.starts < end))
        return (int(covered[0]), int(covered[-1])) if len(covered) else (0, -1)


@dataclasses.dataclass(frozen=True)
class Label:
    """The pieces of an answer, and how their text differs from the answer."""

    first: int
    last: int  # below `first`: the answer has no piece
    widened: bool = False  # the pieces show more of the passage than the answer
    moved: bool = False  # the pieces are not those at the answer's `answer_start`
    unlike_2018: bool = False


@dataclasses.dataclass
class LabelCounts:
    """Counts training answers whose label covers a different text."""

    answers: int = 0
    widened: int = 0
    moved: int = 0
    outside: int = 0  # longer than every window, or without a piece: trained on as questions without an answer
    unlike_2018: int = 0

    def add(self, label: Label, outside: bool) -> None:
        """Counts an answer."""
        self.answers += 1
        self.outside += outside
        for name in ("widened", "moved", "unlike_2018"):
            setattr(self, name, getattr(self, name) + getattr(label, name))

    def line(self, alignment: Alignment) -> str:
        """Returns a line about the labels, "" if each matches its answer exactly."""
        exact = alignment == "characters"
        which = "nearest" if exact else "first"
        counts = [
            (self.widened, "wider than the answer" + ("" if exact else ", up to all between two spaces")),
            (self.moved, f"not at answer_start but at the {which} occurrence of the answer"),
            (self.outside, "not complete in any window, trained as no answer"),
            (self.unlike_2018, "unlike those of options.answer_alignment=2018"),
        ]
        if not any(count for count, _ in counts):
            return ""
        hint = "; options.answer_alignment=characters labels the answer's own characters"
        remedy = "" if exact or not self.widened + self.moved else hint
        return (
            f"labels of {self.answers} answers: "
            f"{'; '.join(f'{count} {text}' for count, text in counts if count)}{remedy}"
        )


def answer_label(pieces: Pieces, example: SquadExample, tokenizer: Tokenizer, alignment: Alignment) -> Label:
    """Returns the label of a question's answer: the pieces that cover its characters or, with 2018's alignment, those
    of `answer_pieces`.
    """
    stated = pieces.covering(example.answer_start, example.answer_end)
    in_2018 = answer_pieces(pieces, example, tokenizer) if example.start_word >= 0 else (0, -1)
    first, last = stated if alignment == "characters" else in_2018
    if first > last:
        return Label(first, last)
    covers = stated[0] > stated[1] or first <= stated[0] <= stated[1] <= last
    wider = pieces.starts[first] < example.answer_start or pieces.ends[last] > example.answer_end
    return Label(first, last, bool(covers and wider), example.moved or not covers, (first, last) != in_2018)


def answer_pieces(pieces: Pieces, example: SquadExample, tokenizer: Tokenizer) -> tuple[int, int]:
    """Returns the first and last piece of an answer: the first span within its words that equals the answer, else all
    of its words (2018 `_improve_answer_span`). 1895 can be separated from "(1895-1943)", but Japan not from "Japanese".
    """
    first, last = int(pieces.first[example.start_word]), int(pieces.first[example.end_word + 1]) - 1
    # Tokens hold no spaces, so equal text between spaces is equal tokens; searching text takes linear time.
    within = f" {' '.join(pieces.tokens[first : last + 1])} "
    answer_tokens = tokenizer.tokenize(example.answer)
    place = within.find(f" {' '.join(answer_tokens)} ") if answer_tokens else -1
    if place < 0:
        return first, last
    start = first + within.count(" ", 0, place)
    return start, start + len(answer_tokens) - 1
