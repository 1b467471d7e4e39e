"""The work of one request is bounded inside the graph: groups of rows give the answers of all at once, and too much is
refused by name.
"""

import dataclasses
import functools
import subprocess
import sys
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from official_bert.config import Config, TokenizerConfig
from official_bert.models.pretrainer import Pretrainer
from official_bert.serving import bounds, example_signature, export
from official_bert.serving.served_embeddings import ServedEmbeddings
from official_bert.serving.served_model import ID_INPUTS, ServingOptions, real_lengths
from official_bert.tasks.pretraining.served import ServedFillMask
from official_bert.tasks.squad.served import ServedSpans
from official_bert.tasks.tagging.served import ServedFeatureTagger, ServedTagger, _mean_of_runs
from official_bert.tasks.tagging.word_tagger import FeatureTagger
from official_bert.tasks.texts.served import ServedChoice

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
LONG = "the youngest apprentice borrowed the greenhouse thermometer while it rained in Brno. " * 6
REFUSED = tf.errors.InvalidArgumentError


def texts(values, *names):
    return {name: tf.constant(values) for name in names}


def rows(count=2, length=8, **changed):
    """Rows of ids that every model takes, but for what is changed."""
    inputs = {
        "input_ids": np.full((count, length), 7, np.int32),
        "input_mask": np.ones((count, length), np.int32),
        "segment_ids": np.zeros((count, length), np.int32),
    }
    return {name: tf.constant(value, tf.int32) for name, value in (inputs | changed).items()}


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), max_size=23), at_once=st.integers(1, 100), cost=st.sampled_from([0, 30, 96])
)
def test_groups_are_bounded_and_similar_and_give_what_all_rows_give(lengths, at_once, cost):
    values, groups = np.array(lengths, np.float32)[:, None] + [0, 100], []

    def compute(rows):
        groups.append(rows.numpy().tolist())
        return {
            "rows": tf.gather(tf.constant(values, tf.float32), rows),
            "odd": tf.gather(tf.constant(lengths, tf.int32), rows)[1:],
        }

    specs = {"rows": tf.TensorSpec([None, 2], tf.float32), "odd": tf.TensorSpec([None], tf.int32)}
    with mock.patch.object(bounds, "GROUP_COST", cost):
        found, order = bounds.in_groups(compute, tf.constant(lengths, tf.int32), at_once, specs)
        told_order, sizes = bounds.group_sizes(tf.constant(lengths, tf.int32), at_once)  # for another runtime
    assert told_order.numpy().tolist() == order.numpy().tolist() and sizes.numpy().tolist() == [
        len(group) for group in groups if group
    ]
    assert (
        sorted(order.numpy()) == list(range(len(lengths)))
        and [row for group in groups for row in group] == order.numpy().tolist()
    )
    np.testing.assert_array_equal(found["rows"], values[order.numpy()])
    assert len(found["odd"]) == sum(max(0, len(group) - 1) for group in groups)
    assert len(groups) == 1 or all(groups)
    for group in filter(None, groups):
        tokens = [lengths[row] for row in group]
        assert len(group) == 1 or len(group) * max(tokens) <= at_once
        # No further cut would save more padding than a group costs.
        assert all((len(group) - place) * (tokens[0] - tokens[place]) <= cost for place in range(1, len(group)))
    if len(set(lengths)) == 1:
        assert len(groups) == -(-len(lengths) // max(1, at_once // max(1, lengths[0])))
        assert max(map(len, groups)) - min(map(len, groups)) <= 1


def cheapest(lengths, cost):
    """Returns the tokens of the best of all partitions of rows into groups, longest first: padded rows, and `cost` for
    each group.
    """
    best = [0] * (len(lengths) + 1)
    for first in reversed(range(len(lengths))):
        best[first] = min(
            cost + (last - first) * lengths[first] + best[last] for last in range(first + 1, len(lengths) + 1)
        )
    return best[0]


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 250), min_size=1, max_size=24), cost=st.sampled_from([0, 30, 96]))
def test_groups_cost_little_more_than_those_of_the_best_partition(lengths, cost):
    lengths, spent, first = sorted(lengths, reverse=True), 0, 0
    with mock.patch.object(bounds, "GROUP_COST", cost):
        while first < len(lengths):
            size = int(bounds._group_size(tf.constant([*lengths[first:], 0, 0]), 10**6))
            spent, first = spent + cost + size * lengths[first], first + size
    assert spent <= 1.2 * cheapest(lengths, cost)


