"""The clients: the same answers over both protocols, in order, and again after what passes."""

import concurrent.futures
import subprocess
import sys
import time

import numpy as np
import pandas
import pytest
import tensorflow as tf
from tensorflow.core.framework import types_pb2
from tensorflow_serving.apis import predict_pb2

from official_bert.tools.client import GrpcClient, RestClient, ServingError
from official_bert.tools.client.rows import as_mappings, needs_input_names


@pytest.fixture(scope="module", params=["rest", "grpc"])
def connect(request, server):
    """Makes a client of a model on the running server."""

    def make(model="demo", **options):
        if request.param == "rest":
            return RestClient(server.url, model, **options)
        return GrpcClient(server.target, model, **options)

    return make


def test_rows_go_in_and_rows_come_out(connect):
    with connect() as client:
        answers = client.predict(["abc", "Äé"])
        assert [(row["length"], row["upper"], row["version"]) for row in answers] == [(3, "ABC", 2), (2, "ÄÉ", 2)]
        assert answers[0]["score"] == pytest.approx(0.3, rel=1e-6)
        assert client.predict([]) == []


def test_several_inputs_other_signatures_and_versions(connect):
    with connect("labelled", version=1) as client:
        rows = [{"text": "a", "text_pair": "bb"}, {"text": "c", "text_pair": "c"}]
        assert client.predict(rows, "pair") == [
            {"joined": "a|bb", "equal": False, "vector": [1.0, 2.0]},
            {"joined": "c|c", "equal": True, "vector": [1.0, 1.0]},
        ]
        tuples = [tuple(row.values()) for row in rows]
        assert (
            client.predict(tuples, "pair")
            == client.predict(rows, "pair")
            == [client.predict(row, "pair") for row in tuples]
        )
        assert client.predict(["x"])[0]["version"] == 1
    with connect("labelled", label="canary") as client:
        assert client.predict(["x"])[0]["version"] == 2


def test_binary_data_numbers_and_single_outputs(connect):
    with connect() as client:
        data = bytes(range(256))
        assert client.predict([data, b""], "binary") == [
            {"copy_bytes": data, "size": 256},
            {"copy_bytes": b"", "size": 0},
        ]
        assert client.predict(["a b", "c"], "words") == [{"words": ["a", "b"]}, {"words": ["c", ""]}]
        rows = [{"input_ids": np.array([1, 2], np.int32), "input_mask": [1, 0]}]
        assert client.predict(rows, "ids") == [{"sum": 1, "row": [2, 4]}]


def test_long_lists_are_sent_in_batches_and_come_back_in_order(connect):
    sent = ["x" * (index % 50) + str(index) for index in range(203)]
    with connect(batch_size=7, concurrency=3) as client:
        assert [row["upper"] for row in client.predict(sent)] == [text.upper() for text in sent]


def test_signatures_and_versions_are_told(connect):
    with connect("labelled") as client:
        assert client.versions() == {1: "AVAILABLE", 2: "AVAILABLE"}
        found = client.signatures()
        assert found["pair"]["inputs"] == {"text": "DT_STRING", "text_pair": "DT_STRING"}
        assert found["numbers"]["outputs"]["half"] == "DT_BFLOAT16"


@pytest.mark.parametrize(
    ("model", "rows", "signature", "code"),
    [
        ("nowhere", [{"text": "a"}], "", "NOT_FOUND"),
        ("demo", [{"text": "a", "more": "b"}], "", "INVALID_ARGUMENT"),
        ("demo", [{"input_ids": [1] * 12, "input_mask": [1] * 12}], "ids", "INVALID_ARGUMENT"),
    ],
)
def test_the_servers_refusals_are_errors_with_its_status(connect, model, rows, signature, code):
    with connect(model) as client, pytest.raises(ServingError) as caught:
        client.predict(rows, signature)
    assert caught.value.code == code and caught.value.message
    assert isinstance(caught.value, OSError)  # one line in a command


def test_an_unknown_signature_is_refused(connect):
    with connect() as client, pytest.raises(ServingError, match="none"):
        client.predict(["a"], "none")


def test_wrong_options_are_refused():
    for options in (
        {"version": 1, "label": "x"},
        {"batch_size": 0},
        {"concurrency": 0},
        {"attempts": 9},
        {"timeout": 0},
    ):
        with pytest.raises(ValueError, match="expected"):
            RestClient("http://127.0.0.1:1", "m", **options)


def test_one_client_answers_several_threads_and_goes_on_after_errors(connect):
    with connect(batch_size=3, concurrency=2) as client, concurrent.futures.ThreadPoolExecutor(2) as threads:
        sent = ["x" * (index % 5) + str(index) for index in range(20)]
        both = list(threads.map(client.predict, [sent, sent[::-1]]))
        assert [row["upper"] for row in both[0]] == [text.upper() for text in sent] and both[1] == both[0][::-1]
        with pytest.raises(ServingError, match="INVALID_ARGUMENT"):
            client.predict([{"more": "b"}] * 8)
        assert client.predict(["abc"])[0]["length"] == 3
    with connect(timeout=0.3) as hasty, pytest.raises(ServingError, match="DEADLINE_EXCEEDED"):
        hasty.predict([{"steps": 600_000}], "work")


