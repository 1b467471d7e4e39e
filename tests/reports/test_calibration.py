"""Temperatures, errors of calibration and thresholds against SciPy, sums by hand, and every threshold tried."""

import types

import numpy as np
import pytest
import scipy.optimize
import scipy.special

from official_bert.reports import calibration
from official_bert.reports.calibrated import calibrated_sections


def drawn_rows(temperature, count=400, classes=3, seed=0):
    """Returns right classes that are drawn from the softmax of logits, and these logits times a temperature."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(count, classes)) * 2.0
    gold = np.array([rng.choice(classes, p=shares) for shares in scipy.special.softmax(logits, axis=-1)])
    return gold, (logits * temperature).astype(np.float32)


@pytest.mark.parametrize("temperature", [0.4, 1.0, 3.0])
def test_the_temperature_is_the_one_that_scipy_finds_by_gradients(temperature):
    gold, logits = drawn_rows(temperature)

    def loss(inverse):
        shares = np.exp(logits.astype(float) * inverse[0])
        return -np.mean(np.log(shares[np.arange(len(gold)), gold] / shares.sum(axis=1)))

    wanted = 1.0 / scipy.optimize.minimize(loss, [1.0], method="BFGS", options={"gtol": 1e-9}).x[0]
    found = calibration.fit_temperature(gold, logits)
    assert found == pytest.approx(wanted, rel=1e-4) and found == pytest.approx(temperature, rel=0.25)


def test_answers_that_are_all_right_tell_no_temperature_and_all_wrong_ones_have_a_bound():
    logits = np.array([[1.0, 0.0], [0.0, 2.0]])
    assert calibration.fit_temperature(np.array([0, 1]), logits) == 1.0
    assert calibration.fit_temperature(np.array([1, 0]), logits) == pytest.approx(20.0, rel=1e-3)


def test_the_threshold_is_the_lowest_of_all_that_reach_the_target():
    rng = np.random.default_rng(1)
    for count, target in ((50, 0.8), (300, 0.9), (300, 0.5)):
        confidence = rng.choice(np.linspace(0.3, 1.0, 60), count)  # some are equal
        right = rng.random(count) < confidence
        found = calibration.find_threshold(confidence, right, target)

        def accuracy(threshold, confidence=confidence, right=right):
            return right[confidence >= threshold].mean()

        enough = [value for value in np.unique(confidence) if (confidence >= value).sum() >= 1 / (1 - target)]
        reaching = [value for value in enough if accuracy(value) >= target]
        assert found == pytest.approx(min(reaching), abs=2e-6) and accuracy(found) >= target


def test_a_target_that_no_threshold_reaches_gives_the_best_one():
    confidence, right = np.linspace(0.5, 1.0, 40), np.arange(40) % 2 == 0  # half are right, whatever the threshold
    found = calibration.find_threshold(confidence, right, 0.95)
    shares = {value: right[confidence >= value].mean() for value in confidence if (confidence >= value).sum() >= 20}
    assert shares[min(shares, key=lambda value: abs(value - found))] == max(shares.values()) < 0.95


def test_tuning_keeps_what_is_given():
    gold, logits = drawn_rows(2.0)
    off = {"calibrate": False, "temperature": 0.0, "target_accuracy": 0.0, "abstain_below": 0.0}
    options = types.SimpleNamespace(**off | {"temperature": 4.0, "abstain_below": 0.5})
    found = calibration.tune(options, False, gold, logits)
    shares = scipy.special.softmax(logits.astype(float) / 4.0, axis=-1)
    sure = shares.max(axis=1) >= 0.5
    assert found == pytest.approx(
        {
            "temperature": 4.0,
            "abstain_below": 0.5,
            "coverage": sure.mean(),
            "accuracy_of_answers": (shares.argmax(axis=1) == gold)[sure].mean(),
        }
    )
    options = types.SimpleNamespace(**off | {"target_accuracy": 0.9})
    found = calibration.tune(options, True, gold, logits)
    assert found["temperature"] == calibration.fit_temperature(gold, logits) and found["accuracy_of_answers"] >= 0.9


def test_the_report_has_the_error_before_and_after_and_the_accuracy_of_the_surest_answers():
    shares = np.array([[0.9, 0.1], [0.8, 0.2], [0.62, 0.38], [0.3, 0.7]])
    gold = np.array([0, 0, 1, 1])
    (plain,) = calibrated_sections(gold, np.log(shares), 1.0, 0.0)
    error = (0.1 + 0.2 + 0.62 + 0.3) / 4  # of the 15 bins, each has one answer at most
    assert plain.values["expected_calibration_error"] == pytest.approx(error) and "before" not in plain.values
    section, coverage = calibrated_sections(gold, np.log(shares), 0.5, 0.75)
    squares = shares**2 / (shares**2).sum(axis=1, keepdims=True)  # a temperature of a half squares them
    confidence = squares.max(axis=1)
    assert [round(value, 3) for value in confidence] == [0.988, 0.941, 0.727, 0.845]
    # 0.988 and 0.941 lie in the last bin, above 14 / 15
    after = (abs(confidence[0] + confidence[1] - 2) + confidence[2] + 1 - confidence[3]) / 4
    assert section.values["expected_calibration_error"] == pytest.approx(after)
    assert section.values["before"]["expected_calibration_error"] == pytest.approx(error)
    low, high = section.values["interval"]
    assert low <= after <= high and f"{after:.4f}" in section.note and f"before calibration {error:.4f}" in section.note
    assert coverage.values["rows"] == [
        pytest.approx(row)
        for row in ([confidence[0], 0.25, 1.0], [confidence[1], 0.5, 1.0], [confidence[3], 0.75, 1.0])
    ] + [pytest.approx([confidence[2], 1.0, 0.75])]
    assert "25.0%" in coverage.note and coverage.pictures and "before calibration" in section.pictures[0].svg