def test_a_row_is_computed_up_to_its_last_real_or_wanted_token():
    mask = tf.constant([[1, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]])
    assert real_lengths(mask).numpy().tolist() == [3, 3, 1, 1]
    assert real_lengths(mask, tf.constant([[0, 0], [1, 3], [0, 2], [0, 0]])).numpy().tolist() == [3, 4, 3, 1]
    assert real_lengths(mask[:0]).numpy().tolist() == []


@pytest.fixture(scope="module")
def make_windowed(graph_tokenizer, span_model, token_tagger, small_config):
    feature_tagger = FeatureTagger.make(
        dataclasses.replace(small_config, num_hidden_layers=2),
        {"num_tags": 5, "features": "concat", "feature_layers": 2, "lstm_size": 8},
    )
    feature_tagger.tagger.output_bias.assign([-1.0, 0.5, 0.0, 0.0, 0.0])  # entities are wanted

    def of(kind, **bound):
        if kind == "spans":
            return ServedSpans(span_model, graph_tokenizer, 28, doc_stride=5, max_query_length=6, **bound)
        if kind == "tagger":
            return ServedTagger(token_tagger, graph_tokenizer, 20, labels=LABELS, doc_stride=5, **bound)
        return ServedFeatureTagger(feature_tagger, graph_tokenizer, 20, labels=LABELS, doc_stride=5, **bound)

    return of


@functools.cache
def traced(served):
    return tf.function(served.answer_text, input_signature=[dict(served.text_inputs)], autograph=False)


def ask(served, values, as_graph=True):
    inputs = {"context": values, "question": ["who rained ?"] * len(values), "text": values}
    answer = (traced(served) if as_graph else served.answer_text)(
        {name: tf.constant(inputs[name]) for name in served.text_inputs}
    )
    return {name: value.numpy() for name, value in answer.items()}


@pytest.mark.slow  # tasks/test_served_models.py answers in several groups too
@pytest.mark.parametrize("kind", ["spans", "tagger", "feature_tagger"])
def test_answers_do_not_depend_on_the_groups(make_windowed, kind):
    values = [LONG, "", "Nobody met her in Brno.", LONG[40:] + "中国"]
    whole = ask(make_windowed(kind, tokens_at_once=10**6), values, as_graph=False)
    assert any(len(row) for row in whole.get("entities", whole.get("answer")))
    for tokens_at_once in (1, 100):
        parts = ask(make_windowed(kind, tokens_at_once=tokens_at_once), values)
        for name, value in whole.items():
            if value.dtype.kind == "f":
                np.testing.assert_allclose(parts[name], value, rtol=1e-5, atol=1e-6)
            else:
                np.testing.assert_array_equal(parts[name], value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("spans", "context"), ("tagger", "text"), pytest.param("feature_tagger", "text", marks=pytest.mark.slow)],
)
def test_a_text_of_too_many_windows_is_refused_by_name(make_windowed, kind, name):
    served = make_windowed(kind, max_windows=3)
    # a window has room for 18 tokens, or 19 behind the question; two more have 5 new ones each
    ask(served, ["the " * 25, "the"], as_graph=False)
    with pytest.raises(REFUSED, match=rf"{name}: expected 0 to 3 windows of (20|28) tokens over a text, got\] \[\d+\]"):
        ask(served, ["the", LONG], as_graph=False)


@pytest.fixture(scope="module")
def fill_mask(graph_tokenizer, small_config):
    return ServedFillMask(Pretrainer.make(small_config), graph_tokenizer, 32, max_positions=4)


