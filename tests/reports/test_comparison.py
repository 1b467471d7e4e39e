"""Comparisons of two models, against values worked out by hand."""

import dataclasses

import numpy as np
import pytest
from made_finetuning import fixture_data, make_config, perfect, resolve

from official_bert.reports import comparable, comparison
from official_bert.runs.search import values_of_best_setting
from official_bert.tasks.data import Steps


def answers_right(right):
    right = np.array(right, bool)
    return comparable.ComparableAnswers(
        questions=[f"text {row}" for row in range(len(right))],
        gold=["x"] * len(right),
        answers=["x" if one else "y" for one in right],
        measure=lambda numbers: {"accuracy": float(right[numbers].mean())},
        right=right,
    )


def test_mcnemars_p_value_is_that_of_the_binomial_distribution():
    first, second = np.array([True] + [False] * 9 + [True] * 5), np.array([False] + [True] * 9 + [True] * 5)
    assert comparison.mcnemar(first, second) == (1, 9, pytest.approx(2 * (1 + 10) / 2**10))
    assert comparison.mcnemar(first, first) == (0, 0, 1.0)


def test_the_interval_of_a_difference_is_paired():
    rng = np.random.default_rng(0)
    right = rng.random(400) < 0.7
    better = right | (np.arange(400) % 10 == 0)  # the same rows are hard for both
    first, second = answers_right(right), answers_right(better)
    (one,) = comparison.measure_differences(first, second)
    changed = np.mean(better & ~right)
    # the normal interval of a share of rows: independent scores would give 0.06
    half = 1.96 * np.sqrt(changed * (1 - changed) / 400)
    assert (one.metric, one.second - one.first) == ("accuracy", pytest.approx(changed))
    assert (one.low, one.high) == (pytest.approx(changed - half, abs=0.004), pytest.approx(changed + half, abs=0.004))
    (same,) = comparison.measure_differences(first, first)
    assert np.isnan(same.low)  # equal answers to these rows say nothing about others
    (alone,) = comparison.measure_differences(answers_right([True]), answers_right([False]))
    assert np.isnan(alone.low)


def test_the_interval_of_a_share_of_rows_is_exact_and_one_without_spread_is_not_defined():
    def measure(rows):
        return {"accuracy": float(right[rows].mean()), "macro_f1": float(right[rows].mean())}

    for rows, bounds in ((28, (0.025 ** (1 / 28), 1.0)), (1, (0.025, 1.0))):  # Clopper & Pearson 1934, by hand
        right = np.ones(rows, bool)
        intervals = comparison.measure_interval(dataclasses.replace(answers_right(right), measure=measure))
        assert intervals["accuracy"] == pytest.approx(bounds) and np.isnan(intervals.get("macro_f1", (np.nan,))[0])
    right = np.array([True] * 3 + [False])  # the tables of Clopper and Pearson for 3 of 4
    exact = comparison.measure_interval(dataclasses.replace(answers_right(right), measure=measure))
    assert exact["accuracy"] == pytest.approx((0.1941, 0.9937), abs=1e-4) != exact["macro_f1"]


def test_the_sum_of_losses_is_compared_only_if_both_have_the_same_parts():
    right = np.array([True, False] * 10)
    losses = [{"loss": 3.0, "mlm_loss": 2.0, "nsp_loss": 1.0}, {"loss": 2.5, "mlm_loss": 2.5}]
    first, second = (dataclasses.replace(answers_right(right), measure=lambda rows, part=part: part) for part in losses)
    assert [gap.metric for gap in comparison.measure_differences(first, second)] == ["mlm_loss"]
    assert [gap.metric for gap in comparison.measure_differences(second, second)] == ["loss", "mlm_loss"]


def test_other_rows_are_refused_and_rows_that_differ_are_named():
    first, second = answers_right([True, True, False]), answers_right([True, False, False])
    assert comparison.differing_rows(first, second) == [
        {"row": 1, "text": "text 1", "gold": "x", "first": "x", "second": "y"}
    ]
    with pytest.raises(ValueError, match="expected the same rows, got 3 and 1"):
        comparison.check_same_rows(first, answers_right([True]))
    second.questions[2] = "another"
    with pytest.raises(ValueError, match="another text in row 2: 'text 2' and 'another'"):
        comparison.check_same_rows(first, second)


@pytest.mark.parametrize("dataset", ["mrpc", "mnli", "stsb"])
def test_comparable_answers_have_the_metrics_of_the_evaluation(dataset):
    held_out = fixture_data(dataset).held_out
    classes = max(len(held_out.task.answers.labels), 1)
    rows = perfect(held_out.source, classes, "label_ids" if held_out.task.head == "classifier" else "scores")
    found, measured = held_out.comparable(rows), held_out.evaluate(rows)
    for name, one in found.items():
        own = {f"{metric}{name}": value for metric, value in one.measure(np.arange(len(one.gold))).items()}
        assert own and own == {key: pytest.approx(measured[key], nan_ok=True) for key in own}
        assert one.right is None or (one.right.all() and list(one.answers) == list(one.gold))


def test_the_spread_of_a_search_is_that_of_the_seeds_of_its_best_setting():
    runs = {
        f"rate{rate}-seed{seed}": {
            "config": {"seed": seed, "optimizer": {"learning_rate": rate}},
            "metrics": {"accuracy": value},
        }
        for rate, seed, value in ((1, 0, 0.5), (1, 1, 0.6), (2, 0, 0.7), (2, 1, 0.9))
    }
    runs["rate2-seed2"] = {"config": {"seed": 2, "optimizer": {"learning_rate": 2}}, "metrics": None}  # has diverged
    values, spread = values_of_best_setting({"metric": "accuracy", "best": "rate2-seed1", "runs": runs})
    assert values == [0.7, 0.9] and spread == pytest.approx(np.sqrt(0.02))


def test_answers_with_several_labels_are_those_of_the_tuned_threshold(tmp_path):
    file = tmp_path / "dev.csv"
    file.write_text('text,label\nit rained,"a,b"\nthree,a\nthe atlas,\n')
    options = {"kind": "multi_label", "labels": ["a", "b"], "threshold": "tuned", "label_separator": ","}
    config = make_config("classification", options=options)
    held_out = resolve(config, Steps(train=False), eval_file=file).held_out
    rows = [held_out.source.examples[index] for index in np.concatenate(held_out.source.plan(0))]
    logits = [
        {"logits": np.asarray(row["label_ids"] if "label_ids" in row else row["label_matrix"], np.float32) - 3.0}
        for row in rows
    ]
    answers = held_out.comparable(logits)[""]
    assert (
        answers.answers == answers.gold == ["a, b", "a", "(none)"]
        and answers.measure(np.arange(3))["exact_match"] == 1.0
    )
