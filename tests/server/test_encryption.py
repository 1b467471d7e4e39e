"""A server with a certificate: both protocols are encrypted, and connections that never agree upon TLS give way."""

import contextlib
import datetime
import ipaddress
import socket
import ssl
import time

import made_serving
import pytest

from official_bert.server.gates import Tls
from official_bert.server.request_checks import Limits
from official_bert.server.server import ServerOptions
from official_bert.server.server_config import ServedModelConfig
from official_bert.tools.client import GrpcClient, RestClient, ServingError


def encrypted(demo_root, certificate, **changes):
    return ServerOptions(
        models=[ServedModelConfig(name="demo", base_path=str(demo_root / "demo"))],
        rest_port=0,
        grpc_port=0,
        poll_seconds=0.2,
        drain_seconds=5,
        tls_certificate_file=certificate[0],
        tls_key_file=certificate[1],
        **changes,
    )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Paths of a certificate for this machine and of its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return str(folder / "certificate.pem"), str(folder / "key.pem")


def test_both_protocols_are_encrypted_with_a_certificate(demo_root, certificate):
    with made_serving.embedded(encrypted(demo_root, certificate)) as running:
        assert running.server.ports.addresses().startswith("REST and a page to try it: https://127.0.0.1:")
        url = running.url.replace("http:", "https:")
        for make, where in ((RestClient, url), (GrpcClient, running.target)):
            with make(where, "demo", ca_file=certificate[0]) as client:
                assert client.predict(["abc"])[0]["upper"] == "ABC"
        with RestClient(url, "demo") as client, pytest.raises(ServingError, match="UNAVAILABLE.*certificate"):
            client.predict(["abc"])  # whom nobody vouches for
        with RestClient(running.url, "demo", attempts=1) as client, pytest.raises(ServingError, match="UNAVAILABLE"):
            client.predict(["abc"])  # plain text
        with GrpcClient(running.target, "demo", attempts=1, timeout=5) as client, pytest.raises(ServingError):
            client.predict([{"text": "abc"}])


def test_connections_that_never_agree_upon_tls_give_way_and_end(demo_root, certificate):
    """More of them than connections may be open, half of them sending rubbish; an innocent client beside them is
    served.
    """
    served = encrypted(demo_root, certificate, limits=Limits(max_connections=8, keepalive_seconds=1.0))
    with made_serving.embedded(served) as running, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(running.url.rsplit(":", 1)[1]))
        silent = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(40)]
        for connection in silent[::2]:
            with contextlib.suppress(OSError):  # it gave way already
                connection.sendall(b"\x16\x03\x01\x02\x00" + b"x" * 20)
        with RestClient(running.url.replace("http:", "https:"), "demo", ca_file=certificate[0]) as client:
            assert [client.predict(["abc"])[0]["upper"] for _ in range(3)] == ["ABC"] * 3
        begin = time.monotonic()
        for connection in silent:  # the server closes every one
            with contextlib.suppress(ConnectionResetError):
                while connection.recv(100):
                    pass
        assert time.monotonic() - begin < 9


def test_certificates_that_do_not_fit_are_named(certificate, tmp_path):
    assert Tls.read("", "") is None and isinstance(Tls.read(*certificate).context, ssl.SSLContext)
    (tmp_path / "empty").write_text("")
    for files, message in (
        ((certificate[0], ""), "both"),
        ((certificate[0], str(tmp_path / "none")), "No such file"),
        ((certificate[1], certificate[0]), "expected a certificate and its unencrypted key"),
        ((str(tmp_path / "empty"), certificate[1]), "expected a certificate"),
    ):
        with pytest.raises(ValueError, match=message):
            Tls.read(*files)
