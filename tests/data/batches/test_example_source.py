"""Batches of examples in memory, in order of length and back."""

import numpy as np
import pytest

from official_bert.data.batches.sources import ExampleSource, incomplete


def examples(lengths):
    return [
        {"input_ids": np.full(length, number, np.int32), "number": np.int32(number)}
        for number, length in enumerate(lengths)
    ]


def test_sorted_evaluation_pads_less_and_gives_results_back_in_order():
    lengths = np.random.default_rng(0).integers(1, 100, 50)
    rows = examples(lengths)
    plain, sorted_rows = (
        ExampleSource(rows, 4, shuffle=False, sequence_keys=("input_ids",), by_length=flag) for flag in (False, True)
    )
    padded = []
    for source in (plain, sorted_rows):
        batches = [source.batch(number) for number in range(source.batches_per_epoch)]
        padded.append(sum(batch["input_ids"].size for batch in batches))
        numbers = [
            number for batch in batches for number, weight in zip(batch["number"], batch["example_weights"]) if weight
        ]
        assert source.in_order(numbers) == list(range(50))
    assert padded[1] < 0.7 * padded[0]


def test_examples_that_an_evaluation_did_not_reach_are_none():
    source = ExampleSource(examples([9, 1, 5, 3]), 2, shuffle=False, sequence_keys=("input_ids",), by_length=True)
    assert source.in_order([int(number) for number in source.batch(0)["number"]]) == [None, 1, None, 3]


def test_texts_with_a_row_that_was_not_evaluated_are_incomplete_and_one_must_be_whole():
    assert incomplete(["a", "b", None, "c", None], [0, 0, 1, 1, 2]) == {1, 2}
    with pytest.raises(
        ValueError, match=r"config\.training\.eval_steps: expected enough batches .*, got 2 of 5 rows and no text whole"
    ):
        incomplete([None, "b", None, "c", None], [0, 0, 1, 1, 2])


def test_the_content_is_that_of_the_rows_that_examples_are_made_of():
    class Waiting(dict):
        def items(self):
            pytest.fail("an example was read")

    rows = examples([3, 4])
    assert ExampleSource([Waiting(row) for row in rows], 2, made_of=rows).content == ExampleSource(rows, 2).content
    assert ExampleSource(rows, 2, made_of=examples([3, 5])).content == ExampleSource(examples([3, 5]), 2).content


def test_fixed_lengths_are_few_and_change_nothing_but_padding():
    lengths = [20, 33, 64, 65, 100, 31]
    source = ExampleSource(examples(lengths), 1, shuffle=False, sequence_keys=("input_ids",))
    source.fix_lengths()
    rows = [source.batch(number)["input_ids"][0] for number in range(6)]
    assert [len(row) for row in rows] == [32, 64, 64, 100, 100, 32]
    for number, (row, length) in enumerate(zip(rows, lengths)):
        assert (row[:length] == number).all() and not row[length:].any()


def test_rounded_lengths_are_multiples_of_8_and_at_most_the_longest():
    lengths = [8, 9, 16, 20, 50, 49, 1]
    source = ExampleSource(examples(lengths), 1, shuffle=False, sequence_keys=("input_ids",))
    source.round_lengths()
    rows = [source.batch(number)["input_ids"][0] for number in range(7)]
    assert [len(row) for row in rows] == [8, 16, 16, 24, 50, 50, 8]
    for number, (row, length) in enumerate(zip(rows, lengths)):
        assert (row[:length] == number).all() and not row[length:].any()


def test_lengths_that_were_chosen_stay():
    source = ExampleSource(examples([20, 33]), 1, shuffle=False, sequence_keys=("input_ids",), buckets=[48])
    source.fix_lengths()
    source.round_lengths()
    assert [source.batch(number)["input_ids"].shape[1] for number in range(2)] == [48, 48]


@pytest.mark.parametrize(("buckets", "length"), [([48], 48), ([24, 48], None)])
def test_the_dataset_has_the_batches_of_the_source_and_says_which_lengths_are_fixed(buckets, length):
    source = ExampleSource(examples([20, 33, 5]), 2, shuffle=False, sequence_keys=("input_ids",), buckets=buckets)
    dataset = source.dataset()
    assert dataset.element_spec["input_ids"].shape.as_list() == [2, length]
    assert dataset.element_spec["number"].shape.as_list() == [2]
    for number, batch in enumerate(dataset.as_numpy_iterator()):
        for key, values in source.batch(number).items():
            np.testing.assert_array_equal(batch[key], values, strict=True)
    assert number == 1


def planned_epochs(lengths, size, epochs):
    source = ExampleSource(examples(lengths), size, seed=3, sequence_keys=("input_ids",))
    return [[rows.tolist() for rows in source.plan(epoch)] for epoch in range(epochs)]


def test_training_sorts_at_most_ten_batches_at_a_time():
    lengths = np.random.default_rng(0).permutation(4000)  # all different
    [batches] = planned_epochs(lengths, 10, 1)
    assert sorted(np.concatenate(batches)) == list(range(4000))
    spans = [lengths[rows].max() - lengths[rows].min() for rows in batches]
    # Of 100 random lengths below 4,000, ten neighbours span 9 of 101 gaps, 4000 * 9 / 101 = 356 on average; ten of
    # random order 3,273.
    assert 300 < np.mean(spans) < 420


@pytest.mark.parametrize("batches", [1, 3, 4, 8, 39])
def test_texts_of_few_batches_meet_others_in_every_epoch(batches):
    epochs = planned_epochs(range(1, 8 * batches + 1), 8, 30)
    assert all(sorted(np.concatenate(plan)) == list(range(8 * batches)) for plan in epochs)
    met = [set() for _ in range(8 * batches)]
    for rows in (rows for plan in epochs for rows in plan):
        for row in rows:
            met[row].update(rows)
    # Were a whole epoch sorted, a text would meet the same 8 each time. In random order it meets nearly all in 30
    # epochs.
    assert min(map(len, met)) >= min(0.9 * 8 * batches, 24)
