"""Vectors of an export: of length 1, shorter, in int8 and bits, with prompts; and folders of sentence-transformers."""

import json
import os
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from made_finetuning import VOCAB, make_config
from needed_tools import TORCH, needs_torch

from official_bert.config import save_config
from official_bert.interface.predictor import Predictor
from official_bert.models import checkpoints
from official_bert.models.interchange import formats
from official_bert.serving import export as exports
from official_bert.serving.export import ExportOptions, export
from official_bert.serving.served_embeddings import ServedEmbeddings, make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import load_task, restore_for_inference

TEXTS = ["the king", "a river of the city", "war and music", "a school", "film"]
PROMPTS = {"query_prompt": "who: ", "passage_prompt": "text: "}


@pytest.fixture(scope="module")
def task():
    return load_task(make_config("retrieval", options={"max_seq_length": 16, "normalize": True, **PROMPTS}))


@pytest.fixture(scope="module")
def model(task):
    return task.build_model()


def vectors_of(served, texts=TEXTS):
    return served.answer_text({"text": tf.constant(texts)})["embedding"].numpy()


def serve(task, model, **options):
    return make_served_model(task, model, ServingOptions(**options))


def test_vectors_are_shortened_and_then_scaled(task, model):
    raw = vectors_of(serve(task, model, normalize=False))
    assert np.abs(np.linalg.norm(raw, axis=-1) - 1.0).min() > 0.01
    for options, wanted in (({}, raw), ({"dimensions": 8}, raw[:, :8])):
        np.testing.assert_allclose(
            vectors_of(serve(task, model, **options)),
            wanted / np.linalg.norm(wanted, axis=-1, keepdims=True),
            atol=1e-6,
        )
    np.testing.assert_allclose(vectors_of(serve(task, model, dimensions=8, normalize=False)), raw[:, :8], atol=1e-6)


def test_int8_and_bits_are_those_of_sentence_transformers_rules(task, model):
    floats = vectors_of(serve(task, model))
    served = serve(task, model, vectors="int8")
    with pytest.raises(ValueError, match="--vectors=int8: expected --calibration_file"):
        vectors_of(served)
    served.calibrate(TEXTS[:4], at_once=3)
    low, high = floats[:4].min(axis=0), floats[:4].max(axis=0)
    np.testing.assert_allclose(served.ranges, [low, high], atol=1e-6)
    # its quantize_embeddings, which then cuts off what follows the point
    exact = (floats - low) / ((high - low) / 255.0) - 128.0
    found = vectors_of(served)
    assert found.dtype == np.int8
    # The ends of the ranges are whole numbers but for rounding.
    at_least, at_most = (np.trunc(np.clip(exact + error, -128, 127)) for error in (-0.01, 0.01))
    assert ((at_least <= found) & (found <= at_most)).all() and np.mean(at_least == at_most) > 0.5
    bits = vectors_of(serve(task, model, vectors="binary"))
    assert bits.dtype == np.uint8
    np.testing.assert_array_equal(bits, np.packbits(floats > 0, axis=-1))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dimensions": 17}, "--dimensions: expected at most 16"),
        ({"dimensions": 0}, "at least 1"),
        ({"vectors": "binary", "dimensions": 12}, "expected a multiple of 8 numbers, got 12"),
    ],
)
def test_vectors_that_cannot_be_are_refused(task, model, options, told):
    with pytest.raises(ValueError, match=told):
        serve(task, model, **options)


def store_run(task, model, folder):
    os.makedirs(folder)
    save_config(task.config, str(folder / "config.yaml"))
    with open(VOCAB, encoding="utf-8") as file:
        (folder / "vocab.txt").write_text(file.read(), encoding="utf-8")
    checkpoints.weights_checkpoint(model).write(str(folder / "ckpt-1"))
    return str(folder)


