"""Integrated gradients: those of captum, sums that are complete, and finite differences in place of gradients."""

import dataclasses
import json
import pathlib
import re
import subprocess
import sys

import keras
import made_explanations
import numpy as np
import pytest
import tensorflow as tf
from commands import run_here
from eager_models import eager_function_of
from made_checkpoints import write_relative
from made_finetuning import make_config

import official_bert
from official_bert.interface import predictor as predictor_module
from official_bert.interface.predictor import Predictor
from official_bert.layers.speed.extension_points import original, overridden
from official_bert.reports.page import as_page
from official_bert.reports.sections import Mistake, mistakes_section
from official_bert.runs.explained_mistakes import explained_sections
from official_bert.serving import explanations
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import load_task, restore_for_inference

pytestmark = pytest.mark.usefixtures("eager_predictors")

STORED = json.loads((pathlib.Path(__file__).parent.parent / "fixtures/explanations.json").read_text())


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folders of the models that captum explained, by kind."""
    folder = tmp_path_factory.mktemp("models")
    return {kind: made_explanations.write_model(folder / kind, kind) for kind in made_explanations.KINDS}


@pytest.fixture(scope="module")
def predictors(folders):
    """These models, loaded."""
    with pytest.MonkeyPatch.context() as patch:  # for the module, as `eager_predictors` for a test
        patch.setattr(predictor_module, "function_of", eager_function_of)
        return {kind: Predictor(folder) for kind, folder in folders.items()}


def by_word(tokens, shares):
    """Returns captum's shares of words, without [CLS] and [SEP], whose share is 0."""
    words = []
    for token, share in zip(tokens, shares):
        if token in ("[CLS]", "[SEP]"):
            assert share == 0.0
        elif token.startswith("##"):
            words[-1] = words[-1][0] + token[2:], words[-1][1] + share
        else:
            words.append((token, share))
    return words


@pytest.mark.parametrize("kind", made_explanations.KINDS)
def test_shares_are_those_of_captum(predictors, kind):
    predictor = predictors[kind]
    for row in STORED[kind]:
        found = predictor.explain({name: row[name] for name in predictor.inputs}, STORED["steps"], row.get("word", ""))
        words = by_word(row["tokens"], row["shares"])
        assert found["target"] == row["target"] and found["words"] == [word for word, _ in words]
        np.testing.assert_allclose(found["shares"], [share for _, share in words], atol=1e-4)
        np.testing.assert_allclose([found["value"], found["baseline"]], [row["value"], row["baseline"]], atol=1e-4)
        assert abs(row["value"] - row["baseline"]) > 0.01 and max(map(abs, row["shares"])) > 0.05
        for name, word, start in zip(found["inputs"], found["words"], found["starts"]):
            assert row[name][start:].startswith(word)


def test_shares_add_up_and_few_steps_advise_more(predictors):
    text = made_explanations.KINDS["classifier"][2][4]["text"]
    found = predictors["classifier"].explain(text, steps=200)
    assert sum(found["shares"]) == pytest.approx(found["value"] - found["baseline"], abs=1e-4)
    assert found["gap"] < 0.01 and not found["notes"]
    coarse = predictors["classifier"].explain(text, steps=1)
    assert coarse["gap"] > 0.01 and "use more than 1 steps" in coarse["notes"][-1]
    expected = abs(sum(coarse["shares"]) - (found["value"] - found["baseline"])) / abs(
        found["value"] - found["baseline"]
    )
    assert coarse["gap"] == pytest.approx(expected, rel=1e-3)


def test_a_label_is_explained_instead_of_the_answer(predictors):
    predictor, text = predictors["classifier"], "the very old song ."
    logits = predictor(text)["logits"]
    for number, label in enumerate(predictor.labels):
        found = predictor.explain(text, of=label)
        assert found["target"] == label and found["value"] == pytest.approx(logits[number], abs=1e-5)


def test_rows_of_all_lengths_share_one_trace(predictors):
    predictor = predictors["classifier"]
    texts = ["bad", "the old song", "a new river , not the old one by the lake"]
    alone = [predictor.explain(text) for text in texts]
    together = predictor.explain(texts)
    assert together == alone and predictor.explainer.gradients.experimental_get_tracing_count() == 1


