"""Questions with answers in a passage, from files in the SQuAD format (2018 `run_squad.py`, `read_squad_examples`)."""

import bisect
import dataclasses
import re
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from typing import Any, Literal

import numpy as np

from official_bert.data.rows import Rows, Source, place
from official_bert.data.tabular.tables import rows_of

SeveralAnswers = Literal["refuse", "first", "all"]
# of answers and pieces: exact, or that of 2018, which sees words between spaces
Alignment = Literal["characters", 2018]
WORD = re.compile("[^ \t\r\n\u202f]+")  # what stands between spaces, as in 2018


@dataclasses.dataclass(frozen=True)
class Passage:
    """A context and its words."""

    context: str
    words: tuple[str, ...]
    word_starts: tuple[int, ...]  # code points


@dataclasses.dataclass(frozen=True)
class SquadExample:
    """A question about a passage; for training, with the answer's first and last word (-1: none), and characters."""

    qas_id: str
    question: str
    passage: Passage
    answer: str = ""
    start_word: int = -1
    end_word: int = -1
    answer_start: int = 0  # code points of the context
    answer_end: int = 0
    moved: bool = False  # the answer lies there, but not at its `answer_start`
    is_impossible: bool = False


@dataclasses.dataclass(frozen=True)
class SquadFile:
    """A file's examples, its articles as the official evaluators take them, and the examples skipped in training."""

    source: Source
    examples: tuple[SquadExample, ...]
    articles: list[dict]
    unfound: tuple[str, ...]  # a line for each answer that is not in its context
    skipped: int  # questions without another answer

    def rows(self, keep: np.ndarray) -> "SquadFile":
        """Returns the file with only some of the questions, by their numbers in the articles."""
        ids = self._ids(keep)
        return dataclasses.replace(
            self,
            articles=only(self.articles, ids),
            examples=tuple(example for example in self.examples if example.qas_id in ids),
        )

    def rows_to_evaluate(self, keep: np.ndarray) -> "SquadFile":
        """Returns some of the questions, by their numbers, in the form of an evaluation file: only the articles hold
        the answers.
        """
        articles = only(self.articles, self._ids(keep))
        return dataclasses.replace(
            self,
            articles=articles,
            examples=tuple(
                SquadExample(row["id"], row["question"], passage)
                for _, passage, row in _questions(self.source, articles)
            ),
        )

    def _ids(self, numbers: np.ndarray) -> Set[str]:
        ids = [row["id"] for _, _, row in questions_in(self.articles)]
        return {ids[number] for number in numbers}

    def described(self) -> str:
        """Returns a line about the training rows."""
        without = sum(example.is_impossible for example in self.examples)
        return (
            f"training rows: {len(self.examples)}, questions with an answer {len(self.examples) - without}, "
            f"without {without}"
        )

    def warning(self) -> str:
        """Returns a line about skipped examples, with the first three; "" if there are none."""
        if not self.unfound:
            return ""
        account = f"{self.skipped} questions skipped, whose answer is not in the context: "
        if self.skipped != len(self.unfound):  # of several answers
            account = (
                f"{len(self.unfound)} answers skipped, which are not in the context, and with them "
                f"{self.skipped} questions: "
            )
        return f"{self.source}: {account}" + "; ".join(self.unfound[:3]) + ("; ..." if len(self.unfound) > 3 else "")


def split_words(context: str) -> Passage:
    """Splits a context into words at spaces, tabs, line ends and U+202F only."""
    words = list(WORD.finditer(context))
    return Passage(context, tuple(word.group() for word in words), tuple(word.start() for word in words))


def read_squad(
    path: Source,
    training: bool = False,
    version_2: bool = False,
    several: SeveralAnswers = "refuse",
    alignment: Alignment = 2018,
    encoding: str = "",
) -> SquadFile:
    """Reads the examples of a file in SQuAD's JSON, in UTF-8 unless `encoding` says otherwise, or of rows of a question
    each.

    Rows are in memory, in JSON lines, in Parquet, or in a JSON list, which may stand under `data`. A row has
    `question`, `context` and `answers`, `{"text": [...], "answer_start": [...]}` as in the `datasets` library or a list
    as in SQuAD's files; `id` is filled in if it is missing, and so is `is_impossible` beside `answers`. Rows of a test
    set have no answers.

    With `training`, as in 2018, a question needs exactly one answer (none if `version_2` and `is_impossible`), and
    questions whose answer is not at its stated place, up to spaces, are skipped; with the alignment of 2018, spaces are
    those between words alone. With `several` answers, `first` trains on the first one, `all` on each different one, as
    an example of its own.

    Raises ValueError, naming the file and the place in it, for invalid JSON, a missing key, a duplicate id, answers of
    another form, or several answers in training.
    """
    path, articles = _load(path, encoding)
    examples: list[SquadExample] = []
    unfound: list[str] = []
    skipped = 0
    places: dict[str, str] = {}  # by id: answers are files of one answer an id
    for where, passage, row in _questions(path, articles):
        question = _get(row, "question", str, where)
        _complete(row)
        qas_id = _get(row, "id", str, where)
        if qas_id in places:
            raise ValueError(
                f"{where}: id {qas_id!r} is that of {places[qas_id]} too; expected an id for each question"
            )
        places[qas_id] = where
        if "answers" in row and not training:
            _check_gold(row, where)
        example = SquadExample(qas_id, question, passage)
        answered = _with_answers(example, row, where, version_2, several, alignment) if training else [example]
        wrong = [
            answer
            for answer in answered
            if training and not answer.is_impossible and not _is_labelled(answer, alignment)
        ]
        unfound += [f"{qas_id} ({answer.answer!r})" for answer in wrong]
        skipped += len(wrong) == len(answered)
        examples += [answer for answer in answered if answer not in wrong]
    if not examples:
        raise ValueError(f"{path}: no question in this file" + (", all were skipped" if unfound else ""))
    return SquadFile(path, tuple(examples), articles, tuple(unfound), skipped)


