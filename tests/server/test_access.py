"""Who may ask a running server: hosts, origins, content types, tokens, encryption; and what it notes about each
request.
"""

import contextlib
import datetime
import http.client
import json
import socket
import time

import grpc
import made_serving
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from official_bert.server.access import AccessRules, accepts, is_local, read_tokens
from official_bert.server.gates import request_id
from official_bert.server.server import ServerOptions
from official_bert.server.server_config import ServedModelConfig
from official_bert.server.statuses import RequestError
from official_bert.tools.client import GrpcClient, RestClient, ServingError

TOKEN, OLD_TOKEN = "a-token-of-some-length", "the-token-of-last-month"
SITE = "https://notes.example.org"
PREDICT, BODY = "/v1/models/demo:predict", b'{"instances": ["abc"]}'
JSON = {"Content-Type": "application/json"}


def options(demo_root, **changes):
    return ServerOptions(
        models=[ServedModelConfig(name="demo", base_path=str(demo_root / "demo"))],
        rest_port=0,
        grpc_port=0,
        **{"poll_seconds": 0.2, "drain_seconds": 5, **changes},
    )


def ask(url, path=PREDICT, body=BODY, method=None, **headers):
    """(status, headers, body) of a request with exactly these headers."""
    host, port = url.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        connection.putrequest(method or ("POST" if body is not None else "GET"), path, skip_host=True)
        for name, value in {"Host": f"{host}:{port}", **headers}.items():
            if value is not None:
                connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, response.headers, response.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def local(demo_root):
    """A server as it comes, which listens on this machine only."""
    with made_serving.embedded(options(demo_root)) as running:
        yield running


@pytest.fixture(scope="module")
def guarded(demo_root, tmp_path_factory):
    """A server with tokens, an allowed site and an access log."""
    log = tmp_path_factory.mktemp("log") / "access.log"
    rules = AccessRules.for_server("127.0.0.1", origins=[SITE], tokens=[TOKEN, OLD_TOKEN])
    with made_serving.embedded(options(demo_root, access=rules, access_log=str(log))) as running:
        running.log = log
        yield running


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:80", 200),
        ("me.localhost", 200),
        ("127.0.0.1:8501", 200),
        ("127.8.8.8", 200),
        ("[::1]:8501", 200),
        ("rebound.example.org", 403),
        ("rebound.example.org:8501", 403),
        ("127.0.0.1.example.org", 403),
        ("localhost.example.org", 403),
        ("10.0.0.1", 403),
        ("", 403),
        ("[", 403),
        ("user@localhost@evil.example", 403),
    ],
)
def test_a_server_of_this_machine_answers_to_its_names_only(local, host, status):
    assert ask(local.url, Host=host, **JSON)[0] == status
    assert ask(local.url, "/v1/models/demo", None, Host=host)[0] == status
    assert ask(local.url, "/", None, Host=host)[0] == status


def test_names_are_free_where_others_reach_the_server_unless_some_are_given():
    AccessRules.for_server("0.0.0.0").check_host("anything.example.org")
    rules = AccessRules.for_server("0.0.0.0", hosts=["Models.example.org"])
    rules.check_host("models.EXAMPLE.org:443")
    with pytest.raises(Exception, match=r"other\.example\.org"):
        rules.check_host("other.example.org")
    AccessRules.for_server("127.0.0.1", hosts=["models.example.org"]).check_host("models.example.org")
    AccessRules.for_server("::1").check_host(None)  # HTTP/1.0
    assert is_local("::1") and is_local("[::1]") and not is_local("0.0.0.0") and not is_local("")


@pytest.mark.parametrize("origin", ["https://evil.example.org", "null", "http://localhost.evil.example", "", "file://"])
@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_pages_of_other_sites_are_refused_and_learn_nothing(local, origin, kind):
    status, headers, _ = ask(local.url, Origin=origin, Content_Type=kind)
    assert status == 403 and "Access-Control-Allow-Origin" not in headers
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin" and headers["X-Content-Type-Options"] == "nosniff"
    assert ask(local.url, method="OPTIONS", body=None, Origin=origin, Access_Control_Request_Method="POST")[0] == 403


