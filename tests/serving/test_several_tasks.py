"""Several tasks on one encoder in one SavedModel: `run_export --adapters`."""

import json
import os
import shutil

import made_serving
import numpy as np
import pytest
import tensorflow as tf
from commands import imported_tool
from made_finetuning import make_config
from safetensors.numpy import load_file, save_file

from official_bert.interface import exporting
from official_bert.interface.predictor import Predictor
from official_bert.interface.pretrained import load_tokenizer
from official_bert.models import checkpoints
from official_bert.models.first_weights import draw_first_weights
from official_bert.models.interchange import formats
from official_bert.models.interchange.adapted_models import adapted
from official_bert.run_folder import RunFolder
from official_bert.runtimes.saved_tasks import task_names
from official_bert.server.models.servable import LoadedGraph, Servable
from official_bert.server.server import ServerOptions
from official_bert.serving.served_embeddings import make_served_model
from official_bert.serving.served_model import ServingOptions
from official_bert.tasks.loading import load_task, restore_for_inference
from official_bert.tools.client.grpc_client import GrpcClient

RNG = np.random.default_rng(0)
TEXTS = ["the number of atlas", "copper , and a much longer text of the number of words"]
PRODUCTS = {
    "layer_0/attention/query": (16, 16),
    "layer_0/attention/value": (16, 16),
    "layer_0/attention/output": (16, 16),
    "layer_0/intermediate": (16, 32),
    "layer_0/output": (32, 16),
}


def config_of(task="classification", **options):
    return make_config(task, options=options)


def numbers(*shape):
    return RNG.normal(size=shape).astype("float32")


def make(folder):
    folder.mkdir()
    return folder


def write_base(folder, seed=1):
    config = config_of(labels=["a", "b"])
    model = load_task(config).build_model()
    draw_first_weights(model, seed)
    for weight in model.weights:  # biases that are no zeros
        weight.assign_add(numbers(*weight.shape) * 0.1)
    checkpoints.weights_checkpoint(model).save(str(folder / "ckpt"))
    RunFolder(str(folder)).write_config(config)
    return folder


def write_run(folder, base, products, config, head):
    """Writes a run as training leaves it: adapters of `products` {name: rank}, and a head."""
    weights = dict(head)
    for name, rank in products.items():
        width, units = PRODUCTS[name]
        weights |= {
            f"{name}/adapter/lora_A": numbers(width, rank),
            f"{name}/adapter/lora_B": numbers(rank, units) * 0.2,
        }
    values = {name: tf.Variable(value) for name, value in weights.items()}
    folder.mkdir()
    tf.train.Checkpoint(weights=values).save(str(folder / "ckpt"))
    rank = max(products.values(), default=0)
    run, adapters = (
        RunFolder(str(folder)),
        {"rank": rank, "alpha": 6.0, "target_modules": "all-linear"} if rank else {"rank": 0},
    )
    run.write_config(make_config(config.task, options=config.options, training={"adapters": adapters}))
    run.write_base({"path": str(base), "digest": adapted.digest(formats.read(str(base)))})
    return folder


def classifier_head(classes):
    return {"classifier/output_weights": numbers(classes, 16), "classifier/output_bias": numbers(classes)}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def runs(base, tmp_path_factory):
    """Folders by the names of their tasks: a tagger's adapters beside all products, a head alone, and a PEFT folder."""
    root = tmp_path_factory.mktemp("runs")
    topics = write_run(
        root / "topics",
        base,
        {name: 2 for name in PRODUCTS if name.endswith(("query", "value"))},
        config_of(labels=["a", "b", "c"]),
        classifier_head(3),
    )
    formats.write(formats.read(str(topics)), "peft", str(root / "peft"))
    return {
        "my_tags": write_run(
            root / "my tags",
            base,
            dict.fromkeys(PRODUCTS, 3),
            config_of("ner", labels=["O", "B-X", "I-X"]),
            {"tagger/output_weights": numbers(3, 16), "tagger/output_bias": numbers(3)},
        ),
        "head": write_run(root / "head", base, {}, config_of(labels=["no", "yes"]), classifier_head(2)),
        "peft": root / "peft",
    }


@pytest.fixture(scope="module")
def exported(base, runs, tmp_path_factory):
    output = tmp_path_factory.mktemp("models") / "several"
    exporting.export(base, output, adapters=list(runs.values()), batch_sizes=[1], report=lambda text: None)
    return output