def test_positions_are_few_and_lie_in_their_row(fill_mask):
    answer = tf.function(fill_mask.answer_ids, input_signature=[dict(fill_mask.ids_inputs)], autograph=False)
    assert answer(rows(masked_lm_positions=[[0, 7, 3, 3]] * 2))["logits"].shape == [2, 4, 3000]
    for positions, told in (
        ([[0, 8]] * 2, r"places in the row, 0 to its length - 1, got\] \[0\] \[to\] \[8\]"),
        ([[0, -1], [0, 0]], r"0 to its length - 1, got\] \[-1\] \[to\] \[0\]"),
        ([[0] * 5] * 2, r"expected 0 to 4 positions in a row, got\] \[5\]"),
        ([[0] * 100_000] * 2, r"expected 0 to 4 positions in a row, got\] \[100000\]"),
    ):
        with pytest.raises(REFUSED, match=rf"masked_lm_positions: .*{told}"):
            answer(rows(masked_lm_positions=positions))
    ask(fill_mask, ["[MASK] the" * 4], as_graph=False)
    with pytest.raises(REFUSED, match=r"text: expected 0 to 4 times \[MASK\] in a text, got\] \[6\]"):
        ask(fill_mask, ["the", "[MASK]" * 6], as_graph=False)


def test_choices_are_few_and_some(graph_tokenizer, choice_classifier):
    served = ServedChoice(choice_classifier, graph_tokenizer, 32, max_choices=3)
    answer = tf.function(served.answer_text, input_signature=[dict(served.text_inputs)], autograph=False)
    assert answer({**texts(["a"], "text"), **texts([["b", "c", "d"]], "choices")})["probabilities"].shape == [1, 3]
    for count in (0, 4, 5000):
        with pytest.raises(REFUSED, match=rf"choices: expected 1 to 3 choices for a text, got\] \[{count}\]"):
            answer({**texts(["a"], "text"), "choices": tf.fill([1, count], "b")})
    with pytest.raises(REFUSED, match=r"input_ids: expected 1 to 3 choices for a text, got\] \[4\]"):
        served.answer_ids({name: tf.repeat(value[None], 4, 1)[:, :4] for name, value in rows(1).items()})
    with pytest.raises(
        ValueError, match="--max_choices: expected at least 4, which the signature of Examples has, got 3"
    ):
        export.export(served, Config(), export.ExportOptions(output="nowhere"))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"input_ids": [[3000, 1, 1, 1, 1, 1, 1, -5]] * 2},
            r"input_ids: expected numbers of 0 to 2999, got\] \[-5\] \[to\] \[3000\]",
        ),
        (
            {"segment_ids": [[2, 0, 0, 0, 0, 0, 0, 0]] * 2},
            r"segment_ids: expected numbers of 0 to 1, got\] \[0\] \[to\] \[2\]",
        ),
        (
            {"input_mask": [[-1, 1, 1, 1, 1, 1, 1, 1]] * 2},
            r"input_mask: expected numbers of 0 to 1, got\] \[-1\] \[to\] \[1\]",
        ),
        ({"input_mask": [[1] * 7] * 2}, r"input_mask: expected the shape of input_ids, got\] \[2 7\]"),
        ({"segment_ids": [[0] * 8]}, r"segment_ids: expected the shape of input_ids, got\] \[1 8\]"),
    ],
)
def test_bad_rows_are_refused_by_name(graph_tokenizer, fill_mask, changed, told):
    served = ServedEmbeddings(fill_mask.model.encoder, graph_tokenizer, 32)
    with pytest.raises(REFUSED, match=told):
        served.answer_ids(rows(**changed))
    with pytest.raises(REFUSED, match=r"input_ids: expected rows of 1 to 32 tokens, got\] \[0\]"):
        served.answer_ids({name: tf.zeros([1, 0], tf.int32) for name in ID_INPUTS})


def test_lists_of_examples_are_refused_before_they_are_padded():
    def parse(longest, *lists, **more):
        examples = [
            tf.train.Example(
                features=tf.train.Features(
                    feature={"input_ids": tf.train.Feature(int64_list=tf.train.Int64List(value=values))}
                )
            ).SerializeToString()
            for values in lists
        ]
        spec = tf.TensorSpec([None] * (3 if more else 2), tf.int32)
        return example_signature.parse_inputs(
            tf.constant(examples), {"input_ids": spec}, {"input_ids": longest}, **more
        )

    assert parse(3, [1], [1, 2, 3])[0]["input_ids"].shape == (2, 3)
    with pytest.raises(REFUSED, match=r"input_ids: expected lists of 0 to 3 in an Example, got\] \[1\] \[to\] \[4\]"):
        parse(3, [1], [1, 2, 3, 4])
    with pytest.raises(REFUSED, match=r"input_ids: expected 2 rows of equal length in an Example, got\] \[2 3\]"):
        parse(3, [1, 2], [1, 2, 3], num_choices=2)
    for number in (2**32 + 7, -(2**31) - 1):  # a cast to int32 makes small numbers of them, which are other words
        for more in ({}, {"num_choices": 2}):
            with pytest.raises(
                REFUSED, match=rf"input_ids: expected numbers from -2147483648 to 2147483647, got\] .*\[{number}\]"
            ):
                parse(3, [1, number], **more)


