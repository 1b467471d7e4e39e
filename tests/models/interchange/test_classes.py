"""The classes of a checkpoint's head: their names, their order and their kind, in every format that has a place for
them.
"""

import dataclasses
import json

import numpy as np
import pytest
from made_checkpoints import SMALL, stored_small

from official_bert.config import Config, load_config, save_config
from official_bert.models import checkpoints
from official_bert.models.classifier import Classifier
from official_bert.models.interchange import classes, formats
from official_bert.models.interchange.classes import Classes
from official_bert.models.interchange.projects import ours
from official_bert.runs.configuration.run_config import with_classes_of

NLI = Classes(("contradiction", "entailment", "neutral"), "classifier")


def test_labels_are_found_whatever_their_case_and_dashes():
    assert classes.places(["b", "a", "A"], ["a", "A", "b"]) == [1, 2, 0]
    assert classes.places(["Not-Entailment", "ENTAILMENT"], ["entailment", "not_entailment"]) == [1, 0]
    assert classes.places(["-1", "1"], ["1", "-1"]) == [1, 0]
    for other in (["a"], ["a", "b", "c"], ["a", "c"], ["a", "A"]):
        assert classes.places(other, ["a", "b"]) is None


@pytest.mark.parametrize("form", ["hugging_face", "ours", "keras_hub"])
@pytest.mark.parametrize("kind", ["classifier", "multi_label"])
def test_names_and_kind_come_back_from_files(form, kind, tmp_path):
    model = dataclasses.replace(stored_small("classifier"), labels=["red", "green", "blue"], kind=kind)
    formats.write(model, form, str(tmp_path / "out"))
    again = formats.read(str(tmp_path / "out"))
    assert list(again.labels) == ["red", "green", "blue"] and again.kind == kind


def test_weights_follow_their_classes(tmp_path):
    model = dataclasses.replace(
        stored_small("classifier"), labels=["ENTAILMENT", "NEUTRAL", "CONTRADICTION"], kind="classifier"
    )
    formats.write(model, "hugging_face", str(tmp_path / "out"))
    made = Classifier.make(SMALL, {"num_classes": 3})
    said = checkpoints.initialize_from(made, str(tmp_path / "out"), NLI).describe()
    assert (
        "41 of 41" in said and "its classes ENTAILMENT, NEUTRAL, CONTRADICTION were put into the task's order" in said
    )
    for name in ("classifier/output_weights", "classifier/output_bias"):
        np.testing.assert_array_equal(checkpoints.named_weights(made)[name], model.weights[name][[2, 0, 1]])


def test_labels_of_the_data_that_are_called_label_n_find_their_outputs():
    stored = dataclasses.replace(stored_small("classifier"), labels=("LABEL_0", "LABEL_2", "LABEL_1"))
    found, remarks = classes.in_order_of(stored, Classes(("LABEL_0", "LABEL_1", "LABEL_2"), "classifier"))
    np.testing.assert_array_equal(
        found.weights["classifier/output_bias"], stored.weights["classifier/output_bias"][[0, 2, 1]]
    )
    assert ["put into the task's order" in remark for remark in remarks] == [True]
    _, remarks = classes.in_order_of(stored, Classes(stored.labels, "classifier"))
    assert ["options.labels gives them others" in remark for remark in remarks] == [True]


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [
        (["NOUN", "VERB", "ADJ", "X", "Y"], "plain"),
        ([], "plain"),
        (["O", "PER", "LOC", "ORG", "MISC"], None),
        (["B-a", "I-a", "B-b", "I-b", "[PAD]"], None),
    ],
)
def test_tags_without_places_stand_for_themselves(labels, scheme):
    options = ours.class_options(dataclasses.replace(stored_small("tagger"), labels=labels))
    assert options.get("scheme") == scheme and options["labels"] == (
        labels or [f"LABEL_{number}" for number in range(5)]
    )


def test_columns_name_the_labels_that_a_checkpoint_does_not(tmp_path):
    formats.write(
        dataclasses.replace(stored_small("classifier"), kind="multi_label"), "hugging_face", str(tmp_path / "none")
    )
    formats.write(
        dataclasses.replace(stored_small("classifier"), kind="multi_label", labels=["p", "q", "r"]),
        "hugging_face",
        str(tmp_path / "own"),
    )
    asked = Config(
        task="classification", model=SMALL, options={"kind": "multi_label", "label_columns": ["r", "q", "p"]}
    )
    assert with_classes_of(asked, str(tmp_path / "none")).options["labels"] == ["r", "q", "p"]
    assert with_classes_of(asked, str(tmp_path / "own")).options["labels"] == ["p", "q", "r"]