@pytest.mark.parametrize(
    "host",
    [
        "[::1]evil.com",
        "[::1].evil.com",
        "[::1]evil.com:80",
        "[::1",
        "::1",
        "[]",
        "[localhost]",
        "[127.0.0.1]",
        "localhost:80:80",
        "localhost:x",
        "localhost:65536",
        "localhost:-1",
        "localhost:\u0661",
        "127.0.0.1.evil.com",
        "127.0.0.1.",
        "localhost.evil.com",
        "evil.com#.localhost",
        "a@localhost",
        "localhost@evil.com",
        "a:b@127.0.0.1",
        "localhost..",
        ".localhost",
        "a..localhost",
        "localhost/",
        "localhost/evil.com",
        "localhost\\evil.com",
        "localhost,evil.com",
        "localhost evil.com",
        " localhost",
        "evil.com",
        "evil.com.",
        "EVIL.COM",
        "notlocalhost",
        "0.0.0.0",
        "[::]",
        "",
        "127.0.0.1%00",
        "\uff4cocalhost",
    ],
)
def test_a_name_that_only_resembles_this_machines_is_refused(host):
    with pytest.raises(RequestError) as caught:
        AccessRules.for_server("127.0.0.1").check_host(host)
    assert caught.value.code == "PERMISSION_DENIED"


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8501",
        "localhost:",
        "a-b.LocalHost:0",
        "127.0.0.1:65535",
        "127.9.9.9",
        "[::1]",
        "[::1]:80",
        "[0:0:0:0:0:0:0:1]",
        "Models.Example.org:1",
    ],
)
def test_names_of_this_machine_are_accepted(host):
    AccessRules.for_server("127.0.0.1", hosts=["models.example.ORG"]).check_host(host)


def raw(running, head, body=b""):
    """The answer to bytes over a connection, until the server closes it or is silent for a while."""
    address, port = running.url.removeprefix("http://").split(":")
    with socket.create_connection((address, int(port)), timeout=2) as connection:
        connection.sendall(head.encode() + b"\r\n\r\n" + body)
        received = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while data := connection.recv(10_000):
                received += data
    return received


CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
SMUGGLED = b"POST /v1/models/demo:predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "codings",
    [
        ["gzip, chunked"],
        ["chunked, chunked"],
        ["chunked", "chunked"],
        ["chunked", "identity"],
        ["identity"],
        ["chunked, identity"],
        ["gzip"],
        ["chunked;q=1"],
        ["xchunked"],
        [""],
        ["chunked,"],
        ['"chunked"'],
        ["x, chunked"],
    ],
)
@pytest.mark.parametrize("start", ["POST /v1/models/demo:predict", "GET /healthz", "OPTIONS /"])
def test_other_transfer_codings_are_refused_and_end_the_connection(local, codings, start):
    lines = "".join(f"\r\nTransfer-Encoding: {coding}" for coding in codings)
    answer = raw(
        local, f"{start} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json{lines}", CHUNKS + SMUGGLED
    )
    assert answer.split(b"\r\n")[0].split(b" ")[1] == b"400" and answer.count(b"HTTP/1.") == 1, answer


@pytest.mark.parametrize("coding", ["chunked", "Chunked", " chunked "])
def test_a_body_in_chunks_is_read(local, coding):
    answer = raw(
        local,
        f"POST {PREDICT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Transfer-Encoding: {coding}",
        CHUNKS,
    )
    assert answer.startswith(b"HTTP/1.1 200 ") and b'"length":3' in answer.replace(b" ", b"")


