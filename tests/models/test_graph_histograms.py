"""Graphs of BERT, and names and first values of weights of BERT and its relatives, are those that were recorded.

`graph_histograms.py` beside this file records them again, after a change that is meant to change them.
"""

import json

import graph_histograms
import pytest
import tensorflow as tf

from official_bert.models.pretrainer import Pretrainer

RECORDED_WEIGHTS = json.loads(graph_histograms.WEIGHTS_FILE.read_text())
AGAIN = "if that is meant to be so: PYTHONPATH=$PWD .venv/bin/python tests/models/graph_histograms.py --write"


def test_usual_graphs_of_bert_hold_the_operations_that_were_recorded():
    recorded = json.loads(graph_histograms.BERT_FILE.read_text())
    found = graph_histograms.usual_histograms(Pretrainer.make(graph_histograms.TINY))
    assert len(found) == 9
    changed = graph_histograms.differences({name: recorded.get(f"tiny: {name}") for name in found}, found)
    assert not changed, "\n".join([*changed, AGAIN])


@pytest.mark.slow
@pytest.mark.parametrize("size", ["tiny", "small"])
def test_all_graphs_of_bert_hold_the_operations_that_were_recorded(size):
    recorded = json.loads(graph_histograms.BERT_FILE.read_text())
    recorded = {case: histogram for case, histogram in recorded.items() if case.startswith(f"{size}: ")}
    assert len(recorded) > 10
    changed = graph_histograms.differences(recorded, graph_histograms.bert_histograms([size]))
    assert not changed, "\n".join([*changed, AGAIN])


def test_all_configurations_are_recorded():
    assert list(RECORDED_WEIGHTS) == list(graph_histograms.weight_configs())
    relatives = {case.partition(":")[0] for case in json.loads(graph_histograms.RELATIVES_FILE.read_text())}
    assert relatives == set(graph_histograms.relatives())


@pytest.mark.parametrize("name", RECORDED_WEIGHTS)
def test_weights_have_the_order_names_and_first_values_that_were_recorded(name):
    recorded, weights = RECORDED_WEIGHTS[name], graph_histograms.first_weights(graph_histograms.weight_configs()[name])
    assert list(weights) == list(recorded), AGAIN
    for key, (*recorded_form, recorded_values) in recorded.items():
        *form, values = weights[key]
        assert form == recorded_form, f"{key}, {AGAIN}"
        assert values == pytest.approx(recorded_values, rel=1e-5, abs=1e-5), f"{key}, {AGAIN}"


def test_live_operations_are_those_on_which_results_depend_in_called_functions_too():
    inner = tf.function(lambda x: (tf.exp(x) + 1.0, tf.sin(x))[0], autograph=False)

    def outer(x):
        tf.cos(x)
        return inner(inner(x))

    graph = tf.function(outer, autograph=False).get_concrete_function(tf.TensorSpec([2])).graph
    operations = graph_histograms.live_operations(graph)
    assert operations["Exp"] == operations["AddV2"] == 2 and not {"Cos", "Sin"} & operations.keys()


def test_differences_name_the_case_and_the_counts():
    old, new = {"a": {"Exp": 2, "Sin": 1}, "b": {"Cos": 1}}, {"a": {"Exp": 3}, "b": {"Cos": 1}, "c": {}}
    assert graph_histograms.differences(old, new) == ["a: 3 -> 3 operations: Exp 2 -> 3, Sin 1 -> 0", "c: not recorded"]
