"""Parts of a data set: whole, apart, stratified, the same every time."""

import collections

import numpy as np
import pytest

from official_bert.data.labelled.splits import SplitOptions, bins, divide, stratified_order


def parts_of(count=200, units=None, strata=None, hold_out=False, **options):
    return divide(
        SplitOptions(**options),
        list(range(count)) if units is None else units,
        [0] * count if strata is None else strata,
        hold_out,
        "train.csv",
    )


def test_every_stretch_of_an_order_has_each_stratum_in_proportion():
    strata = np.random.default_rng(1).choice(["common", "rare", "rarer"], 1000, p=[0.8, 0.15, 0.05])
    order = stratified_order(strata, 0)
    assert sorted(order) == list(range(1000)) and (stratified_order(strata, 0) == order).all()
    assert (stratified_order(strata, 1) != order).any()
    for low, high in ((0, 100), (0, 500), (300, 450), (900, 1000)):
        for name, count in collections.Counter(strata).items():
            assert abs((strata[order[low:high]] == name).sum() - count * (high - low) / 1000) < 2.0
    # A stratum of one unit may stand anywhere.
    places = [int(np.flatnonzero(stratified_order([0] * 99 + [1], seed) == 99)[0]) for seed in range(40)]
    assert min(places) < 20 and max(places) > 80


def test_folds_are_apart_and_whole_and_have_the_labels_in_proportion():
    labels = [number % 10 == 0 for number in range(203)]
    folds = [parts_of(203, strata=labels, folds=5, fold=fold) for fold in range(5)]
    assert sorted(np.concatenate([part.held_out for part in folds])) == list(range(203))
    for part in folds:
        assert sorted([*part.train, *part.held_out]) == list(range(203)) and len(part.held_out) in (40, 41)
        assert sum(labels[row] for row in part.held_out) in (4, 5)
    assert folds[1].notes == (f"train.csv: fold 2 of 5: {len(folds[1].held_out)} of its 203 rows are held out",)


def test_a_smaller_share_is_part_of_a_larger_one_and_the_rows_held_out_stay():
    small, large, whole = (parts_of(hold_out=True, train_share=share) for share in (0.1, 0.5, 1.0))
    assert set(small.train) < set(large.train) < set(whole.train)
    assert (len(small.train), len(large.train), len(whole.train)) == (18, 90, 180)
    assert (
        (small.held_out == whole.held_out).all()
        and len(whole.held_out) == 20
        and not set(whole.held_out) & set(whole.train)
    )
    assert whole.notes == (
        "train.csv: no evaluation data given, so 20 of its 200 rows are held out (options.dev_share=0.1)",
    )
    assert small.notes[1] == "train.csv: trains on 18 of 180 rows (options.train_share=0.1)"
    assert (parts_of(hold_out=True, split_seed=1).held_out != whole.held_out).any()
    assert len(parts_of(hold_out=False).held_out) == 0 and parts_of(hold_out=False).notes == ()


def test_equal_texts_never_stand_on_both_sides_and_the_user_is_told():
    texts = [f"text {number % 60}" for number in range(200)]
    for fold in range(4):
        parts = parts_of(200, units=texts, folds=4, fold=fold)
        assert not {texts[row] for row in parts.train} & {texts[row] for row in parts.held_out}
        assert parts.notes[-1] == "train.csv: 140 rows have the text of an earlier one; equal texts stay together"


def test_too_few_rows_are_told():
    parts = parts_of(3, hold_out=True)
    assert len(parts.train) == 3 and "3 texts are too few to hold some out; nothing is evaluated" in parts.notes[0]
    with pytest.raises(ValueError, match=r"train\.csv: expected at least options\.folds = 5 different texts, got 2"):
        parts_of(6, units=[0, 0, 0, 1, 1, 1], folds=5)
    with pytest.raises(ValueError, match=r"options\.train_share = 0\.01 leaves nothing to train on of 20 texts"):
        parts_of(20, train_share=0.01)
    with pytest.raises(ValueError, match=r"options\.dev_share = 0\.97 leaves nothing to train on of 8 texts"):
        parts_of(8, hold_out=True, dev_share=0.97)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"train_share": 0.0}, "train_share: expected a share above 0"),
        ({"train_share": 1.5}, "at most 1, got 1.5"),
        ({"dev_share": 1.0}, "dev_share: expected a share from 0 to below 1"),
        ({"folds": 1}, "folds: expected 0 or at least 2"),
        ({"folds": 3, "fold": 3}, "fold: expected a number from 0 to below options.folds = 3, got 3"),
        ({"fold": 1}, "folds = 0, got 1"),
        ({"split_seed": -1}, "split_seed: expected at least 0"),
        ({"train_share": float("nan")}, "got nan"),
    ],
)
def test_options_out_of_range_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        SplitOptions(**options)


def test_numbers_are_stratified_by_tenths():
    found = bins(np.random.default_rng(0).permutation(100).astype(float))
    assert collections.Counter(found) == dict.fromkeys(range(10), 10)
