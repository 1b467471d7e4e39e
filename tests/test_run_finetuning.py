"""The commands on a user's own files, given only their paths: labels come from the training data."""

import json
import random

import pytest
from commands import printed_metrics, run_here

pytestmark = pytest.mark.usefixtures("eager_predictors")

NAMES, OTHERS = ("Brno", "Nora"), ("the", "while", "it", "rained", "borrowed", "in", "atlas", "three")


def words_of(draw):
    return [draw.choice(NAMES if draw.random() < 0.3 else OTHERS) for _ in range(draw.randint(3, 9))]


def write_conll(path, count, seed):
    draw = random.Random(seed)
    path.write_text(
        "".join(
            "".join(f"{word}\t{'B-X' if word in NAMES else 'O'}\nthe\tO\n" for word in words_of(draw)) + "\n"
            for _ in range(count)
        )
    )


def write_csv(path, count, seed):
    draw = random.Random(seed)
    rows = [words_of(draw) for _ in range(count)]
    path.write_text(
        "text,label\n" + "".join(f"{' '.join(row)},{'named' if set(row) & set(NAMES) else 'unnamed'}\n" for row in rows)
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory, golden):
    folder = tmp_path_factory.mktemp("finetuning")
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
    for number, name in enumerate(("train", "dev", "test")):
        write_conll(folder / f"{name}.conll", 150 if name == "train" else 30, number)
        write_csv(folder / f"{name}.csv", 300 if name == "train" else 50, number)
    return folder


# The second is a journey too (journeys/test_from_text.py).
@pytest.mark.parametrize(
    ("task", "suffix", "metric", "rate", "written"),
    [
        ("ner", "conll", "f1", "1e-2", "predictions.conll"),
        pytest.param("classification", "csv", "accuracy", "3e-3", "predictions.tsv", marks=pytest.mark.slow),
    ],
)
def test_a_task_trains_measures_and_answers_without_being_told_its_labels(files, task, suffix, metric, rate, written):
    output = files / task
    done = run_here(
        "-m",
        "official_bert.run_finetuning",
        f"--task={task}",
        f"--bert_config_file={files}/bert_config.json",
        f"--vocab_file={files}/vocab.txt",
        f"--train_file={files}/train.{suffix}",
        f"--eval_file={files}/dev.{suffix}",
        f"--predict_file={files}/test.{suffix}",
        f"--output_dir={output}",
        "--max_seq_length=32",
        "--train_batch_size=16",
        f"--learning_rate={rate}",
        "--num_train_epochs=6",
        "--cache_dir=",
    )
    assert done.returncode == 0, done.stderr
    assert printed_metrics(done.stdout)[metric] > 0.9, done.stdout
    assert (output / written).stat().st_size
    asked = run_here(
        "-m",
        "official_bert.run_predict",
        f"--task={task}",
        f"--model={output}",
        "the atlas while it rained",
        "it rained, in Brno",
    )
    assert asked.returncode == 0, asked.stderr
    first, one, second, other = asked.stdout.splitlines()
    assert (first, second) == ("the atlas while it rained", "it rained, in Brno")
    if task == "ner":
        assert one == "  (no entity)" and other.startswith("  X  Brno  [14:18]  (")
        (output / written).unlink()
        told = "expected texts, got words in columns; run_finetuning "
        refused = run_here(
            "-m",
            "official_bert.run_predict",
            f"--task={task}",
            f"--model={output}",
            f"--input_file={files}/test.{suffix}",
        )
        assert refused.returncode == 1 and f"error: --input_file={files}/test.{suffix}: {told}" in refused.stderr
        advice = refused.stderr.partition(told)[2].removesuffix(" tags them\n")
        done = run_here(
            "-m",
            "official_bert.run_finetuning",
            *advice.replace("RUN", str(output)).replace("FILE", f"{files}/test.{suffix}").split(),
        )
        assert done.returncode == 0 and (output / written).stat().st_size, done.stderr
    else:
        assert one.startswith("  unnamed  (") and other.startswith("  named  (")


@pytest.mark.parametrize("more", [(), ("--seeds=2",), ("--vary=optimizer.learning_rate=1e-3,2e-3",)])
@pytest.mark.parametrize(
    ("task", "suffix", "told"),
    [
        ("ner", "conll", "broken.conll:2: not valid UTF-8"),
        ("classification", "csv", "broken.csv: expected a column 'text'"),
    ],
)
def test_files_to_answer_are_read_before_training_begins(files, tmp_path, task, suffix, told, more):
    (tmp_path / f"broken.{suffix}").write_bytes(b"the O\n\xff\n" if suffix == "conll" else b"words\nit rained\n")
    done = run_here(
        "-m",
        "official_bert.run_finetuning",
        f"--task={task}",
        f"--bert_config_file={files}/bert_config.json",
        f"--vocab_file={files}/vocab.txt",
        f"--train_file={files}/train.{suffix}",
        f"--eval_file={files}/dev.{suffix}",
        f"--predict_file={tmp_path}/broken.{suffix}",
        f"--output_dir={tmp_path}/run",
        "--max_seq_length=32",
        "--cache_dir=",
        *more,
    )
    assert done.returncode == 1 and told in done.stderr and "Traceback" not in done.stderr
    assert "fresh:" not in done.stdout and not list(tmp_path.rglob("ckpt*"))


def test_answers_without_a_run_name_the_folder_without_one(files, tmp_path):
    done = run_here(
        "-m",
        "official_bert.run_finetuning",
        "--task=classification",
        "--nodo_train",
        "--nodo_eval",
        f"--predict_file={files}/test.csv",
        f"--output_dir={tmp_path}/none",
    )
    assert done.returncode == 1 and "--vocab_file" not in done.stderr and not (tmp_path / "none").exists()
    assert (
        f"error: --output_dir={tmp_path}/none: expected the output folder of a training run, got one without "
        "weights: no checkpoint found there, and no --init_checkpoint given"
    ) in done.stderr


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--epochs=3", "error: --epochs: no such flag; did you mean --set training.epochs?"),
        ("--lr=1e-5", "error: --lr: no such flag; did you mean --learning_rate or --set optimizer.learning_rate?"),
        ("--sep=;", "error: --sep: no such flag; did you mean --set options.delimiter?"),
        ("--max_length=8", "error: --max_length: no such flag; did you mean --max_seq_length?"),
    ],
)
def test_flags_of_other_libraries_are_answered_with_ours(flag, told):
    done = run_here("-m", "official_bert.run_finetuning", "--task=classification", flag, "--output_dir=x")
    assert done.returncode == 1 and done.stderr.strip() == told