def test_closing_ends_the_requests_of_other_threads(connect):
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        client = connect()
        client.predict(["a"])
        waiting = threads.submit(client.predict, [{"steps": 600_000}], "work")
        time.sleep(0.3)
        started = time.perf_counter()
        client.close()
        with pytest.raises(ServingError):
            waiting.result(20)
        assert time.perf_counter() - started < 10


def signatures_with(dtype, output):
    return {"serving_default": {"inputs": {"x": {"dtype": dtype}}, "outputs": {output: {"dtype": "DT_FLOAT"}}}}


def test_a_newer_version_with_another_output_is_not_answered_under_the_name_of_the_former(monkeypatch):
    outputs = iter(["score", "chance"])

    def ask(self, method, path, body=None):
        return (
            {"predictions": [0.5]}
            if method == "POST"
            else {"metadata": {"signature_def": {"signature_def": signatures_with("DT_INT32", next(outputs))}}}
        )

    monkeypatch.setattr(RestClient, "_ask", ask)
    with RestClient("http://127.0.0.1:1", "m") as client:
        assert client.predict([1]) == [{"score": 0.5}]
        assert client.predict([1]) == [{"chance": 0.5}]
    outputs = iter(["score"])
    with RestClient("http://127.0.0.1:1", "m", version=1) as client:  # which stays what it is
        assert client.predict([1]) == client.predict([1]) == [{"score": 0.5}]


def test_a_newer_version_with_another_type_gets_that_type(monkeypatch):
    types = ["DT_INT32"]

    def signatures(self):
        return {"serving_default": {"inputs": {"x": types[-1]}, "outputs": {"y": "DT_FLOAT"}}}

    def call(self, service, method, request):
        if types_pb2.DataType.Name(request.inputs["x"].dtype) != types[-1]:
            raise ServingError("INVALID_ARGUMENT", f"input 'x': expected {types[-1]}")
        return predict_pb2.PredictResponse(outputs={"y": tf.make_tensor_proto(np.array([0.5], np.float32))})

    monkeypatch.setattr(GrpcClient, "signatures", signatures)
    monkeypatch.setattr(GrpcClient, "_call", call)
    with GrpcClient("127.0.0.1:1", "m") as client:
        assert client.predict([1]) == [{"y": 0.5}]
        types.append("DT_INT64")
        assert client.predict([1]) == [{"y": 0.5}]
        with pytest.raises(ServingError, match="expected an answer for each of 2 rows, got y of the shape"):
            client.predict([1, 2])


@pytest.mark.parametrize("number", [(1 << 32) + 101, 1 << 70])
def test_numbers_beyond_the_range_of_an_input_are_refused_and_not_wrapped_around(connect, number):
    refused = pytest.raises(
        (ServingError, ValueError), match="out of the range of int32|expected numbers of int32|too large"
    )
    with connect() as client, refused:
        client.predict([{"input_ids": [number], "input_mask": [1]}], "ids")


@pytest.mark.parametrize("row", ["abc", b"abc", {"text": "abc"}])
def test_a_single_row_is_answered_itself_and_not_taken_for_a_list_of_its_letters_or_names(connect, row):
    with connect() as client:
        assert client.predict(row) == client.predict([row])[0]


def test_tuples_and_frames_are_rows_of_the_inputs_in_the_order_of_predictor():
    pairs = [("who", "ada"), ("where", "brno")]
    wanted = [{"question": "who", "context": "ada"}, {"question": "where", "context": "brno"}]
    inputs = ["context", "question"]
    assert as_mappings(pairs, inputs) == wanted and as_mappings(pairs[0], inputs) == wanted[0]
    assert as_mappings([pairs[0], wanted[1]], inputs) == wanted and as_mappings(tuple(pairs), inputs) == wanted
    frame = pandas.DataFrame(wanted).assign(other=1)
    assert as_mappings(frame, inputs) == wanted and needs_input_names(frame) and needs_input_names(pairs)
    assert as_mappings([(1, 2)], ["x"]) == [(1, 2)] and not needs_input_names(["a", {"text": "b"}])
    assert not needs_input_names(frame["question"])  # a series is iterated
    with pytest.raises(ValueError, match="rows: row 2: expected question and context, got 3 values"):
        as_mappings([pairs[0], ("a", "b", "c")], inputs)
    with pytest.raises(ValueError, match="rows: expected columns 'text', 'text_pair', 'text' is missing; rename them"):
        as_mappings(frame, ["text_pair", "text"])


def test_a_frame_is_answered_row_by_row(connect):
    with connect() as client:
        rows = ["abc", "a b"]
        assert (
            client.predict(pandas.DataFrame({"id": [1, 2], "text": rows}))
            == client.predict(rows)
            == client.predict(pandas.Series(rows))
        )


def test_a_closed_client_says_so_and_may_be_closed_twice(server):
    client = RestClient(server.url, "demo")
    client.predict(["a"])
    client.close()
    client.close()
    with pytest.raises(ValueError, match="closed"):
        client.predict(["a"])


def test_the_rest_client_needs_neither_tensorflow_nor_grpc(server):
    script = (
        "import sys; from official_bert.tools.client import RestClient\n"
        f"print(RestClient({server.url!r}, 'demo').predict(['abc'])[0]['upper'])\n"
        "print([name for name in ('tensorflow', 'grpc', 'keras') if name in sys.modules])"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert finished.stdout.split("\n")[:2] == ["ABC", "[]"], finished.stderr
