"""A result of other inputs is refused by the names of what differs."""

import pytest

from official_bert.long_work.made_of import require_same

NOW = {"--seed": 1, "text": ("a", "b"), "--order": None}


@pytest.mark.parametrize(
    ("before", "differing"),
    [
        ({"--seed": 1, "text": ["a", "b"], "--order": None}, ""),
        ({"text": ["a", "b"], "--seed": 1}, ""),  # in another order, and without what is None
        ({"--seed": 2, "text": ["a", "b"]}, "--seed"),
        ({"--seed": 1, "text": ["b", "a"]}, "text"),
        ({"--seed": 1}, "text"),
        ({"--seed": 1, "text": ["a", "b"], "--more": 0}, "--more"),
        ({}, "--seed and another text"),
    ],
)
def test_what_differs_is_named_whether_it_has_changed_or_is_missing_on_one_side(before, differing):
    if not differing:
        require_same(before, NOW, "out.work: holds work with", "--discard removes it")
        return
    with pytest.raises(ValueError) as error:
        require_same(before, NOW, "out.work: holds work with", "--discard removes it")
    assert str(error.value) == f"out.work: holds work with another {differing}; --discard removes it"
