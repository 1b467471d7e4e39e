"""Served models against the same steps taken with the plain tokenizer, plain packing and the model itself."""

import numpy as np
import pytest
import tensorflow as tf

from official_bert.models.encoder import make_encoder
from official_bert.models.pretrainer import make_pretrainer
from official_bert.serving import served_model
from official_bert.text import packing
from official_bert.text.tokenization import FullTokenizer

TEXTS = ["The surveyor asked for the price.", "", "Señora Núñez misplaced the harbour ledger. " * 5, "中国 12%"]


@pytest.fixture(scope="module")
def tokenizers(golden, graph_tokenizer):
    return FullTokenizer(str(golden / "vocab_uncased.txt")), graph_tokenizer


def rows_by_hand(plain, first, second=None, length=32):
    """One row each, packed and padded without the graph, and whether each was cut."""
    ids = [[plain.convert_tokens_to_ids(plain.tokenize(text)) for text in column] for column in (first, second or first)]
    pairs = zip(*ids) if second else ((a, None) for a in ids[0])
    packed, cut = [], []
    for a, b in pairs:
        packed.append(packing.pack_padded(a, b, plain.special_id("[CLS]"), plain.special_id("[SEP]"), length))
        cut.append(len(a) + len(b or ()) > length - (3 if b else 2))
    return {name: np.stack([row[name] for row in packed]) for name in packed[0]}, cut


def test_fill_mask_gives_the_words_that_the_model_gives_at_the_masks(tokenizers, small_config, softmax):
    plain, graph = tokenizers
    model = make_pretrainer(small_config)
    served = served_model.FillMask(model, graph, 32, top_k=3)
    found = served.answer_text({"text": tf.constant(["the [MASK] of[MASK][MASK]x", "no blank", "[MASK] é"])})
    mask = plain.special_id("[MASK]")

    def ids(*pieces):
        return plain.convert_tokens_to_ids([token for piece in pieces for token in plain.tokenize(piece)])

    cls, sep = plain.special_id("[CLS]"), plain.special_id("[SEP]")
    rows = [[cls, *ids("the"), mask, *ids("of"), mask, mask, *ids("x"), sep], [cls, *ids("no blank"), sep],
            [cls, mask, *ids("é"), sep]]
    for index, row in enumerate(rows):
        places = [place for place, token in enumerate(row) if token == mask]
        inputs = {"input_ids": [row], "input_mask": [[1] * len(row)], "segment_ids": [[0] * len(row)],
                  "masked_lm_positions": [places or [0]]}
        logits = model({name: np.array(value, "int32") for name, value in inputs.items()})["mlm_logits"].numpy()[0]
        for blank in range(3):
            tokens = found["tokens"].numpy()[index, blank].tolist()
            if blank >= len(places):
                assert tokens == [b"", b"", b""] and not found["probabilities"].numpy()[index, blank].any()
                continue
            best = np.argsort(-logits[blank])[:3]
            assert [token.decode() for token in tokens] == plain.convert_ids_to_tokens(best)
            np.testing.assert_allclose(found["probabilities"].numpy()[index, blank], softmax(logits[blank])[best],
                                       rtol=1e-4)
    assert found["truncated"].numpy().tolist() == [False, False, False]


def test_a_mask_that_is_cut_off_is_no_blank_and_the_text_is_marked(tokenizers, small_config):
    served = served_model.FillMask(make_pretrainer(small_config), tokenizers[1], 16)
    found = served.answer_text({"text": tf.constant(["the [MASK] " + "the " * 20 + "[MASK]"])})
    assert found["truncated"].numpy().tolist() == [True]
    assert found["tokens"].shape == [1, 1, 5]


@pytest.mark.parametrize("pairs", [False, True])
def test_a_classifier_answers_as_its_model_does_on_plain_rows(tokenizers, pairs, classifier, softmax):
    plain, graph = tokenizers
    model = classifier(3)
    served = served_model.Classifier(model, graph, 32, labels=["a", "b", "c"], pairs=pairs)
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
    served = served_model.Classifier(model, tokenizers[1], 32, kind="multi_label", labels=["a", "b", "c", "d"])
    rows, _ = rows_by_hand(tokenizers[0], TEXTS)
    probabilities = 1 / (1 + np.exp(-model(rows)["logits"].numpy()))
    found = served.answer_text({"text": tf.constant(TEXTS)})
    np.testing.assert_allclose(found["probabilities"], probabilities, atol=1e-5)
    for row, labels in zip(probabilities, found["labels"].numpy()):
        wanted = ["abcd"[index] for index in np.argsort(-row) if row[index] >= 0.5]
        assert [label.decode() for label in labels] == wanted + [""] * (len(labels) - len(wanted))


def test_a_regression_gives_one_score_a_text(tokenizers, classifier):
    model = classifier(1)
    served = served_model.Classifier(model, tokenizers[1], 32, kind="regression")
    rows, _ = rows_by_hand(tokenizers[0], TEXTS)
    found = served.answer_text({"text": tf.constant(TEXTS)})
    assert sorted(found) == ["score", "truncated"]
    np.testing.assert_allclose(found["score"], model(rows)["logits"].numpy()[:, 0], atol=1e-5)


def test_a_choice_is_the_continuation_with_the_highest_logit(tokenizers, choice_classifier, softmax):
    model = choice_classifier
    served = served_model.Choice(model, tokenizers[1], 32)
    text, choices = TEXTS[:2], [["a price", "the end " * 30, "no"], ["12", "", "x"]]
    found = served.answer_text({"text": tf.constant(text), "choices": tf.constant(choices)})
    rows, _ = rows_by_hand(tokenizers[0], np.repeat(text, 3).tolist(), np.ravel(choices).tolist())
    logits = model({name: value.reshape(2, 3, 32) for name, value in rows.items()})["logits"].numpy()
    np.testing.assert_allclose(found["probabilities"], softmax(logits), atol=1e-5)
    assert found["choice"].numpy().tolist() == logits.argmax(-1).tolist()
    assert found["truncated"].numpy().tolist() == [True, False]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_an_embedding_is_the_first_row_or_the_mean_of_the_real_rows(tokenizers, pooling, small_config):
    model = make_encoder(small_config)
    served = served_model.Embeddings(model, tokenizers[1], 32, pooling)
    rows, _ = rows_by_hand(tokenizers[0], TEXTS)
    output = model(rows)["sequence_output"].numpy()
    real = rows["input_mask"].astype(bool)
    wanted = output[:, 0] if pooling == "cls" else np.stack([o[mask].mean(0) for o, mask in zip(output, real)])
    found = served.answer_text({"text": tf.constant(TEXTS)})
    np.testing.assert_allclose(found["embedding"], wanted, atol=1e-5)


def test_rows_longer_than_the_model_are_refused_by_name(tokenizers, small_config):
    served = served_model.Embeddings(make_encoder(small_config), tokenizers[1], 32)
    answer = tf.function(lambda **rows: served.answer_ids(rows)).get_concrete_function(**served_model.ROWS)
    assert answer(**{name: tf.ones([1, 32], tf.int32) for name in served_model.ROWS})["embedding"].shape == [1, 16]
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected at most 32 tokens in a row"):
        answer(**{name: tf.ones([1, 33], tf.int32) for name in served_model.ROWS})