def merged(path, base):
    """Returns the answers of the ordinary model that an adapter makes of its base, computed eagerly."""
    task, model = restore_for_inference(str(path), base=str(base) if path.name == "peft" else "")
    return make_served_model(task, model, ServingOptions()).answer_text({"text": tf.constant(TEXTS)})


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        value = np.asarray(value)
        if value.dtype.kind == "f":
            np.testing.assert_allclose(found[name], value, atol=1e-5)
        else:
            assert np.asarray(found[name]).tolist() == value.tolist()


@pytest.mark.slow
def test_each_task_answers_as_the_merged_model_of_its_adapter_alone(exported, base, runs):
    folder = str(exported / "text/1")
    assert task_names(folder) == sorted(runs)
    graph = LoadedGraph(folder, made_serving.AS_WRITTEN)
    inputs = {"text": np.array([text.encode() for text in TEXTS], object)}
    # test_predictor_asks_one_task asks the head alone
    labels = {"my_tags": ["O", "B-X", "I-X"], "peft": ["LABEL_0", "LABEL_1", "LABEL_2"]}
    tasks = {name: Servable(name, 1, folder, task=name, graph=graph) for name in labels}
    for name, task in tasks.items():
        assert_close(task.signature("").run(inputs), merged(runs[name], base))
        assert task.warm_up(folder) == 1 and list(task.signatures) == ["serving_default"]
        assert task.labels == labels[name]
    for task in tasks.values():  # the graph is closed with its last task
        graph.session.list_devices()
        task.close()
    with pytest.raises(RuntimeError, match="closed"):
        graph.session.run([])


@pytest.mark.slow
def test_predictor_asks_one_task(exported, base, runs):
    one = Predictor(exported, signature="head")
    assert one.labels == ("no", "yes") and one.config.task == "classification"
    expected = merged(runs["head"], base)["probabilities"]
    np.testing.assert_allclose(
        [[row["probabilities"][label] for label in one.labels] for row in one(TEXTS)], expected, atol=1e-5
    )
    assert load_tokenizer(exported).tokenize("the number") == ["the", "number"]


@pytest.mark.slow
def test_the_encoder_is_there_once(exported, base, runs):
    """A SavedModel has the numbers of the encoder, of the adapters and of the heads, and no others."""
    encoder = sum(
        weight.size for name, weight in formats.read(str(base)).weights.items() if not name.startswith("classifier")
    )
    adapters = sum(
        rank * sum(PRODUCTS[name])
        for name, rank in [
            *dict.fromkeys(PRODUCTS, 3).items(),
            ("layer_0/attention/query", 2),
            ("layer_0/attention/value", 2),
        ]
    )
    heads = (3 + 2 + 3) * (16 + 1)
    sums, tables = 64 * 2 * 16, (64 + 2) * 16  # rows of positions and segments are one table of sums
    biases = 2 * 16  # that of keys is left out, and zeros stand for it; that of values goes into the next product's
    for form in ("text", "ids"):
        prefix = str(exported / form / "1/variables/variables")
        shapes = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
        total = sum(int(np.prod(shape)) for name, shape in shapes.items() if name.endswith("VARIABLE_VALUE"))
        assert abs(total - (encoder + adapters + heads + sums - tables)) <= biases
        assert os.path.getsize(f"{prefix}.data-00000-of-00001") < 4 * total + 5000


def served_below(folder):
    with imported_tool("serve", "official_bert/commands") as serve:
        return serve.read_served("default", "", "", folder=str(folder))


def test_each_task_is_a_model_of_the_server_and_ids_are_loaded_on_demand(exported, runs):
    assert [(model.name, model.task, model.on_demand) for model in served_below(exported)] == [
        (f"{name}{ending}", name, bool(ending)) for ending in ("", "_ids") for name in sorted(runs)
    ]


