"""Idle gRPC connections give way to those of clients that ask, and strangers never push out a client with a token."""

import contextlib
import os
import socket

import grpc
import made_serving
import pytest
import tensorflow as tf
from http2_floods import PREFACE, SETTINGS, frame
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

from official_bert.server.access import AccessRules
from official_bert.server.grpc_connections import FOLDER, GrpcConnections, descriptors_of, peer_of
from official_bert.server.request_checks import Limits
from official_bert.server.server import ServerOptions
from official_bert.server.server_config import ServedModelConfig

TOKEN = "a-token-of-some-length"


def idle(stack, running):
    """A connection that has agreed upon HTTP/2 and asks for nothing."""
    host, port = running.target.split(":")
    connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=10))
    connection.sendall(PREFACE + frame(SETTINGS, 0, 0, b""))
    return connection


def is_open(connection):
    connection.setblocking(False)
    try:
        while connection.recv(1000):
            pass
        return False
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def ask(channel, token=""):
    request = predict_pb2.PredictRequest(inputs={"text": tf.make_tensor_proto(["abc"])})
    request.model_spec.name = "demo"
    metadata = [("authorization", f"Bearer {token}")] if token else []
    answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=20, metadata=metadata)
    return tf.make_ndarray(answer.outputs["length"]).tolist()


@contextlib.contextmanager
def serving(demo_root, most, tokens=()):
    with made_serving.embedded(
        ServerOptions(
            models=[ServedModelConfig(name="demo", base_path=str(demo_root / "demo"))],
            rest_port=None,
            grpc_port=0,
            drain_seconds=1,
            limits=Limits(max_connections=most),
            access=AccessRules.for_server("127.0.0.1", tokens=tokens),
        )
    ) as running:
        yield running


@pytest.fixture
def seen(monkeypatch):
    """Waits until the server knows of so many connections; it sees no order in those that come between two looks."""
    known, look = [], GrpcConnections.close_surplus

    def close_surplus(self, port):
        look(self, port)
        known.append(len(self._waiting))

    monkeypatch.setattr(GrpcConnections, "close_surplus", close_surplus)
    return lambda number: made_serving.wait_for(lambda: known and known[-1] == number, 10)


@pytest.mark.parametrize("tokens", [(), (TOKEN,)])
def test_idle_connections_lock_nobody_out(demo_root, tokens, seen):
    with serving(demo_root, 8, tokens) as running, contextlib.ExitStack() as stack:
        connections = [idle(stack, running) for _ in range(4)]
        seen(4)
        connections += [idle(stack, running) for _ in range(5)]
        with grpc.insecure_channel(running.target) as channel:
            assert ask(channel, TOKEN) == [3]  # at once, without a second try
            # half of the places are for strangers
            made_serving.wait_for(lambda: sum(map(is_open, connections)) == 4, 10)
            assert not any(is_open(connection) for connection in connections[:4])  # the oldest are gone
            for _ in range(3):  # the client's connection, which is older, stays
                connections.extend(idle(stack, running) for _ in range(7))
                made_serving.wait_for(lambda: sum(map(is_open, connections)) == 4, 10)
                assert ask(channel, TOKEN) == [3]
            assert len(descriptors_of(int(running.target.split(":")[1]))) == 5


def test_clients_that_asked_give_way_to_each_other_alone(demo_root):
    """Of 10 clients with a token, 8 may stay; a wrong token makes nobody a client."""
    with serving(demo_root, 8, (TOKEN,)) as running, contextlib.ExitStack() as stack:
        port = int(running.target.split(":")[1])

        def client(number):
            return stack.enter_context(
                grpc.insecure_channel(running.target, [("grpc.use_local_subchannel_pool", 1), ("x", number)])
            )

        strangers = [client(number) for number in range(6)]
        for channel in strangers:
            with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                ask(channel, "another-token-of-some-length")
        made_serving.wait_for(lambda: len(descriptors_of(port)) == 4, 10)
        for number in range(10):
            assert ask(client(number), TOKEN) == [3]
        made_serving.wait_for(lambda: len(descriptors_of(port)) == 8, 10)


def test_a_connection_with_a_request_under_way_stays():
    connections, closed = GrpcConnections(Limits(max_connections=2)), []
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:
        port = server.getsockname()[1]
        clients, accepted = [], []
        for _ in range(4):
            clients.append(stack.enter_context(socket.create_connection(("127.0.0.1", port))))
            accepted.append(stack.enter_context(server.accept()[0]))
            connections.close_surplus(port) if len(clients) < 2 else None
        names = [f"ipv4:127.0.0.1:{client.getsockname()[1]}" for client in clients]
        before = set(os.listdir(FOLDER))
        with connections.working(names[0]) as peer:
            connections.admit(peer)
            connections.close_surplus(port)
            closed = [client.recv(1) == b"" for client in clients if not is_open(client)]
            assert is_open(clients[0]) and len(closed) == 2 and is_open(clients[3])
        assert set(os.listdir(FOLDER)) <= before  # looking leaves nothing open; garbage of other tests may close


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("ipv4:127.0.0.1:5000", ("127.0.0.1", 5000)),
        ("ipv6:%5B::1%5D:5000", ("::1", 5000)),
        ("ipv6:[::1]:5000", ("::1", 5000)),
        ("ipv6:[::ffff:10.0.0.1]:7", ("10.0.0.1", 7)),
        ("ipv6:[fe80::1%25eth0]:7", ("fe80::1", 7)),
        ("", ("", 0)),
    ],
)
def test_grpcs_names_of_clients(name, peer):
    assert peer_of(name) == peer
