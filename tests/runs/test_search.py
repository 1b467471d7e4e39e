"""Grids and seeds: the settings tried, the choice of the best, the kept runs, and no run done twice."""

import dataclasses
import json
import math
import pathlib

import pytest
from made_finetuning import GLUE, data_files, make_config

from official_bert.config import Config
from official_bert.run_folder import RunFolder
from official_bert.runs import search
from official_bert.runs.fine_tuning import FineTuning
from official_bert.tasks.loading import load_task
from official_bert.training.machines.cluster import Placement
from official_bert.training.stops.divergence import DivergedError


def test_the_papers_grid_has_24_settings():
    settings = search.settings_of(search.PAPER_GRID)
    assert len(settings) == 24 and len({search.name_of(setting) for setting in settings}) == 24
    assert {setting["training.batch_size"] for setting in settings} == {16, 32}
    assert {setting["optimizer.learning_rate"] for setting in settings} == {5e-5, 4e-5, 3e-5, 2e-5}
    assert {setting["training.epochs"] for setting in settings} == {2.0, 3.0, 4.0}
    assert search.name_of(settings[0]) == "batch16-rate5e-05-epochs2"


def test_values_of_a_grid_of_ones_own_have_the_types_of_their_keys():
    assert search.parse_vary(["options.class_weights={rare: 5, usual: 1},{rare: 10}", "options.layers=[0,1],[2]"]) == {
        "options.class_weights": ({"rare": 5, "usual": 1}, {"rare": 10}),
        "options.layers": ([0, 1], [2]),
    }
    assert search.parse_vary(["optimizer.learning_rate=2e-5,3e-5", "training.batch_size=8"]) == {
        "optimizer.learning_rate": (2e-5, 3e-5),
        "training.batch_size": (8,),
    }
    for wrong in ("optimizer.learning_rate", "=1", "training.batch_size=1,,2"):
        with pytest.raises(ValueError, match="expected key=value,value"):
            search.parse_vary([wrong])
    with pytest.raises(ValueError, match="--vary=seed=2: expected all values of seed in one --vary, got it twice"):
        search.parse_vary(["seed=1", "seed=2"])
    with pytest.raises(ValueError, match="learning_rat"):
        search.with_setting(Config(), {"optimizer.learning_rat": 1e-5})


class Trained:
    """Stands for a training: its metric is a function of batch and seed, and it writes a checkpoint."""

    def __init__(self):
        self.calls = []

    def __call__(self, config, folder):
        self.calls.append((config.training.batch_size, config.seed))
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        for name in ("checkpoint", "ckpt-1.index", "ckpt-1.data", "config.yaml"):
            pathlib.Path(folder, name).write_text(name)
        # Batch 16 has the best single run, batch 32 the better mean.
        return {"f1": {16: (0.9, 0.1), 32: (0.7, 0.8)}[config.training.batch_size][config.seed % 2], "loss": 1.0}


CONFIG = Config(seed=10)


def run(folder, train_one, said=None, batches=(16, 32), config=CONFIG, metric="f1", **origin):
    return search.search(
        config,
        search.settings_of({"training.batch_size": batches}),
        2,
        str(folder),
        metric,
        train_one,
        (said if said is not None else []).append,
        origin,
    )


def with_checkpoints(folder):
    return {one.name for one in folder.iterdir() if list(one.glob("ckpt-*"))}


def test_settings_are_judged_by_their_mean_and_runs_by_themselves(tmp_path):
    train_one, said = Trained(), []
    outcomes, best = run(tmp_path, train_one, said)
    assert train_one.calls == [(16, 10), (16, 11), (32, 10), (32, 11)]
    assert [(outcome.setting, round(outcome.mean, 6)) for outcome in outcomes] == [
        ({"training.batch_size": 32}, 0.75),
        ({"training.batch_size": 16}, 0.5),
    ]
    assert outcomes[0].spread == pytest.approx(0.1 / 2**0.5)
    assert best == str(tmp_path / "batch16-seed10") and said[3] == "run 4 of 4: batch32-seed11"
    assert search.describe(outcomes, "f1")[1].startswith("batch32  75.00 % +- 7.07 %  (70.00 %, 80.00 %)")
    assert with_checkpoints(tmp_path) == {"batch16-seed10"}
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


