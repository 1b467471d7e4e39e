"""Weights of classes against scikit-learn's, and against counts by hand."""

import dataclasses

import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from official_bert.data.labelled import label_weights
from official_bert.fields import check_fields

LABELS = ("no", "yes", "1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weighted:
    """Options with weights."""

    class_weights: label_weights.Weights = ""


def test_balanced_weights_are_those_of_scikit_learn():
    targets = np.random.default_rng(0).choice(3, 200, p=[0.7, 0.2, 0.1])
    found = label_weights.class_weights("balanced", LABELS, np.bincount(targets, minlength=3), "w")
    np.testing.assert_allclose(found, compute_class_weight("balanced", classes=np.arange(3), y=targets), rtol=1e-6)
    few = np.array([1, 1, 1, 0])
    found = label_weights.class_weights("balanced", LABELS, np.bincount(few, minlength=3), "w")
    np.testing.assert_allclose(found, [*compute_class_weight("balanced", classes=np.arange(2), y=few), 1.0])


def test_weights_come_as_a_list_or_by_label():
    counts = np.array([1, 1, 1])
    np.testing.assert_array_equal(label_weights.class_weights((0.5, 2.0, 3.0), LABELS, counts, "w"), [0.5, 2.0, 3.0])
    np.testing.assert_array_equal(
        label_weights.class_weights({"yes": 4.0, "1.0": 2.0}, LABELS, counts, "w"), [1.0, 4.0, 2.0]
    )
    assert label_weights.describe(np.array([0.5, 2.0, 3.0]), LABELS) == "no 0.5, yes 2, 1 3"
    for wrong, said in (
        ((1.0,), r"w: expected a weight for each of the 3 labels, \['no', 'yes', '1'\], got 1"),
        ({"false": 1.0}, "got 'false' .in YAML, yes and no are truth values: write them in quotes"),
        ({"maybe": 1.0}, r"w: expected labels of \['no', 'yes', '1'\], got 'maybe'"),
    ):
        with pytest.raises(ValueError, match=said):
            label_weights.class_weights(wrong, LABELS, counts, "w")
    for wrong in ((1.0, 0.0), {"yes": -1.0}, (float("nan"),), (float("inf"),)):
        with pytest.raises(ValueError, match="config.options.class_weights: expected weights above 0, got"):
            check_fields(Weighted(class_weights=wrong))


def test_positive_rows_weigh_as_much_as_negative_ones():
    matrix = np.array([[1, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 1]], np.float32)
    np.testing.assert_array_equal(label_weights.positive_weights("balanced", LABELS, matrix, "w"), [3.0, 1.0, 1.0])
