"""Served classifiers against the same steps taken with the plain tokenizer, plain packing and the model itself."""

import numpy as np
import pytest
import tensorflow as tf
from oracles.rows import rows_by_hand

from official_bert.tasks.texts.served import ServedChoice, ServedClassifier, ServedMultiLabel, ServedRegression
from official_bert.text.tokenization import FullTokenizer

TEXTS = ["The surveyor asked for the price.", "", "Señora Núñez misplaced the harbour ledger. " * 5, "中国 12%"]


@pytest.fixture(scope="module")
def tokenizers(golden, graph_tokenizer):
    return FullTokenizer(str(golden / "vocab_uncased.txt")), graph_tokenizer


@pytest.mark.parametrize("pairs", [False, True])
def test_a_classifier_answers_as_its_model_does_on_plain_rows(tokenizers, pairs, classifier, softmax):
    plain, graph = tokenizers
    model = classifier(3)
    served = ServedClassifier(model, graph, 32, labels=["a", "b", "c"], pairs=pairs)
    second = ["What is it?", "the end", "", "no"]
    rows, cut = rows_by_hand(plain, TEXTS, second if pairs else None)
    logits = model(rows)["logits"].numpy()
    found = served.answer_text({"text": tf.constant(TEXTS), **({"text_pair": tf.constant(second)} if pairs else {})})
    np.testing.assert_allclose(found["logits"], logits, atol=1e-5)
    np.testing.assert_allclose(found["probabilities"], softmax(logits), atol=1e-5)
    assert [label.decode() for label in found["label"].numpy()] == ["abc"[index] for index in logits.argmax(-1)]
    assert found["truncated"].numpy().tolist() == cut == [False, False, True, False]


def test_several_labels_come_with_the_likeliest_first_and_padded(tokenizers, classifier):
    model = classifier(4)
    served = ServedMultiLabel(model, tokenizers[1], 32, labels=["a", "b", "c", "d"])
    rows, _ = rows_by_hand(tokenizers[0], TEXTS)
    probabilities = 1 / (1 + np.exp(-model(rows)["logits"].numpy()))
    found = served.answer_text({"text": tf.constant(TEXTS)})
    np.testing.assert_allclose(found["probabilities"], probabilities, atol=1e-5)
    for row, labels in zip(probabilities, found["labels"].numpy()):
        wanted = ["abcd"[index] for index in np.argsort(-row) if row[index] >= 0.5]
        assert [label.decode() for label in labels] == wanted + [""] * (len(labels) - len(wanted))


def test_a_regression_gives_one_score_a_text(tokenizers, classifier):
    model = classifier(1)
    served = ServedRegression(model, tokenizers[1], 32)
    rows, _ = rows_by_hand(tokenizers[0], TEXTS)
    found = served.answer_text({"text": tf.constant(TEXTS)})
    assert sorted(found) == ["score", "truncated"]
    np.testing.assert_allclose(found["score"], model(rows)["logits"].numpy()[:, 0], atol=1e-5)


def test_a_choice_is_the_continuation_with_the_highest_logit(tokenizers, choice_classifier, softmax):
    model = choice_classifier
    served = ServedChoice(model, tokenizers[1], 32)
    text, choices = TEXTS[:2], [["a price", "the end " * 30, "no"], ["12", "", "x"]]
    found = served.answer_text({"text": tf.constant(text), "choices": tf.constant(choices)})
    rows, _ = rows_by_hand(tokenizers[0], np.repeat(text, 3).tolist(), np.ravel(choices).tolist())
    logits = model({name: value.reshape(2, 3, 32) for name, value in rows.items()})["logits"].numpy()
    np.testing.assert_allclose(found["probabilities"], softmax(logits), atol=1e-5)
    assert found["choice"].numpy().tolist() == logits.argmax(-1).tolist()
    assert found["truncated"].numpy().tolist() == [True, False]
