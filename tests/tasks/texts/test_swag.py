"""SWAG: four endings, one vector."""

import csv
import json
import pathlib

import numpy as np
import pytest
import yaml
from commands import run_here
from made_finetuning import SWAG, data_files, make_config, resolve
from oracles import texts as oracle

from official_bert.config import to_dict
from official_bert.interface.model_inputs import ModelInputs
from official_bert.runs import whole_run
from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task
from official_bert.training.machines.cluster import Placement

pytestmark = pytest.mark.usefixtures("eager_predictors")

COLUMNS = [
    "",
    "video-id",
    "fold-ind",
    "startphrase",
    "sent1",
    "sent2",
    "gold-source",
    "ending0",
    "ending1",
    "ending2",
    "ending3",
    "label",
]


def test_each_ending_is_a_row_after_the_first_sentence():
    data = resolve(make_config("swag", options={"max_seq_length": 64}), data_dir=SWAG)
    task, source = data.task, data.train
    first, tokenizer = source.examples[0], task.tokenizer
    assert first["input_ids"].shape[0] == 4 and [int(row["label_ids"]) for row in source.examples] == [0, 2]
    length = int(first["input_mask"][2].sum())
    a = tokenizer.tokenize("A keeper climbs the stairs with a lantern.")
    b = tokenizer.tokenize("He is eaten by the stairs.")
    assert tokenizer.convert_ids_to_tokens(first["input_ids"][2, :length]) == ["[CLS]", *a, "[SEP]", *b, "[SEP]"]
    assert first["segment_ids"][2, :length].tolist() == [0] * (len(a) + 2) + [1] * (length - len(a) - 2)


def test_a_batch_has_four_rows_for_each_example():
    config = make_config("swag", training={"batch_size": 2}, options={"max_seq_length": 64, "buckets": [64]})
    data = resolve(config, data_dir=SWAG)
    batch = next(iter(data.train.dataset()))
    assert {name: tuple(value.shape) for name, value in batch.items()} == {
        name: tuple(value.shape) for name, value in data.task.data.batch_spec(2).items()
    }


def test_wrong_labels_and_missing_columns_are_told(tmp_path):
    text = pathlib.Path(SWAG, "train.csv").read_text()
    (tmp_path / "train.csv").write_text(text.replace(",2\n", ",4\n"))
    with pytest.raises(
        ValueError, match=r"train\.csv:3: column 'label': expected one of \['0', '1', '2', '3'\], got '4'"
    ):
        resolve(make_config("swag"), data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"test\.csv: expected a column 'label'"):
        resolve(make_config("swag"), train_file=f"{SWAG}/test.csv")
    with pytest.raises(ValueError, match="expected training data: --train_file, or one of train.csv in --data_dir"):
        resolve(make_config("swag"))
    with pytest.raises(ValueError, match="row 1: expected 4 choices, got 2"):
        oracle.encode(load_task(make_config("swag")), [{"text": "a", "choices": ["b", "c"]}])


@pytest.mark.slow
def test_a_rule_is_learned_from_csv_files(tmp_path):
    """The right ending names the colour of the first sentence."""
    rng = np.random.default_rng(1)
    colours = np.array(["green", "white", "black", "red"])

    people = np.array(["Anna", "the man", "a friend", "my brother", "no one", "the girl", "our king", "one woman"])

    def write(path, count):
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            for number in range(count):
                chosen = rng.permutation(colours)[:4]
                label = int(rng.integers(4))
                writer.writerow(
                    [
                        number,
                        "v",
                        "1",
                        "",
                        f"{rng.choice(people)} saw {chosen[label]}.",
                        "Then,",
                        "gold",
                        *(f"she said {colour}." for colour in chosen),
                        label,
                    ]
                )
        return path

    config = make_config(
        "swag",
        training={"epochs": 20.0, "batch_size": 32},
        optimizer={"learning_rate": 2e-3},
        model={"hidden_size": 32, "num_hidden_layers": 2},
    )
    files = data_files(
        train_file=write(tmp_path / "train.csv", 256),
        eval_file=write(tmp_path / "val.csv", 64),
        predict_file=f"{SWAG}/test.csv",
    )
    trained = whole_run.train(
        load_task(config), files, str(tmp_path / "run"), Placement(), steps=Steps(predict=True), report=lambda _: None
    )
    assert trained.metrics["accuracy"] > 0.8  # chance is 0.25

    tests = trained.resolved.tests
    source = tests.source
    predictions = [{"logits": np.eye(4)[3 - index]} for index in np.concatenate(source.plan(0))]
    (path,) = tests.write(predictions, str(tmp_path))
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] for row in rows] == ["3", "2"]
    assert float(rows[0]["probability:ending3"]) == pytest.approx(0.475367, abs=1e-6)