@pytest.mark.slow
def test_a_server_lists_and_answers_each_task(exported, base, runs):
    models = served_below(exported)
    with made_serving.embedded(ServerOptions(models=models, rest_port=0, grpc_port=0, enable_warmup=False)) as server:
        listed = json.loads(server.ask("/v1/models")[1])["models"]
        assert listed == sorted(model.name for model in models)
        services = server.server.services
        assert len(services._graphs) == 1
        for name, path in runs.items():
            status, body = server.ask(f"/v1/models/{name}:predict", json.dumps({"inputs": {"text": TEXTS}}).encode())
            assert status == 200, body
            answer = {key: value.numpy() for key, value in merged(path, base).items()}
            found = json.loads(body)["outputs"]
            assert found.keys() == answer.keys()
            key = "probabilities" if name != "my_tags" else "scores"
            np.testing.assert_allclose(found[key], answer[key], atol=1e-5)
            status, body = server.ask(f"/v1/models/{name}/metadata")
            told = json.loads(body)
            assert list(told["metadata"]["signature_def"]["signature_def"]) == ["serving_default"]
            assert told["official_bert"]["task"] == ("ner" if name == "my_tags" else "classification")
        with GrpcClient(server.target, "head") as client, GrpcClient(server.target, "head_ids") as of_ids:
            answer = client.predict(TEXTS)
            assert [row["label"] for row in answer] == [
                label.decode() for label in merged(runs["head"], base)["label"].numpy()
            ]
            row = {"input_ids": [1, 2, 3], "input_mask": [1, 1, 1], "segment_ids": [0, 0, 0]}
            assert len(of_ids.predict([row])[0]["logits"]) == 2
        assert len(services._graphs) == 2  # texts, and ids since the first of their tasks was asked
        listed = json.loads(server.ask("/v2/models/my_tags")[1])
        assert listed["name"] == "my_tags" and [spec["name"] for spec in listed["inputs"]] == ["text"]


def test_mistakes_are_refused_in_one_line_before_work(base, runs, tmp_path):
    other = write_base(make(tmp_path / "other"), 2)
    of_other = write_run(
        tmp_path / "of_other", other, {"layer_0/attention/query": 1}, config_of(labels=["a", "b"]), classifier_head(2)
    )
    head = str(runs["head"])
    again = shutil.copytree(head, tmp_path / "again/head")
    many = [str(shutil.copytree(head, tmp_path / f"many/head{number}")) for number in range(17)]
    # A PEFT folder only names its base, and what it names is not opened: other shapes are noticed, other weights not.
    narrow = shutil.copytree(runs["peft"], tmp_path / "narrow")
    tensors = load_file(narrow / "adapter_model.safetensors")
    cut = {name: value[:, :8].copy() if "lora_A" in name else value for name, value in tensors.items()}
    save_file(cut, narrow / "adapter_model.safetensors")
    for adapters, options, message in [
        ([of_other], {}, r"of_other: expected adapters for .*base.*, got some for a base with other weights, .*other"),
        ([narrow], {}, r"narrow: .*: expected lora_A.weight \[r, 16\] .* for this base, got \[2, 8\]"),
        ([other], {}, r"other: expected a run with training.adapters, a PEFT folder, or a head on the encoder of"),
        ([head, again], {}, r"adapters: expected adapters of different names, got head twice: .*head and .*again/head"),
        (many, {}, r"adapters: expected at most 16, got 17"),
        ([""], {}, r"expected a folder whose name can be a signature's"),
        ([tmp_path / "nothing"], {}, r"nothing: no checkpoint found there"),
        ([head], {"format": "onnx"}, r"format: expected its default beside adapters.*got onnx; export an adapter"),
        ([head], {"precision": "int8"}, r"precision: expected float32 or bfloat16, got 'int8'; format=openvino_int8"),
        ([head], {"constant_weights": True}, r"constant_weights: expected its default"),
        ([head], {"explanations": True}, r"explanations: expected its default beside adapters"),
        ([head], {"base": base}, r"base: expected its default beside adapters"),
        ([head], {"top_k": 3}, r"head: top_k: read by fill-mask models"),
    ]:
        with pytest.raises(ValueError, match=message) as caught:
            exporting.export(base, tmp_path / "out", adapters=adapters, **options)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_model_of_several_tasks_is_asked_for_one_of_them(exported):
    for wrong in (None, "hed"):
        with pytest.raises(ValueError, match=r"signature=.*: expected one of head, my_tags, peft, its tasks, for"):
            Predictor(exported, signature=wrong)
    with pytest.raises(ValueError, match=r"expected the task hed, got one with"):
        Servable("m", 1, str(exported / "text/1"), task="hed")


def test_tasks_of_the_name_of_a_model_beside_them_are_refused(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "several")
    shutil.copytree(exported / "text", tmp_path / "head")
    with pytest.raises(ValueError, match=r"expected different names of models and tasks, got head twice"):
        served_below(tmp_path)
