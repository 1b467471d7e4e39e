"""The protocol of text-embeddings-inference, asked by Hugging Face's client and by hand."""

import json
import math

import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from made_serving import unit


def post(server, path, body):
    status, answer = server.ask(path, json.dumps(body).encode())
    return status, json.loads(answer)


@pytest.fixture(scope="module")
def vectors(serve):
    return serve("vectors")


def test_the_client_gets_vectors_by_the_address_alone_or_by_embed(vectors):
    for model in (vectors.url, f"{vectors.url}/embed"):
        client = InferenceClient(model=model, token="none")
        np.testing.assert_allclose(client.feature_extraction("a b"), [unit(3, 1, 3, 4)], rtol=1e-6)
        np.testing.assert_allclose(client.feature_extraction("a b", normalize=False), [[3, 1, 3, 4]], rtol=1e-6)
        with pytest.raises(HfHubHTTPError):
            client.feature_extraction("a" * 21, truncate=False)
        np.testing.assert_allclose(client.feature_extraction("a" * 21, truncate=True, normalize=False), [[21, 0, 3, 4]])


def test_embed_takes_lists_dimensions_and_says_what_is_too_long(vectors):
    status, answer = post(vectors, "/embed", {"inputs": ["abc", ""], "dimensions": 3, "normalize": False})
    assert (status, answer) == (200, [[3, 0, 3], [0, 0, 3]])
    status, answer = post(vectors, "/embed", {"inputs": "a" * 21})
    assert status == 400 and answer["error_type"] == "validation" and "truncate" in answer["error"]
    assert post(vectors, "/embed", {"inputs": "a", "truncate": None, "prompt_name": None})[0] == 200


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"inputs": []}, "at least one text"),
        ({"inputs": 1}, "got a number"),
        ({"normalize": "yes"}, "true or false, got a string"),
        ({"truncation_direction": "Left"}, "cut the end of a text"),
        ({"prompt_name": "query"}, "no prompts"),
        ({"prompt_name": 3}, "a string"),
        ({"input": "a"}, "the keys"),
        ({"dimensions": 9}, "at most the 4"),
        ({"inputs": [1, 2]}, "takes text: expected"),
    ],
)
def test_requests_of_another_shape_are_refused_in_teis_form(vectors, change, told):
    status, answer = post(vectors, "/embed", {"inputs": "a", **change})
    assert (
        status == 400
        and set(answer) == {"error", "error_type"}
        and (
            told in answer["error"]
            or "takes token ids" in answer["error"]
            or "which takes token ids" in answer["error"]
        )
    )


@pytest.mark.parametrize(("name", "dtype"), [("int8", "int8"), ("binary", "uint8")])
def test_packed_vectors_are_refused_with_the_path_that_gives_them(serve, name, dtype):
    server = serve(name)
    requests = [
        ("/embed", {"inputs": "abc"}),
        ("/embed", {"inputs": "abc", "dimensions": 4, "normalize": False}),
        ("/", {"inputs": "a"}),
        ("/v1/embeddings", {"model": name, "input": "abc"}),
        ("/v1/embeddings", {"model": name, "input": "a", "dimensions": 5}),
    ]
    for path, body in requests:
        status, answer = post(server, path, body)
        assert status == 400 and f"model '{name}' gives packed vectors ({dtype};" in str(answer), answer
        assert f"POST /v1/models/{name}:predict gives the codes" in str(answer)
    assert post(server, f"/v1/models/{name}:predict", {"instances": ["abc"]})[1]["predictions"][0]["embedding"] == [
        3,
        0,
        3,
        4,
    ]


def test_rerank_gives_scores_from_the_best_down(serve):
    server = serve("scores")
    status, answer = post(server, "/rerank", {"query": "ab", "texts": ["abc", "", "abcdef", "abc"]})
    assert status == 200 and [item["index"] for item in answer] == [2, 0, 3, 1]
    np.testing.assert_allclose(
        [item["score"] for item in answer], [1 / (1 + math.exp(-x)) for x in (4, 1, 1, -2)], rtol=1e-6
    )
    status, answer = post(
        server, "/rerank", {"query": "ab", "texts": ["abc", "é"], "raw_scores": True, "return_text": True}
    )
    assert answer == [{"index": 0, "score": 1.0, "text": "abc"}, {"index": 1, "score": -1.0, "text": "é"}]
    for body, told in (
        ({"query": "a", "texts": []}, "at least one text"),
        ({"query": "a", "texts": ["b" * 21]}, "more tokens"),
        ({"texts": ["a"]}, "'query'"),
        ({"query": "a", "texts": [1]}, "item 0"),
        ({"query": ["a"], "texts": ["b"]}, "a string"),
    ):
        status, answer = post(server, "/rerank", body)
        assert status == 400 and told in answer["error"], body
    assert post(server, "/rerank", {"query": "a", "texts": ["b" * 21], "truncate": True})[0] == 200
    assert json.loads(server.ask("/info")[1])["model_type"]["reranker"]


def test_sparse_vectors_are_tokens_with_their_weights(serve):
    server = serve("sparse")
    status, answer = post(server, "/embed_sparse", {"inputs": ["ab", "c"]})
    assert status == 200 and answer == [
        [{"index": 97, "value": 1.0}, {"index": 98, "value": 2.0}],
        [{"index": 99, "value": 1.0}],
    ]
    assert post(server, "/embed_sparse", {"inputs": "a" * 21})[0] == 400
    assert post(server, "/embed_sparse", {"inputs": "a", "dimensions": 2})[0] == 400


def test_a_model_of_another_head_is_refused_with_what_it_gives(serve, vectors):
    for server, path, body, told in (
        (vectors, "/rerank", {"query": "a", "texts": ["b"]}, "no output score"),
        (
            vectors,
            "/embed_sparse",
            {"inputs": "a"},
            "ids of tokens and their weights, got a model that gives embedding",
        ),
        (serve("scores"), "/embed", {"inputs": "a"}, "no output embedding"),
    ):
        status, answer = post(server, path, body)
        assert status == 400 and told in answer["error"]


def test_one_of_several_models_answers_if_it_alone_is_able_or_is_the_default(serve):
    several = serve("vectors", "vectors-ids", "scores", "sparse")
    assert post(several, "/embed", {"inputs": "abc", "normalize": False}) == (200, [[3, 0, 3, 4]])
    assert post(several, "/embed", {"inputs": [1, 2], "normalize": False}) == (200, [[3, 1, 1, 1]])
    assert [one["index"] for one in post(several, "/rerank", {"query": "ab", "texts": ["", "abc"]})[1]] == [1, 0]
    assert post(several, "/embed_sparse", {"inputs": "c"}) == (200, [[{"index": 99, "value": 1.0}]])
    status, answer = several.ask("/info")
    assert status == 400 and b"several models are served (scores, sparse, vectors)" in answer
    twice = serve("vectors", "scores", "int8")  # whose vectors are packed
    status, answer = post(twice, "/embed", {"inputs": "a"})
    assert status == 400 and "several models are served (int8, vectors)" in answer["error"]
    server = serve("vectors", "vectors-ids", "scores", default_model="vectors")
    assert post(server, "/embed", {"inputs": "abc", "normalize": False}) == (200, [[3, 0, 3, 4]])
    assert post(server, "/embed", {"inputs": [1, 2], "normalize": False}) == (200, [[3, 1, 1, 1]])
    info = json.loads(server.ask("/info")[1])
    assert info["model_id"] == "vectors" and info["model_sha"] == "1" and info["max_client_batch_size"] == 1024
    assert server.ask("/health") == (200, b"")
