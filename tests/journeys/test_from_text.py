"""Stories that begin with raw text, and go on from one tiny model that was pre-trained on it."""

import csv
import json
import shutil

import numpy as np
import pytest
import toy_world
from commands import PRETRAIN, SERVE, ask

BLANKS = {
    "The [MASK] barks.": "dog",
    "A young wolf [MASK] at night.": "howls",
    "Anna [MASK] in Rome.": "lives",
    "We hear that the [MASK] moos.": "cow",
}


def write_lines(path, rows):
    """Writes JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_lines(path):
    """Reads JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def assert_same_numbers(answers, others, name):
    """Requires equal numbers under `name` in two lists of answers."""
    np.testing.assert_allclose(*([answer[name] for answer in side] for side in (answers, others)), rtol=1e-4, atol=1e-6)


def predict(person, task, model, rows):
    """Returns the answers that run_predict writes for rows of inputs."""
    write_lines(person.folder / "asked.jsonl", rows)
    person.types(
        f"python -m official_bert.run_predict --task={task} --model={model} --input_file=asked.jsonl "
        "--output_file=answers.jsonl"
    )
    return read_lines(person.folder / "answers.jsonl")


def words(answer):
    """Returns the likeliest word for each [MASK]."""
    return [tokens[0] for tokens in answer["tokens"] if any(tokens)]


@pytest.fixture(scope="module")
def filled(pretrained):
    """Returns the pre-trained model's answers."""
    return predict(pretrained, "fill_mask", "runs/tiny", [{"text": text} for text in BLANKS])


def test_from_text_to_a_served_fill_mask(pretrained, filled):
    person = pretrained
    assert [words(answer) for answer in filled] == [[word] for word in BLANKS.values()]
    person.types(
        "python -m official_bert.run_export --checkpoint=runs/tiny --output=models/tiny --warmup_batch_sizes=1"
    )
    by_server = []
    person.types(
        f"{SERVE} --model_base_path=models/tiny/text --model_name=tiny", **ask("tiny", list(BLANKS), by_server)
    )
    assert [words(answer) for answer in by_server] == [[word] for word in BLANKS.values()]
    assert_same_numbers(filled, by_server, "probabilities")


