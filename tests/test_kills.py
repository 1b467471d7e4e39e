"""Commands that are killed again and again without warning end with the bits of an undisturbed run."""

import kills
import pytest
from forked import Forked


@pytest.fixture(scope="module")
def forked():
    with Forked() as processes:
        yield processes


@pytest.mark.slow
@pytest.mark.parametrize("kind", kills.KINDS)
def test_a_killed_command_ends_as_an_undisturbed_one(kind, forked, tmp_path):
    row, wrong = kills.tried(kind, tmp_path, forked)
    assert not wrong, row
