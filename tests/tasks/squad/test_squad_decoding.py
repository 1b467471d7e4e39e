"""Answers from logits, against the 2018 code's."""

import json

import numpy as np
import pytest

from official_bert.tasks.squad.decoding import Answer, DecodingRules, Logits, decode, decode_all
from official_bert.tasks.squad.features import FeatureMaker
from official_bert.tasks.squad.reading import read_squad
from official_bert.text.tokenization import FullTokenizer


@pytest.fixture(scope="module")
def tokenizer(golden):
    return FullTokenizer(str(golden / "vocab_uncased.txt"))


def test_a_question_whose_best_tokens_are_no_span_is_answered_as_in_2018(golden, tokenizer):
    example = read_squad(str(golden / "squad_v1.json")).examples[0]
    features = FeatureMaker(tokenizer, 64, 32, 16).make([example])
    question = np.zeros(64)
    question[1] = 1.0  # the best start and end are a token of the question
    rules = DecodingRules(n_best_size=1, max_answer_length=30, version_2_with_negative=False)
    found = decode(example, features, [Logits(question, question)] * len(features), rules)
    assert (found.prediction, found.nbest) == ("empty", (Answer("empty", 1.0, 0.0, 0.0),))


@pytest.fixture(scope="module", params=[1, 2])
def decoded(request, golden, tokenizer):
    """Returns (2018's results, our decoding of the same logits)."""
    wanted = json.loads((golden / f"squad_v{request.param}_features.json").read_text(encoding="utf-8"))
    maker = FeatureMaker(tokenizer, *(wanted[key] for key in ("max_seq_length", "doc_stride", "max_query_length")))
    examples = read_squad(str(golden / f"squad_v{request.param}.json")).examples
    arrays = np.load(golden / f"squad_v{request.param}_logits.npz")
    logits = [
        Logits(start, end)
        for start, end in zip(arrays["start_logits"].astype(float), arrays["end_logits"].astype(float))
    ]
    rules = DecodingRules(
        n_best_size=wanted["n_best_size"],
        max_answer_length=wanted["max_answer_length"],
        version_2_with_negative=request.param == 2,
        null_score_diff_threshold=wanted["null_score_diff_threshold"],
    )
    return wanted, decode_all(examples, maker.make(examples), logits, rules)


def test_predictions_equal_those_of_2018(decoded):
    wanted, found = decoded
    assert {key: value.prediction for key, value in found.items()} == wanted["predictions"]


def test_nbest_lists_equal_those_of_2018(decoded):
    wanted, found = decoded
    for key, answers in wanted["nbest"].items():
        for ours, theirs in zip(found[key].nbest, answers, strict=False):
            assert ours.text == theirs["text"]
            for field in ("probability", "start_logit", "end_logit"):
                assert getattr(ours, field) == pytest.approx(theirs[field], rel=1e-9, abs=1e-12)
        assert len(found[key].nbest) >= len(answers)


def test_null_odds_equal_those_of_2018(decoded):
    wanted, found = decoded
    if "null_odds" in wanted:
        assert {key: value.null_odds for key, value in found.items()} == pytest.approx(wanted["null_odds"], rel=1e-9)
