"""Answers in the graph against the 2018 code's results on given logits, and against its steps in plain Python."""

import json

import numpy as np
import pytest
import tensorflow as tf
from oracles.rows import pad

from official_bert.tasks.squad.decoding import DecodingRules, Logits, best_spans, by_example
from official_bert.tasks.squad.features import FeatureMaker
from official_bert.tasks.squad.reading import read_squad
from official_bert.tasks.squad.served import ServedSpans, best_of_questions, best_span_of_rows
from official_bert.text import packing
from official_bert.text.tokenization import FullTokenizer


def squeezed(text):
    return "".join(text.split()).lower()


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_best_spans_are_those_of_2018(golden, version):
    features = json.loads((golden / f"squad_{version}_features.json").read_text(encoding="utf-8"))
    logits = np.load(golden / f"squad_{version}_logits.npz")
    rows = features["predict"]
    assert [row["unique_id"] for row in rows] == logits["unique_id"].tolist()
    shape = (len(rows), features["max_seq_length"])
    may_start, may_end = np.zeros(shape, bool), np.zeros(shape, bool)
    for number, row in enumerate(rows):
        for place in row["token_to_orig_map"]:
            may_end[number, int(place)] = True
            may_start[number, int(place)] = row["token_is_max_context"][place]
    spans = best_span_of_rows(
        {name: tf.constant(logits[name], tf.float32) for name in ("start_logits", "end_logits")},
        tf.ones(shape, tf.bool),
        tf.constant(may_start),
        tf.constant(may_end),
        features["n_best_size"],
        features["max_answer_length"],
    )
    questions = np.array([row["example_index"] for row in rows])
    best = best_of_questions(spans, tf.constant(questions, tf.int32), questions.max() + 1)
    null = np.full(questions.max() + 1, np.inf)
    np.minimum.at(null, questions, logits["start_logits"][:, 0] + logits["end_logits"][:, 0])
    for index, (name, nbest) in enumerate(features["nbest"].items()):
        first = next(entry for entry in nbest if entry["text"])
        score = first["start_logit"] + first["end_logit"]
        np.testing.assert_allclose(best.score[index], score, rtol=1e-6)
        if version == "v2":
            np.testing.assert_allclose(null[index] - float(best.score[index]), features["null_odds"][name], atol=1e-4)
            assert (features["predictions"][name] == "") == (
                null[index] - score > features["null_score_diff_threshold"]
            )


SETTINGS = {"doc_stride": 7, "max_query_length": 6, "max_answer_length": 5, "n_best_size": 12}
WORDS = (
    "the surveyor Ünder 中国 asked for 12% of Señora's price, co\u00adoperating e\u0301t al. and then nobody objected"
)


def plain_answer(plain, model, question, context, length):
    """Answers one question by the steps of 2018's `run_squad`; gives the answer as offsets of its tokens."""
    cls, sep = plain.special_id("[CLS]"), plain.special_id("[SEP]")
    query = plain.convert_tokens_to_ids(plain.tokenize(question))[: SETTINGS["max_query_length"]]
    tokens = plain.tokenize_with_offsets(context)
    ids = plain.convert_tokens_to_ids([token for token, _, _ in tokens])
    windows = packing.sliding_windows(len(ids), length - len(query) - 3, SETTINGS["doc_stride"])
    found, null = [], float("inf")
    for number, (first, size) in enumerate(windows):
        input_ids, segment_ids = packing.Template(cls, sep).pack(query, ids[first : first + size])
        row = {"input_ids": input_ids, "input_mask": [1] * len(input_ids), "segment_ids": segment_ids}
        outputs = model({name: np.array([value], np.int32) for name, value in row.items()})
        start_logits, end_logits = (outputs[name].numpy()[0].astype(float) for name in ("start_logits", "end_logits"))
        null = min(null, start_logits[0] + end_logits[0])
        best = [
            sorted(range(len(input_ids)), key=lambda place: -values[place])[: SETTINGS["n_best_size"]]
            for values in (start_logits, end_logits)
        ]
        for start in best[0]:
            for end in best[1]:
                a, b = (place - len(query) - 2 + first for place in (start, end))
                inside = first <= a <= b < first + size and b - a < SETTINGS["max_answer_length"]
                if inside and packing.is_max_context(windows, number, a):
                    found.append((start_logits[start] + end_logits[end], tokens[a][1], tokens[b][2]))
    score, start, end = max(found, key=lambda item: item[0], default=(0.0, 0, 0))
    return context[start:end], start, end, score, null