@pytest.mark.slow  # test_run_classifier.py trains from a file, tasks/texts/test_served_texts.py compares the graph
def test_from_a_csv_to_predictions_to_an_export(pretrained, person):
    for name, count, seed in (("train", 240, 1), ("dev", 40, 2)):
        with open(person.folder / f"{name}.csv", "w", encoding="utf-8", newline="") as file:
            rows = [(text, "wild" if wild else "farm") for text, wild in toy_world.heard(count, seed)]
            csv.writer(file).writerows([("heard", "place"), *rows])
    new = toy_world.heard(20, 3)
    with open(person.folder / "new.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("heard",), *((text,) for text, _ in new)])
    done = person.types(
        "python -m official_bert.run_finetuning --task=classification --train_file=train.csv --eval_file=dev.csv "
        f"--predict_file=new.csv --init_checkpoint={pretrained.folder}/runs/tiny --output_dir=runs/sounds "
        "--cache_dir=cache --set=options.text_column=heard --set=options.label_column=place "
        "--set=options.max_seq_length=48 --set=training.eval_epochs=5 --set=training.report=false --learning_rate=3e-3 "
        "--num_train_epochs=20"
    )
    assert "accuracy = 100.00 %" in done.out
    with open(person.folder / "runs/sounds/predictions.tsv", encoding="utf-8", newline="") as file:
        by_training = list(csv.DictReader(file, delimiter="\t"))
    assert [row["prediction"] for row in by_training] == ["wild" if wild else "farm" for _, wild in new]
    by_training = [
        {"probabilities": [float(row["probability:farm"]), float(row["probability:wild"])]} for row in by_training
    ]
    rows = [{"text": text} for text, _ in new]
    by_run = predict(person, "classification", "runs/sounds", rows)
    person.types(
        "python -m official_bert.run_export --checkpoint=runs/sounds --output=models/sounds --warmup_batch_sizes="
    )
    by_export = predict(person, "classification", "models/sounds", rows)
    assert [answer["label"] for answer in by_run] == [answer["label"] for answer in by_export]
    assert_same_numbers(by_run, by_export, "logits")
    np.testing.assert_allclose(
        [row["probabilities"] for row in by_training], [row["probabilities"] for row in by_export], atol=2e-6
    )


@pytest.mark.slow
def test_from_squad_to_raw_text_answers(pretrained, person):
    toy_world.write_questions(person.folder / "train.json", 160, 1)
    wanted = toy_world.write_questions(person.folder / "dev.json", 15, 2, held_out=True)
    done = person.types(
        "python -m official_bert.run_finetuning --task=squad --train_file=train.json --eval_file=dev.json "
        f"--predict_file=dev.json --init_checkpoint={pretrained.folder}/runs/tiny --output_dir=runs/squad "
        "--cache_dir=cache --set=options.max_seq_length=48 --set=options.doc_stride=16 "
        "--set=options.max_query_length=16 --set=training.eval_epochs=5 --learning_rate=5e-3 --num_train_epochs=15"
    )
    assert "exact_match = 100.00 %" in done.out
    predictions = json.loads((person.folder / "runs/squad/predictions.json").read_text(encoding="utf-8"))
    assert predictions == wanted
    dev = json.loads((person.folder / "dev.json").read_text(encoding="utf-8"))["data"][0]["paragraphs"]
    rows = [{"question": question["question"], "context": one["context"]} for one in dev for question in one["qas"]]
    by_run = predict(person, "squad", "runs/squad", rows)
    person.types(
        "python -m official_bert.run_export --checkpoint=runs/squad --output=models/squad --warmup_batch_sizes="
    )
    by_export = predict(person, "squad", "models/squad", rows)
    for answers in (by_run, by_export):
        assert [answer["answer"] for answer in answers] == list(wanted.values())
        assert all(
            row["context"][answer["start"] : answer["end"]] == answer["answer"] for row, answer in zip(rows, answers)
        )
    assert_same_numbers(by_run, by_export, "score")


@pytest.mark.slow  # tasks/tagging/test_tagging_task.py trains such a tagger without files between
def test_from_frozen_features_to_entities(pretrained, person):
    toy_world.write_tagged(person.folder / "train.conll", 160, 1)
    toy_world.write_tagged(person.folder / "dev.conll", 20, 2, held_out=True)
    toy_world.write_tagged(person.folder / "test.conll", 20, 3)
    done = person.types(
        "python -m official_bert.run_finetuning --task=ner --data_dir=. "
        f"--init_checkpoint={pretrained.folder}/runs/tiny --do_predict --output_dir=runs/ner --cache_dir=cache "
        "--set=options.features=concat --set=options.feature_layers=1 --set=options.lstm_size=16 "
        "--set=options.lstm_layers=1 --set=options.max_seq_length=32 --set=training.eval_epochs=4 "
        "--learning_rate=1e-2 --num_train_epochs=8"
    )
    assert "f1 = 100.00 %" in done.out
    written = (person.folder / "runs/ner/predictions.conll").read_text(encoding="utf-8").split("\n")
    assert all(line.split()[1] == line.split()[2] for line in written if line) and any(
        "B-PER" in line for line in written
    )
    text = "We hear that Maria works in Cairo."
    rows = [{"text": text}, {"text": "The cat meows."}, {"text": "Peter lives in Lima."}]
    by_run = predict(person, "ner", "runs/ner", rows)
    person.types("python -m official_bert.run_export --checkpoint=runs/ner --output=models/ner --warmup_batch_sizes=")
    done = person.types(f"python -m official_bert.run_predict --task=ner --model=models/ner '{text}'")
    assert [line.split("(")[0].split() for line in done.out.splitlines()[1:]] == [
        ["PER", "Maria", "[13:18]"],
        ["LOC", "Cairo", "[28:33]"],
    ]
    by_server = []
    person.types(f"{SERVE} --model_base_path=models/ner/text --model_name=ner", **ask("ner", rows, by_server))
    for answers in (by_run, by_server):
        found = [
            [(kind, entity) for kind, entity in zip(answer["types"], answer["entities"]) if kind] for answer in answers
        ]
        assert found == [[("PER", "Maria"), ("LOC", "Cairo")], [], [("PER", "Peter"), ("LOC", "Lima")]]
    assert_same_numbers([by_run[0], by_run[2]], [by_server[0], by_server[2]], "scores")


@pytest.mark.slow
def test_a_run_that_is_stopped_and_moved_ends_as_if_it_had_not_been(pretrained, filled, way, tmp_path):
    here, there = way(tmp_path / "old machine"), way(tmp_path / "new machine")
    here.folder.mkdir()
    for name in ("vocab.txt", "train.tfrecord", "tiny.yaml"):
        shutil.copy(pretrained.folder / name, here.folder)
    stopped = here.types(PRETRAIN, status=75, until="step 200/")
    assert "SIGTERM: saved at step " in stopped.out
    shutil.copytree(here.folder / "runs/tiny", there.folder / "moved")
    (there.folder / "data").mkdir()
    for name in ("vocab.txt", "train.tfrecord"):
        shutil.copy(here.folder / name, there.folder / "data")
    shutil.copy(here.folder / "tiny.yaml", there.folder)
    shutil.rmtree(here.folder)
    resumed = there.types(
        "python -m official_bert.run_pretraining --config=tiny.yaml --input_file=data/train.tfrecord "
        "--vocab_file=data/vocab.txt --output_dir=moved"
    )
    assert "resumed: " in resumed.out and "tokenizer.vocab_file: " in resumed.out

    def losses(log):
        return {row["step"]: row["train/loss"] for row in read_lines(log) if row["step"] % 100 == 0}

    assert losses(there.folder / "moved/log.jsonl") == losses(pretrained.folder / "runs/tiny/log.jsonl")
    shutil.rmtree(there.folder / "data")  # the run's folder is all that prediction and export need
    rows = [{"text": text} for text in BLANKS]
    by_run = predict(there, "fill_mask", "moved", rows)
    assert by_run == filled
    there.types("python -m official_bert.run_export --checkpoint=moved --output=models/moved --warmup_batch_sizes=")
    by_export = predict(there, "fill_mask", "models/moved", rows)
    assert [words(answer) for answer in by_export] == [[word] for word in BLANKS.values()]
    assert_same_numbers(by_run, by_export, "probabilities")
