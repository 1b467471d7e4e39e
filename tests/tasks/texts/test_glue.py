"""The published sentence tasks: sources, metrics, losses, files to hand in."""

import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import GLUE, data_files, fixture_data, fixture_task, make_config, perfect, resolve
from oracles import texts as oracle

from official_bert.config import to_dict
from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task
from official_bert.tasks.texts.glue_files import DATASETS


@pytest.mark.parametrize("dataset", [name for name in DATASETS if name != "xnli"])
def test_whoever_knows_the_answers_gets_full_marks_in_every_metric(dataset):
    data = fixture_data(dataset)
    task, source = data.task, data.held_out.source
    key, classes = ("scores", 0) if dataset == "stsb" else ("label_ids", len(task.options.labels))
    found = data.held_out.evaluate(perfect(source, classes, key))
    names = {f"{name}{end}" for name in DATASETS[dataset].metrics for end in DATASETS[dataset].held_out}
    assert set(found) == names and task.answers.best_metric() == DATASETS[dataset].metrics[0]
    assert found == pytest.approx(dict.fromkeys(names, 1.0))


def test_wrong_answers_count_in_the_part_that_they_stand_in():
    held_out = fixture_data("mnli").held_out
    predictions = perfect(held_out.source, 3)
    wrong = held_out.source.plan(0)
    for place, index in enumerate(np.concatenate(wrong)):
        if index == 1:  # the second matched row
            predictions[place] = {"logits": np.roll(predictions[place]["logits"], 1)}
    assert held_out.evaluate(predictions) == {"accuracy": 0.5, "accuracy_mismatched": 1.0}


def test_files_to_hand_in_follow_the_order_of_the_test_files(tmp_path):
    tests = fixture_data("mnli").tests
    source = tests.source
    lengths = [len(source.examples[index]["input_ids"]) for index in np.concatenate(source.plan(0))]
    assert lengths == sorted(lengths)  # batched by length
    answers = np.eye(3)[[0, 1, 2, 2, 0]]  # of matched, matched, mismatched, diagnostic, diagnostic
    predictions = [{"logits": answers[index]} for index in np.concatenate(source.plan(0))]
    paths = tests.write(predictions, str(tmp_path))
    assert [path.rpartition("/")[2] for path in paths] == ["MNLI-m.tsv", "MNLI-mm.tsv", "AX.tsv"]
    assert (tmp_path / "MNLI-m.tsv").read_text() == "index\tprediction\n0\tcontradiction\n1\tentailment\n"
    assert (tmp_path / "AX.tsv").read_text() == "index\tprediction\n0\tneutral\n1\tcontradiction\n"
    tests.write_probabilities(predictions, str(tmp_path))
    first = np.loadtxt(tmp_path / "test_results.tsv", delimiter="\t")
    e = np.exp(1.0)
    np.testing.assert_allclose(first, np.array([[e, 1, 1], [1, e, 1]]) / (e + 2), rtol=1e-6)


def test_losses_are_those_of_their_formulas_and_filler_rows_do_not_count():
    logits = np.array([[1.0, -0.5], [0.25, 2.0], [9.0, 9.0]], np.float32)
    batch = {"label_ids": tf.constant([0, 0, 1]), "example_weights": tf.constant([1.0, 1.0, 0.0])}
    total, weight = fixture_task("mrpc").objective.losses({"logits": tf.constant(logits)}, batch)["loss"]
    wanted = sum(np.log(np.exp(row).sum()) - row[0] for row in logits[:2])
    assert (float(total), float(weight)) == pytest.approx((wanted, 2.0), rel=1e-6)
    batch = {"scores": tf.constant([3.0, 1.0, 0.0]), "example_weights": tf.constant([1.0, 1.0, 0.0])}
    total, _ = fixture_task("stsb").objective.losses({"logits": tf.constant(logits[:, :1])}, batch)["loss"]
    assert float(total) == pytest.approx((1.0 - 3.0) ** 2 + (0.25 - 1.0) ** 2)


