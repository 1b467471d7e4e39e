"""The sections of a report about probabilities: how far to trust them, and the accuracy of the surest answers.

N answers, K classes.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from official_bert.reports import pictures, statistics
from official_bert.reports.calibration import confidences, coverage_curve
from official_bert.reports.comparison import CARD_RESAMPLES, bootstrap_intervals
from official_bert.reports.sections import Section

SAID = "{expected_calibration_error:.4f} {interval}"


def calibration_section(
    confidence: np.ndarray, right: np.ndarray, note: str = "", before: np.ndarray | None = None
) -> Section:
    """Returns the section about the probabilities [N] of answers and whether these are right [N]; `before` are the
    probabilities before calibration.
    """
    bins, values = statistics.reliability(confidence, right), _error(confidence, right)
    curves, said = {"share of right answers": bins}, SAID.format_map(values)
    if before is not None:
        curves["before calibration"], values["before"] = statistics.reliability(before, right), _error(before, right)
        said += f", before calibration {SAID.format_map(values['before'])}"
    return Section(
        name="calibration",
        title="Calibration",
        on_screen=True,
        values={**values, "bins": list(map(dataclasses.asdict, bins))},
        note=f"Expected calibration error {said}: the mean distance between probability and share of right answers, in "
        f"{statistics.BINS} bins of equal width. {note}".strip(),
        header=("probability up to", "rows", "mean probability", "right"),
        rows=[[part.high, part.rows, part.confidence, part.accuracy] for part in bins],
        pictures=[pictures.reliability_picture(curves)],
    )


def calibrated_sections(gold: np.ndarray, logits: np.ndarray, temperature: float, below: float) -> Iterator[Section]:
    """Yields the section about the classes `gold` [N] and logits [N,K], and for a calibrated model one about answers
    that abstain `below` a probability.
    """
    (confidence, right), (before, _) = confidences(gold, logits / temperature), confidences(gold, logits)
    if (temperature, below) == (1.0, 0.0):
        yield calibration_section(confidence, right)
        return
    yield calibration_section(confidence, right, f"The temperature is {temperature:.4f}.", before)
    table = np.stack(coverage_curve(confidence, right), axis=-1) / [1.0, len(right), 1.0]
    rows = table[np.unique(np.searchsorted(table[:, 1], np.arange(0.1, 1.01, 0.1) - 1e-9))].tolist()
    yield Section(
        name="coverage",
        title="Sure answers",
        values={"abstain_below": below, "rows": rows},
        note=f"Answers abstain below a probability of {below:.4f}: {np.mean(confidence < below):.1%} of them.",
        header=("probability from", "answered", "right"),
        rows=rows,
        pictures=[
            pictures.lines_picture(
                {"accuracy": dict(table[:, 1:].tolist())},
                "share of rows that are answered, the surest first",
                "share of right answers",
                "Coverage and accuracy",
            )
        ],
    )


def _error(confidence: np.ndarray, right: np.ndarray) -> dict[str, Any]:
    """Returns the calibration error and its interval, of which one answer has none."""

    def measure(rows: np.ndarray) -> dict[str, float]:
        bins = statistics.reliability(confidence[rows], right[rows])
        return {"expected_calibration_error": statistics.expected_calibration_error(bins)}

    interval = bootstrap_intervals(measure, len(right), CARD_RESAMPLES).values()
    return {**measure(np.arange(len(right))), "interval": [round(end, 4) for ends in interval for end in ends]}
