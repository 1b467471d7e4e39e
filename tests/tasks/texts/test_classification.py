"""Your own data: three kinds of answers, three kinds of files."""

import csv
import json

import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import data_files, make_config, perfect, resolve

from official_bert.config import to_dict
from official_bert.runs import whole_run
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.answering import predict
from official_bert.tasks.data import TRAIN_AND_EVALUATE, Steps
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.training.machines.cluster import Placement


def written(path, rows):
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def data_of(train, options, steps=TRAIN_AND_EVALUATE, **files):
    return resolve(make_config("classification", options=options), steps, train_file=train, **files)


def test_pairs_are_refused_for_a_model_of_one_segment(tmp_path):
    train = written(tmp_path / "train.csv", ["text,text_pair,label", "good,fine,a", "bad,fair,b"])
    single = {"model": {"type_vocab_size": 1}}
    task = resolve(make_config("classification", **single), train_file=train).task
    with pytest.raises(ValueError, match="expected a model.type_vocab_size of at least 2 for two texts in a row"):
        resolve(make_config("classification", options={"text_pair_column": "text_pair"}, **single), train_file=train)
    assert make_served_model(task, task.build_model(), ServingOptions()).text_inputs.keys() == {"text"}
    with pytest.raises(ValueError, match="--pairs: expected a model.type_vocab_size of at least 2"):
        make_served_model(task, task.build_model(), ServingOptions(pairs=True))


def test_labels_are_found_in_the_training_data_and_kept(tmp_path):
    train = written(tmp_path / "train.csv", ["review,stars", '"good, very good",10', "bad,2", "fair,9"])
    data = data_of(train, {"text_column": "review", "label_column": "stars"})
    task, source = data.task, data.train
    assert task.options.labels == ("2", "9", "10") and to_dict(task.config)["options"]["labels"] == ["2", "9", "10"]
    assert [int(row["label_ids"]) for row in source.examples] == [2, 0, 1]
    assert task.num_outputs == 3 and task.head == "classifier"


def test_a_label_of_the_development_set_that_training_lacks_names_its_line(tmp_path):
    train = written(tmp_path / "train.tsv", ["text\tlabel", "a\tyes", "b\tno"])
    dev = written(tmp_path / "dev.tsv", ["text\tlabel", "c\tyes", "d\tmaybe"])
    with pytest.raises(ValueError, match=r"dev\.tsv:3: column 'label': expected one of \['no', 'yes'\], got 'maybe'"):
        data_of(train, {}, eval_file=dev)


@pytest.mark.parametrize("name", ["rows.jsonl", "text.tsv", "columns.csv", "tabs.csv"])
def test_several_labels_from_lists_text_or_columns(tmp_path, name):
    rows = {
        "rows.jsonl": [
            json.dumps({"text": text, "label": labels})
            for text, labels in (("a", ["sharp", "loud"]), ("b", []), ("c", ["loud"]))
        ],
        "text.tsv": ["text\tlabel", "a\tsharp|loud", "b\t", "c\tloud"],
        "columns.csv": ["text,loud,sharp", "a,1,1", "b,0,0", "c,1,0"],
        "tabs.csv": ["text,label", "a,sharp\tloud", "b,", "c,loud"],
    }[name]
    separator = r"\t" if name == "tabs.csv" else "|"
    options = {
        "kind": "multi_label",
        "label_separator": separator,
        "label_columns": ["loud", "sharp"] if "columns" in name else [],
    }
    data = data_of(written(tmp_path / name, rows), options)
    task, source = data.task, data.train
    assert task.options.labels == ("loud", "sharp")
    np.testing.assert_array_equal([row["label_ids"] for row in source.examples], [[1, 1], [0, 0], [1, 0]])
    logits = np.array([[2.0, -1.0]], np.float32)
    total, weight = task.objective.losses(
        {"logits": tf.constant(logits)}, {"label_ids": tf.constant([[1.0, 1.0]]), "example_weights": tf.constant([1.0])}
    )["loss"]
    assert float(total) == pytest.approx((np.log1p(np.exp(-2.0)) + np.log1p(np.exp(1.0))) / 2) and float(weight) == 1.0
    assert task.answers.answer(np.array([-0.1, 3.0]))["labels"] == ["sharp"]
    with open(task.answers.write_set("answers", np.array([[2.0, 1.0]]), str(tmp_path)), newline="") as file:
        (row,) = csv.DictReader(file, delimiter="\t")
    assert row["prediction"] == ("loud\tsharp" if name == "tabs.csv" else "loud|sharp")


