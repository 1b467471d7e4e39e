"""Probabilities that mean what they say: a temperature, and a probability below which an answer abstains, both tuned on
the rows to evaluate on.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from official_bert.fields import NonNegative, Probability, ShareBelow1
from official_bert.objectives.calibration import Calibration
from official_bert.tasks.answers import Answers
from official_bert.tasks.data import Steps


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrationOptions:
    """The temperature of probabilities, and which of them are too low for an answer."""

    calibrate: bool = False
    """Fit the temperature of a label, a choice or tags to the rows to evaluate on, and store it beside the weights."""
    temperature: NonNegative = 0.0
    """Number by which logits are divided before they become probabilities; 0: 1, unless an evaluation has fitted it."""
    target_accuracy: ShareBelow1 = 0.0
    """Above 0: calibrate, and find abstain_below so that this share of the other answers is right on the rows to
    evaluate on; of a label or a choice."""
    abstain_below: Probability = 0.0
    """An answer with a lower probability says that it abstains; 0: none does, unless an evaluation has found it."""


class CalibratedAnswers(Answers):
    """Answers with probabilities, which an evaluation may calibrate; the options are `CalibrationOptions`."""

    measures_with_tuned = True

    @property
    def asked(self) -> list[str]:
        """The options of calibration that are given."""
        return [field.name for field in dataclasses.fields(CalibrationOptions) if getattr(self.options, field.name)]

    @property
    def tunes(self) -> bool:
        """Whether an evaluation has to fit the temperature, or to find the threshold."""
        options = self.options
        fits = (options.calibrate or options.target_accuracy) and not options.temperature
        return bool(fits or (options.target_accuracy and not options.abstain_below))

    @property
    def calibration(self) -> Calibration:  # type: ignore[override]
        """The temperature and the threshold. Raises ValueError if they should be tuned but were not."""
        if self.tunes:
            raise ValueError(
                "options.calibrate, target_accuracy: no evaluation has calibrated these weights yet; expected one "
                "(--do_eval), or options.temperature and abstain_below"
            )
        return Calibration(self.options.temperature or 1.0, self.options.abstain_below)

    def check_rows(self, steps: Steps, held_out: Any) -> None:
        """Raises ValueError for a task without such probabilities, and for a training without rows to calibrate on."""
        abstains = self.options.target_accuracy or self.options.abstain_below
        heads = ("classifier", "choice", *(() if abstains else ("tagger",)))
        if self.asked and self.task.head not in heads:
            raise ValueError(
                f"config.options.{self.asked[-1]}: expected a model of kind {', '.join(heads)} with it, got "
                f"{self.task.head}"
            )
        if steps.train and self.tunes and not held_out:
            raise ValueError(
                f"config.options.{self.asked[-1]}: expected rows to evaluate on, with which the model is calibrated"
            )

    def check_tuned(self, metrics: Mapping[str, float]) -> None:
        if self.tunes and metrics["accuracy_of_answers"] < self.options.target_accuracy:
            raise ValueError(
                f"config.options.target_accuracy: {self.options.target_accuracy}: no threshold reaches it on the rows "
                "to evaluate on; the best share of right answers is {accuracy_of_answers:.4f}, from a probability of "
                "{abstain_below:.4f} on, which {coverage:.1%} of the rows have".format_map(metrics)
            )

    def tuned_options(self, metrics: Mapping[str, float]) -> dict[str, Any]:
        """Returns the temperature and the threshold, if an evaluation has tuned them and reached the target."""
        reached = self.tunes and metrics["accuracy_of_answers"] >= self.options.target_accuracy
        return {name: metrics[name] for name in Calibration._fields} if reached else {}

    def with_tuned(self, stored: Mapping[str, Any]) -> Any:
        """Returns the task with the stored temperature and threshold, unless others are given."""
        values = {name: stored[name] for name in {*Calibration._fields} & stored.keys() - {*self.asked}}
        return self.task.with_options(**values) if values else self.task