@pytest.mark.slow
def test_prompts_are_signatures_of_the_export_and_known_to_predictors(task, model, tmp_path, monkeypatch):
    monkeypatch.setattr(exports, "FORMS", ("text",))
    export(serve(task, model), task.config, ExportOptions(output=str(tmp_path / "vectors"), batch_sizes=[]))
    loaded = tf.saved_model.load(str(tmp_path / "vectors" / "text" / "1"))
    assert {"serving_default", "query", "passage"} <= set(loaded.signatures)
    wanted = vectors_of(serve(task, model), [f"who: {text}" for text in TEXTS])
    np.testing.assert_allclose(loaded.signatures["query"](text=tf.constant(TEXTS))["embedding"], wanted, atol=1e-5)
    predictor = Predictor(str(tmp_path / "vectors"))
    np.testing.assert_allclose(predictor.embed(TEXTS, "query"), wanted, atol=1e-5)
    assert np.abs(predictor.embed(TEXTS) - wanted).max() > 0.01
    with pytest.raises(ValueError, match="prompt: expected one of query, passage, got 'doc'"):
        predictor.embed(TEXTS, "doc")


@pytest.mark.slow
def test_packed_vectors_are_not_compared_as_floats(task, model, tmp_path):
    export(
        serve(task, model, vectors="binary"), task.config, ExportOptions(output=str(tmp_path / "bits"), batch_sizes=[])
    )
    predictor = Predictor(str(tmp_path / "bits"))
    np.testing.assert_array_equal(
        predictor("war")["embedding"], vectors_of(serve(task, model, vectors="binary"), ["war"])[0]
    )
    for compare in (lambda: predictor.embed(TEXTS), lambda: predictor.rank("war", TEXTS)):
        with pytest.raises(
            ValueError, match="expected float32 vectors from .*bits, got packed ones \\(uint8; run_export --vectors\\)"
        ):
            compare()


def test_a_folder_of_sentence_transformers_keeps_how_vectors_are_made(task, model, tmp_path):
    formats.write(formats.read(store_run(task, model, tmp_path / "run")), "hugging_face", str(tmp_path / "st"))
    modules = json.loads((tmp_path / "st" / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == ["Transformer", "Pooling", "Normalize"]
    assert json.loads((tmp_path / "st" / "config_sentence_transformers.json").read_text())["prompts"] == {
        "query": "who: ",
        "document": "text: ",
    }
    again, encoder = restore_for_inference(str(tmp_path / "st"))
    options = again.options
    assert (options.query_prompt, options.passage_prompt, options.normalize, options.max_seq_length) == (
        "who: ",
        "text: ",
        True,
        16,
    )
    served = make_served_model(again, encoder, ServingOptions(head="embeddings"))
    assert isinstance(served, ServedEmbeddings) and served.normalize
    np.testing.assert_allclose(vectors_of(served), vectors_of(serve(task, model)), atol=1e-5)


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("normalize", [True, False])
def test_sentence_transformers_computes_the_same_vectors(task, tmp_path, normalize):
    task = load_task(make_config("retrieval", options={"max_seq_length": 16, "normalize": normalize, **PROMPTS}))
    run = store_run(task, task.build_model(), tmp_path / "run")
    formats.write(formats.read(run), "hugging_face", str(tmp_path / "st"))
    long = " ".join(["river"] * 40)
    code = (
        "import json, sys; from sentence_transformers import SentenceTransformer as S; m = "
        f"S({str(tmp_path / 'st')!r}); t = {[*TEXTS, long]!r}; m.save({str(tmp_path / 'theirs')!r}); "
        "print(json.dumps([m.encode(t).tolist(), m.encode_query(t).tolist(), m.encode_document(t).tolist()]))"
    )
    done = subprocess.run(
        [TORCH, "-c", code], check=True, capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    theirs = np.array(json.loads(done.stdout.splitlines()[-1]))
    for folder in ("st", "theirs"):  # ours, and the same written by sentence-transformers
        predictor = Predictor(str(tmp_path / folder))
        assert predictor.prompts == {"query": "who: ", "passage": "text: "}
        plain = np.array([answer["embedding"] for answer in predictor([*TEXTS, long])])
        np.testing.assert_allclose(plain, theirs[0], atol=2e-5)
        for prompt, wanted in (("query", theirs[1]), ("passage", theirs[2])):
            np.testing.assert_allclose(
                predictor.embed([*TEXTS, long], prompt),
                wanted / np.linalg.norm(wanted, axis=-1, keepdims=True),
                atol=2e-5,
            )
