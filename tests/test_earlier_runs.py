"""Runs and exports of version 0.1, written before the package was sorted by subject, still give the same answers.

`tests/fixtures/written_by_0_1.tar.xz` holds a small run of every head, exports of four, and their answers at that time.
"""

import json
import pathlib
import tarfile

import pytest

from official_bert.interface.predictor import Predictor

pytestmark = pytest.mark.usefixtures("eager_predictors")

ARCHIVE = pathlib.Path(__file__).parent / "fixtures" / "written_by_0_1.tar.xz"
SLOW = ("multi_label", "mrpc", "regression", "squad", "tagger", "tagger_crf", "tagger_features")  # much as another one
RUNS = (
    "classifier",
    "multi_label",
    "mrpc",
    "regression",
    "choice",
    "squad",
    "tagger",
    "tagger_crf",
    "tagger_features",
    "fill_mask",
)
COUNTS = {"num_blanks", "num_labels", "num_entities"}  # which version 0.1 did not give
EXPORTS = ("classifier", "squad", "tagger_crf", "fill_mask")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def expected(earlier):
    return json.loads((earlier / "expected.json").read_text(encoding="utf-8"))


def same(found, wanted):
    """Says whether two answers are equal, floats within 1e-5."""
    if isinstance(wanted, dict):
        return set(found) - COUNTS == set(wanted) and all(same(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return found == pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else found == wanted


def test_the_archive_holds_what_is_tested(expected):
    assert set(expected) == set(RUNS) and {name for name in expected if "exported" in expected[name]} == set(EXPORTS)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in RUNS]
)
def test_a_run_answers_as_it_did(earlier, expected, name):
    answers = Predictor(str(earlier / "runs" / name)).answer(expected[name]["rows"])
    assert same(answers, expected[name]["answers"]), answers


@pytest.mark.parametrize("name", EXPORTS)
def test_an_export_answers_as_it_did(earlier, expected, name):
    answers = Predictor(str(earlier / "models" / name)).answer(expected[name]["rows"])
    assert same(answers, expected[name]["exported"]), answers
