"""Cross-validation and random search as commands: each run once, one table, and what they refuse."""

import contextlib
import json
import re

import made_tokenizers
import pytest
import tensorflow as tf
from commands import run_here
from made_finetuning import make_config
from test_run_finetuning import write_csv

from official_bert.config import ModelConfig, build
from official_bert.models.classifier import Classifier
from official_bert.run_folder import RunFolder
from official_bert.runs import search
from official_bert.runs.configuration import task_config
from official_bert.training.machines.cluster import Placement

TINY = {
    "vocab_size": 3000,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "initializer_range": 0.2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@pytest.fixture(scope="module")
def command(tmp_path_factory, golden):
    folder = tmp_path_factory.mktemp("searches")
    (folder / "bert_config.json").write_text(json.dumps(TINY))
    Classifier.make(build(ModelConfig, TINY), {"num_classes": 2}).save(folder / "bert.keras")
    write_csv(folder / "train.csv", 60, 0)
    write_csv(folder / "new.csv", 10, 1)

    def run(*arguments):
        return run_here(
            "-m",
            "official_bert.run_finetuning",
            "--task=classification",
            f"--bert_config_file={folder}/bert_config.json",
            f"--vocab_file={golden}/vocab_uncased.txt",
            f"--train_file={folder}/train.csv",
            *([] if "max_seq_length" in "".join(arguments) else ["--max_seq_length=32"]),
            "--num_train_epochs=1",
            "--cache_dir=",
            f"--output_dir={folder}/runs",
            *(argument.replace("HERE", str(folder)) for argument in arguments),
        )

    return run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--folds=3", "--predict_file=HERE/new.csv"],
            "--folds: expected no --predict_file and no --do_predict with it",
        ),
        (["--folds=3", "--eval_file=HERE/new.csv"], "--eval_file: expected none beside options.folds"),
        (["--folds=1"], "config.options.folds: expected 0 or at least 2, got 1"),
        (["--folds=1000"], "expected at least options.folds = 1000 different texts, got"),
        (["--folds=3", "--nodo_eval"], "expected --do_train and --do_eval with them"),
        (["--random=2"], "--random: expected --vary"),
        (
            ["--vary=optimizer.learning_rate=uniform(1e-5,1e-4)"],
            "expected --random, the number of settings to draw, with it",
        ),
        (["--random=2", "--vary=optimizer.learning_rat=uniform(1,2)"], "unknown keys ['learning_rat']"),
        (["--random=2", "--vary=training.batch_size=uniform(1,2)"], "config.training.batch_size: expected int, got 1."),
        (["--random=-1"], "flag --random"),
        (
            ["--folds=3", "--strategy=multi_worker", "--worker_hosts=localhost:1,localhost:2", "--task_index=0"],
            "expected another --strategy than multi_worker, which trains one run",
        ),
        (
            ["--vary=options.max_seq_length=16,128"],
            "config.options.max_seq_length: expected at most the model's 64 positions",
        ),
        (
            ["--vary=training.batch_size=16,20", "--set=training.accumulation_steps=8"],
            "times 8 accumulation steps = 8, got 20",
        ),
        (["--vary=training.freeze=embeddings,layers 0-7"], "layers 0-7: expected layers from 0 to 0"),
        (
            ["--vary=training.reinitialize_layers=0,1"],
            "training.reinitialize_layers: expected --init_checkpoint with it",
        ),
        (
            ["--vary=training.reinitialize_layers=0,7", "--init_checkpoint=HERE/bert.keras"],
            "training.reinitialize_layers: expected at most the 1 layers of the model, got 7",
        ),
        (
            [
                "--vary=training.reinitialize_layers=0,1",
                "--set=training.freeze=encoder",
                "--init_checkpoint=HERE/bert.keras",
            ],
            "layer_0 would be reinitialized and frozen",
        ),
        (
            ["--vary=optimizer.layer_decay=1.0,0.9", "--set=training.freeze=embeddings"],
            "optimizer.layer_decay: expected 1.0, embeddings and",
        ),
        (
            ["--vary=optimizer.warmup_proportion=0.1,0.3", "--set=optimizer.warmup_steps=2"],
            "expected config.optimizer.warmup_steps 0 (not 2) with it, got 0.1 without; it would do nothing",
        ),
        (
            ["--vary=training.patience=0,2", "--set=training.eval_epochs=0"],
            "training.patience: expected 0, got 2: it counts evaluations, and",
        ),
        (["--vary=training.steps=2,3"], "config.training.epochs: expected config.training.steps 0 (not 2) with it"),
        (["--set=training.freeze=layers 0-7"], "layers 0-7: expected layers from 0 to 0"),
        (
            ["--set=optimizer.layer_decay=1.5"],
            "config.optimizer.layer_decay: expected a share above 0, at most 1, got 1.5",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(command, arguments, said):
    done = command(*arguments)
    assert done.returncode == 1 and said in done.stderr + done.stdout and "Traceback" not in done.stderr, done.stderr
    assert "run 2 of" not in done.stdout and "saved" not in done.stdout  # nothing was trained before it was seen


def test_a_search_knows_a_tokenizer_in_a_folder_by_its_content(command, tmp_path, monkeypatch):
    origins = []

    def stop(*_, origin, **more):
        origins.append(origin)
        raise ValueError("stopped")

    monkeypatch.setattr(search, "search", stop)
    for name, kind in (("a", "roberta"), ("b", "roberta"), ("c", "xlm_roberta")):
        made_tokenizers.write(tmp_path / name, kind)
        done = command(f"--vocab_file={tmp_path / name}", "--vary=optimizer.learning_rate=0.01,0.02")
        assert "error: stopped" in done.stderr, done.stderr
    first, same, other = (origin["vocabulary"] for origin in origins)
    assert first == same != other


@pytest.mark.parametrize(
    ("vary", "said"),
    [
        ("model.num_hidden_layers=1,2", "num_hidden_layers is 1 there, got 2"),
        (
            "model.attention=bidirectional,left_to_right",
            "model.attention is 'bidirectional' there, got 'left_to_right'",
        ),
    ],
)
def test_settings_that_contradict_the_checkpoint_are_refused(command, vary, said):
    done = command("--init_checkpoint=HERE/bert.keras", f"--vary={vary}")
    assert done.returncode == 1 and said in done.stderr and "run 1 of" not in done.stdout, done.stderr


def test_every_setting_of_a_search_has_a_batch_that_the_replicas_share(monkeypatch):
    class TwoReplicas:
        num_replicas_in_sync = 2

        @contextlib.contextmanager
        def scope(self):
            monkeypatch.setattr(tf.distribute, "get_strategy", lambda: self)
            yield

    monkeypatch.setattr(task_config, "make_strategy", lambda _: TwoReplicas())
    settings = [{"training.batch_size": 8}, {"training.batch_size": 9}]
    with pytest.raises(ValueError, match=r"training\.batch_size: expected a multiple of 2 replicas times 1 .* got 9"):
        task_config.check_settings(make_config("classification"), settings, [], Placement())


def test_two_searches_do_not_write_to_one_folder(command, tmp_path):
    with RunFolder(str(tmp_path)).locked():
        done = command("--folds=3", f"--output_dir={tmp_path}")
    assert done.returncode == 1 and f"--output_dir={tmp_path}: another run is writing to this folder" in done.stderr
    assert not (tmp_path / "search.json").exists() and "run 1" not in done.stdout


@pytest.mark.slow
def test_random_settings_on_folds_are_trained_once_each_and_more_are_added(command):
    vary = "--vary=optimizer.learning_rate=loguniform(1e-3,1e-2)"
    first = command("--random=2", "--folds=2", vary)
    assert first.returncode == 0, first.stderr
    lines = first.stdout.splitlines()
    assert [line for line in lines if re.match(r"run \d", line)][-1].startswith("run 4 of 4: rate0.00")
    assert sum("of its 60 rows are held out" in line for line in lines) == 4
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("setting")) :]
    assert "accuracy: mean, standard deviation, each seed and fold (2 folds of the first seed first)" in table[0]
    again = command("--random=2", "--folds=2", vary)
    assert again.stdout.splitlines() == table
    more = command("--random=3", "--folds=2", vary)
    assert (
        next(line for line in more.stdout.splitlines() if line.startswith("run ")).startswith("run 5 of 6")
        and "+-" in more.stdout
    )


@pytest.mark.slow
def test_the_best_of_random_settings_predicts(command):
    done = command(
        "--random=2",
        "--vary=optimizer.learning_rate=loguniform(1e-3,1e-2)",
        "--vary=options.label_smoothing=0.0,0.1",
        "--predict_file=HERE/new.csv",
        "--output_dir=HERE/best",
    )
    assert done.returncode == 0 and "predictions.tsv" in done.stdout.splitlines()[-1], done.stderr
