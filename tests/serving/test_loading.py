"""Every SavedModel is loaded by both loaders in a fresh process that knows only TensorFlow, and compared with the
models here.
"""

import functools
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from official_bert.config import Config, TokenizerConfig
from official_bert.layers.relatives.crf import Scores, best_path
from official_bert.models.encoder import make_encoder
from official_bert.models.pretrainer import Pretrainer
from official_bert.serving import export, warmup
from official_bert.serving.loading import load_exported
from official_bert.serving.served_embeddings import ServedEmbeddings
from official_bert.storage import files
from official_bert.tasks.pretraining.served import ServedFillMask
from official_bert.tasks.squad.served import ServedSpans
from official_bert.tasks.tagging.served import ServedTagger
from official_bert.tasks.texts.served import ServedChoice, ServedClassifier, ServedMultiLabel, ServedRegression

# What runs without us: the arguments are the form, then folders, each with its inputs.npz and wanted.npz beside.
SCRIPT = """
import sys
import numpy as np
import tensorflow as tf
sys.modules["tensorflow_text"] = None  # an import of it fails
for folder in sys.argv[2:]:
    arrays, wanted = (dict(np.load(f"{folder}/{name}.npz", allow_pickle=True)) for name in ("inputs", "wanted"))
    serialized, mask = arrays.pop("examples"), np.array(arrays.get("input_mask", 1)) > 0
    loaded = tf.saved_model.load(folder)
    answers = [loaded.signatures["serving_default"](**{name: tf.constant(value) for name, value in arrays.items()}),
               loaded.signatures["examples"](inputs=tf.constant(serialized))]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        signatures = tf.compat.v1.saved_model.load(session, ["serve"], folder).signature_def
        for name, feed in (("serving_default", arrays), ("examples", {"inputs": serialized})):
            signature = signatures[name]
            assert signature.method_name == "tensorflow/serving/predict"
            answers.append(session.run({key: value.name for key, value in signature.outputs.items()},
                                       {signature.inputs[key].name: value for key, value in feed.items()}))
    for answer in answers:
        # those of Examples count the entries of padded lists, too
        told = [name for name in answer if name in wanted or not name.startswith("num_")]
        assert sorted(told) == sorted(wanted), (folder, sorted(answer), sorted(wanted))
        for name, value in wanted.items():
            found = np.asarray(answer[name])
            assert found.shape == value.shape, (folder, name, found.shape, value.shape)
            if value.dtype.kind == "f":
                if value.shape[:mask.ndim] == mask.shape:  # what is said of padding means nothing
                    found, value = found[mask], value[mask]
                apart = np.abs(found - value).max(initial=0)
                assert apart <= 1e-5 * max(1, np.abs(value).max(initial=0)), (folder, name, apart)
            else:
                assert (found == value).all(), (folder, name)
    print("equal:", folder)
assert not [name for name in sys.modules if name.split(".")[0] == "official_bert"]
"""
TEXTS = np.array(
    [
        text.encode()
        for text in ("The surveyor [MASK] for the price.", "", "Señora Núñez misplaced [MASK] [MASK]. " * 9, "中国")
    ],
    object,
)


def viterbi(logits, real):
    """A decoder: the best path under fixed scores."""
    scores = np.random.default_rng(4).normal(size=(7, 5)).astype(np.float32)
    return best_path(logits, real, Scores(scores[:5], scores[5], scores[6]))


