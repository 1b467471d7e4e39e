"""Masked diffusion: its loss beside plain NumPy, its masks beside their definition; rows, and metrics of texts."""

import types

import numpy as np
import pytest
import tensorflow as tf

from official_bert.data.pretraining.masking import VocabularyFacts
from official_bert.objectives.masked_diffusion import LEAST_RATE, MaskedDiffusion
from official_bert.tasks.pretraining.diffused_words import DiffusedWords
from official_bert.tasks.writing import metrics
from official_bert.tasks.writing.rows import AnswerRows, Blanks, DiffusedSource
from official_bert.text.tokenization import FullTokenizer

SOURCES = ["the river", "a great city", "music time people world", ""] * 25
ANSWERS = ["river", "great city", "time", ""] * 25


@pytest.fixture(scope="module")
def tokenizer(golden):
    return FullTokenizer(str(golden / "vocab_uncased.txt"))


def test_the_loss_is_the_weighted_sum_over_hidden_places_divided_by_all_maskable_ones():
    rng = np.random.default_rng(1)
    logits, ids = rng.normal(size=(3, 5, 7)), rng.integers(0, 7, (3, 5))
    hidden, maskable = rng.random((3, 5)) < 0.5, np.ones((3, 5))
    maskable[1, 3:], hidden[1, 3:] = 0, False
    hidden[2] = False  # nothing is hidden: the row counts all the same
    rates, real = np.array([0.2, 0.9, 0.4]), np.array([1.0, 1.0, 1.0])
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    each = -np.take_along_axis(logs, ids[..., None], -1)[..., 0] * hidden
    batch = {
        "masked_lm_ids": tf.constant(ids, tf.int32),
        "masked_lm_weights": tf.constant(hidden, tf.float32),
        "maskable": tf.constant(maskable, tf.float32),
        "masking_rates": tf.constant(rates, tf.float32),
        "example_weights": tf.constant(real, tf.float32),
    }
    outputs, objective = {"mlm_logits": tf.constant(logits, tf.float32)}, MaskedDiffusion()
    total, weight = objective.losses(outputs, batch)["loss"]
    np.testing.assert_allclose([total, weight], [(each / rates[:, None]).sum(), 13], rtol=1e-5)
    np.testing.assert_allclose(objective.weights(batch)["loss"], 13)
    np.testing.assert_allclose(
        objective.predictions(outputs, batch)["bound"],
        np.stack([each.sum(1) / rates, maskable.sum(1)], 1),
        rtol=1e-5,
    )
    padded = batch | {"example_weights": tf.constant([1.0, 0.0, 1.0])}  # a row that only fills the batch
    total, weight = objective.losses(outputs, padded)["loss"]
    np.testing.assert_allclose([total, weight], [each[0].sum() / 0.2, 10], rtol=1e-5)


def test_an_answer_has_the_same_places_in_every_row_filled_up_with_sep(tokenizer):
    rows = AnswerRows(["the river", "a great city time people", ""], ["river music", "", "a b c d e"], tokenizer, 3, 9)
    cls, sep = tokenizer.vocab["[CLS]"], tokenizer.vocab["[SEP]"]
    words = [
        tokenizer.convert_tokens_to_ids(text.split()) for text in ("the river", "a great city time", "river music")
    ]
    assert rows[0]["input_ids"].tolist() == [cls, *words[0], sep, *words[2], sep]
    assert rows[0]["segment_ids"].tolist() == [0] * 4 + [1] * 3
    assert rows[1]["input_ids"].tolist() == [cls, *words[1], sep, sep, sep, sep]  # cut to 9 tokens
    assert len(rows[2]["input_ids"]) == 5
    assert (rows.cut_sources, rows.cut_answers) == (1, 1)
    blank = Blanks(rows, tokenizer.vocab["[MASK]"]).batch([0, 1])
    assert blank["input_ids"][0].tolist() == [cls, *words[0], sep, *[tokenizer.vocab["[MASK]"]] * 3, 0, 0]
    assert blank["input_mask"].sum(1).tolist() == [7, 9]


