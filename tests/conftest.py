"""What every test needs: quiet TensorFlow, and the folders of golden results."""

import os
import pathlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import pytest

ROOT = pathlib.Path(__file__).parent.parent


@pytest.fixture(scope="session")
def golden() -> pathlib.Path:
    """Results of the 2018 code, see its README."""
    return ROOT / "tests" / "golden"


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    """The repository."""
    return ROOT
