"""The model card of a run."""

import numpy as np
import pytest
from made_finetuning import make_config

from official_bert.reports import comparable, comparison, model_card


def card_of(right, **more):
    right = np.array(right)
    answers = comparable.ComparableAnswers(
        questions=[""] * len(right),
        gold=[],
        answers=[],
        measure=lambda rows: {"accuracy": float(right[rows].mean())},
        right=right,
    )
    return model_card.make_card(
        "runs | <b>one",
        make_config("classification", options={"text_column": "a|b"}),
        **{
            "checkpoint": "uncased_L-12",
            "data": [("training", "/home/me/train.csv", 1200), ("evaluation", "dev.csv", None)],
            "metrics": {"accuracy": float(right.mean()), "loss": 0.5, "step": 3.0},
            "answers": {"": answers},
        }
        | more,
    )


def test_a_card_names_task_checkpoint_data_settings_metrics_versions_and_date():
    card = card_of([True] * 3 + [False])
    assert (
        "# runs \\| &lt;b>one" in card
        and "| task | classification |" in card
        and "| begun with | uncased\\_L-12 |" in card
    )
    assert (
        "| training data | train.csv, 1,200 rows |" in card
        and "/home/me" not in card
        and "| evaluation data | dev.csv |" in card
    )
    assert (
        "| accuracy | 75.00 % | 19.41 % to 99.37 % |" in card
        and "| loss | 0.5000 | – |" in card
        and "| step |" not in card
    )
    assert (
        "| optimizer.learning\\_rate | 0.005 |" in card
        and "| options.text\\_column | a\\|b |" in card
        and "tensorflow 2." in card
    )
    assert "| random weights (seed " in card_of([True, False], checkpoint="") and "Not measured" in card_of(
        [True], metrics={}
    )


def test_the_interval_of_an_accuracy_is_near_that_of_a_share():
    right = np.arange(1000) % 5 != 0
    answers = comparable.ComparableAnswers(
        questions=[""] * 1000,
        gold=[],
        answers=[],
        measure=lambda rows: {"accuracy": float(right[rows].mean())},
        right=right,
    )
    half = 1.96 * np.sqrt(0.8 * 0.2 / 1000)
    assert comparison.measure_interval(answers)["accuracy"] == pytest.approx((0.8 - half, 0.8 + half), abs=0.008)


def test_a_card_that_a_person_has_written_stays(tmp_path):
    path = tmp_path / "README.md"
    assert model_card.write_card(str(path), f"{model_card.MARK}\none") and model_card.write_card(
        str(path), f"{model_card.MARK}\ntwo"
    )
    assert path.read_text().endswith("two")
    path.write_text("mine")
    assert not model_card.write_card(str(path), "three") and path.read_text() == "mine"


def test_a_learning_rate_that_is_some_default_is_shown_and_the_command_may_be_a_call(monkeypatch):
    for rate in (1e-4, 5e-5):  # those of pre-training and of fine-tuning
        config = make_config("classification", optimizer={"learning_rate": rate})
        settings = dict(model_card.list_settings(config, {}))
        assert settings["optimizer.learning_rate"] == str(rate) and settings["training.answer_with"] == "last"
    monkeypatch.setattr("sys.argv", ["official-bert finetune", "--train_file=a b.csv"])
    assert dict(model_card.describe_programs())["command"] == "official-bert finetune '--train_file=a b.csv'"
    assert dict(model_card.describe_programs("fine_tune('rte')"))["command"] == "fine_tune('rte')"
