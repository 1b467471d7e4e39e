"""The steps of a run's epochs."""

import types

import pytest
from made_finetuning import make_config as make_finetuning
from made_pretraining import make_config

from official_bert.config import AS_IN_2018, FINE_TUNING, Config, TrainingConfig, build, merge
from official_bert.data.rows import Rows
from official_bert.runs.beginning.phases import plan, resolved_config, task_at
from official_bert.serving import served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.data import DataFiles, Steps
from official_bert.tasks.loading import load_task
from official_bert.training.learning_rate import warmup_steps
from official_bert.training.phase import epoch_steps


@pytest.mark.parametrize(
    ("rows", "batch_size", "epochs", "up", "down"),
    [
        (3668, 32, 3.0, 345, 343),  # MRPC: 2018 logs "Num steps = 343"
        (87599, 32, 2.0, 5476, 5474),
        (392702, 32, 3.0, 36816, 36815),
        (64, 32, 1.5, 3, 3),
        (4, 32, 1.0, 1, 0),
    ],
)
def test_2018_rounds_rows_times_epochs_down_where_each_epoch_is_whole_here(rows, batch_size, epochs, up, down):
    source = types.SimpleNamespace(rows=rows, batch_size=batch_size, batches_per_epoch=-(-rows // batch_size))
    settings = [
        TrainingConfig(batch_size=batch_size, epochs=epochs, epoch_rounding=rounding) for rounding in ("up", "down")
    ]
    assert [epoch_steps(one, source) for one in settings] == [up, down]


def test_the_weights_after_a_phase_are_measured_as_training_measures_them():
    phases = [{"steps": 2, "options": {"max_seq_length": 8}}, {"steps": 3, "options": {"max_seq_length": 16}}]
    task = load_task(make_config(training={"steps": 0}, phases=phases))
    assert [task_at(task, step).options.max_seq_length for step in (0, 1, 2, 3, 5, 6)] == [8, 8, 8, 16, 16, 16]
    assert served_model._max_seq_length(task, ServingOptions()) == 16  # the longest rows of training


def test_a_run_in_phases_keeps_the_labels_that_it_found_in_its_data():
    phases = [{"steps": 2, "options": {"max_seq_length": 8}}, {"steps": 3, "options": {"max_seq_length": 16}}]
    task = load_task(make_finetuning("classification", training={"epochs": 0.0}, phases=phases))
    rows = Rows(
        "train",
        [{"text": f"the {word}", "label": label} for word in ("atlas", "ferry", "clock") for label in ("good", "bad")],
    )
    _, (first, _) = plan(task, DataFiles(train_file=rows), Steps(evaluate=False))
    found = resolved_config(task, first.task)
    assert found.options == {"max_seq_length": 32, "labels": ["bad", "good"]} and found.phases == task.config.phases
    assert load_task(found).build_model() is not None  # prediction and export have no training data to find them in


# 2018's run_classifier.py and run_squad.py: int(examples / train_batch_size * num_train_epochs), int(steps *
# warmup_proportion).
@pytest.mark.parametrize(
    ("examples", "batch_size", "epochs", "steps", "warmup"),
    [
        (3668, 32, 3.0, 343, 34),  # MRPC: 114.625 batches, 343.875
        (8551, 32, 3.0, 801, 80),  # CoLA: 267.21875, 801.65625
        (2490, 16, 4.0, 622, 62),  # RTE: 155.625, 622.5
        (392702, 32, 3.0, 36815, 3681),  # MNLI: 12271.9375, 36815.8125
        (87599, 32, 3.0, 8212, 821),  # SQuAD 1.1, its script's default: 2737.46875, 8212.40625
        (87599, 12, 2.0, 14599, 1459),  # its README's: 7299.9167, 14599.83
        (130319, 24, 2.0, 10859, 1085),  # SQuAD 2.0: 5429.9583, 10859.9167
        (29, 100, 100.0, 28, 2),  # 0.29 * 100 is 28.999999999999996 in floating point, there and here
        (100, 32, 0.5, 1, 0),
        (96, 32, 1.0, 3, 0),
    ],
)
def test_both_scripts_of_2018_count_steps_and_warm_up_so(examples, batch_size, epochs, steps, warmup):
    config = build(
        Config, merge(merge(FINE_TUNING, AS_IN_2018), {"training": {"batch_size": batch_size, "epochs": epochs}})
    )
    windows = -(-3 * examples // batch_size)  # of SQuAD's passages: they do not count
    source = types.SimpleNamespace(rows=examples, batch_size=batch_size, batches_per_epoch=windows)
    assert epoch_steps(config.training, source) == steps
    assert warmup_steps(config.optimizer, steps) == warmup and config.optimizer.warmup_proportion == 0.1
