"""Runs of version 0.2, written before training was divided into objectives, are read, answer and train on as then.

`tests/fixtures/written_by_0_2.tar.xz` was made by the code of that time: two fine-tunings and two pre-trainings of
three steps, one of each with the defaults and one with other values; the data; in expected.json the answers of each run
and the log of its next two steps; and for every task the config.yaml of a run, and all_options.yaml, in which the keys
of the task's options that nobody gave stand with their defaults too.
"""

import json
import pathlib
import shutil
import tarfile

import pytest
import yaml
from commands import run_here

from official_bert.config import load_config, to_dict
from official_bert.interface.predictor import Predictor
from official_bert.tasks.loading import load_task

ARCHIVE = pathlib.Path(__file__).parent / "fixtures" / "written_by_0_2.tar.xz"
RUNS = ("classifier", "words", "classifier_other", "words_other")
TASKS = ("glue", "swag", "squad", "ner", "retrieval", "splade", "reranking")


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("of_0_2")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def expected(earlier):
    return json.loads((earlier / "expected.json").read_text(encoding="utf-8"))


def same(found, wanted):
    """Says whether two answers are equal, floats within 1e-5."""
    if isinstance(wanted, dict):
        return found.keys() >= wanted.keys() and all(same(found[key], value) for key, value in wanted.items())
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return found == pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else found == wanted


def kept(values, written):
    """Yields the keys, with dots, whose values are others than those that were written; keys of now alone are none."""
    for key in values.keys() & written.keys():
        if isinstance(values[key], dict) and isinstance(written[key], dict):
            yield from (f"{key}.{below}" for below in kept(values[key], written[key]))
        elif values[key] != written[key]:
            yield f"{key}: {written[key]!r} is read as {values[key]!r}"


PLACES = (
    *(f"runs/{name}/config.yaml" for name in RUNS),
    *(f"configs/{name}/config.yaml" for name in TASKS),
    *(f"configs/{name}/all_options.yaml" for name in (*RUNS, *TASKS)),
)


@pytest.mark.parametrize("place", PLACES)
def test_a_configuration_with_all_keys_is_read(earlier, monkeypatch, place):
    monkeypatch.chdir(earlier)
    written = yaml.safe_load((earlier / place).read_text(encoding="utf-8"))
    config = load_config(place)
    assert len(written["training"]) > 30 and len(written["model"]) > 30
    assert not list(kept(json.loads(json.dumps(to_dict(load_task(config).config))), written))


SLOW_TOO = (*RUNS[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in RUNS[2:]))


@pytest.mark.parametrize("name", SLOW_TOO)
def test_a_run_answers_as_it_did(eager_predictors, earlier, expected, name):
    rows = [{"text": text} for text in expected[name]["texts"]]
    answers = Predictor(str(earlier / "runs" / name)).answer(rows)
    assert same(answers, expected[name]["answers"]), answers


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_a_run_trains_on_as_it_did(earlier, expected, monkeypatch, tmp_path, name):
    monkeypatch.chdir(earlier)
    run = shutil.copytree(earlier / "runs" / name, tmp_path / name)
    before = len((run / "log.jsonl").read_text(encoding="utf-8").splitlines())
    arguments = [*expected[name]["arguments"], f"--output_dir={run}", "--cache_dir=", "--set=training.steps=5"]
    done = run_here(*arguments)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()[before:]]
    rows = [row for row in rows if row["step"] > 3]
    assert [row["step"] for row in rows] == [row["step"] for row in expected[name]["log"]]
    for row, wanted in zip(rows, expected[name]["log"]):
        assert row.keys() >= wanted.keys()
        for key, value in wanted.items():
            assert row[key] == (pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value), key
