"""OpenAI's embeddings, asked by OpenAI's own client and by hand."""

import base64
import json

import numpy as np
import pytest
from made_serving import unit

PATH = "/v1/embeddings"


@pytest.fixture(scope="module", autouse=True)
def client_library():
    """Imported here, because each process collects all files, and one of them runs this one."""
    global openai
    import openai


@pytest.fixture(scope="module")
def server(serve):
    return serve("vectors", "vectors-ids", "scores")


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def post(server, body, **headers):
    status, answer = server.ask(PATH, body if isinstance(body, bytes) else json.dumps(body).encode(), headers=headers)
    return status, json.loads(answer)


def test_the_client_gets_vectors_of_length_1_with_counts_in_both_encodings(client):
    for encoding in ("float", "base64", openai.NOT_GIVEN):
        answer = client.embeddings.create(model="vectors", input=["abc", "a b c", ""], encoding_format=encoding)
        assert (
            [item.index for item in answer.data] == [0, 1, 2] and answer.model == "vectors" and answer.object == "list"
        )
        for item, wanted in zip(answer.data, (unit(3, 0, 3, 4), unit(5, 2, 3, 4), unit(0, 0, 3, 4))):
            # The client decodes what it asked for itself, which is base64.
            found = np.frombuffer(base64.b64decode(item.embedding), "<f4") if encoding == "base64" else item.embedding
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (14, 14)  # 3 + 5 + 0, and two for each text


def test_dimensions_cut_a_vector_before_it_gets_length_1(client):
    answer = client.embeddings.create(model="vectors", input="a b", dimensions=2)
    np.testing.assert_allclose(answer.data[0].embedding, unit(3, 1), rtol=1e-6)
    with pytest.raises(openai.BadRequestError, match="expected at most the 4 that the model's vectors have, got 5"):
        client.embeddings.create(model="vectors", input="a b", dimensions=5)


def test_ids_that_do_not_begin_and_end_as_the_models_rows_are_refused_with_the_clients_setting(serve):
    server = serve("own-ids")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model="own-ids", input=[[101, 7, 8, 102], [101, 102]])
        np.testing.assert_allclose(answer.data[1].embedding, unit(203, 1, 1, 1), rtol=1e-6)
        for row, ends in (([9906, 1917], "9906 and 1917"), ([101, 7], "101 and 7"), ([7, 102], "7 and 102")):
            told = f"item 1: .* begin with 101 and end with 102, got {ends}; .*check_embedding_ctx_length=False"
            with pytest.raises(openai.BadRequestError, match=told):
                client.embeddings.create(model="own-ids", input=[[101, 5, 102, 101, 102], row])


def test_ids_go_to_the_ids_form(client):
    answer = client.embeddings.create(model="vectors", input=[[1, 2, 3], [4]])
    np.testing.assert_allclose(answer.data[0].embedding, unit(6, 1, 1, 1), rtol=1e-6)
    np.testing.assert_allclose(answer.data[1].embedding, unit(4, 1, 1, 1), rtol=1e-6)
    assert answer.usage.prompt_tokens == 4
    assert client.embeddings.create(model="vectors-ids", input=[7, 8]).usage.prompt_tokens == 2
    np.testing.assert_allclose(
        client.embeddings.create(model="vectors-ids", input="abc").data[0].embedding, unit(3, 0, 3, 4), rtol=1e-6
    )


def test_a_request_without_a_model_is_answered_by_the_only_one_that_can(server, serve):
    for body in ({"input": "abc"}, {"input": "abc", "model": None}, {"input": "abc", "model": "vectors"}):
        status, answer = post(server, body)
        assert status == 200 and answer["model"] == "vectors"
        np.testing.assert_allclose(answer["data"][0]["embedding"], unit(3, 0, 3, 4), rtol=1e-6)
    status, answer = post(serve("vectors", "int8"), {"input": "abc"})
    assert status == 400 and answer["error"]["message"].startswith("several models are served (int8, vectors): a reque")


def test_models_are_listed_as_the_client_reads_them(client):
    assert [model.id for model in client.models.list()] == ["scores", "vectors", "vectors-ids"]


