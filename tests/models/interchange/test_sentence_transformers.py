"""Folders of sentence-transformers: each module is computed as by NumPy, for everybody who makes vectors, or refused by
its class.
"""

import json
import os
import shutil

import made_serving
import numpy as np
import pytest
import tensorflow as tf
from commands import run_here
from made_finetuning import VOCAB, make_config
from safetensors.numpy import save_file

from official_bert.interface.predictor import Predictor, evaluate
from official_bert.models import checkpoints
from official_bert.models.interchange import formats
from official_bert.models.interchange.projects import ours, sentence_transformers
from official_bert.models.interchange.stored_models import StoredModel
from official_bert.models.text_vectors import text_vectors
from official_bert.serving import export as exports
from official_bert.serving.export import ExportOptions, export
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.text.tokenization import FullTokenizer
from official_bert.text.vocab import load_vocab

pytestmark = pytest.mark.usefixtures("eager_predictors")

SIZE = 16
TEXTS = ["the king of the city", "war", "", "music and film"]
RNG = np.random.default_rng(3)
KERNEL, BIAS = (RNG.normal(size=shape).astype(np.float32) for shape in ((6, SIZE), (6,)))  # as PyTorch stores them
GAMMA, BETA = (RNG.normal(size=(SIZE,)).astype(np.float32) for _ in range(2))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder whose vectors are the mean, and its encoder."""
    task = load_task(make_config("retrieval"))
    encoder = task.build_model().encoder
    weights = {name: value.numpy() for name, value in checkpoints.named_weights(encoder).items()}
    stored = StoredModel(
        origin="test",
        weights=weights,
        table=ours.TABLE,
        config=task.config.model,
        vocab=list(load_vocab(VOCAB)),
        do_lower_case=True,
        pooling="mean",
    )
    folder = tmp_path_factory.mktemp("st") / "plain"
    formats.write(stored, "hugging_face", str(folder))
    return folder, encoder


def change(plain, folder, pooling=None, modules=(), prompts=None, **settings):
    """Copies the folder with another pooling, further modules (class, configuration, weights) and settings."""
    shutil.copytree(plain[0], folder)
    (folder / "1_Pooling/config.json").write_text(
        json.dumps({"word_embedding_dimension": SIZE, **(pooling or {"pooling_mode": "mean"})})
    )
    listed = json.loads((folder / "modules.json").read_text())
    for number, (name, values, weights) in enumerate(modules, 2):
        place = folder / f"{number}_{name}"
        place.mkdir()
        (place / "config.json").write_text(json.dumps(values))
        if weights:
            save_file(weights, place / "model.safetensors")
        listed.append({"type": f"sentence_transformers.models.{name}", "path": place.name})
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts or {}, **settings}))
    return folder


def rows_of(encoder, text):
    """The ids of a text, and the encoder's rows of it."""
    tokenizer = FullTokenizer(VOCAB, True)
    ids = tokenizer.convert_tokens_to_ids(["[CLS]", *tokenizer.tokenize(text), "[SEP]"])
    shape = (1, len(ids))
    inputs = {
        "input_ids": np.array([ids]),
        "input_mask": np.ones(shape, np.int32),
        "segment_ids": np.zeros(shape, np.int32),
    }
    return ids, np.asarray(encoder(inputs)["sequence_output"])[0].astype(np.float64)


def pooled(rows, mode, prompt=0):
    """Pools rows [S,D] by the definition; the first `prompt` are left out."""
    places, rows = np.arange(1, len(rows) + 1)[prompt:, None], rows[prompt:]
    return {
        "cls": lambda: rows[0],
        "lasttoken": lambda: rows[-1],
        "max": lambda: rows.max(axis=0),
        "mean": lambda: rows.mean(axis=0),
        "mean_sqrt_len_tokens": lambda: rows.sum(axis=0) / np.sqrt(len(rows)),
        "weightedmean": lambda: (rows * places).sum(axis=0) / places.sum(),
    }[mode]()


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def dense(vectors):
    return np.tanh(vectors @ KERNEL.T + BIAS)