def questions_in(articles: Sequence[Mapping]) -> Iterator[tuple[Mapping, Mapping, Mapping]]:
    """Yields (article, paragraph, question) of every question, in order."""
    for article in articles:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                yield article, paragraph, row


def only(articles: Sequence[Mapping], ids: Container[str]) -> list[dict]:
    """Returns articles with the questions of these ids alone."""
    return [
        {
            **article,
            "paragraphs": [
                {**paragraph, "qas": [row for row in paragraph["qas"] if row["id"] in ids]}
                for paragraph in article["paragraphs"]
            ],
        }
        for article in articles
    ]


def units_of(articles: Sequence[Mapping], least: int) -> tuple[list[str], str]:
    """Returns the article of each question, in order, by its title or else its first passage; and "articles".

    If there are fewer than `least` articles, returns the passage of each question, and "passages".
    """
    titles = [article.get("title") or article["paragraphs"][0]["context"] for article, _, _ in questions_in(articles)]
    if len(set(titles)) >= least:
        return titles, "articles"
    return [paragraph["context"] for _, paragraph, _ in questions_in(articles)], "passages"


def _load(source: Source, encoding: str) -> tuple[Source, list[dict]]:
    """Returns the articles of a source, and it as messages name its places: a row is an article of one question."""
    rows = rows_of(source, encoding, always=True)  # whatever the file's name
    assert isinstance(rows, Rows)
    if isinstance(source, str) and any("paragraphs" in row for row in rows.values):
        return source, [dict(row) for row in rows.values]
    places = [place(rows, number) for number in range(len(rows.values))]
    return rows, [
        {
            "title": row.get("title"),
            "paragraphs": [{"context": _get(row, "context", str, where), "qas": [_question(row, number, where)]}],
        }
        for number, (row, where) in enumerate(zip(rows.values, places))
    ]


def _question(row: Mapping, number: int, where: str) -> dict:
    """Converts a row to a question of SQuAD's files, whose checks follow."""
    answers = _plain(row.get("answers"))
    if isinstance(answers, Mapping):
        texts, starts = (_plain(answers.get(key)) for key in ("text", "answer_start"))
        if not (_all_are(str, texts) and _all_are(int, starts) and len(texts) == len(starts)):
            raise ValueError(
                f"{where}.answers: expected lists of equal length, text with texts and answer_start with whole "
                f"numbers, got {str(answers)[:100]}"
            )
        answers = [{"text": text, "answer_start": start} for text, start in zip(texts, starts)]
    impossible = {} if answers is None else {"is_impossible": answers == []}
    return {"id": str(number), **impossible, **row, "answers": answers}


def _plain(values: Any) -> Any:
    """Returns an array or a tuple, as rows in memory have them, as a list; anything else unchanged."""
    return values.tolist() if isinstance(values, np.ndarray) else list(values) if isinstance(values, tuple) else values


