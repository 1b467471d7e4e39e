"""Texts as unpadded rows."""

import json

import numpy as np
import pytest

from official_bert.data.batches import text_features
from official_bert.data.batches.feature_rows import ChoiceFeatures, TextFeatures
from official_bert.data.batches.text_features import make_features
from official_bert.text.tokenization import FullTokenizer


@pytest.fixture(scope="module")
def tokenizer(golden):
    return FullTokenizer(str(golden / "vocab_uncased.txt"))


@pytest.fixture(scope="module")
def examples(golden):
    """Single texts and pairs with the rows that 2018's `convert_single_example` makes of them."""
    return json.loads((golden / "classifier_features.json").read_text())


def rows_of(examples, tokenizer, pairs):
    rows = [row for row in examples["rows"] if (row["text_b"] is not None) == pairs]
    second = [row["text_b"] for row in rows] if pairs else None
    return rows, TextFeatures(
        make_features([row["text_a"] for row in rows], second, tokenizer, examples["max_seq_length"])
    )


@pytest.mark.parametrize("pairs", [False, True])
def test_rows_equal_those_of_2018_up_to_padding(examples, tokenizer, pairs):
    rows, features = rows_of(examples, tokenizer, pairs)
    assert len(features) == len(rows) > 10
    for row, found in zip(rows, features):
        for name in ("input_ids", "input_mask", "segment_ids"):
            padded = np.zeros(examples["max_seq_length"], np.int32)
            padded[: len(found[name])] = found[name]
            assert padded.tolist() == row[name], row
    assert features.longer == sum(sum(row["input_mask"]) == 32 for row in rows) - sum(
        len(tokenizer.tokenize(row["text_a"])) + len(tokenizer.tokenize(row["text_b"] or "")) == 32 - 2 - pairs
        for row in rows
    )


def test_the_compiled_tokenizer_gives_the_same_rows(examples, tokenizer, monkeypatch):
    _, plain = rows_of(examples, tokenizer, pairs=True)
    monkeypatch.setattr(text_features, "LARGE", 0)
    _, compiled = rows_of(examples, tokenizer, pairs=True)
    np.testing.assert_array_equal(plain.ids, compiled.ids)
    np.testing.assert_array_equal(plain.starts, compiled.starts)


def test_targets_come_with_their_rows(tokenizer):
    labels = {"label_ids": np.array([2, 0, 1], np.int32)}
    features = TextFeatures(make_features(["one", "two words", ""], None, tokenizer, 8), labels)
    assert [int(row["label_ids"]) for row in features] == [2, 0, 1]
    assert features[2]["input_ids"].tolist() == [tokenizer.special_id("[CLS]"), tokenizer.special_id("[SEP]")]
    np.testing.assert_array_equal(features.lengths, [len(row["input_ids"]) for row in features])


def test_rows_are_kept_between_runs_until_text_vocabulary_or_length_change(tokenizer, tmp_path, golden, monkeypatch):
    calls = []
    pack_all = text_features._pack_all
    monkeypatch.setattr(text_features, "_pack_all", lambda *values: calls.append(1) or pack_all(*values))
    cased = FullTokenizer(str(golden / "vocab_cased.txt"), do_lower_case=False)
    cases = [
        (["a", "bc"], None, tokenizer, 8),
        (["ab", "c"], None, tokenizer, 8),
        (["a", "bc"], None, tokenizer, 9),
        (["a", "bc"], ["", ""], tokenizer, 8),
        (["a", "bc"], None, cased, 8),
    ]
    first = [make_features(*case, str(tmp_path)) for case in cases]
    assert len(calls) == len(cases)
    again = [make_features(*case, str(tmp_path)) for case in cases]
    assert len(calls) == len(cases)
    for one, other in zip(first, again):
        np.testing.assert_array_equal(one["ids"], other["ids"])


def test_choices_are_rows_that_belong_together(tokenizer):
    rows = TextFeatures(make_features(["he sat"] * 4, ["a", "b c", "d", "e f"], tokenizer, 16))
    features = ChoiceFeatures(rows, [2, 2], {"label_ids": np.array([1, 0], np.int32)})
    assert len(features) == 2 and features[0]["input_ids"].shape[0] == 2
    for index in range(2):
        for choice in range(2):
            length = int(features[index]["input_mask"][choice].sum())
            np.testing.assert_array_equal(
                features[index]["input_ids"][choice, :length], rows[2 * index + choice]["input_ids"]
            )
            assert not features[index]["input_ids"][choice, length:].any()


def test_a_length_without_room_is_refused(tokenizer):
    with pytest.raises(ValueError, match="max_seq_length: expected at least 3"):
        make_features(["a"], ["b"], tokenizer, 2)
