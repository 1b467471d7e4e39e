"""Calibration from the options to the answers: of labels, choices and tags, stored beside the weights and served."""

import json

import numpy as np
import pytest
import scipy.special
import tensorflow as tf
from made_finetuning import data_files, fixture_data, make_config, resolve

from official_bert import export
from official_bert.interface.predictor import Predictor
from official_bert.models.checkpoints import checkpoint_at
from official_bert.objectives.calibration import Calibration
from official_bert.run_folder import RunFolder, tuned_for
from official_bert.runs.fine_tuning import FineTuning
from official_bert.tasks.data import Steps
from official_bert.tasks.loading import load_task
from official_bert.tasks.tagging.served import ServedTagger
from official_bert.tasks.texts.served import ServedChoice, ServedClassifier
from official_bert.training.machines.cluster import Placement

WORDS = ("water", "stone", "paper", "green", "house", "small")
LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


def write_rows(path, count, seed):
    """Writes rows whose label is whether `water` is among the words, and wrong in a tenth of them."""
    rng = np.random.default_rng(seed)
    lines = ["text\tlabel"]
    for _ in range(count):
        words = list(rng.choice(WORDS, 4))
        lines.append(f"{' '.join(words)}\t{'yes' if ('water' in words) != (rng.random() < 0.1) else 'no'}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def files(tmp_path):
    return {name: write_rows(tmp_path / f"{name}.tsv", 60, seed) for seed, name in enumerate(("train", "dev"))}


def tuning(config, folder, files, said, **more):
    return FineTuning(
        load_task(config), data_files(**files), RunFolder(str(folder)), Placement(), report=said.append, **more
    )


@pytest.mark.parametrize(
    ("task", "options", "said"),
    [
        ("classification", {"calibrate": True, "dev_share": 0.0}, "options.calibrate: expected rows to evaluate on"),
        ("classification", {"target_accuracy": 0.9, "dev_share": 0.0}, "options.target_accuracy: expected rows to"),
        ("classification", {"temperature": -1.0}, "options.temperature: expected at least 0, got -1.0"),
        ("classification", {"target_accuracy": 1.0}, "options.target_accuracy: expected a share from 0 to below 1"),
        ("classification", {"abstain_below": 1.5}, "options.abstain_below: expected a probability from 0 to 1"),
    ],
)
def test_calibration_that_cannot_be_is_refused(files, task, options, said):
    with pytest.raises(ValueError, match=said):
        resolve(make_config(task, options=options), train_file=files["train"])


def test_scores_are_not_calibrated():
    with pytest.raises(ValueError, match="temperature: expected .* classifier, choice, tagger with it, got regr"):
        fixture_data("stsb", temperature=2.0)


def test_a_tagger_has_a_temperature_and_does_not_abstain(tmp_path):
    path = tmp_path / "train.conll"
    path.write_text("\n\n".join(f"{WORDS[number % 6]} O\nBrno B-LOC" for number in range(20)) + "\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match="target_accuracy: expected a model of kind classifier, choice with it, got ta"
    ):
        resolve(make_config("ner", options={"target_accuracy": 0.9}), train_file=path)
    data = resolve(
        make_config("ner", options={"calibrate": True}), train_file=path, eval_file=path, allow_same_data=True
    )
    rng = np.random.default_rng(0)
    rows = [data.held_out.source.examples[index] for index in np.concatenate(data.held_out.source.plan(0))]
    logits = [{"logits": rng.normal(size=(len(row["input_ids"]), len(data.task.options.labels)))} for row in rows]
    measured = data.held_out.evaluate(logits)
    # the words of all sentences, `water` one piece and Brno two: their first pieces stand behind [CLS]
    gold, words = zip(
        *(
            (tag, row["logits"][place])
            for example, row in zip(rows, logits)
            for place, tag in enumerate(example["tags"])
            if example["tag_mask"][place]
        )
    )
    words, gold = np.array(words), np.array(gold)
    inverse = np.linspace(0.05, 3.0, 3001)
    losses = [
        -np.mean(scipy.special.log_softmax(words * value, axis=-1)[np.arange(len(gold)), gold]) for value in inverse
    ]
    best = max(1.0 / inverse[int(np.argmin(losses))], 0.05)
    assert measured["temperature"] == pytest.approx(min(best, 20.0), rel=0.01)
    names = [section.name for section in data.held_out.examine(logits)]
    assert names[-2:] == ["calibration", "coverage"]
    plain = resolve(make_config("ner"), train_file=path, eval_file=path, allow_same_data=True)
    assert "temperature" not in plain.held_out.evaluate(logits)
    assert "calibration" not in [section.name for section in plain.held_out.examine(logits)]


def test_served_probabilities_have_the_temperature_and_logits_do_not(graph_tokenizer, classifier, choice_classifier):
    served = ServedClassifier(classifier(3), graph_tokenizer, 32, labels=["a", "b", "c"])
    texts = {"text": tf.constant(["The surveyor asked for the price.", "", "no"])}
    before = served.answer_text(texts)
    served.calibration = Calibration(2.5, 0.45)
    after = served.answer_text(texts)
    np.testing.assert_array_equal(after["logits"], before["logits"])
    np.testing.assert_array_equal(after["label"], before["label"])
    wanted = scipy.special.softmax(before["logits"].numpy() / 2.5, axis=-1)
    np.testing.assert_allclose(after["probabilities"], wanted, rtol=1e-5)
    assert after["abstains"].numpy().tolist() == (wanted.max(axis=-1) < 0.45).tolist() and "abstains" not in before
    choice = ServedChoice(choice_classifier, graph_tokenizer, 32)
    rows = {"text": tf.constant(["He"]), "choices": tf.constant([["ran", "sat down"]])}
    shares = choice.answer_text(rows)["probabilities"].numpy()
    choice.calibration = Calibration(0.5)
    np.testing.assert_allclose(  # a temperature of a half squares probabilities
        choice.answer_text(rows)["probabilities"], shares**2 / (shares**2).sum(axis=-1, keepdims=True), rtol=1e-4
    )


def test_a_calibrated_tagger_finds_the_same_entities_with_other_scores(graph_tokenizer, token_tagger):
    tagger = ServedTagger(token_tagger, graph_tokenizer, 20, labels=LABELS, doc_stride=5, pretokenized=True)
    texts = {"text": tf.constant(["The surveyor met Señora Núñez , near Brno ."])}
    before = tagger.answer_text(texts)
    tagger.calibration = Calibration(1e6)
    after = tagger.answer_text(texts)
    assert int(before["num_entities"][0]) > 0
    np.testing.assert_array_equal(after["starts"], before["starts"])
    np.testing.assert_allclose(after["scores"], np.full_like(before["scores"], 1 / len(LABELS)), rtol=1e-3)


@pytest.mark.slow
@pytest.mark.usefixtures("eager_predictors", "eager_steps")
def test_a_run_is_calibrated_in_training_stored_used_and_calibrated_anew(tmp_path, files):
    folder, said = tmp_path / "run", []
    config = make_config(
        "classification", options={"calibrate": True}, training={"report": True}, optimizer={"learning_rate": 2e-3}
    )
    paths = {"train_file": files["train"], "eval_file": files["dev"], "predict_file": files["dev"]}
    metrics = tuning(config, folder, paths, said, steps=Steps(predict=True)).carry_out()
    stored = tuned_for(checkpoint_at(str(folder)))
    assert stored == {"temperature": metrics["temperature"], "abstain_below": 0.0} and stored["temperature"] > 0
    predictor = Predictor(str(folder))
    texts, _ = zip(*(line.split("\t") for line in files["dev"].read_text().splitlines()[1:]))
    answers = predictor(list(texts))
    for answer, line in zip(answers, (folder / "predictions.tsv").read_text().splitlines()[1:]):
        shares = scipy.special.softmax(np.array(answer["logits"]) / stored["temperature"])
        np.testing.assert_allclose(list(answer["probabilities"].values()), shares, rtol=1e-4)
        np.testing.assert_allclose([float(cell) for cell in line.split("\t")[2:]], shares, atol=2e-6)
    report = json.loads((folder / "report.json").read_text())
    assert "before" in report["calibration"] and report["coverage"]["abstain_below"] == 0.0
    # Other rows measure what is stored; asked for, they calibrate the run anew, and choose a threshold too.
    other, before = {"eval_file": write_rows(tmp_path / "other.tsv", 80, 7)}, dict(stored)
    run = RunFolder(str(folder))
    again = tuning(run.config(), folder, other, said, steps=Steps(train=False)).carry_out()
    assert again["temperature"] == before["temperature"] and tuned_for(checkpoint_at(str(folder))) == before
    asked = run.config(["options.target_accuracy=0.6"])
    anew = tuning(
        asked, folder, other, said, steps=Steps(train=False), asked_keys=["options.target_accuracy"]
    ).carry_out()
    stored = tuned_for(checkpoint_at(str(folder)))
    assert stored == {name: anew[name] for name in ("temperature", "abstain_below")} != before
    assert anew["accuracy_of_answers"] >= 0.6 and stored["abstain_below"] > 0
    answers = Predictor(str(folder))(list(texts))
    assert [answer["abstains"] for answer in answers] == [
        max(answer["probabilities"].values()) < stored["abstain_below"] for answer in answers
    ]
    # Exports have temperature and threshold as constants, in TensorFlow's form and in those of other runtimes.
    export(str(folder), str(tmp_path / "exported"), format=("saved_model", "onnx"), batch_sizes=(), report=said.append)
    for form in ("text", "onnx"):
        for answer, exported in zip(answers, Predictor(str(tmp_path / "exported" / form))(list(texts))):
            assert exported["abstains"] == answer["abstains"]
            found = exported["probabilities"]
            found = list(found.values() if isinstance(found, dict) else found)
            np.testing.assert_allclose(found, list(answer["probabilities"].values()), atol=1e-5)
    with pytest.raises(ValueError, match=r"target_accuracy: 0.9999: no threshold reaches it on the rows .* \d\.\d{4}"):
        config = run.config(["options.target_accuracy=0.9999"])
        tuning(
            config, folder, other, said, steps=Steps(train=False), asked_keys=["options.target_accuracy"]
        ).carry_out()
    assert tuned_for(checkpoint_at(str(folder))) == stored
    assert not any("not stored" in line for line in said)


def test_without_calibration_answers_are_those_of_the_softmax_bit_for_bit():
    task = load_task(make_config("classification", options={"labels": ["a", "b"]}))
    logits = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    for row in logits:
        assert task.answers.answer(row) == {
            "label": "ab"[row.argmax()],
            "probabilities": scipy.special.softmax(row).tolist(),
        }
    asked = load_task(make_config("classification", options={"labels": ["a", "b"], "calibrate": True}))
    with pytest.raises(ValueError, match="no evaluation has calibrated these weights yet"):
        asked.answers.answer(logits[0])
