"""The REST interface against TF Serving's documentation (api_rest.md), request by request."""

import base64
import gzip
import json

import numpy as np
import pytest


def post(server, path, body, **options):
    """(status, parsed answer) of a request with a JSON body."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer = server.ask(f"/v1/models/{path}", data, **options)
    return status, json.loads(answer)


def test_rows_of_one_input_are_plain_values(server):
    status, answer = post(server, "demo:predict", {"instances": ["abc", "Äé"]})
    assert status == 200
    assert answer == {
        "predictions": [
            {"length": 3, "upper": "ABC", "score": 0.3, "version": 2},
            {"length": 2, "upper": "ÄÉ", "score": 0.2, "version": 2},
        ]
    }


def test_rows_may_be_objects_and_columns_give_columns(server):
    _, rows = post(server, "demo:predict", {"instances": [{"text": "a"}, {"text": "bc"}]})
    _, columns = post(server, "demo:predict", {"inputs": {"text": ["a", "bc"]}})
    _, column = post(server, "demo:predict", {"inputs": ["a", "bc"]})
    assert [row["length"] for row in rows["predictions"]] == columns["outputs"]["length"] == [1, 2]
    assert column == columns


def test_several_inputs_and_a_named_signature(server):
    body = {"signature_name": "pair", "instances": [{"text": "x", "text_pair": "yy"}, {"text": "z", "text_pair": "z"}]}
    assert post(server, "demo:predict", body) == (
        200,
        {
            "predictions": [
                {"joined": "x|yy", "equal": False, "vector": [1.0, 2.0]},
                {"joined": "z|z", "equal": True, "vector": [1.0, 1.0]},
            ]
        },
    )
    body = {"signature_name": "pair", "inputs": {"text": ["x"], "text_pair": ["yy"]}}
    assert post(server, "demo:predict", body)[1]["outputs"] == {
        "joined": ["x|yy"],
        "equal": [False],
        "vector": [[1.0, 2.0]],
    }


def test_binary_strings_are_base64_both_ways(server):
    data = bytes(range(256))
    coded = {"b64": base64.b64encode(data).decode()}
    status, answer = post(server, "demo:predict", {"signature_name": "binary", "instances": [coded, {"b64": ""}]})
    assert status == 200
    assert answer["predictions"] == [{"copy_bytes": coded, "size": 256}, {"copy_bytes": {"b64": ""}, "size": 0}]
    _, answer = post(server, "demo:predict", {"signature_name": "binary", "inputs": {"inputs": [coded]}})
    assert answer["outputs"] == {"copy_bytes": [coded], "size": [256]}


def test_base64_may_have_line_ends_and_no_padding(server):
    rows = [{"b64": text} for text in ("YWI", "YWI=", "YW\nI=\n", "YQ", "")]
    status, answer = post(server, "demo:predict", {"instances": rows, "signature_name": "binary"})
    assert status == 200 and [row["copy_bytes"] for row in answer["predictions"]] == [
        {"b64": text} for text in ("YWI=", "YWI=", "YWI=", "YQ==", "")
    ]
    for wrong in ("YWI==", "Y", "YQ=", "Y=Q="):
        assert post(server, "demo:predict", {"instances": [{"b64": wrong}], "signature_name": "binary"})[0] == 400


def test_one_output_stands_without_its_name(server):
    _, answer = post(server, "demo:predict", {"signature_name": "words", "instances": ["a b", "c"]})
    assert answer == {"predictions": [["a", "b"], ["c", ""]]}


def test_a_scalar_is_asked_in_column_form(server):
    assert post(server, "demo:predict", {"signature_name": "scalar", "inputs": {"x": 1.25}}) == (200, {"outputs": 2.5})


def test_float32_numbers_come_back_bit_by_bit_with_few_digits(server):
    if not server.embedded:
        pytest.skip("TF Serving cannot write bfloat16 as JSON")
    values = (np.random.default_rng(0).normal(size=(50, 2)) * 10.0 ** np.arange(-25, 25)[:, None]).astype(np.float32)
    status, body = server.ask(
        "/v1/models/demo:predict",
        json.dumps({"signature_name": "numbers", "instances": values.astype(float).tolist()}).encode(),
    )
    assert status == 200
    found = np.array([row["same"] for row in json.loads(body)["predictions"]]).astype(np.float32)
    np.testing.assert_array_equal(found, values)
    _, body = server.ask("/v1/models/demo:predict", b'{"signature_name": "numbers", "instances": [[0.1, 2]]}')
    assert b'"same": [0.1,2.0]' in body.replace(b'"same":[', b'"same": [').replace(b", ", b",").replace(b": ", b": ")


def test_nan_and_infinity_stand_without_quotes_and_are_never_answered(server):
    if not server.embedded:
        pytest.skip("TF Serving cannot write bfloat16 as JSON")
    for number in ("NaN", "Infinity", "-Infinity", "1e39"):
        status, answer = post(
            server, "demo:predict", f'{{"signature_name": "numbers", "instances": [[-1, 0], [0.2, {number}]]}}'.encode()
        )
        assert status == (500 if number != "1e39" else 400)
        assert answer["error"].startswith(
            "row 1, output '" if number != "1e39" else "input 'x': 1e+39 is out of the range of float32"
        )


def test_versions_and_labels_are_part_of_the_path(server):
    for path, version in (
        ("demo", 2),
        ("labelled", 2),
        ("labelled/versions/1", 1),
        ("labelled/versions/2", 2),
        ("labelled/labels/stable", 1),
        ("labelled/labels/canary", 2),
    ):
        status, answer = post(server, f"{path}:predict", {"instances": ["a"]})
        assert status == 200, answer
        assert answer["predictions"][0]["version"] == version
    assert server.ask("/V1/Models/demo:PREDICT", b'{"instances": ["a"]}')[0] == 200


def test_status_is_tf_servings(server):
    status, body = server.ask("/v1/models/labelled")
    ok = {"error_code": "OK", "error_message": ""}
    assert status == 200
    assert json.loads(body) == {
        "model_version_status": [
            {"version": "2", "state": "AVAILABLE", "status": ok},
            {"version": "1", "state": "AVAILABLE", "status": ok},
        ]
    }
    _, body = server.ask("/v1/models/labelled/versions/1")
    assert [entry["version"] for entry in json.loads(body)["model_version_status"]] == ["1"]
    # get_model_status_impl.cc looks at a version's number only.
    _, body = server.ask("/v1/models/labelled/labels/canary")
    assert [entry["version"] for entry in json.loads(body)["model_version_status"]] == ["2", "1"]


def test_metadata_is_tf_servings(server):
    status, body = server.ask("/v1/models/demo/metadata")
    answer = json.loads(body)
    assert status == 200
    assert answer["model_spec"]["name"] == "demo" and answer["model_spec"]["version"] == "2"
    signature = answer["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["method_name"] == "tensorflow/serving/predict"
    assert signature["inputs"]["text"]["dtype"] == "DT_STRING"
    assert signature["inputs"]["text"]["tensor_shape"] == {"dim": [{"size": "-1", "name": ""}], "unknown_rank": False}
    assert sorted(signature["outputs"]) == ["length", "score", "upper", "version"]


def test_a_body_may_be_compressed(server):
    body = gzip.compress(json.dumps({"instances": ["abc"]}).encode())
    assert post(server, "demo:predict", body, headers={"Content-Encoding": "gzip"})[0] == 200


def test_columns_of_other_names_are_ignored_and_in_rows_refused(server):
    status, answer = post(server, "demo:predict", {"inputs": {"text": ["abc"], "more": [1]}, "more": 2})
    assert status == 200 and answer["outputs"]["length"] == [3]
    assert post(server, "demo:predict", {"instances": [{"text": "abc", "more": 1}], "more": 2})[0] == 400


GZIPPED, EMPTY = gzip.compress(b'{"instances": ["abc"]}', mtime=0), gzip.compress(b"", mtime=0)
TWO_MEMBERS = gzip.compress(b'{"instances": ["a', mtime=0) + gzip.compress(b'bc"]}', mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body", "wanted"),
    [
        ("gzip", b'{"instances": ["abc"]}', 400),
        ("gzip", GZIPPED[:-9], 400),
        ("gzip", b"", 400),
        ("gzip", TWO_MEMBERS, 200),
        ("gzip", GZIPPED + GZIPPED, 400),
        ("gzip", GZIPPED + b"x", 400),
        ("gzip", GZIPPED + b"\0" * 8, 200),  # padding
        ("gzip", TWO_MEMBERS[:-9], 400),
        ("gzip", EMPTY * 999 + GZIPPED, 200),
        ("gzip", EMPTY * 1000 + GZIPPED, 400),
        ("gzip", EMPTY * 400_000 + GZIPPED, 400),
        ("gzip", EMPTY, 400),
        ("gzip, deflate", GZIPPED, 200),
        ("x-gzip", GZIPPED, 200),
        ("br", b'{"instances": ["abc"]}', 200),
        ("no such thing", b'{"instances": ["abc"]}', 200),
        ("deflate", b"x", 400),
    ],
)
def test_only_gzip_is_decompressed_and_garbage_is_the_clients_mistake(server, encoding, body, wanted):
    status, answer = post(server, "demo:predict", body, headers={"Content-Encoding": encoding})
    assert status == wanted, answer
    assert ("error" in answer) == (wanted == 400)


# Path, body, status, and what the message must hold. None: TF Serving's words differ, or it accepts the request.
MISTAKES = [
    ("nowhere:predict", {"instances": ["a"]}, 404, "Servable not found for request: Latest(nowhere)"),
    ("demo/versions/7:predict", {"instances": ["a"]}, 404, "Servable not found for request: Specific(demo, 7)"),
    ("demo/versions/99999999999999999999:predict", {"instances": ["a"]}, 400, "Failed to convert version"),
    ("demo/versions/" + 5000 * "9" + ":predict", {"instances": ["a"]}, 400, "Failed to convert version"),
    ("labelled/labels/old:predict", {"instances": ["a"]}, 400, "Unrecognized servable version label: old"),
    ("demo:explain", {"instances": ["a"]}, 400, "Malformed request"),
    ("demo:predict", b"", 400, "JSON Parse error"),
    ("demo:predict", b"{", 400, "JSON Parse error"),
    ("demo:predict", b"[1, 2]", 400, "Is not object"),
    ("demo:predict", b'{"instances": ["\xff"]}', 400, None),
    ("demo:predict", b'{"instances": ["\\ud800"]}', 400, None),
    ("demo:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
    ("demo:predict", {"instances": ["a"], "inputs": ["a"]}, 400, "Not formatted correctly"),
    ("demo:predict", {"instances": "a"}, 400, "to be an list/array"),
    ("demo:predict", {"instances": []}, 400, "No values in 'instances' array"),
    ("demo:predict", {"instances": [1]}, 400, "is not of expected type: string"),
    ("demo:predict", {"instances": [None]}, 400, "is not of expected type: string"),
    ("demo:predict", {"instances": ["a", {"text": "b"}]}, 400, "Expecting value/list but got object at item 1"),
    ("demo:predict", {"instances": [{"text": "b"}, "a"]}, 400, "Expecting object but got list at item 1"),
    ("demo:predict", {"instances": [{"text": "a", "more": "b"}]}, 400, None),
    ("demo:predict", {"instances": [{"txt": "a"}]}, 400, None),
    ("demo:predict", {"instances": [["a"]]}, 400, None),
    ("demo:predict", {"inputs": "a"}, 400, None),
    ("demo:predict", {"inputs": {}}, 400, "Missing named input: text in 'inputs' object."),
    ("demo:predict", {"instances": ["a"], "signature_name": 1}, 400, "'signature_name' key must be a string value."),
    ("demo:predict", {"instances": ["a"], "signature_name": "none"}, 400, "not found"),
    ("demo:predict", {"instances": [{"b64": "?"}], "signature_name": "binary"}, 400, "Unable to base64 decode"),
    ("demo:predict", {"instances": ["a"], "signature_name": "pair"}, 400, "instances is a plain list"),
    ("demo:predict", {"inputs": ["a"], "signature_name": "pair"}, 400, "inputs is a plain value/list"),
    ("demo:predict", {"inputs": {"text": ["a"], "text_pair": ["a", "b"]}, "signature_name": "pair"}, 400, None),
    (
        "demo:predict",
        {"instances": [{"input_ids": [1, 2], "input_mask": [1, 1, 1]}], "signature_name": "ids"},
        400,
        "Incompatible shapes",
    ),
    (
        "demo:predict",
        {"instances": [{"input_ids": [1.5], "input_mask": [1]}], "signature_name": "ids"},
        400,
        "is not of expected type: int32",
    ),
    (
        "demo:predict",
        {"instances": [{"input_ids": [True], "input_mask": [1]}], "signature_name": "ids"},
        400,
        "is not of expected type: int32",
    ),
    ("demo:predict", {"instances": [{"input_ids": [1 << 40], "input_mask": [1]}], "signature_name": "ids"}, 400, None),
    (
        "demo:predict",
        {"instances": [{"input_ids": [1] * 12, "input_mask": [1] * 12}], "signature_name": "ids"},
        400,
        "input_ids: expected fewer than 10",
    ),
    ("demo:predict", {"instances": [[1.0, 2.0, 3.0]], "signature_name": "numbers"}, 400, None),
    ("demo:predict", {"instances": [[1e300, 2.0]], "signature_name": "numbers"}, 400, None),
    ("demo:predict", {"inputs": {"x": 1}, "instances": 3, "signature_name": "scalar"}, 400, "Not formatted correctly"),
]


@pytest.mark.parametrize(("path", "body", "wanted", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_get_their_status_and_message_and_the_server_goes_on(server, path, body, wanted, message):
    status, answer = post(server, path, body)
    assert status == wanted, answer
    assert list(answer) == ["error"] and answer["error"]
    if message:
        assert message in answer["error"]
    assert post(server, "demo:predict", {"instances": ["abc"]})[0] == 200


def test_an_error_in_the_model_says_what_the_model_says_and_no_more(server):
    if not server.embedded:
        pytest.skip("TF Serving adds the nodes of the graph")
    _, answer = post(
        server,
        "demo:predict",
        {"signature_name": "ids", "instances": [{"input_ids": [1] * 12, "input_mask": [1] * 12}]},
    )
    assert answer["error"].startswith("assertion failed: [input_ids: expected fewer than 10]")
    assert "node" not in answer["error"] and len(answer["error"]) < 300


def test_paths_that_are_nothing(server):
    assert server.ask("/v1/models/nowhere")[0] == 404
    assert server.ask("/v1/models/demo/versions/9")[0] == 404
    assert server.ask("/v1/models/demo:predict")[0] == 400
    assert server.ask("/v1/models/demo", b"{}")[0] == 400
    assert server.ask("/elsewhere")[0] == 404


def test_metrics_count_requests_under_tf_servings_names(server):
    post(server, "demo:predict", {"instances": ["a"]})
    status, body = server.ask("/monitoring/prometheus/metrics")
    assert status == 200
    counted = [line for line in body.decode().splitlines() if line.startswith(":tensorflow:serving:request_count{")]
    assert any(
        'model_name="demo"' in line and 'status="OK"' in line and float(line.split()[-1]) >= 1 for line in counted
    )
    assert b':tensorflow:serving:request_latency_bucket{API="Predict"' in body.replace(
        b'{API="predict"', b'{API="Predict"'
    )


def test_what_only_the_embedded_server_has(server):
    if not server.embedded:
        pytest.skip("not in TF Serving")
    assert server.ask("/healthz") == server.ask("/readyz") == (200, b'{"status": "ok"}')
    listed = json.loads(server.ask("/v1/models")[1])
    assert (
        listed["models"] == [card["id"] for card in listed["data"]] == ["demo", "labelled"]
        and listed["object"] == "list"
    )
    assert post(server, "demo:classify", {"examples": [{}]})[0] == 501
    status, body = server.ask("/")
    assert status == 200 and body.startswith(b"<!doctype html>")