RACE = {
    "text_column": "article",
    "begin_column": "question",
    "choices_column": "options",
    "label_column": "answer",
    "max_seq_length": 64,
}
ROWS = [
    {"article": "It rained.", "question": "What fell?", "options": ["water", "books", "a king"], "answer": "A"},
    {"article": "It rained again.", "question": "Where?", "options": ["here", "there"], "answer": "B"},
]


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_lists_of_any_length_share_a_batch_and_a_missing_choice_is_never_chosen(tmp_path):
    config = make_config("swag", options=RACE, training={"batch_size": 2, "eval_batch_size": 2})
    data = resolve(config, Steps(train=False), eval_file=write_rows(tmp_path / "dev.jsonl", ROWS))
    source = data.held_out.source
    assert [int(row["label_ids"]) for row in source.examples] == [0, 1] and data.task.head == "choice"
    batch = source.batch(0)
    assert batch["input_ids"].shape[:2] == (2, 3)
    short = int(np.concatenate(source.plan(0)).tolist().index(1))
    logits = data.model(batch)["logits"].numpy()
    assert logits[short, 2] == np.float32(-1e9) and np.all(np.abs(logits[1 - short]) < 100)
    # The row with two choices alone has the same logits.
    alone = {name: value[short : short + 1, :2] for name, value in batch.items() if value.ndim == 3}
    np.testing.assert_allclose(data.model(alone)["logits"].numpy()[0], logits[short, :2], atol=1e-6)
    task, tokenizer = data.task, data.task.tokenizer
    length = int(batch["input_mask"][1 - short, 2].sum())
    assert tokenizer.convert_ids_to_tokens(batch["input_ids"][1 - short, 2, :length]) == [
        "[CLS]",
        *tokenizer.tokenize("It rained."),
        "[SEP]",
        *tokenizer.tokenize("What fell? a king"),
        "[SEP]",
    ]
    (path,) = [task.answers.write_set("predictions", logits[[1 - short, short]], str(tmp_path))]
    rows = list(csv.DictReader(pathlib.Path(path).read_text().splitlines()))
    assert rows[1]["probability:2"] == "0.000000" and len(rows) == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"answer": "C"}, r"dev\.jsonl:2: column 'answer': expected one of \['A', 'B'\], got 'C'"),
        (
            {"answer": 2},
            r"dev\.jsonl:2: column 'answer': got '2', and 'A' in .*dev\.jsonl:1: expected numbers or letters",
        ),
        ({"options": ["here"]}, r"dev\.jsonl:2: column 'options': expected a list of two or more texts"),
        ({"options": "here"}, r"dev\.jsonl:2: column 'options': expected a list"),
    ],
)
def test_wrong_lists_are_told_with_their_line(tmp_path, change, told):
    path = write_rows(tmp_path / "dev.jsonl", [ROWS[0], ROWS[1] | change])
    with pytest.raises(ValueError, match=told):
        resolve(make_config("swag", options=RACE), Steps(train=False), eval_file=path)
    with pytest.raises(ValueError, match="choices_column: expected a column of lists, or begin_column"):
        load_task(make_config("swag", options={"begin_column": ""}))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (RACE | {"choice_columns": ["a", "b"]}, "choice_columns: expected none beside choices_column"),
        ({"choice_columns": ["a", "a"]}, r"choice_columns: expected every column once, got \['a', 'a'\]"),
        (
            RACE | {"label_column": "question"},
            "label_column: expected another column than those of the texts and choices, got 'question'",
        ),
    ],
)
def test_columns_that_cannot_be_are_refused(tmp_path, options, told):
    path = write_rows(tmp_path / "dev.jsonl", [row | {"question": "A"} for row in ROWS])
    with pytest.raises(ValueError, match=f"config.options.{told}"):
        resolve(make_config("swag", options=options), Steps(train=False), eval_file=path)


