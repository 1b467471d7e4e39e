"""Batches of examples in memory, in order of length and back."""

import numpy as np

from official_bert.data.input_pipeline import ExampleSource


def examples(lengths):
    return [{"input_ids": np.full(length, number, np.int32), "number": np.int32(number)} for number, length in enumerate(lengths)]


def test_sorted_evaluation_pads_less_and_gives_results_back_in_order():
    lengths = np.random.default_rng(0).integers(1, 100, 50)
    rows = examples(lengths)
    plain, sorted_rows = (ExampleSource(rows, 4, shuffle=False, sequence_keys=("input_ids",), by_length=flag) for flag in (False, True))
    padded = []
    for source in (plain, sorted_rows):
        batches = [source.batch(number) for number in range(source.batches_per_epoch)]
        padded.append(sum(batch["input_ids"].size for batch in batches))
        numbers = [number for batch in batches for number, weight in zip(batch["number"], batch["example_weights"]) if weight]
        assert source.in_order(numbers) == list(range(50))
    assert padded[1] < 0.7 * padded[0]


def test_examples_that_an_evaluation_did_not_reach_are_none():
    source = ExampleSource(examples([9, 1, 5, 3]), 2, shuffle=False, sequence_keys=("input_ids",), by_length=True)
    assert source.in_order([int(number) for number in source.batch(0)["number"]]) == [None, 1, None, 3]
