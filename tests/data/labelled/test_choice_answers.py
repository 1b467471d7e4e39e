"""Answers to choices as numbers, letters, texts and keys of a row's own."""

import numpy as np
import pytest

from official_bert.data.labelled.choice_answers import right_ones
from official_bert.data.tabular.tables import Table


def found(answers, choices, keys=None, **options):
    columns = {"answer": answers, **({"keys": keys} if keys else {})}
    table = Table("f.csv", columns, list(range(2, 2 + len(answers))), [])
    return right_ones(table, "answer", choices, "keys" if keys else "", **options).tolist()


ABC = ("red", "green", "blue")


@pytest.mark.parametrize(
    ("answers", "options", "numbers"),
    [
        ([0, "2", "1.0"], {}, [0, 2, 1]),
        (["A", "C", "B"], {}, [0, 2, 1]),
        (["red", "blue", " green "], {}, [0, 2, 1]),
        (["1", "3", "2"], {"first_choice": 1}, [0, 2, 1]),
        ([np.int64(1), 1, 2], {}, [1, 1, 2]),
    ],
)
def test_all_answers_of_a_file_decide_what_they_are(answers, options, numbers):
    assert found(answers, [ABC] * 3, **options) == numbers


def test_keys_are_those_of_each_row():
    assert found(["2", "B"], [ABC, ABC], keys=[["1", "2", "3"], ["A", "B", "C"]]) == [1, 1]
    with pytest.raises(ValueError, match=r"f\.csv:2: column 'answer': expected one of \['A', 'B', 'C'\], got '1'"):
        found(["1"], [ABC], keys=[["A", "B", "C"]])
    with pytest.raises(ValueError, match=r"f\.csv:2: column 'keys': expected a list of 3 keys, got"):
        found(["A"], [ABC], keys=[["A", "B"]])


@pytest.mark.parametrize(
    ("answers", "choices", "message"),
    [
        (
            ["B", "2"],
            [ABC, ABC],
            r"f\.csv:3: column 'answer': got '2', and 'B' in f\.csv:2: expected numbers or letters; "
            r"options\.keys_column",
        ),
        (
            ["1", "3"],
            [ABC, ABC],
            r"f\.csv:3: .* expected one of \['0', '1', '2'\], got '3'; no answer is 0: options\.first_choice=1",
        ),
        (["1", "4"], [ABC, ABC], r"f\.csv:3: .* expected one of \['0', '1', '2'\], got '4'$"),
        (["red", "black"], [ABC, ABC], r"f\.csv:3: .* expected one of \['red', 'green', 'blue'\], got 'black'"),
        (
            ["1", "2"],
            [("2", "1", "0"), ("2", "3")],
            r"f\.csv:2: .* '1' is the text of a choice, and a number: options\.answer_as=text, number",
        ),
        (["A", "B"], [("B", "A"), ("A", "B")], r"f\.csv:2: .* 'A' is the text of a choice, and a letter"),
        (["x", "red"], [ABC, ("red", "red")], r"f\.csv:2: .* expected one of"),
        (["", "A"], [ABC, ABC], r"f\.csv:2: .* got ''"),
    ],
)
def test_answers_that_may_be_several_things_or_none_are_refused(answers, choices, message):
    with pytest.raises(ValueError, match=message):
        found(answers, choices)


def test_the_option_says_what_is_meant():
    choices = [("2", "1", "0"), ("2", "3", "1")]
    assert found(["1", "2"], choices, answer_as="text") == [1, 0] and found(
        ["1", "2"], choices, answer_as="number"
    ) == [1, 2]