def test_two_hosts_and_two_lengths_are_refused(local):
    for lines in (
        "Host: localhost\r\nHost: evil.com",
        "Host: localhost\r\nHost: localhost",
        "Host: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked",
    ):
        answer = raw(local, f"POST {PREDICT} HTTP/1.1\r\n{lines}", CHUNKS)
        assert answer.split(b" ")[1] == b"400" and answer.count(b"HTTP/1.") == 1, answer


def test_the_servers_own_page_may_ask(local):
    assert ask(local.url, Origin=local.url, **JSON)[0] == 200
    status, headers, _ = ask(local.url, "/v1/models", None)
    assert status == 200 and "Access-Control-Allow-Origin" not in headers


def test_an_allowed_site_may_ask_after_its_preflight(guarded):
    status, headers, _ = ask(
        guarded.url,
        method="OPTIONS",
        body=None,
        Origin=SITE,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="authorization,content-type",
    )
    assert status == 204 and headers["Access-Control-Allow-Origin"] == SITE
    assert {"authorization", "content-type"} <= {
        name.strip().lower() for name in headers["Access-Control-Allow-Headers"].split(",")
    }
    status, headers, _ = ask(guarded.url, Origin=SITE, Authorization=f"Bearer {TOKEN}", **JSON)
    assert status == 200 and headers["Access-Control-Allow-Origin"] == SITE and headers["Vary"] == "Origin"
    assert (
        ask(guarded.url, Origin="https://notes.example.org.evil.example", Authorization=f"Bearer {TOKEN}", **JSON)[0]
        == 403
    )
    assert ask(guarded.url, method="OPTIONS", body=None)[0] == 400  # as from TF Serving


@pytest.mark.parametrize(
    ("kind", "alone", "from_a_browser"),
    [
        ("application/json", 200, 200),
        ("application/json; charset=utf-8", 200, 200),
        ("application/problem+json", 200, 200),
        ("application/x-www-form-urlencoded", 200, 415),
        (None, 200, 415),
        ("application/octet-stream", 200, 415),
        ("text/plain", 415, 415),
        ("multipart/form-data; boundary=x", 415, 415),
        ("image/png", 415, 415),
    ],
)
def test_only_what_is_no_browser_may_leave_json_undeclared(local, kind, alone, from_a_browser):
    """`curl -d` sends a form's type, Python's requests none: both work with TF Serving. A browser's simple requests do
    not pass.
    """
    assert ask(local.url, Content_Type=kind)[0] == alone
    assert ask(local.url, Content_Type=kind, Origin=local.url)[0] == from_a_browser
    assert ask(local.url, Content_Type=kind, Sec_Fetch_Site="same-origin")[0] == from_a_browser
    assert accepts(kind or "", False) == (alone == 200)


@pytest.mark.parametrize(
    "authorization",
    [
        None,
        "",
        "Bearer",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \xff\xfe",
        "Bearer " + "x" * 5000,
    ],
)
def test_without_a_token_nothing_is_answered(guarded, authorization):
    for path, body in (
        (PREDICT, BODY),
        ("/v1/models/demo", None),
        ("/v1/models", None),
        ("/monitoring/prometheus/metrics", None),
    ):
        status, headers, answer = ask(guarded.url, path, body, Authorization=authorization, **JSON)
        assert status == 401 and headers["WWW-Authenticate"] == "Bearer" and b"Authorization: Bearer" in answer
    for token in (TOKEN, OLD_TOKEN):
        assert ask(guarded.url, Authorization=f"Bearer {token}", **JSON)[0] == 200


def test_the_page_and_probes_need_no_token(guarded):
    for path in ("/", "/healthz", "/readyz"):
        assert ask(guarded.url, path, None)[0] == 200
    with grpc.insecure_channel(guarded.target) as channel:
        assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60).status == 1