def test_columns_of_labels_are_put_into_the_order_of_the_classes(tmp_path):
    dev = written(tmp_path / "dev.csv", ["text,x,y,z", "a,1,0,0", "b,0,0,1"])
    # as a checkpoint names its classes
    options = {"kind": "multi_label", "label_columns": ["x", "y", "z"], "labels": ["Z", "X", "Y"]}
    held_out = load_task(make_config("classification", options=options)).data.read_held_out(data_files(eval_file=dev))
    np.testing.assert_array_equal(held_out[0].data.targets, [[0, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        ("classifier", ["a", "b"], "expected one label"),
        ("multi_label", ["a", None], r"expected a label, got \['a', None\]"),
        ("multi_label", [["a"]], "expected a list of labels"),
    ],
)
def test_cells_without_labels_of_their_kind_name_their_line(tmp_path, kind, value, said):
    train = written(
        tmp_path / "train.jsonl",
        [json.dumps({"text": "one", "label": "a"}), json.dumps({"text": "two", "label": value})],
    )
    with pytest.raises(ValueError, match=rf"train\.jsonl:2: column 'label': {said}"):
        load_task(make_config("classification", options={"kind": kind})).data.read_train(data_files(train_file=train))


def test_scores_have_their_range_and_their_file_of_answers(tmp_path):
    train = written(tmp_path / "train.tsv", ["a\tb\tscore", "one\ttwo\t0.5", "three\tfour\t-1"])
    options = {"kind": "regression", "text_column": "a", "text_pair_column": "b", "label_column": "score"}
    new = written(tmp_path / "new.tsv", ["a\tb", "one\ttwo", "a longer text than that\tand another one", "\tempty"])
    data = data_of(train, options, Steps(predict=True), predict_file=new)
    assert data.train.examples[1]["scores"] == np.float32(-1)
    source = data.tests.source
    predictions = [{"logits": np.array([10.0 * index])} for index in np.concatenate(source.plan(0))]
    assert data.tests.write(predictions, str(tmp_path)) == [str(tmp_path / "predictions.tsv")]
    assert (tmp_path / "predictions.tsv").read_text() == "index\tprediction\n0\t0\n1\t10\n2\t20\n"
    with pytest.raises(ValueError, match=r"train\.tsv:3: column 'score': expected a number from 0 to 1, got '-1'"):
        data_of(train, {**options, "score_range": [0.0, 1.0]})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"label_column": "labels"}, r"train\.tsv: expected a column 'labels', found 'text', 'label'"),
        ({"score_range": [3.0, 1.0]}, "score_range: expected lowest and highest score"),
        ({"metrics": ["rouge"]}, r"config\.options\.metrics: unknown \['rouge'\]"),
        (
            {"metrics": ["pearson"]},
            r"config\.options\.metrics: \['pearson'\] do not fit kind classifier; expected \['accuracy', 'f1'",
        ),
        ({"metrics": ["accuracy"], "kind": "multi_label"}, "do not fit kind multi_label"),
        (
            {"metrics": ["f1"], "labels": ["0", "1", "2"]},
            "f1 is that of the second of two labels, got 3; expected macro_f1",
        ),
        (
            {"kind": "regression", "label_columns": ["a"]},
            r"label_columns: expected options.kind: classifier or multi_label \(not regression\) with it",
        ),
        ({"labels": ["1", "0", "1"]}, r"config\.options\.labels: expected every name once, got \['1', '0', '1'\]"),
        (
            {"kind": "multi_label", "label_columns": ["a", "a"]},
            r"config\.options\.label_columns: expected every name once",
        ),
        (
            {"kind": "multi_label", "label_columns": ["a", "b"], "labels": ["b"]},
            r"config\.options\.label_columns: expected the names of the labels, \['b'\], got \['a', 'b'\]",
        ),
        (
            {"kind": "multi_label", "label_columns": ["a", "b"], "labels": ["x", "y"]},
            r"the names of the labels, \['x', 'y'\], got",
        ),
        ({"labels": ["1"]}, r"train\.tsv:3: column 'label': expected one of \['1'\], got '0'"),
        (
            {"labels": ["0", "1"], "kind": "regression"},
            r"config.options.labels: expected options.kind: classifier or multi_label \(not regression\) with it",
        ),
        (
            {"score_range": [0.0, 1.0]},
            r"config.options.score_range: expected options.kind: regression \(not classifier\) with it",
        ),
        (
            {"score_range": [0.0, 1.0], "kind": "multi_label"},
            r"config.options.score_range: expected options.kind: regression \(not multi_label\) with it",
        ),
        (
            {"text_column": "label"},
            "text_column, label_column: expected different columns, got 'label' for text and label",
        ),
        (
            {"kind": "multi_label", "label_columns": ["label", "text"]},
            "expected different columns, got 'text' for text and label",
        ),
        (
            {"label_separator": ";"},
            r"config.options.label_separator: expected options.kind: multi_label \(not classifier\) with it, got ;",
        ),
    ],
)
def test_options_that_do_not_fit_the_file(tmp_path, options, said):
    train = written(tmp_path / "train.tsv", ["text\tlabel", "a\t1", "b\t0"])
    with pytest.raises(ValueError, match=said):
        data_of(train, options)