@pytest.fixture(scope="module")
def served_models(graph_tokenizer, small_config, classifier, choice_classifier, token_tagger, span_model):
    """Returns the models' makers by head; each is made at its first use."""
    common = (graph_tokenizer, 32)
    return {
        head: functools.cache(make)
        for head, make in {
            "fill_mask": lambda: ServedFillMask(Pretrainer.make(small_config), *common),
            "classifier": lambda: ServedClassifier(classifier(3), *common, labels=["no", "ja", "être"]),
            "pairs": lambda: ServedClassifier(classifier(2), *common, labels=["0", "1"], pairs=True),
            "multi_label": lambda: ServedMultiLabel(classifier(3), *common, labels=["a", "b", "c"]),
            "regression": lambda: ServedRegression(classifier(1), *common),
            "choice": lambda: ServedChoice(choice_classifier, *common),
            "question_answering": lambda: ServedSpans(span_model, *common, doc_stride=8, max_query_length=8),
            "tagger": lambda: ServedTagger(
                token_tagger, *common, labels=["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], doc_stride=8
            ),
            "crf": lambda: ServedTagger(
                token_tagger, *common, labels=["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], decode=viterbi
            ),
            "cls": lambda: ServedEmbeddings(make_encoder(small_config), *common, "cls"),
            "mean": lambda: ServedEmbeddings(make_encoder(small_config), *common, "mean"),
        }.items()
    }


def inputs_for(signature):
    """Returns texts, or rows of ids of two lengths, for each input of a signature."""
    rng = np.random.default_rng(0)
    mask = np.ones((4, 20), np.int32)
    mask[1, 7:] = 0
    rows = {
        "input_ids": rng.integers(0, 3000, (4, 20), np.int32) * mask,
        "input_mask": mask,
        "segment_ids": np.repeat([[0, 1]], 4, 0).repeat(10, 1).astype(np.int32) * mask,
        "masked_lm_positions": rng.integers(0, 20, (4, 2), np.int32),
    }
    values = {
        "text": TEXTS,
        "text_pair": TEXTS[::-1],
        "question": TEXTS[:1].repeat(4),
        "context": TEXTS,
        "choices": np.stack([TEXTS, TEXTS[::-1]], 1),
    }
    if any(spec.shape.rank == 3 for spec in signature.values()):
        rows = {name: np.stack([value, value[::-1]], 1) for name, value in rows.items()}
    return {name: {**values, **rows}[name] for name in signature}


@pytest.fixture(scope="module")
def exported(served_models, golden, small_config, tmp_path_factory):
    """Returns each head's folder, exported at its first use."""
    config = Config(model=small_config, tokenizer=TokenizerConfig(vocab_file=str(golden / "vocab_uncased.txt")))
    root = tmp_path_factory.mktemp("models")

    @functools.cache
    def of(head):
        output = root / head
        export.export(
            served_models[head](), config, export.ExportOptions(output=str(output), batch_sizes=(), num_choices=2)
        )
        return output

    return of


def check(served_models, exported, heads, form):
    """Runs SCRIPT on the SavedModels of these heads."""
    folders = []
    for head in heads:
        folder = exported(head) / form / "1"
        signature, answer = export.form_of(served_models[head](), form)
        inputs = inputs_for(signature)
        wanted = answer({key: tf.constant(value) for key, value in inputs.items()})
        np.savez(folder / "inputs.npz", examples=warmup.to_examples(inputs), **inputs)
        np.savez(folder / "wanted.npz", **{key: value.numpy() for key, value in wanted.items()})
        folders.append(str(folder))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "KERAS"))}
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, form, *folders],
        cwd=folders[0],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    assert finished.stdout.count("equal:") == len(heads)


QUICK = ["classifier"]  # tasks/test_served_models.py loads a CRF


@pytest.mark.slow  # a process and four sessions; test_facade.py and the journeys load exports in their own process
@pytest.mark.parametrize("form", ["text", "ids"])
def test_saved_models_answer_without_us_as_the_models_do(served_models, exported, form):
    check(served_models, exported, QUICK, form)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["text", "ids"])
def test_the_other_saved_models_answer_without_us_as_the_models_do(served_models, exported, form):
    check(served_models, exported, sorted(set(served_models) - set(QUICK)), form)


@pytest.mark.parametrize(("scheme", "bias"), [("ram", 2.0), ("memory", 2.0), ("ram", np.nan)])
def test_a_model_on_another_store_is_loaded_and_its_weights_are_read(tmp_path, scheme, bias):
    model = tf.Module()
    model.bias = tf.Variable(bias)
    plus = tf.function(
        lambda x: {"y": x + model.bias}, input_signature=[tf.TensorSpec([None], tf.float32, name="x")], autograph=False
    )
    tf.saved_model.save(model, str(tmp_path / "1"), signatures={"serving_default": plus})
    folder = f"{scheme}://{tmp_path.name}/text"
    files.publish(str(tmp_path), folder)
    if np.isnan(bias):
        with pytest.raises(ValueError, match=rf"{folder}/1: bias: expected finite numbers"):
            load_exported(folder)
    else:
        assert load_exported(folder)(x=[1.0, 3.0])["y"].tolist() == [3.0, 5.0]
