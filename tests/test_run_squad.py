"""The command with the flags of 2018: trains, answers, averages, goes on from a fine-tuned run, refuses."""

import json
import random

import pytest
from commands import run_here

WORDS = ("greenhouse", "ferry", "violin", "atlas", "ledger", "clock", "hinges", "pilot", "account", "keeper", "machine", "vane")
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
        questions.append({"context": context, "qas": [{"id": f"q{number}", "question": "Who borrowed it?", "answers": [
            {"text": words[place], "answer_start": start}]}]})
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "made", "paragraphs": questions}]}))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory, golden):
    folder = tmp_path_factory.mktemp("squad")
    config = {"vocab_size": 3000, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
              "max_position_embeddings": 64, "type_vocab_size": 2, "initializer_range": 0.1, "hidden_act": "gelu",
              "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_bytes((golden / "vocab_uncased.txt").read_bytes())
    write_questions(folder / "train.json", 300, 0)
    write_questions(folder / "dev.json", 60, 1)
    return folder


def run(*arguments):
    return run_here("-m", "official_bert.run_squad", *arguments)


def train_flags(files, output, *more):
    return (f"--bert_config_file={files}/bert_config.json", f"--vocab_file={files}/vocab.txt", "--do_train",
            f"--train_file={files}/train.json", f"--output_dir={output}", "--max_seq_length=48", "--doc_stride=16",
            "--max_query_length=8", *more)


@pytest.fixture(scope="module")
def trained(files):
    done = run(*train_flags(files, files / "first", "--learning_rate=3e-3", "--num_train_epochs=8", "--train_batch_size=32",
                            "--do_predict", f"--predict_file={files}/dev.json", f"--cache_dir={files}/cache"))
    assert done.returncode == 0, done.stderr
    return done


def results(folder):
    return dict(line.split(" = ") for line in (folder / "eval_results.txt").read_text().splitlines())


def test_the_flags_of_2018_train_answer_and_measure(files, trained):
    first = files / "first"
    assert float(results(first)["exact_match"]) > 80 and float(results(first)["f1"]) > 80
    predictions = json.loads((first / "predictions.json").read_text())
    assert len(predictions) == 60
    nbest = json.loads((first / "nbest_predictions.json").read_text())
    assert all(answers[0]["text"] == predictions[key] and len(answers) <= 20 for key, answers in nbest.items())
    assert "learning_rate: 0.003" in (first / "config.yaml").read_text() and (first / "vocab.txt").exists()
    assert len(list((files / "cache").iterdir())) == 1


def test_a_second_fine_tuning_begins_where_the_first_ended_and_both_answer_together(files, trained):
    second = files / "second"
    done = run(*train_flags(files, second, "--learning_rate=1e-4", "--num_train_epochs=0.2", f"--init_checkpoint={files}/first"),
               f"--ensemble={files}/first,{second}", "--do_predict", f"--predict_file={files}/dev.json", "--n_best_size=3")
    assert done.returncode == 0, done.stderr
    assert "initialised (weights only)" in done.stdout and "new:" not in done.stdout
    assert float(results(second)["f1"]) > 80
    nbest = json.loads((second / "nbest_predictions.json").read_text())
    assert max(map(len, nbest.values())) == 3


@pytest.mark.parametrize(("arguments", "wanted"), [
    ((), "error: expected --do_train, --do_predict or both, got neither"),
    (("--do_train",), "error: --do_train: expected --train_file"),
    (("--do_predict", "--predict_file=none.json"), "expected the output folder of a training run, got none"),
])
def test_mistakes_are_told_in_one_line(tmp_path, arguments, wanted):
    done = run(f"--output_dir={tmp_path}", *arguments)
    assert done.returncode == 1 and wanted in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