def test_inputs_with_other_numbers_of_rows_are_refused(make_windowed):
    served = make_windowed("spans")
    answers = export.checked_answers(lambda inputs: {"size": tf.strings.length(inputs["context"])}, {})
    signature = export.make_signatures(served.text_inputs, answers, {}, 1)["serving_default"]
    assert signature(question=tf.constant(["a"]), context=tf.constant(["c"]))["size"].numpy().tolist() == [1]
    with pytest.raises(REFUSED, match=r"question: expected as many rows as context has, got\] \[2\]"):
        signature(question=tf.constant(["a", "b"]), context=tf.constant(["c"]))


def test_texts_of_files_at_hand_have_no_limit_but_the_one_that_is_given():
    reads = ("max_windows", "tokens_at_once")
    assert ServingOptions(max_windows=9).read(reads, "x") == {"max_windows": 9}
    assert ServingOptions(max_windows=9, bounded=False).read(reads, "x") == {"max_windows": 9}
    assert ServingOptions(bounded=False).read(reads, "x")["max_windows"] > 10**8
    assert ServingOptions(bounded=False).read((), "x") == {}


def test_the_score_of_an_entity_does_not_depend_on_the_texts_before_it():
    rng = np.random.default_rng(0)
    values = rng.uniform(0.3, 1, 32 * 4000).astype(np.float32)
    first = np.arange(0, len(values), 5, dtype=np.int32)
    last = first + rng.integers(0, 4, len(first), np.int32)
    found = _mean_of_runs(tf.constant(values), tf.constant(first), tf.constant(last)).numpy()
    wanted = [values[a : b + 1].astype(np.float64).mean() for a, b in zip(first, last)]
    np.testing.assert_allclose(found, wanted, rtol=2e-7)
    alone = _mean_of_runs(
        tf.constant(values[-4000:]), tf.constant(first[-800:] - 31 * 4000), tf.constant(last[-800:] - 31 * 4000)
    )
    np.testing.assert_array_equal(found[-800:], alone)
    assert _mean_of_runs(tf.zeros([0]), tf.zeros([0], tf.int32), tf.zeros([0], tf.int32)).shape == [0]


# The peak of this process alone: ru_maxrss begins at that of the process that started it.
LARGEST = """
import pathlib, re, sys
import tensorflow as tf
import tensorflow_text
model = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
answer = model(question=tf.constant(["who ?"]), context=tf.constant(["the price " * 26000]))
peak = re.search(r"VmHWM:\\s*([0-9]+) kB", pathlib.Path("/proc/self/status").read_text())
print(int(peak[1]) // 1024, float(answer["score"][0]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells the peak of a process")
def test_a_context_of_256_kib_needs_the_memory_of_one_group(graph_tokenizer, golden, tmp_path):
    from official_bert.config import ModelConfig
    from official_bert.models.classifier import SpanPredictor

    config = ModelConfig(
        vocab_size=3000,
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=16,
        intermediate_size=64,
        # 400 windows: the scores of all at once would take 3.8 GB, several times
        max_position_embeddings=384,
    )
    served = ServedSpans(SpanPredictor.make(config), graph_tokenizer, 384, max_windows=1000)
    export.export(
        served,
        Config(model=config, tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt"))),
        export.ExportOptions(output=str(tmp_path / "m"), batch_sizes=()),
    )
    done = subprocess.run(
        [sys.executable, "-c", LARGEST, str(tmp_path / "m/text/1")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[0]) < 2500, done.stdout
