"""Story of somebody whose model must answer in four runtimes, in C and to everybody's clients: with equal answers."""

import json
import shutil
import subprocess
import sys

import numpy as np
import onnxruntime
import openai
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from ai_edge_litert.interpreter import Interpreter
from huggingface_hub import InferenceClient
from needed_tools import ROOT, is_installed, why_not

from official_bert import Predictor, load_tokenizer
from official_bert.tools.client import GrpcClient, RestClient

openvino = pytest.importorskip("openvino", reason=why_not("openvino"))
pytestmark = pytest.mark.slow
TEXTS = ["the ferry", "it rained on the violin while three sang", "", "the ferry, the ferry, the violin"]
SERVER_SECONDS = 120


def rows_of_ids(vocab_file, texts):
    """Packs texts by hand: [CLS], pieces, [SEP], padding."""
    tokenizer = load_tokenizer(vocab_file)
    rows = [tokenizer.convert_tokens_to_ids(["[CLS]", *tokenizer.tokenize(text), "[SEP]"]) for text in texts]
    ids = np.zeros((len(rows), max(map(len, rows))), np.int32)
    mask = np.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row)], mask[place, : len(row)] = row, 1
    return {"input_ids": ids, "input_mask": mask, "segment_ids": np.zeros_like(ids)}


