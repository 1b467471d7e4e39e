"""Grids and seeds: the settings tried, the choice of the best, the kept runs, and no run done twice."""

import json
import pathlib

import pytest

from official_bert.config import Config
from official_bert.training import search


def test_the_papers_grid_has_24_settings():
    settings = search.settings_of(search.PAPER_GRID)
    assert len(settings) == 24 and len({search.name_of(setting) for setting in settings}) == 24
    assert {setting["training.batch_size"] for setting in settings} == {16, 32}
    assert {setting["optimizer.learning_rate"] for setting in settings} == {5e-5, 4e-5, 3e-5, 2e-5}
    assert {setting["training.epochs"] for setting in settings} == {2.0, 3.0, 4.0}
    assert search.name_of(settings[0]) == "batch16-rate5e-05-epochs2"


def test_values_of_a_grid_of_ones_own_have_the_types_of_their_keys():
    assert search.parse_vary(["optimizer.learning_rate=2e-5,3e-5", "training.batch_size=8"]) == {
        "optimizer.learning_rate": (2e-5, 3e-5), "training.batch_size": (8,)}
    for wrong in ("optimizer.learning_rate", "=1", "training.batch_size=1,,2"):
        with pytest.raises(ValueError, match="expected key=value,value"):
            search.parse_vary([wrong])
    with pytest.raises(ValueError, match="learning_rat"):
        search.with_setting(Config(), {"optimizer.learning_rat": 1e-5})


class Trained:
    """Stands for a training: its metric is a function of batch and seed, and it writes a checkpoint."""

    def __init__(self):
        self.calls = []

    def __call__(self, config, folder):
        self.calls.append((config.training.batch_size, config.seed))
        pathlib.Path(folder).mkdir(parents=True)
        for name in ("checkpoint", "ckpt-1.index", "ckpt-1.data", "config.yaml"):
            pathlib.Path(folder, name).write_text(name)
        # Batch 16 has the best single run, batch 32 the better mean.
        return {"f1": {16: (0.9, 0.1), 32: (0.7, 0.8)}[config.training.batch_size][config.seed % 2], "loss": 1.0}


def run(folder, train_one, said=None):
    return search.search(Config(seed=10), {"training.batch_size": (16, 32)}, 2, str(folder), "f1", train_one,
                         (said if said is not None else []).append)


def test_settings_are_judged_by_their_mean_and_runs_by_themselves(tmp_path):
    train_one, said = Trained(), []
    outcomes, best = run(tmp_path, train_one, said)
    assert train_one.calls == [(16, 10), (16, 11), (32, 10), (32, 11)]
    assert [(outcome.setting, round(outcome.mean, 6)) for outcome in outcomes] == [
        ({"training.batch_size": 32}, 0.75), ({"training.batch_size": 16}, 0.5)]
    assert outcomes[0].spread == pytest.approx(0.1 / 2 ** 0.5)
    assert best == str(tmp_path / "batch16-seed10") and said[3] == "run 4 of 4: batch32-seed11"
    assert search.describe(outcomes, "f1")[1].startswith("batch32  0.7500 +- 0.0707  (0.7000, 0.8000)")
    kept = {folder.name for folder in tmp_path.iterdir() if list(folder.glob("ckpt-*"))} if tmp_path.is_dir() else set()
    assert kept == {"batch16-seed10"}
    assert all((folder / "config.yaml").exists() for folder in tmp_path.iterdir() if folder.is_dir())
    assert json.loads((tmp_path / "search.json").read_text())["best"] == "batch16-seed10"


def test_a_search_goes_on_with_what_it_lacks(tmp_path):
    first = Trained()

    def breaks(config, folder):
        if len(first.calls) == 2:
            raise OSError("the machine went away")
        return first(config, folder)
    with pytest.raises(OSError, match="went away"):
        run(tmp_path, breaks)
    second = Trained()
    outcomes, _ = run(tmp_path, second)
    assert second.calls == [(32, 10), (32, 11)] and len(outcomes) == 2


def test_less_is_better_of_what_begins_with_a_minus(tmp_path):
    values = iter((3.0, 1.0, 2.0))
    _, best = search.search(Config(), {"training.batch_size": (8, 16, 32)}, 1, str(tmp_path), "-error",
                            lambda *_: {"error": next(values)}, lambda _: None)
    assert best.endswith("batch16-seed12345")
    with pytest.raises(ValueError, match=r"expected a metric 'f1' to choose by, got \['error'\]"):
        search.search(Config(), {}, 1, str(tmp_path / "other"), "f1", lambda *_: {"error": 1.0}, lambda _: None)