def test_transitions_of_a_crf_follow_too():
    stored = dataclasses.replace(stored_small("tagger"), labels=list("abcde"))
    weights = dict(stored.weights) | {
        "crf/transitions": np.arange(25.0).reshape(5, 5),
        "crf/start_scores": np.arange(5.0),
    }
    found, _ = classes.in_order_of(dataclasses.replace(stored, weights=weights), Classes(("e", "a", "b", "c", "d")))
    assert found.weights["crf/transitions"][0, 1] == 20.0 and found.weights["crf/start_scores"].tolist() == [
        4.0,
        0.0,
        1.0,
        2.0,
        3.0,
    ]


@pytest.mark.parametrize(
    ("labels", "kind", "told"),
    [
        (("red", "green", "blue"), "classifier", "its head is not used: its classes are red, green, blue"),
        (NLI.labels, "multi_label", "its head is not used: it was trained as multi_label, the task is classifier"),
        # of TF 1
        ((), "", "its classes have no names: assumed to be in the task's order contradiction, entailment, neutral"),
        (
            ("LABEL_0", "LABEL_1", "LABEL_2"),
            "",
            "its classes have no names: assumed to be in the task's order contradiction, entailment, neutral",
        ),
    ],
)
def test_other_classes_are_not_mistaken_for_the_tasks(labels, kind, told):
    stored = dataclasses.replace(stored_small("classifier"), labels=labels, kind=kind)
    found, remarks = classes.in_order_of(stored, NLI)
    assert [told in remark for remark in remarks] == [True]
    assert ("classifier/output_bias" in found.weights) == (not kind)


@pytest.mark.parametrize(
    ("given", "tuned", "kept"),
    [
        ([0.9, 0.2, 0.4], {}, [0.9, 0.2, 0.4]),
        (0.7, {"threshold": 0.3}, 0.7),
        ("tuned", {"threshold": 0.3}, 0.3),
        ("tuned_per_label", {"threshold": [0.1, 0.2, 0.3]}, [0.1, 0.2, 0.3]),
        ("tuned", {}, "tuned"),
    ],
)
def test_a_converted_run_keeps_the_thresholds_of_its_labels(given, tuned, kept, tmp_path):
    stored = dataclasses.replace(stored_small("classifier"), labels=("a", "b", "c"), kind="multi_label")
    formats.write(stored, "ours", str(tmp_path / "run"))
    config = load_config(str(tmp_path / "run/config.yaml"))
    save_config(
        dataclasses.replace(config, options=config.options | {"threshold": given}), str(tmp_path / "run/config.yaml")
    )
    if tuned:
        (tmp_path / "run/tuned.json").write_text(json.dumps({"steps": {"1": tuned}}))
    formats.write(formats.read(str(tmp_path / "run")), "ours", str(tmp_path / "again"))
    assert load_config(str(tmp_path / "again/config.yaml")).options["threshold"] == kept


@pytest.mark.parametrize("form", ["ours", "hugging_face"])
@pytest.mark.parametrize(("kind", "labels"), [("multi_label", ("toxic",)), ("regression", ())])
def test_one_output_is_a_label_or_a_score_in_every_format(form, kind, labels, tmp_path):
    stored = stored_small("classifier")
    kernel = stored.weights["classifier/output_weights"]
    head = {
        "classifier/output_bias": stored.weights["classifier/output_bias"][:1],
        "classifier/output_weights": kernel[:1] if kernel.shape[0] == 3 else kernel[:, :1],
    }
    stored = dataclasses.replace(stored, weights={**stored.weights, **head}, labels=labels, kind=kind)
    formats.write(stored, form, str(tmp_path / "first"))
    again = formats.read(str(tmp_path / "first"))
    assert again.kind == kind
    formats.write(again, "ours", str(tmp_path / "second"))
    options = load_config(str(tmp_path / "second/config.yaml")).options
    assert options["kind"] == kind and tuple(options.get("labels", ())) == labels


@pytest.mark.parametrize("keys", [("1", "0", "2"), ("2", "1", "0")])
def test_classes_may_stand_in_any_order_in_the_file(keys, tmp_path):
    formats.write(stored_small("classifier"), "hugging_face", str(tmp_path / "out"))
    path = tmp_path / "out/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"id2label": {key: f"class {key}" for key in keys}}))
    assert formats.read(str(tmp_path / "out")).labels == ["class 0", "class 1", "class 2"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {"0": "a", "2": "b"}}, "id2label: expected the names of the classes 0, 1, 2"),
        ({"id2label": ["a", "b", "c"]}, "id2label: expected the names"),
        ({"problem_type": "ranking"}, "problem_type: expected one of single_label_classification, .*, got 'ranking'"),
        ({"problem_type": "regression"}, "problem_type: expected one score, got 'regression' with 3 outputs"),
    ],
)
def test_damaged_descriptions_are_refused(changes, message, tmp_path):
    formats.write(stored_small("classifier"), "hugging_face", str(tmp_path / "out"))
    path = tmp_path / "out/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ValueError, match=message):
        formats.read(str(tmp_path / "out"))