def test_another_search_in_the_folder_chooses_among_its_own_runs(tmp_path):
    run(tmp_path, Trained(), batches=(16,))
    _, best = run(tmp_path, Trained(), batches=(32,))  # its best has 0.8, that of the first one 0.9
    assert best == str(tmp_path / "batch32-seed11") == RunFolder(str(tmp_path)).best_of_search.path
    assert with_checkpoints(tmp_path) == {"batch16-seed10", "batch32-seed11"}
    run(tmp_path, Trained())
    assert with_checkpoints(tmp_path) == {"batch16-seed10", "batch32-seed11"}  # nothing was trained
    assert RunFolder(str(tmp_path)).best_of_search.path == str(tmp_path / "batch16-seed10")


def test_a_training_of_its_own_in_the_folder_of_a_search_is_refused(tmp_path):
    run(tmp_path, Trained())  # run_predict, run_export and --nodo_train would answer with its best run
    task = load_task(make_config("glue", options={"dataset": "mrpc"}))
    with pytest.raises(
        ValueError, match=f"--output_dir={tmp_path} holds a search, whose best run is {tmp_path}/batch16-seed10;"
    ):
        FineTuning(task, data_files(data_dir=GLUE), RunFolder(str(tmp_path)), Placement()).carry_out()


def test_a_best_run_without_checkpoints_is_trained_again(tmp_path):
    run(tmp_path, Trained(), batches=(32,))
    both = Trained()
    both.calls.append("the second search")
    run(tmp_path, both)  # its best is another one: the first search's loses its checkpoints
    assert with_checkpoints(tmp_path) == {"batch16-seed10"} and both.calls[1:] == [(16, 10), (16, 11)]
    again, said = Trained(), []
    _, best = run(tmp_path, again, said, batches=(32,))
    assert again.calls == [(32, 11)] and "another search in this folder has removed its checkpoints" in said[0]
    assert best.endswith("batch32-seed11") and with_checkpoints(tmp_path) == {"batch16-seed10", "batch32-seed11"}


def test_a_run_that_diverges_is_the_worst_and_does_not_stop_the_search(tmp_path):
    def train_one(config, folder):
        if config.training.batch_size == 16:
            raise DivergedError("step 3: the loss is not finite")
        return {"f1": 0.7, "error": 0.7}

    def go(folder, metric, batches=(16, 32), train_one=train_one):
        return search.search(
            Config(),
            search.settings_of({"training.batch_size": batches}),
            1,
            str(tmp_path / folder),
            metric,
            train_one,
            said.append,
        )

    said = []
    for metric in ("f1", "-error"):
        outcomes, best = go(metric, metric)
        assert best.endswith("batch32-seed12345") and [one.setting["training.batch_size"] for one in outcomes] == [
            32,
            16,
        ]
        value = {"f1": "70.00 %", "-error": "0.7000"}[metric]
        assert search.describe(outcomes, metric)[1:3] == [f"batch32  {value}", "batch16  not finite"]
        assert go(metric, metric, train_one=None)[0] == outcomes  # nothing is repeated
    assert "batch16-seed12345 diverged: step 3: the loss is not finite" in said
    outcomes, best = go(
        "nan", "f1", train_one=lambda config, _: {"f1": math.nan if config.training.batch_size == 16 else 0.1}
    )
    assert best.endswith("batch32-seed12345") and outcomes[0].values == (0.1,)
    with pytest.raises(ValueError, match=r"search.json: no run of this search has a finite value"):
        go("all", "f1", batches=(16,))