def test_masks_are_functions_of_seed_epoch_and_row_at_the_rate_of_the_row(tokenizer):
    rows, mask = AnswerRows(SOURCES, ANSWERS, tokenizer, 8, 32), tokenizer.vocab["[MASK]"]
    source = DiffusedSource(rows, 50, 3, True, mask_id=mask)
    again = DiffusedSource(rows, 50, 3, True, mask_id=mask)
    batches = [source.batch(number) for number in range(200)]
    for number in (7, 0):  # in any order: a run that is resumed sees the same
        for name, values in again.batch(number).items():
            np.testing.assert_array_equal(values, batches[number][name])
    hidden, rates = (
        np.concatenate([batch[name] for batch in batches]) for name in ("masked_lm_weights", "masking_rates")
    )
    assert rates.min() >= LEAST_RATE
    assert np.histogram(rates, 4, (0, 1))[0] / len(rates) == pytest.approx([0.25] * 4, abs=0.02)
    for low in (0.0, 0.25, 0.5, 0.75):  # 10,000 rows of 8 places
        chosen = (rates >= low) & (rates < low + 0.25)
        assert hidden[chosen].mean() == pytest.approx(rates[chosen].mean(), abs=0.015)
    batch = batches[3]
    ids = np.take_along_axis(batch["input_ids"], batch["masked_lm_positions"], 1)
    np.testing.assert_array_equal(ids, np.where(batch["masked_lm_weights"] > 0, mask, batch["masked_lm_ids"]))
    assert (batches[0]["masking_rates"] != batches[2]["masking_rates"]).any()  # another epoch


def test_held_out_rates_are_spread_evenly_and_the_same_each_time(tokenizer):
    rows = AnswerRows(SOURCES, ANSWERS, tokenizer, 8, 32)
    source = DiffusedSource(rows, 30, 3, False, by_length=True, mask_id=4)
    batches = [source.batch(number) for number in range(source.batches_per_epoch)]
    rates = np.concatenate([batch["masking_rates"][batch["example_weights"] > 0] for batch in batches])
    assert sorted(np.ceil((rates - LEAST_RATE) / (1 - LEAST_RATE) * 100).astype(int)) == list(range(1, 101))


def test_records_without_masks_are_masked_at_a_rate_for_each_row(tokenizer):
    config = types.SimpleNamespace(seed=5, tokenizer=types.SimpleNamespace(vocab_file="vocab.txt"))
    kind = DiffusedWords(config, types.SimpleNamespace(max_seq_length=16))
    facts, rng = VocabularyFacts.of(tokenizer), np.random.default_rng(0)
    ids = rng.integers(1000, 2000, (400, 16)).astype(np.int32)
    ids[:, 0], ids[:, 7], ids[:, 13] = facts.cls_id, facts.sep_id, facts.sep_id
    mask = np.repeat([[1] * 14 + [0] * 2], 400, 0).astype(np.int32)
    batch = {"input_ids": ids, "input_mask": mask, "segment_ids": mask, "next_sentence_labels": mask[:, :1]}
    from official_bert.data.record_files import records

    batch |= {"schema_version": np.full((400, 1), records.SCHEMA_VERSION, np.int32)}
    masked = kind.make_masking(lambda: tokenizer)(
        {name: tf.constant(v) for name, v in batch.items()}, tf.range(400, dtype=tf.int64)
    )
    places, hidden, rates = (
        masked[name].numpy() for name in ("masked_lm_positions", "masked_lm_weights", "masking_rates")
    )
    assert masked["maskable"].numpy().sum(1).tolist() == [11.0] * 400
    assert not (hidden * (1 - masked["maskable"].numpy())).any()
    restored = masked["input_ids"].numpy().copy()
    assert (restored[:, [0, 7, 13, 14, 15]] == ids[:, [0, 7, 13, 14, 15]]).all()  # special tokens and padding stay
    np.put_along_axis(
        restored,
        places,
        np.where(hidden > 0, masked["masked_lm_ids"].numpy(), np.take_along_axis(restored, places, 1)),
        1,
    )
    np.testing.assert_array_equal(restored, ids)
    assert hidden.sum() / (11 * 400) == pytest.approx(rates.mean(), abs=0.02)
    spread = kind.make_masking(lambda: tokenizer, lambda: 400)
    held_out = [
        spread({name: tf.constant(v) for name, v in batch.items()}, tf.range(400, dtype=tf.int64))["masking_rates"]
        for _ in range(2)
    ]
    np.testing.assert_array_equal(*held_out)  # the same at each evaluation
    parts = np.ceil((held_out[0].numpy().astype(float) - LEAST_RATE) / (1 - LEAST_RATE) * 400)
    assert sorted(parts) == list(range(1, 401))  # one rate in each of 400 equal parts of (0, 1]
    with pytest.raises(ValueError, match="expected records without masks"):
        kind.of_masked({})


def test_metrics_of_written_texts_by_hand():
    measured = metrics.measure(["the cat sat", "Blue"], ["the cat sat down", "blue"], ["the cat sat down", "Blue"])
    assert measured["exact_match"] == 0.5
    assert measured["exact_match_raw"] == 0.0
    assert measured["rouge_l"] == pytest.approx((2 * 3 / 7 + 1.0) / 2)  # 3 of 3 and 3 of 4 words; capitals do not count
    assert metrics.chrf(["abc"], ["abc"]) == pytest.approx(1.0)
    assert 0 < measured["chrf"] < 1
    assert metrics.measure(["река дом"], ["река"], ["река"])["rouge_l"] == pytest.approx(2 / 3)  # other alphabets
