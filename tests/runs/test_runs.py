"""Fine-tunes every task once from its published files: trains, evaluates, answers, and evaluates again alone."""

import dataclasses
import json
import math
import pathlib

import made_pretraining
import pytest
from made_finetuning import GLUE, ROOT, SWAG, data_files, make_config, resolve

from official_bert.run_folder import RunFolder
from official_bert.runs.fine_tuning import FineTuning
from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task
from official_bert.training.machines.cluster import Placement

QUESTIONS = {name: ROOT / "golden" / f"{name}.json" for name in ("squad_v1", "squad_v2")}
WINDOWS = {"max_seq_length": 64, "doc_stride": 32, "max_query_length": 16}
CONLL = "Anna B-PER\nsings O\n\nin O\nBrno B-LOC\n\n"


def questions(name: str, **options):
    path = QUESTIONS[name]
    return {"task": "squad", "options": WINDOWS | options}, {
        "train_file": path,
        "eval_file": path,
        "allow_same_data": True,
    }


def tagged(folder: pathlib.Path, **options):
    for name in ("train", "dev"):
        (folder / f"{name}.conll").write_text(CONLL * 4 + ("" if name == "train" else "Brno B-LOC\nsings O\n\n"))
    return {"task": "ner", "options": options}, {
        "train_file": folder / "train.conll",
        "eval_file": folder / "dev.conll",
        "predict_file": folder / "dev.conll",
    }


RUNS = {
    "mnli": lambda _: ({"task": "glue", "options": {"dataset": "mnli"}}, {"data_dir": GLUE}),
    "stsb": lambda _: ({"task": "glue", "options": {"dataset": "stsb"}}, {"data_dir": GLUE}),
    "swag": lambda _: ({"task": "swag", "options": {"max_seq_length": 64}}, {"data_dir": SWAG}),
    "squad 1.1": lambda _: questions("squad_v1"),
    "squad 2.0": lambda _: questions("squad_v2", version_2_with_negative=True),
    "ner": tagged,
    "ner with a CRF": lambda folder: tagged(folder, crf=True, constrain=True),
    "ner on frozen features": lambda folder: tagged(folder, features="concat", feature_layers=1, lstm_size=8),
}
METRICS = {
    "mnli": {"loss", "accuracy", "accuracy_mismatched"},
    "stsb": {"loss", "pearson", "spearman"},
    "swag": {"loss", "accuracy"},
    "squad 1.1": {"exact_match", "f1"},
    "squad 2.0": {"exact_match", "f1", "best_f1_threshold"},
    "ner": {"loss", "f1"},
}
REPORTED = {
    "mnli": {"classes", "calibration_mismatched", "curves", "cut_rows"},
    "stsb": {"scores", "mistakes"},
    "ner": {"classes", "confusion"},
    "swag": {"calibration", "mistakes"},
    "squad 1.1": {"answer_length", "mistakes"},
    "squad 2.0": {"answer_length", "null_threshold"},
}
WRITTEN = {
    "mnli": "MNLI-m.tsv",
    "stsb": "STS-B.tsv",
    "swag": "predictions.csv",
    "squad 1.1": "nbest_predictions.json",
    "squad 2.0": "null_odds.json",
    "ner": "predictions.conll",
}