def test_clients_show_tokens_over_both_protocols(guarded):
    for make, where in ((RestClient, guarded.url), (GrpcClient, guarded.target)):
        with make(where, "demo", token=TOKEN) as client:
            assert client.predict(["abc"])[0]["length"] == 3
            assert client.versions() == {2: "AVAILABLE"}
        with make(where, "demo", token=TOKEN + "x") as client, pytest.raises(ServingError, match="UNAUTHENTICATED"):
            client.predict(["abc"])


def test_requests_have_ids_and_a_line_in_the_log(guarded):
    header = {"Authorization": f"Bearer {TOKEN}", **JSON}
    assert ask(guarded.url, X_Request_Id="mine-1", **header)[1]["X-Request-Id"] == "mine-1"
    forged = ask(guarded.url, X_Request_Id='x"} {"status": 1', **header)[1]["X-Request-Id"]
    assert len(forged) == 32 and ask(guarded.url, **header)[1]["X-Request-Id"] != forged
    assert ask(guarded.url, '/v1/models/demo"x":predict?secret', X_Request_Id="mine-2")[0] == 401
    with GrpcClient(guarded.target, "demo", token=TOKEN, headers={"X-Request-Id": "mine-3"}) as client:
        client.predict([{"text": "a"}])
        with pytest.raises(ServingError):
            client.predict([{"more": "a"}])
    wanted = {
        ("mine-1", "REST", 200),
        ("mine-2", "REST", 401),
        ("mine-3", "GRPC", "OK"),
        ("mine-3", "GRPC", "INVALID_ARGUMENT"),
    }
    deadline = time.monotonic() + 30
    while True:  # gRPC sends an error before the line is written
        lines = [json.loads(line) for line in guarded.log.read_text().splitlines()]
        if wanted <= {(line["request_id"], line["protocol"], line["status"]) for line in lines}:
            break
        assert time.monotonic() < deadline, lines
        time.sleep(0.01)
    line = next(line for line in lines if line["request_id"] == "mine-1")
    assert line["path"] == PREDICT and line["method"] == "POST" and line["peer"] == "127.0.0.1" and line["bytes"] > 10
    assert 0 <= line["ms"] < 60_000 and datetime.datetime.fromisoformat(line["time"]).tzinfo
    text = guarded.log.read_text()
    assert TOKEN not in text and "secret" not in text and "instances" not in text


@pytest.mark.parametrize("value", [None, "", "a b", "x" * 65, "a\nb", "é", b"bytes"])
def test_ids_that_are_no_short_plain_words_are_replaced(value):
    assert len(request_id(value)) == 32