def test_errors_have_openais_form(client, server):
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="gpt", input="a")
    assert (
        caught.value.code == "model_not_found"
        and "'gpt': expected one of scores, vectors, vectors-ids" in caught.value.message
    )
    with pytest.raises(
        openai.BadRequestError, match="model 'scores' has no output embedding: expected one that run_export"
    ):
        client.embeddings.create(model="scores", input="a")
    with pytest.raises(openai.BadRequestError, match="text 1 has more tokens than the model takes"):
        client.embeddings.create(model="vectors", input=["a", "a" * 21])
    status, answer = post(server, {"model": "vectors"})
    assert (
        status == 400
        and answer["error"]["type"] == "invalid_request_error"
        and "'input': expected" in answer["error"]["message"]
    )


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"input": []}, "at least one text"),
        ({"input": None}, "got null"),
        ({"input": 3}, "got a number"),
        ({"input": [1, "a"]}, "got 'a'"),
        ({"input": ["a", 1]}, "item 1: expected a string, got a number"),
        ({"input": [[1], []]}, "item 1: expected a list of token ids"),
        ({"input": [[1], "a"]}, "item 1: expected a list"),
        ({"input": [-1]}, "token ids of at least 0, got -1"),
        ({"input": [True]}, "got True"),
        ({"input": [1 << 40]}, "token ids of at least 0"),
        ({"input": [1.5]}, "got 1.5"),
        ({"input": "\ud800"}, "lone surrogate"),
        ({"input": {"a": 1}}, "got an object"),
        ({"dimensions": 0}, "at least 1"),
        ({"dimensions": "2"}, "a whole number, got a string"),
        ({"dimensions": True}, "a whole number, got a truth value"),
        ({"encoding_format": "hex"}, "'float' or 'base64'"),
        ({"model": 7}, "'model': expected a string"),
        ({"user": 1}, "'user'"),
        ({"inputs": ["a"]}, "expected the keys input, model"),
        ({"input": ["a"] * 1025}, "at most 1024 texts"),
        ({"input": "a" * 300_000}, "at most 262144 bytes"),
    ],
)
def test_requests_of_another_shape_are_refused_in_openais_form(server, change, told):
    status, answer = post(server, {"model": "vectors", "input": "a", **change})
    assert (
        status == 400
        and told in answer["error"]["message"]
        and set(answer["error"]) == {"message", "type", "param", "code"}
    )


def test_bodies_that_are_no_json_are_refused_in_openais_form(server):
    for body in (b"", b"[]", b"{", b"\xff", b"[" * 100_000, b'{"model": "vectors", "input": [' + b"9" * 50_000 + b"]}"):
        status, answer = post(server, body)
        assert status == 400 and answer["error"]["type"] == "invalid_request_error"
    status, answer = post(server, b"x" * (9 << 20))
    assert status == 413 and answer["error"]["type"] == "invalid_request_error"
    status, answer = post(server, b"{}", Host="evil.example")
    assert status == 403 and answer["error"]["type"] == "permission_error"
    assert server.ask(PATH, method="GET")[0] == 400
    assert post(server, {"model": "vectors", "input": "a"})[0] == 200


def test_a_large_request_is_read_elsewhere_and_answered_alike(client):
    texts = [f"{'a' * (place % 19)} " for place in range(900)]
    answer = client.embeddings.create(model="vectors", input=texts)
    for item, text in zip(answer.data, texts):
        np.testing.assert_allclose(item.embedding, unit(len(text), 1, 3, 4), rtol=1e-6)
    ids = client.embeddings.create(model="vectors", input=[[place] * 20 for place in range(900)])
    np.testing.assert_allclose(ids.data[7].embedding, unit(140, 1, 1, 1), rtol=1e-6)


def test_requests_are_counted_and_need_a_token(serve, server):
    from official_bert.server.listeners.access import AccessRules

    post(server, {"model": "vectors", "input": "a"})
    page = server.ask("/monitoring/prometheus/metrics")[1].decode()
    assert 'API="Embeddings",entrypoint="REST",model_name="vectors"' in page
    guarded = serve("vectors", access=AccessRules(tokens=("0123456789abcdef",)))
    with (
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="wrong-wrong-wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.embeddings.create(model="vectors", input="a")
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="0123456789abcdef", max_retries=0) as client:
        assert client.embeddings.create(model="vectors", input="a").usage.total_tokens == 3
    for path, body in (
        ("/", b'{"inputs": "a"}'),
        ("/embed", b'{"inputs": "a"}'),
        ("/v2/models/vectors/infer", b"{}"),
        ("/v2", None),
    ):
        assert guarded.ask(path, body)[0] == 401, path
    for path in ("/", "/health", "/v2/health/live", "/v2/health/ready"):
        assert guarded.ask(path)[0] == 200, path
