"""Filled blanks against the same steps taken with the plain tokenizer and the model itself."""

import numpy as np
import tensorflow as tf

from official_bert.models.pretrainer import Pretrainer
from official_bert.tasks.pretraining.served import ServedFillMask, best_words
from official_bert.text.tokenization import FullTokenizer


def test_fill_mask_gives_the_words_that_the_model_gives_at_the_masks(golden, graph_tokenizer, small_config, softmax):
    plain = FullTokenizer(str(golden / "vocab_uncased.txt"))
    model = Pretrainer.make(small_config)
    served = ServedFillMask(model, graph_tokenizer, 32, top_k=3)
    found = served.answer_text({"text": tf.constant(["the [MASK] of[MASK][MASK]x", "no blank", "[MASK] é"])})
    mask = plain.special_id("[MASK]")

    def ids(*pieces):
        return plain.convert_tokens_to_ids([token for piece in pieces for token in plain.tokenize(piece)])

    cls, sep = plain.special_id("[CLS]"), plain.special_id("[SEP]")
    rows = [
        [cls, *ids("the"), mask, *ids("of"), mask, mask, *ids("x"), sep],
        [cls, *ids("no blank"), sep],
        [cls, mask, *ids("é"), sep],
    ]
    for index, row in enumerate(rows):
        places = [place for place, token in enumerate(row) if token == mask]
        inputs = {
            "input_ids": [row],
            "input_mask": [[1] * len(row)],
            "segment_ids": [[0] * len(row)],
            "masked_lm_positions": [places or [0]],
        }
        logits = model({name: np.array(value, "int32") for name, value in inputs.items()})["mlm_logits"].numpy()[0]
        for blank in range(3):
            tokens = found["tokens"].numpy()[index, blank].tolist()
            if blank >= len(places):
                assert tokens == [b"", b"", b""] and not found["probabilities"].numpy()[index, blank].any()
                continue
            best = np.argsort(-logits[blank])[:3]
            assert [token.decode() for token in tokens] == plain.convert_ids_to_tokens(best)
            np.testing.assert_allclose(
                found["probabilities"].numpy()[index, blank], softmax(logits[blank])[best], rtol=1e-4
            )
    assert found["truncated"].numpy().tolist() == [False, False, False]


def test_rows_of_a_model_beyond_the_vocabulary_are_no_words():
    logits = np.log([[[0.1, 0.2, 0.3, 0.4]]]).astype(np.float32)  # the last row belongs to no word
    found = best_words(tf.constant(logits), tf.constant([[True]]), tf.constant(["a", "b", "c"]), 2)
    assert found["tokens"].numpy().tolist() == [[[b"c", b"b"]]]
    np.testing.assert_allclose(found["probabilities"], [[[0.3, 0.2]]], rtol=1e-6)


def test_a_mask_that_is_cut_off_is_no_blank_and_the_text_is_marked(graph_tokenizer, small_config):
    served = ServedFillMask(Pretrainer.make(small_config), graph_tokenizer, 16)
    found = served.answer_text({"text": tf.constant(["the [MASK] " + "the " * 20 + "[MASK]"])})
    assert found["truncated"].numpy().tolist() == [True]
    assert found["tokens"].shape == [1, 1, 5]


def test_a_text_without_a_blank_is_told_so():
    nothing = {"tokens": [], "probabilities": []}
    for text, told in (
        ("No blank.", "the text has no [MASK]"),
        ("A [mask].", "the text has no [MASK]"),
        ("Long [MASK]", "the text is too long"),
    ):
        [line] = ServedFillMask.describe({"text": text}, nothing)
        assert told in line
    padded = {"tokens": [["", ""]], "probabilities": [[0.0, 0.0]]}  # in a batch with another text
    assert "no [MASK]" in ServedFillMask.describe({"text": "No blank."}, padded)[0]
    found = ServedFillMask.describe({"text": "A [MASK]"}, {"tokens": [["b", "c"]], "probabilities": [[0.5, 0.25]]})
    assert found == ["  b 0.500   c 0.250"]