def test_one_model_answers_alike_in_every_runtime_and_to_every_client(person, golden):
    folder = person.folder
    shutil.copytree(golden / "tf1_bert", folder / "bert")
    shutil.copy(golden / "vocab_uncased.txt", folder / "bert/vocab.txt")
    with open(folder / "train.jsonl", "w", encoding="utf-8") as file:
        for number in range(64):
            word, label = (("ferry", "boat"), ("violin", "music"))[number % 2]
            file.write(json.dumps({"text": f"the {word} in three {'while ' * (number % 5)}", "label": label}) + "\n")
    person.types(
        "python -m official_bert.run_finetuning --cache_dir= --task=classification --train_file=train.jsonl "
        "--nodo_eval --init_checkpoint=bert --output_dir=runs/reviews --max_seq_length=32 --train_batch_size=16 "
        "--learning_rate=2e-3 --num_train_epochs=4"
    )
    done = person.types(
        "python -m official_bert.run_export --checkpoint=runs/reviews --output=models/reviews "
        "--format=saved_model,onnx,litert,litert_int8,openvino --check_file=train.jsonl --check_label=label "
        "--check_loss=0.05"
    )
    for form in ("text", "ids", "onnx", "litert", "litert_int8", "openvino"):
        assert f"models/reviews/{form}/1: " in done.out, done.out
    person.types(
        "python -m official_bert.run_export --checkpoint=runs/reviews --output=models/vectors --head=embeddings "
        "--format=saved_model,onnx,litert,openvino"
    )
    rows = rows_of_ids(str(folder / "bert/vocab.txt"), TEXTS)
    wanted = Predictor(folder / "runs/reviews")(TEXTS)
    logits = np.array([answer["logits"] for answer in wanted])
    vectors = np.array([answer["embedding"] for answer in Predictor(folder / "models/vectors")(TEXTS)])

    # Runtimes.
    for name, key, expected in (("reviews", "logits", logits), ("vectors", "embedding", vectors)):
        session = onnxruntime.InferenceSession(str(folder / f"models/{name}/onnx/1/model.onnx"))
        np.testing.assert_allclose(session.run([key], rows)[0], expected, atol=1e-4)
        runner = Interpreter(str(folder / f"models/{name}/litert/1/model.tflite")).get_signature_runner()
        np.testing.assert_allclose(runner(**rows)[key], expected, atol=1e-4)
        compiled = openvino.compile_model(
            folder / f"models/{name}/openvino/1/model.xml", "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
        np.testing.assert_allclose(compiled(rows)[key], expected, atol=1e-4)
    for form in ("onnx", "litert", "openvino"):
        assert [answer["label"] for answer in Predictor(folder / "models/reviews" / form)(TEXTS)] == [
            answer["label"] for answer in wanted
        ]

    # Clients.
    (folder / "models.config").write_text(
        "model_config_list {"
        + "".join(
            f'config {{ name: "{name}{suffix}" base_path: "{folder}/models/{name}/{form}" '
            'model_platform: "tensorflow" }'
            for name in ("reviews", "vectors")
            for suffix, form in (("", "text"), ("-ids", "ids"))
        )
        + "}"
    )
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "official_bert.serve",
            "--model_config_file=models.config",
            "--default_model=vectors",
            "--rest_api_port=0",
            "--port=0",
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        words = server.stdout.readline().split()
        url, target = next(word for word in words if word.startswith("http")).rstrip(";"), words[-1]
        for client in (RestClient(url, "reviews"), GrpcClient(target, "reviews")):
            with client:
                np.testing.assert_allclose([answer["logits"] for answer in client.predict(TEXTS)], logits, atol=1e-5)
        for module, address in ((triton_http, url.removeprefix("http://")), (triton_grpc, target)):
            with module.InferenceServerClient(address) as client:
                texts = module.InferInput("text", [len(TEXTS)], "BYTES")
                texts.set_data_from_numpy(np.array([text.encode() for text in TEXTS], object))
                result = client.infer("reviews", [texts])
                np.testing.assert_allclose(result.as_numpy("logits"), logits, atol=1e-5)
                assert [label.decode() for label in result.as_numpy("label")] == [answer["label"] for answer in wanted]
                inputs = []
                for name, array in rows.items():
                    inputs.append(module.InferInput(name, list(array.shape), "INT32"))
                    inputs[-1].set_data_from_numpy(array)
                np.testing.assert_allclose(client.infer("reviews-ids", inputs).as_numpy("logits"), logits, atol=1e-5)
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
            answer = client.embeddings.create(model="vectors", input=TEXTS)
            np.testing.assert_allclose([item.embedding for item in answer.data], units, atol=1e-5)
            assert answer.usage.prompt_tokens == rows["input_mask"].sum()
            ids = [row[:size].tolist() for row, size in zip(rows["input_ids"], rows["input_mask"].sum(1))]
            answer = client.embeddings.create(model="vectors", input=ids)
            np.testing.assert_allclose([item.embedding for item in answer.data], units, atol=1e-5)
        client = InferenceClient(model=url, token="none")
        np.testing.assert_allclose(
            np.concatenate([client.feature_extraction(text) for text in TEXTS]), units, atol=1e-5
        )
    finally:
        server.terminate()
        assert server.wait(SERVER_SECONDS) == 0

    # A C program and engines, from the same raw texts.
    if is_installed("gcc"):
        subprocess.run(
            ["make", "-o", ".venv/.installed", "c-program", f"C_PROGRAM={folder}/predict"],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        done = subprocess.run(
            [f"{folder}/predict", f"{folder}/models/reviews/text/1", *map("text={}".format, TEXTS)],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        answers = json.loads(done.stdout)
        assert answers["label"] == [answer["label"] for answer in wanted]
        np.testing.assert_allclose(answers["logits"], logits, atol=1e-5)
    for engine in ("onnx", "openvino"):
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "official_bert.serve",
                "--model_base_path=models/reviews/text",
                f"--engine={engine}",
                "--rest_api_port=0",
            ],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            url = next(word for word in server.stdout.readline().split() if word.startswith("http")).rstrip(";")
            with RestClient(url, "default", timeout=SERVER_SECONDS) as client:
                answers = client.predict(TEXTS)
            assert [answer["label"] for answer in answers] == [answer["label"] for answer in wanted]
            np.testing.assert_allclose([answer["logits"] for answer in answers], logits, atol=2e-5)
        finally:
            server.terminate()
            assert server.wait(SERVER_SECONDS) == 0