def test_wnli_may_be_answered_by_the_majority_without_a_model(tmp_path):
    task = fixture_task("wnli", majority_class=True)
    files, steps = data_files(data_dir=GLUE), Steps(predict=True)
    answers = task.answers.constant_answers(files, steps)
    assert answers.metrics == {"accuracy": 0.5}
    assert answers.write(str(tmp_path)) == [str(tmp_path / "WNLI.tsv")]
    assert (tmp_path / "WNLI.tsv").read_text() == "index\tprediction\n0\t0\n1\t0\n"  # training: 1, 0, 0
    assert fixture_task("wnli").answers.constant_answers(files, steps) is None


def test_the_majority_is_that_of_the_rows_that_are_not_held_out(tmp_path):
    rows = [f"{number}\tThe lock number {number}.\tIt is rusty.\t{int(number < 14)}" for number in range(20)]
    (tmp_path / "train.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *rows]) + "\n")
    files = data_files(train_file=tmp_path / "train.tsv")
    answers = fixture_task("wnli", majority_class=True, dev_share=0.5).answers.constant_answers(files, Steps())
    assert answers.metrics == {"accuracy": 0.7} and answers.write is None  # stratified: 7 of 10
    with pytest.raises(ValueError, match="majority_class: expected rows to evaluate on or to answer, got none"):
        fixture_task("wnli", majority_class=True).answers.constant_answers(files, Steps(evaluate=False))
    with pytest.raises(ValueError, match="majority_class: expected a data set with labels, stsb has scores"):
        fixture_task("stsb", majority_class=True)


def test_a_training_set_used_as_development_set_is_refused():
    with pytest.raises(ValueError, match="expected held-out data, but 2 of its 2 rows are in the training data"):
        resolve(make_config("glue", options={"dataset": "rte"}), data_dir=GLUE, eval_file=f"{GLUE}/RTE/train.tsv")


def test_the_saved_configuration_says_all_that_answering_needs():
    config = to_dict(fixture_task("rte").config)
    assert config["options"]["labels"] == ["entailment", "not_entailment"]
    task = load_task(make_config("glue", options=config["options"]))
    model = task.build_model()
    rows = [
        {"text": "Three climbers were rescued.", "text_pair": "Climbers were rescued."},
        {"text": "One.", "text_pair": "Two."},
    ]
    features = oracle.encode(task, rows)
    assert features[0]["segment_ids"].sum() > features[1]["segment_ids"].sum() > 0
    predictions = []
    for row in features:
        outputs = model({name: value[None] for name, value in row.items()}, training=False)
        predictions.append({"logits": outputs["logits"].numpy()[0]})
    for answer, row in zip(oracle.decode(task, rows, features, predictions), predictions):
        assert answer["label"] == ("entailment" if row["logits"][0] > row["logits"][1] else "not_entailment")
        assert sum(answer["probabilities"]) == pytest.approx(1.0)


def test_batches_have_the_shapes_that_a_fixed_length_promises():
    data = resolve(make_config("glue", options={"dataset": "stsb", "buckets": [32]}), data_dir=GLUE)
    spec = data.task.data.batch_spec(16)
    batch = next(iter(data.train.dataset()))
    assert {name: (tuple(value.shape), value.dtype) for name, value in batch.items()} == {
        name: (tuple(value.shape), value.dtype) for name, value in spec.items()
    }


@pytest.mark.parametrize("options", [{"language": "de"}, {"train_language": "en"}])
def test_languages_are_those_of_xnli_alone(options):
    assert fixture_task("xnli", **options).options.pairs
    with pytest.raises(
        ValueError, match="config.options.language, train_language: expected xnli with them, mnli has one language"
    ):
        fixture_task("mnli", **options)


def test_a_length_beyond_the_positions_is_refused():
    with pytest.raises(ValueError, match="config.options.max_seq_length: expected at most the model's 64 positions"):
        resolve(make_config("glue", options={"dataset": "rte", "max_seq_length": 65}), data_dir=GLUE)
