"""The command with the flags of 2018's run_classifier.py, on a made-up MRPC in which one word tells the label."""

import json
import random

import numpy as np
import pytest
import tensorflow as tf
from commands import run_here

from official_bert.config import load_config
from official_bert.run_folder import RunFolder
from official_bert.tasks.loading import load_task
from official_bert.training.trainer import Trainer

WORDS = (
    "greenhouse",
    "ferry",
    "violin",
    "atlas",
    "ledger",
    "clock",
    "hinges",
    "pilot",
    "account",
    "keeper",
    "machine",
    "vane",
)


def write_pairs(path, count, seed, labelled=True):
    """Writes MRPC's columns; the label is 1 if the first sentence names the pilot."""
    draw = random.Random(seed)
    lines = [
        "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String" if labelled else "index\t#1 ID\t#2 ID\t#1 String\t#2 String"
    ]
    for number in range(count):
        label = draw.randrange(2)
        first = [draw.choice(WORDS[:7]) for _ in range(4)] + ["pilot" if label else "keeper"]
        draw.shuffle(first)
        second = " ".join(draw.choice(WORDS[:7]) for _ in range(draw.randint(2, 8)))
        lines.append(f"{label if labelled else number}\t{number}\t{number + 1000}\t{' '.join(first)}\t{second}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def files(tmp_path_factory, golden):
    folder = tmp_path_factory.mktemp("mrpc")
    config = {
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
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_bytes((golden / "vocab_uncased.txt").read_bytes())
    write_pairs(folder / "train.tsv", 256, 0)
    write_pairs(folder / "dev.tsv", 48, 1)
    write_pairs(folder / "test.tsv", 20, 2, labelled=False)
    return folder


def run(files, *more):
    return run_here(
        "-m",
        "official_bert.run_classifier",
        f"--data_dir={files}",
        f"--vocab_file={files}/vocab.txt",
        f"--bert_config_file={files}/bert_config.json",
        f"--output_dir={files}/run",
        "--max_seq_length=32",
        *more,
    )


def test_the_flags_of_2018_train_measure_and_answer_and_leave_its_files(files):
    done = run(
        files,
        "--task_name=MRPC",
        "--do_train=true",
        "--do_eval=true",
        "--do_predict=true",
        "--train_batch_size=16",
        "--learning_rate=5e-3",
        "--num_train_epochs=6.0",
        "--do_lower_case=true",
        "--use_tpu=false",
    )
    assert done.returncode == 0, done.stderr
    results = dict(line.split(" = ") for line in (files / "run" / "eval_results.txt").read_text().splitlines())
    assert int(results["global_step"]) == 96 and float(results["eval_accuracy"]) > 0.9 and "loss" in results
    chances = np.loadtxt(files / "run" / "test_results.tsv", delimiter="\t")
    assert chances.shape == (20, 2)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0, atol=1e-5)
    named = ["pilot" in line.split("\t")[3] for line in (files / "test.tsv").read_text().splitlines()[1:]]
    assert np.mean(chances.argmax(axis=1) == named) > 0.85


@pytest.mark.parametrize(("flags", "label", "step"), [((), 0, 20), (("--set=training.answer_with=best",), 1, 10)])
def test_evaluation_and_answers_come_from_the_same_checkpoint(files, tmp_path, flags, label, step, eager_steps):
    task = load_task(
        load_config(
            bert_config_file=str(files / "bert_config.json"),
            overrides=["task=glue", "options.dataset=mrpc", f"tokenizer.vocab_file={files}/vocab.txt"],
        )
    )
    RunFolder(str(tmp_path)).write_config(task.config)
    trainer = Trainer(task.recipe(task.build_model()), tf.distribute.get_strategy(), 1)
    head = next(variable for variable in trainer.model.weights if variable.path.endswith("output_bias"))
    for name, bias in (("ckpt-20", [50.0, 0.0]), ("best/ckpt-10", [0.0, 50.0])):  # the last says 0, the best 1
        head.assign(bias)
        trainer.checkpoint.write(str(tmp_path / name))
    (tmp_path / "best/metric.json").write_text('{"metric": "f1", "value": 0.5, "step": 10}')
    done = run(files, "--task_name=MRPC", "--do_eval", "--do_predict", f"--output_dir={tmp_path}", *flags)
    assert done.returncode == 0, done.stderr
    told = next(line for line in done.stdout.splitlines() if line.startswith(f"{tmp_path}: other than in training: "))
    assert "options.max_seq_length: 128 -> 32" in told and "optimizer" not in told
    results = dict(line.split(" = ") for line in (tmp_path / "eval_results.txt").read_text().splitlines())
    wanted = [line.split("\t")[0] for line in (files / "dev.tsv").read_text(encoding="utf-8-sig").splitlines()[1:]]
    assert (
        float(results["eval_accuracy"]) == pytest.approx(wanted.count(str(label)) / 48)
        and int(results["global_step"]) == step
    )
    assert (np.loadtxt(tmp_path / "test_results.tsv", delimiter="\t").argmax(axis=1) == label).all()


@pytest.mark.parametrize("step", ["--do_predict", "--do_eval"])
def test_a_run_answers_with_its_own_casing(files, tmp_path, step):
    task = load_task(
        load_config(
            bert_config_file=str(files / "bert_config.json"),
            overrides=[
                "task=glue",
                "options.dataset=mrpc",
                f"tokenizer.vocab_file={files}/vocab.txt",
                "tokenizer.do_lower_case=false",
            ],
        )
    )
    RunFolder(str(tmp_path)).write_config(task.config)
    Trainer(task.recipe(task.build_model()), tf.distribute.get_strategy(), 1).checkpoint.write(
        str(tmp_path / "ckpt-20")
    )
    done = run(files, "--task_name=MRPC", step, f"--output_dir={tmp_path}")
    assert done.returncode == 1 and f"--do_lower_case=true: text is not lower-cased for {tmp_path}" in done.stderr, (
        done.stderr
    )
    assert not (tmp_path / "test_results.tsv").exists() and not (tmp_path / "eval_results.txt").exists()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--task_name=Jeopardy", "--do_eval=true"), "--task_name: expected one of"),
        (
            ("--task_name=MRPC", "--do_train=true", "--num_train_epochs=2.0", "--set=training.steps=5"),
            "config.training.epochs: expected config.training.steps 0 (not 5) with it, got 2.0 without; it would do "
            "nothing",
        ),
        (("--task_name=MRPC",), "expected at least one of --do_train, --do_eval and --do_predict"),
    ],
)
def test_mistakes_are_told_in_one_line(files, arguments, told):
    done = run(files, *arguments)
    assert done.returncode != 0 and "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ") and told in line]


