"""Reads the right one of several choices, which files give as a number, letter, text or key. All answers of a file
decide which.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from official_bert.data.labelled.labelled_texts import label_text, numbers_of
from official_bert.data.tabular.tables import Table

AnswerAs = Literal["auto", "number", "letter", "text", "key"]
LETTERS = {chr(ord("A") + number): number for number in range(26)}


def right_ones(
    table: Table,
    column: str,
    choices: Sequence[Sequence[str]],
    keys_column: str = "",
    answer_as: AnswerAs = "auto",
    first_choice: int = 0,
) -> np.ndarray:
    """Returns the number, from 0, of each row's right choice, int32 [N]; `choices` are the texts of each row's choices.

    With `keys_column`, answers are keys within their rows. Otherwise they are letters A, B, ... or numbers from
    `first_choice`, if all of them are, else texts.

    Raises ValueError, naming the line, for an answer that its row lacks, for numbers beside letters, for numbers that
    seem to count from 1, and for answers that are numbers or letters and texts of choices too.
    """
    answers = [label_text(value) for value in table.columns[column]]
    if answer_as == "auto":
        answer_as = "key" if keys_column else _kind(table, column, answers, choices)
    numbers = np.zeros(len(table), np.int32)
    for row, (answer, texts) in enumerate(zip(answers, choices)):
        row_answers, number = _looked_up(table, row, answer, texts, keys_column, answer_as, first_choice)
        if not 0 <= number < len(texts):
            raise ValueError(
                f"{table.place(row)}: column {column!r}: expected one of {row_answers}, got "
                f"{table.columns[column][row]!r}"
                f"{_hint(answers, choices) if answer_as == 'number' and not first_choice else ''}"
            )
        numbers[row] = number
    return numbers


def _looked_up(
    table: Table, row: int, answer: str, texts: Sequence[str], keys_column: str, answer_as: AnswerAs, first_choice: int
) -> tuple[list[str], int]:
    """Returns the answers that a row may have, and the number of its own, -1 for another. Raises ValueError for keys
    that are no list.
    """
    if answer_as == "key":
        keys = table.columns[keys_column][row]
        if not isinstance(keys, list) or len(keys) != len(texts):
            raise ValueError(
                f"{table.place(row)}: column {keys_column!r}: expected a list of {len(texts)} keys, got "
                f"{str(keys)[:60]!r}"
            )
        row_answers = [label_text(key) for key in keys]
    elif answer_as == "text":
        row_answers = [text.strip() for text in texts]
    elif answer_as == "letter":
        row_answers = [*LETTERS][: len(texts)]
    else:
        row_answers = [str(number + first_choice) for number in range(len(texts))]
        return row_answers, numbers_of(row_answers)(answer)
    if row_answers.count(answer) > 1:
        raise ValueError(
            f"{table.place(row)}: expected different choices, got the answer {answer!r} {row_answers.count(answer)} "
            f"times"
        )
    return row_answers, row_answers.index(answer) if answer in row_answers else -1


def _kind(table: Table, column: str, answers: Sequence[str], choices: Sequence[Sequence[str]]) -> AnswerAs:
    """Tells from all answers of a file what they are. Raises ValueError, naming a row of each, if they may be several
    things.
    """
    numbers, letters, texts = _forms(answers, choices)
    other_rows = {*range(len(answers))} - {*numbers, *letters}
    if not other_rows and numbers and letters:
        first, second = sorted((numbers[0], letters[0]))
        raise ValueError(
            f"{table.place(second)}: column {column!r}: got {answers[second]!r}, and {answers[first]!r} in "
            f"{table.place(first)}: expected numbers or letters; options.keys_column names the column of each row's "
            "own keys, options.answer_as says what they are"
        )
    if other_rows and not texts:
        return "number" if numbers or not letters else "letter"  # the row that is neither is named
    if both := [
        row for row in texts if row not in other_rows and (other_rows or len(texts) == len(answers) or row in numbers)
    ]:
        raise ValueError(
            f"{table.place(both[0])}: column {column!r}: {answers[both[0]]!r} is the text of a choice, and a "
            f"{'number' if both[0] in {*numbers} else 'letter'}: options.answer_as=text, number or letter says which "
            f"is meant"
        )
    if other_rows:
        return "text"
    return "number" if numbers else "letter"


def _forms(answers: Sequence[str], choices: Sequence[Sequence[str]]) -> tuple[list[int], list[int], list[int]]:
    """The rows whose answers are numbers, letters, and texts of their choices."""
    return (
        [row for row, answer in enumerate(answers) if _is_number(answer)],
        [row for row, answer in enumerate(answers) if answer in LETTERS],
        [row for row, (answer, some) in enumerate(zip(answers, choices)) if answer in map(str.strip, some)],
    )


def _is_number(answer: str) -> bool:
    try:
        return float(answer) == int(float(answer))
    except (ValueError, OverflowError):
        return False


def _hint(answers: Sequence[str], choices: Sequence[Sequence[str]]) -> str:
    """A hint that numbers count from 1: none is 0, and one is the number of its row's choices."""
    counted = [(float(answer), len(some)) for answer, some in zip(answers, choices) if _is_number(answer)]
    from_one = all(1 <= answer <= count for answer, count in counted) and any(
        answer == count for answer, count in counted
    )
    return "; no answer is 0: options.first_choice=1 counts from 1" if from_one else ""