def layer_norm(vectors):
    return (vectors - vectors.mean()) / np.sqrt(vectors.var() + 1e-5) * GAMMA + BETA


DENSE = (
    "Dense",
    {"in_features": SIZE, "out_features": 6, "bias": True, "activation_function": "torch.nn.modules.activation.Tanh"},
    {"linear.weight": KERNEL, "linear.bias": BIAS},
)
NORM = ("LayerNorm", {"dimension": SIZE}, {"norm.weight": GAMMA, "norm.bias": BETA})
NORMALIZE = ("Normalize", {}, {})
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
CASES = {
    **{mode: ({"pooling": {"pooling_mode": mode}}, lambda rows, mode=mode: pooled(rows, mode)) for mode in MODES},
    "older": (
        {
            "pooling": {
                "pooling_mode_mean_tokens": True,
                "pooling_mode_max_tokens": True,
                "pooling_mode_cls_token": True,
            }
        },
        lambda rows: np.concatenate([pooled(rows, mode) for mode in ("cls", "max", "mean")]),
    ),
    "in order": (
        {"pooling": {"pooling_mode": ["mean", "cls"]}},
        lambda rows: np.concatenate([pooled(rows, "mean"), pooled(rows, "cls")]),
    ),
    "dense": ({"modules": [DENSE]}, lambda rows: dense(pooled(rows, "mean"))),
    "no bias": (
        {
            "modules": [
                (
                    "Dense",
                    {"out_features": 6, "bias": False, "activation_function": "torch.nn.modules.linear.Identity"},
                    {"linear.weight": KERNEL},
                )
            ]
        },
        lambda rows: KERNEL @ pooled(rows, "mean"),
    ),
    "layer norm": ({"modules": [NORM]}, lambda rows: layer_norm(pooled(rows, "mean"))),
    "normalize": ({"modules": [NORMALIZE]}, lambda rows: unit(pooled(rows, "mean"))),
    "normalize, dense": (
        {"modules": [NORMALIZE, DENSE, NORMALIZE]},
        lambda rows: unit(dense(unit(pooled(rows, "mean")))),
    ),
    "truncated": ({"truncate_dim": 5}, lambda rows: pooled(rows, "mean")[:5]),
    "truncated after": ({"modules": [NORMALIZE], "truncate_dim": 5}, lambda rows: unit(pooled(rows, "mean"))[:5]),
}