def test_a_path_in_several_groups_is_the_path_at_once(predictors, monkeypatch):
    text = "the old song by the river"
    whole = predictors["classifier"].explain(text)
    monkeypatch.setattr(explanations, "TOKENS_AT_ONCE", 20)
    np.testing.assert_allclose(predictors["classifier"].explain(text)["shares"], whole["shares"], atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "texts", "options", "message"),
    [
        ("classifier", "bad", {"steps": 0}, "^row 1: steps: expected at least 1, got 0"),
        ("classifier", ["bad", ""], {}, "^row 2: expected a text with words, got {'text': ''}"),
        ("classifier", "bad", {"of": "great"}, "^row 1: of: expected one of bad, good, neither, got 'great'$"),
        ("tagger", "Anna sang", {"of": "Ben"}, "^row 1: of: expected a word of the text, got 'Ben'$"),
        ("span", ("who ?", "Ben"), {"of": "Ben"}, "^row 1: of: expected none, because the model gives one start"),
    ],
)
def test_errors_name_the_row_and_what_was_expected(predictors, kind, texts, options, message):
    with pytest.raises(ValueError, match=message):
        predictors[kind].explain(texts, **options)


@pytest.mark.slow
def test_only_models_with_gradients_and_logits_are_explained(folders, tmp_path):
    with pytest.raises(ValueError, match="^explain: expected a model of entities, start, tokens, .* got embedding"):
        Predictor(folders["classifier"], head="embeddings").explain("bad")
    official_bert.export(folders["classifier"], str(tmp_path / "exported"), batch_sizes=(), report=lambda _: None)
    with pytest.raises(ValueError, match="an exported model, which has no gradients; give the run or the checkpoint"):
        Predictor(str(tmp_path / "exported")).explain("bad")


