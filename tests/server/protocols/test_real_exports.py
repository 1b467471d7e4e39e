"""TEI's and OpenAI's protocols, asked of what run_export wrote: vectors with prompts, sparse vectors, a reranker."""

import json

import made_formats
import made_serving
import numpy as np
import openai
import pytest
from huggingface_hub import InferenceClient

from official_bert.interface.predictor import Predictor
from official_bert.server import server_config
from official_bert.server.server import ServerOptions

pytestmark = pytest.mark.slow
PROMPTS = {"query_prompt": "query: ", "passage_prompt": "passage: "}
TEXTS = ["the youngest apprentice", "greenhouse thermometer", "", "中国"]


@pytest.fixture(scope="module")
def exported(golden, tmp_path_factory):
    """Returns a folder with models of three tasks."""
    folder = tmp_path_factory.mktemp("exported")
    for name, options in (("retrieval", PROMPTS), ("splade", PROMPTS), ("reranking", {})):
        served, config = made_formats.make(name, str(golden / "vocab_uncased.txt"), **options)
        made_formats.write(served, config, folder / name, ("saved_model",))
    return folder


@pytest.fixture(scope="module")
def serve(exported):
    """Returns a function that starts a server of some of them, with a default."""
    contexts = []

    def of(*names):
        models = [
            server_config.ServedModelConfig(name=f"{name}-{form}", base_path=str(exported / name / form))
            for name in names
            for form in ("text", "ids")
        ]
        contexts.append(
            made_serving.embedded(
                ServerOptions(models=models, rest_port=0, grpc_port=0, default_model=f"{names[0]}-text")
            )
        )
        return contexts[-1].__enter__()

    yield of
    for context in contexts:
        context.__exit__(None, None, None)


def post(server, path, **body):
    status, answer = server.ask(path, json.dumps(body).encode())
    assert status == 200, answer
    return json.loads(answer)


def test_vectors_with_prompts_are_those_of_predictor(serve, exported, golden):
    server, predictor = serve("retrieval"), Predictor(exported / "retrieval")
    client = InferenceClient(model=server.url, token="none")
    for prompt in ("query", "passage"):
        wanted = predictor.embed(TEXTS, prompt)
        found = [client.feature_extraction(text, prompt_name=prompt)[0] for text in TEXTS]
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        np.testing.assert_allclose(post(server, "/embed", inputs=TEXTS, prompt_name=prompt), wanted, atol=1e-5)
        # whose protocol has no prompts: a client writes them
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as asked:
            answer = asked.embeddings.create(model="retrieval-text", input=[f"{prompt}: {text}" for text in TEXTS])
        np.testing.assert_allclose([item.embedding for item in answer.data], wanted, atol=1e-5)
    places = [
        (golden / "vocab_uncased.txt").read_text().split("\n").index(token) for token in ("[CLS]", "the", "[SEP]")
    ]
    ids = {"model": "retrieval-text", "input": [places]}
    np.testing.assert_allclose(
        post(server, "/v1/embeddings", **ids)["data"][0]["embedding"], predictor.embed(["the"])[0], atol=1e-5
    )
    status, answer = server.ask("/v1/embeddings", json.dumps(ids | {"input": [[1820, 30673]]}).encode())  # of OpenAI
    assert status == 400 and f"end with {places[2]}, got 1820 and 30673" in json.loads(answer)["error"]["message"]
    assert np.abs(predictor.embed(TEXTS, "query") - predictor.embed(TEXTS)).max() > 1e-3
    info = json.loads(server.ask("/info")[1])
    assert info["prompts"] == ["passage", "query"]
    for body, told in (
        ({"inputs": "a", "prompt_name": "title"}, "expected one of passage, query, got 'title'"),
        ({"inputs": "a", "prompt_name": "examples"}, "expected one of passage, query"),
        ({"inputs": [5, 6], "prompt_name": "query"}, "expected texts beside it, got token ids"),
    ):
        status, answer = server.ask("/embed", json.dumps(body).encode())
        assert status == 400 and told in json.loads(answer)["error"]


def test_sparse_vectors_are_the_words_that_weigh_most(serve, exported):
    server, predictor = serve("splade", "reranking"), Predictor(exported / "splade")
    for prompt in ("", "query", "passage"):
        found = post(server, "/embed_sparse", inputs=TEXTS, **({"prompt_name": prompt} if prompt else {}))
        front = f"{prompt}: " if prompt else ""
        for row, answer in zip(found, predictor([front + text for text in TEXTS])):
            assert [item["index"] for item in row] == answer["ids"] and row
            np.testing.assert_allclose([item["value"] for item in row], answer["weights"], atol=1e-5)
    by_ids = post(server, "/embed_sparse", inputs=[[2, 7, 8, 3]])
    assert len(by_ids) == 1 and all(item["value"] > 0 for item in by_ids[0])


def test_a_reranker_orders_passages(serve, exported):
    server, predictor = serve("reranking"), Predictor(exported / "reranking")
    query, texts = "who met the apprentice?", [*TEXTS, "the greenhouse in Brno"]
    answer = post(server, "/rerank", query=query, texts=texts, raw_scores=True, return_text=True)
    wanted = predictor.rank(query, texts)
    assert [item["text"] for item in answer] == [item["text"] for item in wanted]
    np.testing.assert_allclose([item["score"] for item in answer], [item["score"] for item in wanted], atol=1e-5)
    answer = post(server, "/rerank", query=query, texts=texts)
    np.testing.assert_allclose(
        [item["score"] for item in answer], 1 / (1 + np.exp([-item["score"] for item in wanted])), atol=1e-5
    )
    assert json.loads(server.ask("/info")[1])["model_type"]["reranker"]