def test_an_answer_is_the_slice_of_the_context_that_the_steps_of_2018_select(golden, graph_tokenizer, span_model):
    plain = FullTokenizer(str(golden / "vocab_uncased.txt"))
    rng = np.random.default_rng(3)
    contexts = [" ".join(rng.choice(WORDS.split(" "), size)) for size in (1, 5, 17, 40, 3, 60, 11, 25)]
    questions = [" ".join(rng.choice(WORDS.split(" "), size)) for size in (3, 1, 0, 12, 2, 5, 1, 1)]
    wanted = [plain_answer(plain, span_model, question, context, 28) for question, context in zip(questions, contexts)]
    threshold = float(np.median([null - score for _, _, _, score, null in wanted]))
    for no_answer in (False, True):
        served = ServedSpans(
            span_model, graph_tokenizer, 28, **SETTINGS, no_answer=no_answer, null_score_diff_threshold=threshold
        )
        # A graph for one of both: its tracing takes longer than the answers.
        answer = (
            tf.function(served.answer_text, input_signature=[dict(served.text_inputs)], autograph=False)
            if no_answer
            else served.answer_text
        )
        found = {
            name: value.numpy()
            for name, value in answer({"question": tf.constant(questions), "context": tf.constant(contexts)}).items()
        }
        for index, (text, start, end, score, null) in enumerate(wanted):
            span = (text, start, end) if not no_answer or null - score <= threshold else ("", 0, 0)
            assert (found["answer"][index].decode(), found["start"][index], found["end"][index]) == span
            np.testing.assert_allclose([found["score"][index], found["null_score"][index]], [score, null], atol=1e-4)
            assert found["truncated"][index] == (len(plain.tokenize(questions[index])) > 6)
        assert sum(not text for text in found["answer"]) == (4 if no_answer else 0)


def test_a_context_without_tokens_has_an_empty_answer(graph_tokenizer, span_model):
    served = ServedSpans(span_model, graph_tokenizer, 28, **SETTINGS)
    found = served.answer_text({"question": tf.constant(["what", "what"]), "context": tf.constant(["", " \n"])})
    assert found["answer"].numpy().tolist() == [b"", b""]
    assert found["start"].numpy().tolist() == found["end"].numpy().tolist() == [0, 0]
    assert np.isfinite(found["score"]).all() and np.isfinite(found["null_score"]).all()


def test_an_answer_does_not_depend_on_the_rest_of_the_batch(graph_tokenizer, span_model):
    served = ServedSpans(span_model, graph_tokenizer, 28, **SETTINGS)
    contexts = [WORDS, "the price", WORDS * 4]
    together = served.answer_text({"question": tf.constant(["who"] * 3), "context": tf.constant(contexts)})
    for index, context in enumerate(contexts):
        alone = served.answer_text({"question": tf.constant(["who"]), "context": tf.constant([context])})
        assert alone["answer"].numpy()[0] == together["answer"].numpy()[index]
        np.testing.assert_allclose(alone["score"][0], together["score"][index], atol=1e-5)


def test_bytes_that_are_no_utf8_do_not_shift_the_answer(graph_tokenizer, span_model):
    served = ServedSpans(span_model, graph_tokenizer, 28, **SETTINGS)
    context = b"the \xff\xfe price of \xc3 nobody"
    found = served.answer_text({"question": tf.constant(["who"]), "context": tf.constant([context])})
    start, end = int(found["start"][0]), int(found["end"][0])
    assert found["answer"].numpy()[0].decode() == context.decode("utf-8", "replace")[start:end] != ""


def test_questions_that_may_fill_the_row_are_refused(graph_tokenizer, span_model):
    with pytest.raises(ValueError, match="expected more than max_query_length \\+ 3 = 67, got 32"):
        ServedSpans(span_model, graph_tokenizer, 32)


def test_the_span_is_the_one_that_evaluation_selects(golden, graph_tokenizer, span_model):
    plain = FullTokenizer(str(golden / "vocab_uncased.txt"))
    examples = read_squad(str(golden / "squad_v1.json")).examples
    lengths = {"max_seq_length": 32, "doc_stride": 12, "max_query_length": 10}
    features = FeatureMaker(plain, **lengths).make(examples)
    # The second segment begins where the window does (2018's `segment_ids`).
    rows = [
        pad(feature.input_ids, np.int32(np.arange(len(feature.input_ids)) >= feature.first_position), 32)
        for feature in features
    ]
    outputs = span_model({name: np.stack([row[name] for row in rows]) for name in rows[0]})
    sizes = [len(feature.input_ids) for feature in features]
    logits = [
        Logits(*(outputs[name].numpy()[number, :size].astype(float) for name in ("start_logits", "end_logits")))
        for number, size in enumerate(sizes)
    ]
    served = ServedSpans(span_model, graph_tokenizer, max_answer_length=7, n_best_size=9, **lengths)
    found = served.answer_text(
        {
            "question": tf.constant([example.question for example in examples]),
            "context": tf.constant([example.passage.context for example in examples]),
        }
    )
    rules = DecodingRules(n_best_size=9, max_answer_length=7)
    for index, part in by_example(features):
        best = best_spans(features[part], logits[part], rules)[0]
        feature, offsets = features[part][best.feature], plain.tokenize_with_offsets(examples[index].passage.context)
        first, last = (position - feature.first_position + feature.window_start for position in (best.start, best.end))
        assert (int(found["start"][index]), int(found["end"][index])) == (offsets[first][1], offsets[last][2])
        np.testing.assert_allclose(found["score"][index], best.score, atol=1e-4)