@pytest.mark.parametrize(
    ("task", "options", "second"),
    [
        ("glue", {"dataset": "rte"}, "text_pair"),
        ("glue", {"dataset": "stsb"}, "text_pair"),
        ("classification", {"kind": "multi_label", "labels": ["a", "b", "c"]}, ""),
        ("reranking", {}, "text_pair"),
    ],
)
def test_answers_to_pairs_scores_and_one_of_several_labels_are_explained(eager_steps, task, options, second):
    keras.utils.set_random_seed(3)  # of the first weights, whose logits must differ enough from those without words
    task = load_task(make_config(task, options=options))
    served = make_served_model(task, task.build_model(), ServingOptions())
    row = {"text": "the old song", second: "a boat on the river"} if second else {"text": "the old song"}
    answered = served.answer_text({name: tf.constant([value]) for name, value in row.items()})
    answer = {name: value.numpy()[0] for name, value in answered.items()}
    explainer = explanations.Explainer(served, "")
    found = explainer.explain(row, answer, 100)
    assert found["value"] == pytest.approx(max(np.ravel(answer.get("logits", answer.get("score")))), abs=1e-5)
    assert sum(found["shares"]) == pytest.approx(found["value"] - found["baseline"], rel=0.01, abs=1e-5)
    assert abs(found["value"] - found["baseline"]) > 1e-3
    assert found["inputs"] == [name for name, value in row.items() for _ in value.split()]
    ((ids, segments, pieces),) = explanations.rows_of(served, explanations.pieces_of(served, row), [])
    masked = np.where(pieces < 0, ids, served.special["MASK"])
    features = {"input_ids": masked, "segment_ids": segments, "input_mask": np.ones_like(ids)}
    outputs = served.call_model({name: tf.constant(value[None]) for name, value in features.items()})
    number = served.labels.index(found["target"]) if found["target"] in served.labels else 0
    assert found["baseline"] == pytest.approx(np.ravel(next(iter(outputs.values())))[number], abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("truncate", ["head", "tail"])
def test_an_exported_classifier_explains_in_a_signature(folders, tmp_path, truncate):
    task, model = restore_for_inference(folders["classifier"])
    task = dataclasses.replace(
        task, config=dataclasses.replace(task.config, options={**task.config.options, "truncate": truncate})
    )
    served = make_served_model(task, model, ServingOptions(explanations=True, max_seq_length=10))
    texts = ["the boats , the old songs and the lakes by the river .", "bad", "old new"]
    answered = tf.function(served.more_signatures()["explain"], autograph=False)({"text": tf.constant(texts)})
    rows = [{name: value[number].numpy() for name, value in answered.items()} for number in range(3)]
    explainer = explanations.Explainer(served, "")
    for text, row in zip(texts, rows):
        answer = {name: value[0].numpy() for name, value in served.answer_text({"text": tf.constant([text])}).items()}
        found = explainer.explain({"text": text}, answer, steps=32)
        assert row["label"].decode() == found["target"] and row["value"] == pytest.approx(found["value"], abs=1e-5)
        real = row["ends"] > row["starts"]
        ends = [start + len(word) for start, word in zip(found["starts"], found["words"])]
        word = np.searchsorted(ends, row["ends"][real])
        np.testing.assert_allclose(np.bincount(word, row["shares"][real]), found["shares"], atol=1e-5)
    with pytest.raises(ValueError, match="--explanations: expected a classifier with labels"):
        task = dataclasses.replace(
            task, config=dataclasses.replace(task.config, options={**task.config.options, "truncate": "windows"})
        )
        make_served_model(task, model, ServingOptions(explanations=True))


@pytest.mark.slow
def test_explanations_are_exported_beside_other_formats_and_a_server_computes_them_without_a_remark(folders, tmp_path):
    output = tmp_path / "exported"
    formats = ["saved_model", "onnx"]
    official_bert.export(folders["classifier"], str(output), formats, explanations=True, report=lambda _: None)
    asked = (
        "import sys, tensorflow as tf\n"
        "model = tf.saved_model.load(sys.argv[1])\n"
        "names = {*model.signatures}\n"
        "assert {'explain', 'prepare', 'finish'} <= names and sum('explain' in name for name in names) == 1, names\n"
        "print(model.signatures['explain'](text=tf.constant(['bad old song']))['value'].numpy()[0])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked, str(output / "text" / "1")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "PredictCost" not in done.stderr, done.stderr
    logits = Predictor(str(output / "text"))("bad old song")["logits"]
    assert float(done.stdout) == pytest.approx(max(logits), abs=1e-5)


def test_of_a_long_text_the_window_that_answers_is_explained(folders, predictors):
    cut = Predictor(folders["classifier"], max_seq_length=8).explain("bad good old new song boat stone lake river")
    assert cut["words"] == ["bad", "good", "old", "new", "song", "boat"]
    assert cut["notes"][0] == "6 of 9 tokens are explained, in rows: 1"
    context = " ".join(["not the dull stone ,"] * 30)
    reader = predictors["span"]
    answer = reader.answer([{"question": "who ?", "context": f"{context} Anna {context}"}])[0]
    found = reader.explain({"question": "who ?", "context": f"{context} Anna {context}"})
    assert found["target"] == answer["answer"] and found["value"] == pytest.approx(answer["score"], abs=1e-4)
    assert answer["start"] in found["starts"] and "tokens are explained" in found["notes"][0]
    tagger, text = predictors["tagger"], f"{context} Anna {context}"
    found = tagger.explain(text, of="Anna")
    assert found["target"].startswith("Anna: ") and text.index("Anna") in found["starts"]


def share_by_differences(served, row, place, logit, points=32, step=1e-2):
    """Returns the share of a token of a row [3,S] by finite differences along the path, at midpoints."""
    ids, segments, pieces = (tf.constant([values]) for values in row)
    embeddings = served.encoder.embeddings

    def value(alphas):
        def read(name, places):
            rows = original(embeddings, "read")(name, places)
            if name != "word_embeddings":
                return rows
            masked = original(embeddings, "read")(name, tf.where(pieces >= 0, served.special["MASK"], places))
            return masked + alphas[:, :, None] * (rows - masked)

        count = len(alphas)
        rows = {"input_ids": ids, "segment_ids": segments, "input_mask": tf.ones_like(ids)}
        rows = {name: tf.repeat(value, count, 0) for name, value in rows.items()}
        with overridden({(embeddings, "read"): read}):
            return logit(rows).numpy().astype(float)

    at = np.repeat((np.arange(points) + 0.5)[:, None] / points, ids.shape[1], 1).astype("float32")
    moved = np.zeros_like(at)
    moved[:, place] = step
    return np.mean(value(at + moved) - value(at - moved)) / (2 * step)


# ELECTRA has a projection behind the word table.
RELATIVES = (
    "electra_generator", "deberta_v3", "roberta", "xlm_roberta", "albert", "modernbert", "mpnet", "jina_bert",
    "nomic_bert", "gte",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", RELATIVES)
def test_relatives_are_explained_as_finite_differences_say(tmp_path, kind):
    predictor = Predictor(write_relative(tmp_path, kind), task="fill_mask")
    served = predictor._model.owner
    mask = served.tokenizer.host.special["[MASK]"]
    text = f"The little boat {mask} the river."
    found = predictor.explain(text, steps=100)
    assert sum(found["shares"]) == pytest.approx(found["value"] - found["baseline"], rel=0.01, abs=1e-4)
    assert found["words"][:3] == ["The", "little", "boat"] and found["target"] == predictor(text)["tokens"][0][0]
    pieces = explanations.pieces_of(served, {"text": text})
    (row,) = explanations.rows_of(served, pieces, [])
    place, word = [*row[0]].index(served.special["MASK"]), served.tokenizer.tokens.index(found["target"])

    def logit(rows):
        places = tf.fill([len(rows["input_ids"]), 1], place)
        return served.call_model({**rows, "masked_lm_positions": places})["logits"][:, 0, word]

    added, _ = predictor.explainer._integrate(row, [place, word], 100)
    largest = np.argsort(-np.abs(added))[:3]
    differences = [share_by_differences(served, row, number, logit) for number in largest]
    np.testing.assert_allclose(added[largest], differences, atol=0.01 * np.abs(differences).max() + 1e-4)
    assert (
        found["shares"][[word.strip() for word in found["words"]].index(mask)] == 0.0
    )  # it is masked in the baseline too


@pytest.mark.slow
def test_the_command_writes_explanations_beside_answers(folders, tmp_path):
    output = tmp_path / "answers.jsonl"
    arguments = ("-m", "official_bert.run_predict", f"--model={folders['classifier']}", "--explain")
    done = run_here(*arguments, "--explain_steps=2", f"--output_file={output}", "a very good song")
    assert done.returncode == 0, done.stderr
    (answer,) = map(json.loads, output.read_text().splitlines())
    assert answer["explanation"]["words"] == ["a", "very", "good", "song"] and answer["label"]
    assert answer["explanation"]["target"] == answer["label"]
    shown = run_here(*arguments, "--explain_of=bad", "a very good song").stdout.splitlines()
    assert shown[0] == "a very good song" and re.fullmatch(
        r"  bad -?[\d.]+ = -?[\d.]+ without words  a [+-]\S+  very [+-]\S+  good [+-]\S+  song [+-]\S+", shown[2]
    )
    for more, message in (
        (["--score=token"], "--score=token: expected one --input_file"),
        (["--noexplain", "--explain_steps=3"], "--explain_steps: "),
        (["--explain_steps=0"], "--explain_steps=0"),
    ):
        done = run_here(*arguments, *more, "bad")
        assert done.returncode != 0 and message in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_report_colours_the_words_of_mistakes(folders, predictors):
    texts = ["the song is <bad> not good", "dull"]
    section = mistakes_section([Mistake([text], "good", "bad", 0.5) for text in texts], "probability")
    (explained,) = explained_sections(folders["classifier"], [section], 1)
    found = predictors["classifier"].explain(texts[0])
    assert explained.rows[0][0] == [*zip(found["words"], found["shares"])] and len(explained.rows) == 1
    page = as_page("run", [section, explained])
    assert page.count("<mark ") == len(found["words"]) and "&lt;</mark>" in page and "<bad>" not in page
    share = max(found["shares"], key=abs)
    assert f'rgba({"0,110,255" if share > 0 else "255,110,0"},1.00);color:inherit" title="{share:+.3f}"' in page
    with pytest.raises(ValueError, match="^expected a model that gives labels or scores, got answer"):
        list(explained_sections(folders["span"], [section], 1))