# Their tests, or the journeys, train these too.
SLOW = ("mnli", "squad 1.1", "squad 2.0", "stsb", "swag", "ner", "ner with a CRF", "ner on frozen features")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in RUNS])
def test_every_task_is_trained_evaluated_and_answered(tmp_path, name):
    sections, files = RUNS[name](tmp_path)
    task_name = sections.pop("task")
    config = make_config(
        task_name, training={"batch_size": 2, "eval_batch_size": 2, "epochs": 1.0, "report": True}, **sections
    )
    output = tmp_path / "run"
    run = RunFolder(str(output))
    tuning = FineTuning(
        load_task(config), data_files(**files), run, Placement(), steps=Steps(predict=True), report=lambda _: None
    )
    metrics = tuning.carry_out()
    kind = name.partition(" with")[0].partition(" on")[0]
    assert METRICS[kind] <= set(metrics) and all(math.isfinite(value) for value in metrics.values())
    if kind.startswith("squad"):
        assert "loss" not in metrics  # windows to be answered have none
        asked = {
            question["id"]
            for article in json.loads(QUESTIONS[f"squad_v{name[6]}"].read_text())["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        }
        assert set(json.loads((output / "predictions.json").read_text())) == asked
    assert (output / WRITTEN[kind]).stat().st_size
    written = json.loads((output / "report.json").read_text())
    assert written["metrics"] == metrics and (output / "report.html").stat().st_size and REPORTED[kind] <= set(written)
    card = (output / "README.md").read_text()
    assert f"| task | {task_name} |" in card and all(name.replace("_", "\\_") in card for name in metrics)
    stored = RunFolder(str(output)).config()
    alone = FineTuning(
        load_task(stored), data_files(**files), run, Placement(), steps=Steps(train=False), report=lambda _: None
    )
    again = alone.carry_out()
    assert {key: again[key] for key in metrics} == pytest.approx(metrics, rel=1e-5, abs=1e-5)
    if name == "ner":
        check_evaluation_on_another_file(alone, output)


def check_evaluation_on_another_file(alone, output):
    """Requires that results on other data stand beside those on the run's own, and that a second file of one name is
    refused.
    """
    before = {
        path.name: path.read_bytes() for path in output.iterdir() if path.is_file() and path.name != "evaluations.json"
    }
    path = output.parent / "later/news.txt"
    path.parent.mkdir()
    path.write_text("Anna\tB-PER\n\nrain\tO\n")
    later = dataclasses.replace(alone, files=dataclasses.replace(alone.files, eval_file=str(path)))
    later.carry_out()
    after = {
        path.name: path.read_bytes() for path in output.iterdir() if path.is_file() and path.name != "evaluations.json"
    }
    assert before.items() <= after.items() and after.keys() - before.keys() == {
        "eval_results.news.txt",
        "report.news.html",
        "report.news.json",
    }
    path.write_text("rain\tO\n")
    with pytest.raises(
        ValueError, match=r"later/news\.txt: .*eval_results\.news\.txt has the results of another file of this name"
    ):
        dataclasses.replace(later).carry_out()


@pytest.mark.parametrize("given", ["predict_file", "train_file"])
@pytest.mark.parametrize("linked", [False, True], ids=["itself", "by a link"])
def test_data_that_answers_would_replace_are_refused_before_training(tmp_path, given, linked):
    sections, files = tagged(tmp_path)
    output = tmp_path / "run"
    output.mkdir()
    path = output / WRITTEN["ner"]
    path.write_bytes(files[given].read_bytes())
    if linked:
        (tmp_path / "linked.conll").symlink_to(path)
        path = tmp_path / "linked.conll"
    task = load_task(make_config(sections.pop("task"), **sections))
    with pytest.raises(ValueError, match=f"--{given}={path}: the answers would overwrite this file"):
        FineTuning(
            task, data_files(**files | {given: path}), RunFolder(str(output)), Placement(), steps=Steps(predict=True)
        ).carry_out()
    assert [one.name for one in output.iterdir()] == [WRITTEN["ner"]]


def check_names_and_weights(data):
    """Requires that the weights computed from a batch alone equal those of the losses, to the bit, under the task's own
    names.
    """
    task, batch = data.task, next(iter(data.train.dataset()))
    outputs = data.model(dict(batch), training=False)
    wanted = {name: float(weight) for name, (_, weight) in task.objective.losses(outputs, batch).items()}
    found = {name: float(weight) for name, weight in task.objective.weights(batch).items()}
    assert found == wanted and all(weight > 0 for weight in found.values())
    assert list(found) == list(task.objective.names) and list(task.objective.counters(outputs, batch)) == list(
        task.objective.counter_names
    )


@pytest.mark.parametrize("name", RUNS)
def test_the_weights_of_losses_follow_from_the_batch(tmp_path, name):
    sections, files = RUNS[name](tmp_path)
    # an epoch's last batch has filler rows
    config = make_config(sections.pop("task"), training={"batch_size": 3}, **sections)
    check_names_and_weights(resolve(config, **files))


def test_so_do_those_of_pre_training(tmp_path):
    path = made_pretraining.write_records(tmp_path / "few.tfrecord", 20)  # fewer than a batch
    check_names_and_weights(made_pretraining.resolve(made_pretraining.make_config(), path))
