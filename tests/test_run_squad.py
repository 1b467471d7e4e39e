"""The command with the flags of 2018: trains, answers, averages, goes on from a fine-tuned run, refuses."""

import json
import random
import re
import shutil
import subprocess
import sys
import types

import pytest
import tensorflow as tf
from commands import run_here
from made_finetuning import make_config

from official_bert.config import save_config
from official_bert.models.checkpoints import weights_checkpoint
from official_bert.models.interchange import formats
from official_bert.run_folder import RunFolder, tuned_for, write_tuned
from official_bert.runs import documents, whole_run
from official_bert.tasks.loading import load_task

# But not `trained`, which is made before a test begins.
pytestmark = pytest.mark.usefixtures("eager_steps")

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
NAMES = ("Brno", "Anne", "Nora")


def write_questions(path, count, seed):
    """Writes questions whose answer is the only name among the words."""
    draw = random.Random(seed)
    questions = []
    for number in range(count):
        words = [draw.choice(WORDS) for _ in range(draw.randint(6, 14))]
        place = draw.randrange(1, len(words))
        words[place] = draw.choice(NAMES)
        context = " ".join(words) + "."
        start = len(" ".join(words[:place])) + 1
        questions.append(
            {
                "context": context,
                "qas": [
                    {
                        "id": f"q{number}",
                        "question": "Who borrowed it?",
                        "answers": [{"text": words[place], "answer_start": start}],
                    }
                ],
            }
        )
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "made", "paragraphs": questions}]}))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory, golden):
    folder = tmp_path_factory.mktemp("squad")
    config = {
        "vocab_size": 3000,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "type_vocab_size": 2,
        "initializer_range": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_bytes((golden / "vocab_uncased.txt").read_bytes())
    write_questions(folder / "train.json", 300, 0)
    write_questions(folder / "dev.json", 60, 1)
    return folder


def run(*arguments):
    return run_here("-m", "official_bert.run_squad", *arguments)


def train_flags(files, output, *more):
    return (
        f"--bert_config_file={files}/bert_config.json",
        f"--vocab_file={files}/vocab.txt",
        "--do_train",
        f"--train_file={files}/train.json",
        f"--output_dir={output}",
        "--max_seq_length=48",
        "--doc_stride=16",
        "--max_query_length=8",
        *more,
    )


@pytest.fixture(scope="module")
def trained(files):
    done = run(
        *train_flags(
            files,
            files / "first",
            "--learning_rate=3e-3",
            "--num_train_epochs=8",
            "--train_batch_size=32",
            "--do_predict",
            f"--predict_file={files}/dev.json",
            f"--cache_dir={files}/cache",
        )
    )
    assert done.returncode == 0, done.stderr
    return done


def results(folder):
    return dict(line.split(" = ") for line in (folder / "eval_results.txt").read_text().splitlines())


def test_the_flags_of_2018_train_answer_and_measure(files, trained):
    first = files / "first"
    assert "answer_alignment: 2018" in (first / "config.yaml").read_text()
    assert float(results(first)["exact_match"]) > 0.8 and float(results(first)["f1"]) > 0.8
    card = (first / "README.md").read_text()  # its metric with an interval, and both files
    assert re.search(rf"\n\| f1 \| {100 * float(results(first)['f1']):.2f} % \| [\d.]+ % to [\d.]+ % \|", card), card
    assert "\n| training data | train.json, " in card and "\n| evaluation data | dev.json, " in card
    predictions = json.loads((first / "predictions.json").read_text())
    assert len(predictions) == 60
    nbest = json.loads((first / "nbest_predictions.json").read_text())
    assert all(answers[0]["text"] == predictions[key] and len(answers) <= 20 for key, answers in nbest.items())
    assert "learning_rate: 0.003" in (first / "config.yaml").read_text() and (first / "vocab.txt").exists()
    assert len(list((files / "cache").iterdir())) == 1


@pytest.mark.slow
def test_a_second_fine_tuning_begins_where_the_first_ended_and_both_answer_together(files, trained):
    second = files / "second"
    done = run(
        *train_flags(
            files, second, "--learning_rate=1e-4", "--num_train_epochs=0.2", f"--init_checkpoint={files}/first"
        ),
        f"--ensemble={files}/first,{second}",
        "--do_predict",
        f"--predict_file={files}/dev.json",
        "--n_best_size=3",
    )
    assert done.returncode == 0, done.stderr
    assert "initialized (weights only)" in done.stdout and "new:" not in done.stdout
    assert float(results(second)["f1"]) > 0.8
    nbest = json.loads((second / "nbest_predictions.json").read_text())
    assert max(map(len, nbest.values())) == 3


@pytest.mark.slow
def test_one_command_measures_a_trained_model_in_several_languages(files, trained, tmp_path):
    for language, seed in (("en", 3), ("th", 4)):
        path = write_questions(tmp_path / f"made.{language}.json", 8, seed)
    # a Thai word, whose vowel signs lower-casing deletes
    path.write_text(path.read_text().replace("ferry", "\u0e17\u0e35\u0e48" * 4))
    done = run(f"--output_dir={files}/first", f"--eval_files={tmp_path}/made.*.json")
    assert done.returncode == 0, done.stderr
    rows = json.loads((files / "first/languages.json").read_text())
    assert [(row["language"], row["file"], row["questions"]) for row in rows] == [
        ("en", "made.en.json", 8),
        ("th", "made.th.json", 8),
    ]
    english, thai = rows
    assert english["exact_match"] == english["mlqa_exact_match"] > 0.5 and english["f1"] >= english["exact_match"]
    assert thai["mlqa_exact_match"] is None and thai["mlqa_f1"] is None and thai["exact_match"] > 0
    table = (files / "first/languages.md").read_text()
    scores = f"{100 * thai['exact_match']:.2f} % | {100 * thai['f1']:.2f} %"
    assert table in done.stdout and f"| th | made.th.json | 8 | {scores} | - | - |" in table
    assert f"| mean | | 16 | {100 * (english['exact_match'] + thai['exact_match']) / 2:.2f} % |" in table
    assert "made.th.json: lower-casing deletes" in done.stderr and "of its tokens are [UNK]" in done.stderr
    assert "made.th.json: its language, th, has no rules in MLQA's script" in done.stderr
    assert "made.en.json" not in done.stderr
    assert len(json.loads((files / "first/predictions_made.th.json").read_text())) == 8
    (tmp_path / "made.json").write_bytes(path.read_bytes())
    done = run(f"--output_dir={files}/first", f"--eval_files={tmp_path}/made.json")
    assert (
        done.returncode == 1
        and "made.json: expected the language in the file's name, as in xquad.de.json" in done.stderr
    )


@pytest.mark.slow
def test_replicas_share_the_questions_to_answer(files, trained, tmp_path):
    shutil.copytree(files / "first", tmp_path / "run")
    write_questions(tmp_path / "made.en.json", 9, 3)
    command = [
        sys.executable,
        "-m",
        "official_bert.run_squad",
        f"--output_dir={tmp_path}/run",
        "--strategy=mirrored",
        "--num_cpu_devices=2",
        "--do_predict",
        f"--predict_file={files}/dev.json",
        f"--eval_files={tmp_path}/made.en.json",
    ]
    done = subprocess.run([*command, "--predict_batch_size=7"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "config.training.eval_batch_size: expected a multiple of 2 replicas" in done.stderr
    (tmp_path / "run/nbest_predictions.json").unlink()
    # the last has 4 rows
    done = subprocess.run([*command, "--predict_batch_size=14"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers, wanted = (
        json.loads((folder / "nbest_predictions.json").read_text()) for folder in (tmp_path / "run", files / "first")
    )
    assert list(answers) == list(wanted) and len(answers) == 60
    for found, alone in zip(answers.values(), wanted.values()):
        assert [row["probability"] for row in found] == pytest.approx([row["probability"] for row in alone], abs=1e-4)
    assert len(json.loads((tmp_path / "run/predictions_made.en.json").read_text())) == 9


def test_questions_to_answer_that_are_training_questions_are_refused_before_training(files, tmp_path):
    (tmp_path / "copy.json").write_bytes((files / "train.json").read_bytes())
    asked = train_flags(
        files, tmp_path / "run", "--do_predict", f"--predict_file={tmp_path}/copy.json", "--num_train_epochs=0.1"
    )
    done = run(*asked)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and not list((tmp_path / "run").glob("ckpt*"))
    assert "300 of its 300 questions are in" in done.stderr and "(--allow_same_data allows it)" in done.stderr


def test_questions_that_their_answers_would_replace_are_refused(files, tmp_path):
    asked = write_questions(tmp_path / "predictions.json", 3, 5)
    before = asked.read_bytes()
    done = run(f"--output_dir={tmp_path}", "--do_predict", f"--predict_file={asked}")
    assert done.returncode == 1 and f"--predict_file={asked}: the answers would overwrite this file" in done.stderr, (
        done.stderr
    )
    assert asked.read_bytes() == before


def test_epochs_beside_steps_that_count_are_refused(files, tmp_path):
    done = run(*train_flags(files, tmp_path / "run", "--num_train_epochs=2", "--set=training.steps=5"))
    assert (
        done.returncode == 1
        and "config.training.epochs: expected config.training.steps 0 (not 5) with it" in done.stderr
    ), done.stderr
    assert not (tmp_path / "run/config.yaml").exists()


@pytest.mark.parametrize("flag", ["--predict_file", "--eval_files"])
def test_questions_to_answer_are_read_before_training_begins(files, tmp_path, flag):
    (tmp_path / "broken.en.json").write_text('{"data": [{"paragraphs": [{"qas": []}]}]}')
    done = run(
        *train_flags(files, tmp_path / "run", "--do_predict", f"--predict_file={files}/dev.json"),
        f"{flag}={tmp_path}/broken.en.json",
    )
    assert done.returncode == 1 and "'context' is missing" in done.stderr and "fresh:" not in done.stdout


@pytest.mark.parametrize("flags", [("--do_predict", "--predict_file"), ("--eval_files",)])
def test_questions_that_lack_answers_beside_answered_ones_are_named_before_training_begins(files, tmp_path, flags):
    values = json.loads((files / "dev.json").read_text())
    values["data"][0]["paragraphs"][7]["qas"][0]["answers"] = []
    (tmp_path / "dev.en.json").write_text(json.dumps(values))
    done = run(*train_flags(files, tmp_path / "run", *flags[:-1], f"{flags[-1]}={tmp_path}/dev.en.json"))
    assert done.returncode == 1 and "fresh:" not in done.stdout
    assert f"{tmp_path}/dev.en.json: question 'q7': expected gold answers to evaluate against, got none" in done.stderr


def test_the_threshold_is_read_and_stored_beside_the_best_checkpoint_if_it_answers(files, tmp_path):
    config = make_config(
        "squad",
        training={"answer_with": "best"},
        options={"max_seq_length": 48, "doc_stride": 16, "max_query_length": 8, "version_2_with_negative": True},
    )
    RunFolder(str(tmp_path)).write_config(config)
    best, model = tmp_path / "best", load_task(config).build_model()
    for folder, threshold in ((tmp_path, 111.0), (best, -222.0)):
        weights_checkpoint(model).write(str(folder / "ckpt-1"))
        write_tuned({"null_score_diff_threshold": threshold}, f"{folder}/ckpt-1")
    (best / "metric.json").write_text('{"metric": "f1", "value": 0.5, "step": 1}')
    dev = write_questions(tmp_path / "dev.json", 4, 5)
    asked = json.loads(dev.read_text())
    for paragraph in asked["data"][0]["paragraphs"]:
        del paragraph["qas"][0]["answers"]
    (tmp_path / "test.json").write_text(json.dumps(asked))
    done = run(f"--output_dir={tmp_path}", "--do_predict", f"--predict_file={tmp_path}/test.json")
    assert done.returncode == 0 and "tuned in evaluation: null_score_diff_threshold: 0.0 -> -222.0" in done.stdout, (
        done.stderr
    )
    assert set(json.loads((tmp_path / "predictions.json").read_text()).values()) == {""}  # every score lies above it
    done = run(f"--output_dir={tmp_path}", "--do_predict", f"--predict_file={dev}")
    assert done.returncode == 0, done.stderr
    assert tuned_for(str(best / "ckpt-1")) == {
        "null_score_diff_threshold": float(results(tmp_path)["best_f1_threshold"])
    }
    assert tuned_for(str(tmp_path / "ckpt-1")) == {"null_score_diff_threshold": 111.0}


def test_training_on_without_an_evaluation_forgets_the_threshold_of_earlier_weights(files, tmp_path, monkeypatch):
    checkpoint, tuned, found = tf.train.Checkpoint(value=tf.Variable(1.0)), {"null_score_diff_threshold": -1.5}, []
    checkpoint.write(str(tmp_path / "ckpt-1"))
    write_tuned(tuned, f"{tmp_path}/ckpt-1")
    write_tuned(tuned, str(tmp_path / "elsewhere/ckpt-1"))  # where no weights of its own were when it was tuned
    monkeypatch.setattr(documents, "write_card", lambda *_: None)  # of a training that was none
    monkeypatch.setattr(
        whole_run,
        "train",
        lambda *_, **__: checkpoint.write(str(tmp_path / "elsewhere/ckpt-1")) and types.SimpleNamespace(metrics={}),
    )
    assert run(*train_flags(files, tmp_path / "elsewhere", "--version_2_with_negative")).returncode == 0
    assert tuned_for(str(tmp_path / "elsewhere/ckpt-1")) == {}
    for step in (1, 2):  # the same command again, and more epochs
        monkeypatch.setattr(
            whole_run,
            "train",
            lambda *_, step=step, **__: (
                checkpoint.write(str(tmp_path / f"ckpt-{step}")) and types.SimpleNamespace(metrics={})
            ),
        )
        done = run(*train_flags(files, tmp_path, "--version_2_with_negative"))
        assert done.returncode == 0, done.stderr
        found.append(tuned_for(str(tmp_path / f"ckpt-{step}")))
    assert found == [tuned, {}] and "values tuned for earlier weights are removed (tuned.json)" in done.stdout


def test_a_fine_tuned_checkpoint_answers_with_its_own_threshold_and_vocabulary_and_another_one_not_at_all(
    files, tmp_path
):
    config = make_config(
        "squad",
        options={"max_seq_length": 48, "doc_stride": 16, "max_query_length": 8, "version_2_with_negative": True},
    )
    first, new, model = tmp_path / "first", tmp_path / "new", load_task(config).build_model()
    first.mkdir()
    save_config(config, str(first / "config.yaml"))
    weights_checkpoint(model).write(str(first / "ckpt-1"))
    write_tuned({"null_score_diff_threshold": -222.0}, f"{first}/ckpt-1")
    dev, vocab = (
        write_questions(tmp_path / "dev.en.json", 4, 5),
        (files / "vocab.txt").read_text().splitlines(keepends=True),
    )
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "Who?", "context": "Anne is a pilot."}) + "\n")
    asked = (
        "--max_seq_length=48",
        "--max_query_length=8",
        "--version_2_with_negative",
        f"--output_dir={new}",
        "--do_predict",
        f"--predict_file={tmp_path}/test.jsonl",
    )
    done = run(*asked, f"--init_checkpoint={first}")
    assert done.returncode == 1 and "error: --vocab_file: expected the vocabulary of the checkpoint" in done.stderr
    (first / "vocab.txt").write_text("".join(vocab))
    done = run(*asked, f"--init_checkpoint={first}")
    assert done.returncode == 0 and "tuned in evaluation: null_score_diff_threshold: 0.0 -> -222.0" in done.stdout, (
        done.stderr
    )
    assert json.loads((new / "predictions.json").read_text()) == {"0": ""}
    # a number that is given counts
    for value in ("--null_score_diff_threshold=0", "--set=options.null_score_diff_threshold=0.0"):
        done = run(*asked, f"--init_checkpoint={first}", value)
        assert done.returncode == 0 and "tuned in evaluation" not in done.stdout, done.stderr
    values = json.loads(dev.read_text())
    del values["data"][0]["paragraphs"][2]["qas"][0]["answers"]
    (tmp_path / "partly.json").write_text(json.dumps(values))
    done = run(
        *asked[:-1],
        f"--predict_file={tmp_path}/partly.json",
        f"--init_checkpoint={first}",
        f"--output_dir={tmp_path}/partly",
    )
    assert done.returncode == 1 and f"{tmp_path}/partly.json: question 'q2': expected gold answers" in done.stderr
    assert not (tmp_path / "partly").exists()
    done = run(*asked[:-1], f"--predict_file={dev}", f"--init_checkpoint={first}")
    assert done.returncode == 0 and "best_f1_threshold" in done.stdout, done.stderr
    assert not (new / "tuned.json").exists()  # the weights that were measured lie elsewhere
    formats.write(formats.encoder_of(formats.read(str(first))), "hugging_face", str(tmp_path / "encoder"))
    done = run(*asked, f"--init_checkpoint={tmp_path}/encoder", f"--vocab_file={files}/vocab.txt")
    assert done.returncode == 1 and "span/" in done.stderr and "expected a fine-tuned checkpoint" in done.stderr, (
        done.stdout
    )
    done = run(f"--output_dir={first}", f"--eval_files={dev}", "--do_lower_case=False")
    assert done.returncode == 1 and f"{first}: its vocabulary or casing is not that of the questions" in done.stderr
    (tmp_path / "vocab.txt").write_text("".join(sorted(vocab)))
    done = run(f"--output_dir={first}", "--do_predict", f"--predict_file={dev}", f"--vocab_file={tmp_path}/vocab.txt")
    assert done.returncode == 1 and f"{first}: its vocabulary or casing is not that of the questions" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ((), "error: expected --do_train, --do_predict or both, got neither"),
        (("--do_train",), "error: --do_train: expected --train_file"),
        (("--do_train", "--train_file=x.json", "--ensemble=a,b"), "error: --ensemble: expected --do_predict with it"),
        (
            ("--do_train", "--train_file=x.json", "--null_score_diff_threshold=-1"),
            "error: --null_score_diff_threshold: expected --version_2_with_negative with it",
        ),
        (("--do_predict", "--predict_file=none.json"), "expected the output folder of a training run, got none"),
        (
            ("--do_train", "--train_file=x.json", "--do_predict", "--predict_file=x.json", "--ensemble=none"),
            "error: none: expected the output folder of a training run, got none",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, arguments, wanted):
    done = run(f"--output_dir={tmp_path}", *arguments)
    assert done.returncode == 1 and wanted in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