def test_tokens_come_from_a_file(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(f"{TOKEN}\n\n  {OLD_TOKEN} \r\n")
    assert read_tokens(str(path)) == [TOKEN, OLD_TOKEN]
    for text, message in (
        ("", "expected a token, got an empty file"),
        ("short\n", "tokens:1: expected a token of at least 16"),
        (f"{TOKEN}\nwith a space in between\n", "tokens:2: expected a token"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_tokens(str(path))
    with pytest.raises(ValueError, match="No such file"):
        read_tokens(str(tmp_path / "none"))


@pytest.mark.parametrize(
    "values",
    [
        {"origins": ["example.org"]},
        {"origins": ["*"]},
        {"origins": ["https://a.org/path"]},
        {"hosts": ["example.org:80"]},
        {"hosts": ["https://example.org"]},
        {"hosts": [""]},
    ],
)
def test_rules_that_mean_nothing_are_refused(values):
    with pytest.raises(ValueError, match="expected"):
        AccessRules.for_server("127.0.0.1", **values)


def test_labels_of_a_model_are_in_its_metadata(tmp_path, local):
    folder = made_serving.write_model(tmp_path, 1)
    (folder / "assets").mkdir(exist_ok=True)
    (folder / "assets" / "labels.txt").write_text("no\nmaybe\nyes, \u2028 Ä\n", encoding="utf-8")
    with made_serving.embedded(
        options(tmp_path).__class__(
            **{**vars(options(tmp_path)), "models": [ServedModelConfig(name="demo", base_path=str(tmp_path))]}
        )
    ) as running:
        found = json.loads(running.ask("/v1/models/demo/metadata")[1])
        assert found["official_bert"] == {"labels": ["no", "maybe", "yes, \u2028 Ä"]}
        plain = json.loads(local.ask("/v1/models/demo/metadata")[1])
        assert "official_bert" not in plain
        assert {**plain, "model_spec": None} == {**{key: found[key] for key in plain}, "model_spec": None}
        with GrpcClient(running.target, "demo") as client, RestClient(running.url, "demo") as rest:
            assert client.signatures() == rest.signatures()  # no other client notices


def test_a_model_is_batched_by_its_own_parameters_or_not_at_all(tmp_path):
    for name in ("own", "none", "broken"):
        (tmp_path / name).mkdir()
        made_serving.write_model(tmp_path / name, 1)
    (tmp_path / "own/1/batching_params.pbtxt").write_text(
        "max_batch_size { value: 8 } batch_timeout_micros { value: 300000 }"
    )
    models = [ServedModelConfig(name=name, base_path=str(tmp_path / name)) for name in ("own", "none")]
    with made_serving.embedded(
        ServerOptions(models=models, rest_port=0, grpc_port=0, poll_seconds=0.1, per_model_batching=True)
    ) as running:

        def batches():
            page = running.ask("/monitoring/prometheus/metrics")[1].decode()
            return next(
                float(line.split()[-1])
                for line in page.splitlines()
                if line.startswith(":tensorflow:serving:batching_session:processed_batch_size_count")
            )

        for name, wanted in (("none", [0]), ("own", [1, 2])):
            with RestClient(running.url, name, batch_size=1, concurrency=8) as client:
                assert [row["length"] for row in client.predict(["x" * size for size in range(8)])] == list(range(8))
            assert batches() in wanted
        with RestClient(running.url, "own", batch_size=9) as client, pytest.raises(ServingError, match="Task size 9"):
            client.predict(["x"] * 9)
    (tmp_path / "broken/1/batching_params.pbtxt").write_text("max_batch_size: 8")
    with (
        pytest.raises(ValueError, match=r"batching_params\.pbtxt:1"),
        made_serving.embedded(
            ServerOptions(
                models=[ServedModelConfig(name="broken", base_path=str(tmp_path / "broken"))],
                rest_port=0,
                grpc_port=None,
                poll_seconds=0.1,
                per_model_batching=True,
            )
        ),
    ):
        pass


def test_a_request_past_its_deadline_stops_working_and_is_counted_as_such(demo_root):
    from official_bert.server.batching import BatchingParameters

    long = {"steps": 200_000_000}  # minutes

    def slow(**timeouts):
        with GrpcClient(running.target, "demo", attempts=1, **timeouts) as client:
            client.predict([long], "work")

    with made_serving.embedded(
        options(demo_root, timeout_seconds=0.5, max_run_seconds=1.5, batching=BatchingParameters(num_batch_threads=1))
    ) as running:
        body = json.dumps({"signature_name": "work", "instances": [long]}).encode()
        assert running.ask(PREDICT, body)[0] == 504
        with GrpcClient(running.target, "demo") as innocent:  # the only thread is free again
            assert innocent.predict(["abc"])[0]["length"] == 3
            with pytest.raises(ServingError, match="DEADLINE_EXCEEDED"):
                slow(timeout=0.5)
            assert innocent.predict(["abc"])[0]["length"] == 3
            with pytest.raises(ServingError, match="DEADLINE_EXCEEDED"):
                slow(timeout=50)  # its client would wait, the server does not
            assert innocent.predict(["abc"])[0]["length"] == 3
        page = running.ask("/monitoring/prometheus/metrics")[1].decode()
        assert ':tensorflow:serving:request_count{model_name="demo",status="DEADLINE_EXCEEDED"} 3.0' in page