def _all_are(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _complete(question: dict) -> None:
    """Makes the id a string, as in prediction files, removes answers that are null, and gives an impossible question
    the answers [].
    """
    if type(question.get("id")) is int:
        question["id"] = str(question["id"])
    if question.get("answers") is None:
        question.pop("answers", None)
    if question.get("is_impossible") is True:
        question.setdefault("answers", [])


def _check_gold(question: Mapping, where: str) -> None:
    """Raises ValueError unless the answers to evaluate against are objects with texts; their places do not count."""
    for number, answer in enumerate(_get(question, "answers", list, where)):
        _get(answer, "text", str, f"{where}.answers[{number}]")


def _get(values: Any, key: str, kind: type, where: str) -> Any:
    """Returns values[key]. Raises ValueError if it is missing or of another kind."""
    if not isinstance(values, Mapping):
        raise ValueError(f"{where}: expected an object with {key!r}, got {str(values)[:60]!r}")
    if key not in values:
        raise ValueError(f"{where}: {key!r} is missing; it has {sorted(values)}")
    if type(values[key]) is not kind:
        raise ValueError(
            f"{where}.{key}: expected {kind.__name__}, got {str(values[key])[:60]!r} ({type(values[key]).__name__})"
        )
    return values[key]


def _questions(source: Source, articles: Sequence[Any]) -> Iterator[tuple[str, Passage, Any]]:
    """Yields (place in the source, passage, question) of every question."""
    for number, article in enumerate(articles):
        for index, paragraph in enumerate(_get(article, "paragraphs", list, f"{source}: data[{number}]")):
            where = (
                place(source, number) if isinstance(source, Rows) else f"{source}: data[{number}].paragraphs[{index}]"
            )
            passage = split_words(_get(paragraph, "context", str, where))
            for position, question in enumerate(_get(paragraph, "qas", list, where)):
                yield where if isinstance(source, Rows) else f"{where}.qas[{position}]", passage, question


def _with_answers(
    example: SquadExample, row: Mapping, where: str, version_2: bool, several: SeveralAnswers, alignment: Alignment
) -> list[SquadExample]:
    """Returns the example with its answer, or once for each one that gets another label."""
    if version_2 and "answers" in row and _get(row, "is_impossible", bool, where):
        return [dataclasses.replace(example, is_impossible=True)]
    answers = _get(row, "answers", list, where)
    if not answers or (len(answers) > 1 and several == "refuse"):
        hint = (
            "; a file with questions that have none is read with version_2_with_negative"
            if not answers
            else "; is this a development set? Its answers are several people's; options.several_answers: first or all "
            "trains on them"
        )
        raise ValueError(
            f"{where} ({example.qas_id}): expected exactly 1 answer in training data, got {len(answers)}{hint}"
        )
    places = [
        (
            _get(answer, "text", str, f"{where}.answers[{number}]"),
            _get(answer, "answer_start", int, f"{where}.answers[{number}]"),
        )
        for number, answer in enumerate(answers[:1] if several == "first" else answers)
    ]
    different: dict[tuple, SquadExample] = {}
    for text, start in places:
        answered = _with_answer(example, text, start)
        label = (
            (answered.start_word, answered.end_word)
            if alignment == 2018
            else (answered.answer_start, answered.answer_end)
        )
        different.setdefault((text, *label), answered)
    return list(different.values())


def _with_answer(example: SquadExample, text: str, start: int) -> SquadExample:
    """Returns the example with the words and the characters of an answer."""
    first, last = answer_words(example.passage, text, start)
    place = answer_place(example.passage, text, start) or (0, 0)
    stated = start + len(text) - len(text.lstrip())
    return dataclasses.replace(
        example,
        answer=text,
        start_word=first,
        end_word=last,
        answer_start=place[0],
        answer_end=place[1],
        moved=place[0] != stated,
    )


def _is_labelled(example: SquadExample, alignment: Alignment) -> bool:
    """Whether the context holds the example's answer."""
    return example.start_word >= 0 if alignment == 2018 else example.answer_end > 0


def answer_words(passage: Passage, text: str, start: int) -> tuple[int, int]:
    """Returns the first and last word of an answer that is given by characters; (-1, -1) if these words do not contain
    it.

    As in 2018, spaces may differ, and the words may contain more than the answer.
    """
    if (words := _stretch(passage, text, start)) is None:
        return -1, -1
    first, last = words
    return words if " ".join(text.split()) in " ".join(passage.words[first : last + 1]) else (-1, -1)


def answer_place(passage: Passage, text: str, start: int) -> tuple[int, int] | None:
    """Returns the start and end of an answer in its context: at `start` or, if another text is there, at the nearest
    match within the words there; None if these words do not contain it. Spaces may differ, and those around the answer
    are ignored.
    """
    if (words := _stretch(passage, text, start)) is None:
        return None
    first, last = words
    stretch = slice(passage.word_starts[first], passage.word_starts[last] + len(passage.words[last]))
    expected_place = start + len(text) - len(text.lstrip())
    reads = re.compile(r"\s+".join(map(re.escape, text.split())))
    if match := reads.match(passage.context, expected_place):
        return match.span()
    # A lookahead, so that places may overlap.
    places = [match.span(1) for match in re.finditer(f"(?=({reads.pattern}))", passage.context[stretch])]
    nearest = min(places, key=lambda place: abs(place[0] + stretch.start - expected_place), default=None)
    return nearest and (nearest[0] + stretch.start, nearest[1] + stretch.start)


def _stretch(passage: Passage, text: str, start: int) -> tuple[int, int] | None:
    """Returns the first and last word at the characters of an answer; None if it is empty or the context has no such
    characters.
    """
    end = start + len(text) - 1
    if not text.strip() or start < 0 or end >= len(passage.context):
        return None
    first, last = (bisect.bisect_right(passage.word_starts, position) - 1 for position in (start, end))
    return None if last < 0 else (max(first, 0), last)