def test_rows_to_answer_are_read_before_training_begins(files, tmp_path):
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    asked = (
        "--task_name=MRPC",
        "--do_train=true",
        "--do_predict=true",
        f"--data_dir={tmp_path}",
        f"--output_dir={tmp_path}/run",
    )
    done = run(files, *asked)
    assert done.returncode == 1 and "fresh:" not in done.stdout and not (tmp_path / "run/config.yaml").exists()
    assert [line for line in done.stderr.splitlines() if line.startswith("error: ")], done.stderr
    (tmp_path / "test.tsv").write_text("index\n0\n")
    done = run(files, *asked)
    assert (
        done.returncode == 1
        and "test.tsv: expected a column '#1 String'" in done.stderr
        and "fresh:" not in done.stdout
    )


def test_the_first_of_several_workers_alone_answers(files, tmp_path):
    done = run(
        files,
        "--task_name=MRPC",
        "--do_predict",
        "--strategy=multi_worker",
        "--worker_hosts=a:1,b:1",
        "--task_index=1",
        f"--output_dir={tmp_path}",
    )
    assert done.returncode == 0 and not (tmp_path / "test_results.tsv").exists(), done.stderr
    done = run(
        files,
        "--task_name=MRPC",
        "--do_predict",
        "--strategy=multi_worker",
        "--worker_hosts=a:1,b:1",
        f"--output_dir={tmp_path}",
    )
    assert done.returncode == 1 and "no checkpoint found there" in done.stderr