def test_a_folder_of_other_runs_is_refused_before_the_first_training(tmp_path):
    run(tmp_path, Trained(), train="a", vocabulary="v")
    longer = Config(seed=10, training=dataclasses.replace(Config().training, epochs=9.0))
    elsewhere = Config(seed=10, tokenizer=dataclasses.replace(Config().tokenizer, vocab_file="/tmp/other/vocab.txt"))
    for changed, wanted in (
        (
            {"config": longer},
            r"batch16-seed10 is a run with other values \(training.epochs.*9.0.*\); give another --output_dir",
        ),
        ({"metric": "accuracy"}, "batch16-seed10: expected a metric 'accuracy' to choose by, got \\['f1', 'loss'\\]"),
        ({"eval": "b"}, "of another eval;"),
        ({"train": "b", "eval": "b"}, "of another train and another eval;"),
        ({"vocabulary": "w"}, "of another vocabulary;"),
    ):
        with pytest.raises(ValueError, match=wanted):
            run(tmp_path, None, **{"train": "a", "vocabulary": "v"} | changed)
    run(tmp_path, None, train="a", vocabulary="v", config=elsewhere)  # the same vocabulary in another place
    quiet = Config(seed=10, training=dataclasses.replace(Config().training, log_every=7, eval_batch_size=8))
    run(tmp_path, None, train="a", vocabulary="v", config=quiet)
    run(tmp_path / "other", Trained(), train="a", eval="b")
    with pytest.raises(ValueError, match="of another eval;"):
        run(tmp_path / "other", None, train="a")


def test_a_key_that_results_leave_out_has_its_default(tmp_path):
    run(tmp_path, Trained())
    path = tmp_path / "search.json"
    found = json.loads(path.read_text())
    for one in found["runs"].values():
        del one["config"]["training"]["answer_with"]
    path.write_text(json.dumps(found))
    again = Trained()
    outcomes, _ = run(tmp_path, again)
    assert again.calls == [] and len(outcomes) == 2


@pytest.mark.parametrize(
    "stored", [{"best": "a"}, {"runs": 3, "kept": [], "origin": {}}, {"runs": {"batch16-seed10": 1}, "kept": {}}]
)
def test_results_of_another_form_are_refused_in_one_line(stored, tmp_path):
    (tmp_path / "search.json").write_text(json.dumps({"origin": {}} | stored))
    with pytest.raises(ValueError, match=r"search.json: expected the results of a search, got \{"):
        run(tmp_path, None)


def test_less_is_better_of_what_begins_with_a_minus(tmp_path):
    values = iter((3.0, 1.0, 2.0))
    _, best = search.search(
        Config(),
        search.settings_of({"training.batch_size": (8, 16, 32)}),
        1,
        str(tmp_path),
        "-error",
        lambda *_: {"error": next(values)},
        lambda _: None,
    )
    assert best.endswith("batch16-seed12345")
    with pytest.raises(ValueError, match=r"expected a metric 'f1' to choose by, got \['error'\]"):
        search.search(Config(), [{}], 1, str(tmp_path / "other"), "f1", lambda *_: {"error": 1.0}, lambda _: None)


RATES = {"optimizer.learning_rate": search.Range("loguniform", 1e-5, 1e-4), "training.batch_size": (16, 32)}


def test_ranges_and_lists_are_drawn_from_by_the_seed_and_more_draws_add_to_fewer():
    few, many, other = (search.draw_settings(RATES, count, seed) for count, seed in ((5, 1), (40, 1), (40, 2)))
    assert many[:5] == few and many != other and len({search.name_of(setting) for setting in many}) == 40
    rates = [setting["optimizer.learning_rate"] for setting in many]
    assert all(1e-5 <= rate <= 1e-4 and rate == float(f"{rate:.3g}") for rate in rates)
    assert 12 <= sum(rate < 10**-4.5 for rate in rates) <= 28  # half of a range of one power of ten
    assert {setting["training.batch_size"] for setting in many} == {16, 32}
    whole = search.Range("integers", 2, 4)
    assert {setting["training.epochs"] for setting in search.draw_settings({"training.epochs": whole}, 3, 0)} == {
        2,
        3,
        4,
    }
    assert search.with_setting(Config(), {"training.epochs": 3}).training.epochs == 3.0
    with pytest.raises(ValueError, match="--random=4: expected more different settings to draw from, found 3"):
        search.draw_settings({"training.epochs": whole}, 4, 0)
    with pytest.raises(ValueError, match="--random: expected --vary"):
        search.draw_settings({}, 1, 0)