@pytest.mark.parametrize("name", CASES)
def test_vectors_are_those_of_the_modules(plain, tmp_path, name):
    options, compute = CASES[name]
    task, model = restore_for_inference(str(change(plain, tmp_path / "st", **options)))
    served = make_served_model(task, model, ServingOptions(head="embeddings"))
    ids = [rows_of(plain[1], text)[0] for text in TEXTS]
    inputs = {
        key: np.zeros((len(TEXTS), max(map(len, ids)) + 3), np.int32)
        for key in ("input_ids", "input_mask", "segment_ids")
    }
    for row, numbers in enumerate(ids):  # padding changes nothing
        inputs["input_ids"][row, : len(numbers)], inputs["input_mask"][row, : len(numbers)] = numbers, 1
    found = served.call_model({key: tf.constant(value) for key, value in inputs.items()})["embedding"]
    np.testing.assert_allclose(found, [compute(rows_of(plain[1], text)[1]) for text in TEXTS], atol=2e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_prompt_may_be_read_and_not_pooled(plain, mode):
    ids, rows = rows_of(plain[1], "the king: war")
    inputs = {
        "input_ids": np.array([[*ids, 0, 0]]),
        "input_mask": np.array([[1] * len(ids) + [0, 0]]),
        "segment_ids": np.zeros((1, len(ids) + 2), np.int32),
    }
    for prompt in (1, 4, len(ids) - 1):  # up to all but [SEP]
        found = text_vectors(plain[1], {**inputs, "prompt_tokens": np.array([[prompt]])}, mode)
        np.testing.assert_allclose(found[0], pooled(rows, mode, prompt), atol=2e-5)


PROMPTS = {"query": "the king: ", "document": "a film: ", "other": "who: ", "retrieval.query": "war: ", "STS": ""}


@pytest.fixture(scope="module")
def rich(plain, tmp_path_factory):
    """A folder with everything at once, and its vectors by prompt."""
    folder = change(
        plain,
        tmp_path_factory.mktemp("rich") / "st",
        {"pooling_mode": "mean", "include_prompt": False},
        [DENSE, NORMALIZE],
        prompts=PROMPTS,
        default_prompt_name="other",
    )

    def vectors(prompt):
        skipped = len(rows_of(plain[1], prompt)[0]) - 1 if prompt else 0
        return np.stack([unit(dense(pooled(rows_of(plain[1], prompt + text)[1], "mean", skipped))) for text in TEXTS])

    by_prompt = {name: vectors(prompt) for name, prompt in PROMPTS.items()}
    return folder, {"": by_prompt["other"], "passage": by_prompt["document"], **by_prompt}


@pytest.mark.slow
def test_answers_and_evaluation_have_the_same_vectors(rich, tmp_path):
    folder, by_prompt = rich
    texts, predictor = by_prompt[""], Predictor(str(folder))
    np.testing.assert_allclose([answer["embedding"] for answer in predictor(TEXTS)], texts, atol=2e-5)
    for prompt, wanted in by_prompt.items():
        np.testing.assert_allclose(predictor.embed(TEXTS, prompt), wanted, atol=2e-5)
    path = tmp_path / "dev.jsonl"
    rows, pairs = [0, 1, 3], [1, 3, 0]  # without the empty text
    path.write_text(
        "".join(json.dumps({"text": TEXTS[row], "text_pair": TEXTS[pair]}) + "\n" for row, pair in zip(rows, pairs))
    )
    measured = evaluate(str(folder), str(path), {})
    found = measured.resolved.held_out._vectors(measured.predictions)[1]
    np.testing.assert_allclose(found[:, 0], by_prompt["query"][rows], atol=2e-5)
    np.testing.assert_allclose(found[:, 1], by_prompt["passage"][pairs], atol=2e-5)


@pytest.mark.slow
def test_exports_servers_and_the_command_have_the_same_vectors(rich, plain, tmp_path, monkeypatch):
    folder, by_prompt = rich
    texts = by_prompt[""]
    monkeypatch.chdir(tmp_path)
    done = run_here("-m", "official_bert.run_export", f"--checkpoint={folder}", "--output=out", "--warmup_batch_sizes=")
    assert done.returncode == 0, done.stderr
    exported = Predictor("out")
    for prompt, wanted in by_prompt.items():
        np.testing.assert_allclose(exported.embed(TEXTS, prompt), wanted, atol=2e-5)
    ids = tf.saved_model.load("out/ids/1").signatures["serving_default"]
    row, rows = rows_of(plain[1], "war")
    inputs = {"input_ids": [row], "input_mask": [[1] * len(row)], "segment_ids": [[0] * len(row)]}
    found = ids(**{key: tf.constant(value, tf.int32) for key, value in inputs.items()})["embedding"]
    np.testing.assert_allclose(found[0], unit(dense(pooled(rows, "mean"))), atol=2e-5)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    done = run_here(
        "-m", "official_bert.run_predict", f"--model={folder}", "--input_file=in.jsonl", "--output_file=answers.jsonl"
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line)["embedding"] for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    np.testing.assert_allclose(answers, texts, atol=2e-5)
    from official_bert.server.server import ServerOptions
    from official_bert.server.server_config import ServedModelConfig

    models = [ServedModelConfig(name="out", base_path=str(tmp_path / "out/text"))]
    with made_serving.embedded(
        ServerOptions(models=models, rest_port=0, grpc_port=0, poll_seconds=0.2, drain_seconds=5)
    ) as server:
        for prompt in ("", "query", "passage", "other", "retrieval.query", "STS"):
            more, wanted = {"prompt_name": prompt} if prompt else {}, by_prompt[prompt]
            status, answer = server.ask("/embed", json.dumps({"inputs": TEXTS, "normalize": False, **more}).encode())
            assert status == 200, answer
            np.testing.assert_allclose(json.loads(answer), wanted, atol=2e-5)
        status, answer = server.ask("/v1/embeddings", json.dumps({"model": "out", "input": TEXTS}).encode())
        np.testing.assert_allclose([row["embedding"] for row in json.loads(answer)["data"]], texts, atol=2e-5)


@pytest.mark.parametrize("to", ["ours", "hugging_face"])
def test_conversions_keep_every_setting(rich, tmp_path, to):
    folder, by_prompt = rich
    stored = formats.read(str(folder))
    formats.write(stored, to, str(tmp_path / "other"))
    again = formats.read(str(tmp_path / "other"))
    assert (again.prompts, again.default_prompt) == (stored.prompts, "who: ")
    predictor = Predictor(str(tmp_path / "other"))
    for prompt in ("", "document", "retrieval.query"):
        np.testing.assert_allclose(predictor.embed(TEXTS, prompt), by_prompt[prompt], atol=2e-5)


@pytest.mark.parametrize(
    ("prompts", "default", "read", "written", "name"),
    [
        ({"query": "q: ", "passage": "p: "}, None, {"query": "q: ", "passage": "p: "},
         {"query": "q: ", "document": "p: "}, None),
        ({"retrieval.query": "q: ", "a": "b"}, None, {"query": "q: ", "retrieval.query": "q: ", "a": "b"},
         {"query": "q: ", "retrieval.query": "q: ", "a": "b"}, None),
        ({"a": "b", "query": "q: "}, "a", {"query": "q: ", "a": "b"}, {"query": "q: ", "a": "b"}, "a"),
        ({"default": "b"}, "default", {"default": "b"}, {"default": "b"}, "default"),
    ],
)  # fmt: skip
def test_prompts_keep_their_names(plain, tmp_path, prompts, default, read, written, name):
    folder = change(plain, tmp_path / "st", prompts=prompts, default_prompt_name=default)
    for step in ("ours", "again"):
        stored = formats.read(str(folder))
        assert (stored.prompts, stored.default_prompt) == (read, prompts[default] if default else "")
        formats.write(stored, "ours" if step == "ours" else "hugging_face", str(folder := tmp_path / step))
    settings = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert (settings["prompts"], settings["default_prompt_name"]) == (written, name)


@pytest.mark.slow
def test_prompts_with_names_of_signatures_are_no_signatures(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(exports, "FORMS", ("text",))
    names = ("serving_default", "examples", "prepare", "finish_query")
    folder = change(plain, tmp_path / "st", prompts={"query": "who: ", **dict.fromkeys(names, "war: ")})
    task, model = restore_for_inference(str(folder))
    export(make_served_model(task, model, ServingOptions(head="embeddings")), task.config,
           ExportOptions(output=str(tmp_path / "out"), batch_sizes=[], formats=["saved_model"]))  # fmt: skip
    run, exported = Predictor(str(folder)), Predictor(str(tmp_path / "out"))
    plainly, behind = (unit(np.stack([pooled(rows_of(plain[1], front + text)[1], "mean") for text in TEXTS]))
                       for front in ("", "war: "))  # fmt: skip
    for predictor in (run, exported):
        np.testing.assert_allclose(predictor.embed(TEXTS), plainly, atol=2e-5)
        for name in names:
            np.testing.assert_allclose(predictor.embed(TEXTS, name), behind, atol=2e-5, err_msg=name)


def test_a_head_for_words_whose_weights_are_missing_hides_no_modules(plain, tmp_path):
    folder = change(plain, tmp_path / "st", modules=[NORMALIZE])  # as all-mpnet-base-v2 is published
    values = json.loads((folder / "config.json").read_text()) | {"architectures": ["BertForMaskedLM"]}
    (folder / "config.json").write_text(json.dumps(values))
    task, _ = restore_for_inference(str(folder))
    assert (task.config.task, task.options.normalize, task.options.pooling) == ("retrieval", True, "mean")


def retyped(folder, kind, place):
    modules = json.loads((folder / "modules.json").read_text())
    modules[place]["type"] = kind
    (folder / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    ("kind", "place", "told"),
    [
        ("custom_st.Transformer", 0, "the module custom_st.Transformer is not supported"),
        ("my.Pooling", 1, "the module my.Pooling"),
        ("sentence_transformers.models.CNN", 2, "the module CNN is not supported"),
        (
            "sentence_transformers.models.Pooling",
            2,
            "expected a Transformer, a Pooling and then Dense, LayerNorm, Normalize",
        ),
    ],
)
def test_other_modules_are_refused_by_their_class(plain, tmp_path, kind, place, told):
    folder = change(plain, tmp_path / "st", modules=[NORMALIZE])
    retyped(folder, kind, place)
    with pytest.raises(ValueError, match=f"modules.json: {told}"):
        Predictor(str(folder))
    assert formats.read(str(folder)).weights  # to begin a training with


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"pooling": {"pooling_mode": "median"}},
            r"1_Pooling/config\.json: pooling_mode: expected one or several of cls, .*\['median'\]",
        ),
        ({"pooling": {"pooling_mode": []}}, "pooling_mode: expected one or several"),
        ({"pooling": {"include_prompt": "no"}}, "include_prompt: expected true or false, got 'no'"),
        ({"truncate_dim": SIZE + 1}, "dimensions"),
        ({"truncate_dim": -1}, r"truncate_dim: expected a number"),
        ({"default_prompt_name": "q"}, "default_prompt_name: expected one of"),
        (
            {"modules": [("Dense", {**DENSE[1], "activation_function": "my.Swish"}, DENSE[2])]},
            "activation_function: .*my.Swish",
        ),
        (
            {"modules": [("Dense", {**DENSE[1], "use_residual": True}, DENSE[2])]},
            "use_residual: true is not supported",
        ),
        (
            {"modules": [("Dense", {**DENSE[1], "out_features": 7}, DENSE[2])]},
            r"2_Dense: expected the weights .*\(7, 16\)",
        ),
        (
            {"modules": [("Dense", {**DENSE[1], "module_input_name": "token_embeddings"}, DENSE[2])]},
            "module_input_name: expected",
        ),
    ],
)
def test_settings_that_are_not_computed_are_refused_by_file_and_key(plain, tmp_path, options, told):
    with pytest.raises(ValueError, match=told):
        Predictor(str(change(plain, tmp_path / "st", **options)))


def test_modules_stay_in_the_folder(plain, tmp_path):
    folder = change(plain, tmp_path / "st")
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["path"] = "../other"
    (folder / "modules.json").write_text(json.dumps(modules))
    os.makedirs(tmp_path / "other")
    with pytest.raises(
        ValueError, match=r"modules\.json: path: expected the name of a file inside the folder, got '\.\./other'"
    ):
        formats.read(str(folder))


@pytest.mark.parametrize("path", ["/etc", "../other", "C:\\x", "1_Pooling\0", "out", 3, None])
def test_modules_lie_in_the_folder(tmp_path, path):
    (tmp_path / "out").symlink_to("/etc")
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": path},
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(
        ValueError, match=f"^{tmp_path}/modules.json: path: expected the name of a file inside the folder, got "
    ):
        sentence_transformers.read(str(tmp_path), "", SIZE, None)