def test_what_cannot_be_labels_is_told(tmp_path):
    same = written(tmp_path / "same.tsv", ["text\tlabel", "a\t1", "b\t1"])
    with pytest.raises(ValueError, match="expected at least two different labels"):
        data_of(same, {})
    numbers = written(tmp_path / "numbers.tsv", ["text\tlabel", *(f"a\t{number / 7}" for number in range(50))])
    with pytest.raises(ValueError, match="'label' seems to hold scores; expected .*--set options.kind=regression"):
        data_of(numbers, {})
    none = written(tmp_path / "none.tsv", ["text\tlabel", "a\t", "b\t"])
    with pytest.raises(ValueError, match=r"none\.tsv: column 'label': expected labels, got none in any of 2 rows"):
        data_of(none, {"kind": "multi_label"})
    with pytest.raises(ValueError, match="expected training data: --train_file, or one of train.tsv"):
        data_of("", {})


def test_empty_texts_are_refused_unless_told_otherwise(tmp_path):
    train = written(tmp_path / "train.tsv", ["text\tlabel", "a\t1", " \t0", "b\t0"])
    with pytest.raises(ValueError, match=r"train\.tsv:3: column 'text': expected text, it is empty"):
        data_of(train, {})
    assert len(data_of(train, {"empty_text": "skip"}).train.examples) == 2
    assert len(data_of(train, {"empty_text": "keep"}).train.examples) == 3


