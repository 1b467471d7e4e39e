"""Rows for question answering, against the 2018 code's."""

import json

import pytest

from official_bert.data.batches.feature_rows import TextFeatures
from official_bert.tasks.squad.features import FeatureMaker, as_arrays
from official_bert.tasks.squad.reading import read_squad
from official_bert.text.tokenization import FullTokenizer


@pytest.fixture(scope="module")
def tokenizer(golden):
    return FullTokenizer(str(golden / "vocab_uncased.txt"))


def load(golden, version, tokenizer):
    wanted = json.loads((golden / f"squad_v{version}_features.json").read_text(encoding="utf-8"))
    maker = FeatureMaker(tokenizer, *(wanted[key] for key in ("max_seq_length", "doc_stride", "max_query_length")))
    return wanted, maker, str(golden / f"squad_v{version}.json")


@pytest.mark.parametrize("version", [1, 2])
def test_training_features_equal_those_of_2018(golden, tokenizer, version):
    wanted, maker, path = load(golden, version, tokenizer)
    examples = read_squad(path, training=True, version_2=version == 2).examples
    features = maker.make(examples, training=True)
    assert len(features) == len(wanted["train"])
    arrays = as_arrays(features)
    rows = TextFeatures(arrays, {name: arrays[name] for name in ("start_positions", "end_positions")})
    for number, (feature, row) in enumerate(zip(features, wanted["train"])):
        made = rows[number]
        length = len(made["input_ids"])
        assert (feature.example_index, feature.window_index) == (row["example_index"], row["doc_span_index"])
        assert row["unique_id"] == 1000000000 + number
        assert feature.tokens == row["tokens"]
        assert made["input_ids"].tolist() == row["input_ids"][:length] and not any(row["input_ids"][length:])
        assert made["segment_ids"].tolist() == row["segment_ids"][:length] and not any(row["segment_ids"][length:])
        assert (made["start_positions"], made["end_positions"]) == (row["start_position"], row["end_position"])
        assert examples[feature.example_index].is_impossible == row["is_impossible"]


@pytest.mark.parametrize("version", [1, 2])
def test_prediction_features_equal_those_of_2018(golden, tokenizer, version):
    wanted, maker, path = load(golden, version, tokenizer)
    features = maker.make(read_squad(path).examples)
    assert len(features) == len(wanted["predict"])
    for feature, row in zip(features, wanted["predict"]):
        first, positions = feature.first_position, range(feature.window_length)
        assert feature.input_ids.tolist() == row["input_ids"][: len(feature.input_ids)]
        assert {str(first + p): feature.word_at(first + p) for p in positions} == row["token_to_orig_map"]
        assert {str(first + p): bool(feature.max_context[p]) for p in positions} == row["token_is_max_context"]