def test_ranges_are_read_and_need_random():
    found = search.parse_vary(
        ["optimizer.learning_rate=loguniform(1e-5, 1e-4)", "training.epochs=integers(2,4)", "seed=1,2"]
    )
    assert found == {
        "optimizer.learning_rate": search.Range("loguniform", 1e-5, 1e-4),
        "training.epochs": search.Range("integers", 2.0, 4.0),
        "seed": (1, 2),
    }
    for wrong in (
        "loguniform(0,1)",
        "loguniform(1,1)",
        "uniform(2,1)",
        "uniform(1)",
        "uniform(1,2,3)",
        "uniform(a,b)",
        "integers(1,2.5)",
        "normal(0,1)",
        "uniform(0,inf)",
        "uniform(nan,1)",
    ):
        with pytest.raises(ValueError, match=r"expected uniform\(lowest,highest\), loguniform"):
            search.parse_vary([f"optimizer.learning_rate={wrong}"])
    with pytest.raises(ValueError, match="--vary=optimizer.learning_rate=loguniform.*: expected --random"):
        search.settings_of(RATES)


def test_a_random_search_that_was_killed_goes_on_and_a_longer_one_adds_to_it(tmp_path):
    trained = []

    def train_one(config, folder):
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(config.optimizer.learning_rate)
        return {"f1": config.optimizer.learning_rate}

    def go(count):
        return search.search(
            Config(seed=1), search.draw_settings(RATES, count, 1), 1, str(tmp_path), "f1", train_one, lambda _: None
        )

    with pytest.raises(KeyboardInterrupt):
        go(4)
    before = trained.copy()
    trained.clear()
    outcomes, _ = go(5)
    assert len(trained) == 2 and not set(trained) & set(before)
    assert [outcome.mean for outcome in outcomes] == sorted([*before, *trained], reverse=True)


def test_every_seed_trains_with_every_fold_held_out_once(tmp_path):
    trained = []

    def train_one(config, folder):
        trained.append((config.training.batch_size, config.seed, config.options["folds"], config.options["fold"]))
        return {"f1": len(trained) / 100}

    outcomes, best = search.search(
        Config(seed=7),
        search.settings_of({"training.batch_size": (8, 16)}),
        2,
        str(tmp_path),
        "f1",
        train_one,
        lambda _: None,
        folds=3,
    )
    assert trained == [(batch, seed, 3, fold) for batch in (8, 16) for seed in (7, 8) for fold in range(3)]
    assert outcomes[0].values == (0.07, 0.08, 0.09, 0.1, 0.11, 0.12) and best.endswith("batch16-seed8-fold2")
    assert outcomes[0].mean == pytest.approx(0.095)
    lines = search.describe(outcomes, "f1", folds=3)
    assert "each seed and fold (3 folds of the first seed first)" in lines[0]
    assert "best setting, by the highest mean: batch16" in lines and "12.00 % on its own fold" in lines[-1]
    for keys, said in (
        ({"options.fold": (0, 1)}, "--vary=options.fold: expected --folds"),
        ({"seed": (1, 2)}, "expected --seeds"),
    ):
        with pytest.raises(ValueError, match=said):
            search.search(Config(), search.settings_of(keys), 1, str(tmp_path), "f1", train_one)
    with pytest.raises(ValueError, match="--folds: expected no options.folds with it"):
        search.search(Config(options={"folds": 3}), [{}], 1, str(tmp_path), "f1", train_one, folds=3)