@pytest.mark.slow  # the journeys learn one
def test_a_rule_is_learned_and_the_folder_answers(tmp_path):
    rng = np.random.default_rng(0)
    words = ["stone", "water", "house", "green", "small", "paper"]

    def rows(count):
        for _ in range(count):
            text = " ".join(rng.choice(words, rng.integers(2, 9)))
            yield f"{text}\t{'yes' if 'water' in text else 'no'}"

    train = written(tmp_path / "train.tsv", ["text\tlabel", *rows(400)])
    dev = written(tmp_path / "dev.tsv", ["text\tlabel", *(row + "" for row in rows(60))])
    config = make_config("classification", training={"epochs": 4.0, "batch_size": 32, "eval_batch_size": 16})
    files = data_files(train_file=train, eval_file=dev, predict_file=dev)
    trained = whole_run.train(
        load_task(config), files, str(tmp_path / "run"), Placement(), steps=Steps(predict=True), report=lambda _: None
    )
    metrics, data = trained.metrics, trained.resolved
    assert metrics["accuracy"] > 0.9 and metrics["macro_f1"] > 0.85
    again, model = restore_for_inference(str(tmp_path / "run"))
    assert again.options.labels == ("no", "yes")
    predictions = predict(data.task, model, data.tests.source)
    known = perfect(data.held_out.source, 2)
    right = np.mean([np.argmax(one["logits"]) == np.argmax(other["logits"]) for one, other in zip(predictions, known)])
    assert right == pytest.approx(metrics["accuracy"])


def test_rows_without_agreement_are_left_out_of_gold_labels_alone(tmp_path, caplog):
    rows = ["text,gold_label", "a,yes", "b,-", "c,no"]
    data = data_of(written(tmp_path / "train.csv", rows), {"label_column": "gold_label"})
    assert data.task.options.labels == ("no", "yes") and len(data.train.examples) == 2
    assert "train.csv:3: column 'gold_label': '-', because the annotators disagreed; ignored\n" in caplog.text
    rows[0] = "text,label"
    assert data_of(written(tmp_path / "other.csv", rows), {}).task.options.labels == ("-", "no", "yes")
    with pytest.raises(ValueError, match="no row with a label in column 'gold_label', only '-'"):
        data_of(written(tmp_path / "none.csv", ["text,gold_label", "b,-"]), {"label_column": "gold_label"})


def test_the_labels_that_are_found_are_told_with_their_rows_before_training(tmp_path):
    train = written(tmp_path / "train.csv", ["text,label", "a,yes", "b,no", "c,no"])
    assert data_of(train, {"dev_share": 0.0}).training_rows == "training rows: 3, of the labels no 2, yes 1"
    scores = written(tmp_path / "scores.csv", ["text,label", "a,1.5", "b,-2"])
    assert (
        data_of(scores, {"dev_share": 0.0, "kind": "regression"}).training_rows
        == "training rows: 2, scores from -2 to 1.5"
    )


def test_rows_that_nobody_accepted_are_told_with_the_training_rows(tmp_path):
    rows = [{"text": f"good {number}", "label": "ab"[number % 2], "answer": "accept"} for number in range(4)]
    rows.append({"text": "bad", "label": "c", "answer": "reject"})
    train = written(tmp_path / "train.jsonl", map(json.dumps, rows))
    data = data_of(train, {"dev_share": 0.0}, Steps(evaluate=False))
    assert data.task.options.labels == ("a", "b") and data.training_rows == (
        "training rows: 4, of the labels a 2, b 2; 1 rows that people rejected or skipped left out"
    )


def test_lines_of_fasttext_without_a_label_have_none_or_are_left_out(tmp_path):
    train = written(tmp_path / "train.txt", ["__label__a one", "two", "__label__b __label__a three"])
    options = {"kind": "multi_label", "dev_share": 0.0}
    with pytest.raises(ValueError, match=r"train\.txt:2: column 'label': expected a label, got None"):
        data_of(train, options, Steps(evaluate=False))
    for missing, wanted in (("skip", [[1, 0], [1, 1]]), ("keep", [[1, 0], [0, 0], [1, 1]])):
        data = data_of(train, options | {"missing_label": missing}, Steps(evaluate=False))
        assert [row["label_ids"].tolist() for row in data.train.examples] == wanted