AI2 = [
    {
        "id": "1",
        "question": {"stem": "It rained.", "choices": [{"text": "sun", "label": "1"}, {"text": "water", "label": "2"}]},
        "answerKey": "2",
    },
    {
        "id": "2",
        "question": {
            "question_concept": "x",
            "stem": "Where?",
            "choices": [
                {"label": "A", "text": "here"},
                {"label": "B", "text": "there"},
                {"label": "C", "text": "away"},
            ],
        },
        "answerKey": "C",
    },
]


def test_published_lines_of_choices_need_no_option_and_their_columns_stay_in_the_configuration(tmp_path):
    path = write_rows(tmp_path / "arc.jsonl", AI2)
    data, rows = load_task(make_config("swag")).data.read_train(data_files(train_file=path))
    task = data.task
    assert rows.text == ["It rained.", "Where?"] and rows.choices == [("sun", "water"), ("here", "there", "away")]
    assert rows.targets.tolist() == [1, 2] and task.options.choices_column == "question.choices.text"
    assert task.answers.input_columns() == {"text": ("question.stem",), "choices": ("question.choices.text",)}
    inputs = ModelInputs.of_model(["text", "choices"], task.config)
    assert inputs.read_file(str(path))[1] == {"text": "Where?", "choices": ["here", "there", "away"]}
    path = write_rows(tmp_path / "piqa.jsonl", [{"goal": "g", "sol1": "a", "sol2": "b"}] * 2)
    (tmp_path / "piqa-labels.lst").write_text("1\n0\n")
    data, rows = load_task(make_config("swag")).data.read_train(data_files(train_file=path))
    task = data.task
    assert rows.choices == [("a", "b")] * 2 and rows.targets.tolist() == [1, 0] and task.num_outputs == 2
    with pytest.raises(
        ValueError, match=r"piqa\.jsonl:1: expected a key 'objective', .*options\.text_column= names another"
    ):
        load_task(make_config("swag", options={"text_column": "objective"})).data.read_train(
            data_files(train_file=path)
        )


@pytest.mark.slow
def test_lists_of_choices_go_through_the_commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["air", "water", "road", "river", "music", "film"]
    rows = [
        {"article": f"the {word}", "question": "Which?", "options": [other, word], "answer": "B"}
        for word in words
        for other in words
        if other != word
    ]
    write_rows(tmp_path / "train.jsonl", rows)
    write_rows(
        tmp_path / "dev.jsonl",
        [
            row | {"article": f"a {row['article'][4:]}", "options": [*row["options"], "king"][: 2 + number % 2]}
            for number, row in enumerate(rows)
        ],
    )
    (tmp_path / "race.yaml").write_text(yaml.safe_dump(to_dict(make_config("swag", options=RACE))))
    done = run_here(
        "-m",
        "official_bert.run_finetuning",
        "--config=race.yaml",
        "--train_file=train.jsonl",
        "--eval_file=dev.jsonl",
        "--predict_file=dev.jsonl",
        "--output_dir=run",
        "--cache_dir=",
    )
    assert done.returncode == 0, done.stderr
    written = list(csv.DictReader((tmp_path / "run/predictions.csv").read_text().splitlines()))
    asked = run_here(
        "-m",
        "official_bert.run_predict",
        "--task=swag",
        "--model=run",
        "--input_file=dev.jsonl",
        "--output_file=out.jsonl",
    )
    assert asked.returncode == 0, asked.stderr
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert {len(answer["probabilities"]) for answer in answers} == {2, 3} and len(answers) == len(written)
    for answer, row in zip(answers, written):
        assert answer["choice"] == int(row["prediction"]) and answer["choices"][1].startswith("Which? ")
        found = [float(row[f"probability:{number}"]) for number in range(3)]
        np.testing.assert_allclose(found, [*answer["probabilities"], 0.0][:3], atol=1e-4)
