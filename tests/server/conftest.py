"""The demo models, and the servers that the same tests are run against."""

import datetime
import ipaddress
import os

import made_serving
import pytest


@pytest.fixture(scope="session")
def demo_root(tmp_path_factory):
    """Models that need no BERT: two versions of demo, and the configuration files to serve them."""
    root = tmp_path_factory.mktemp("served")
    (root / "demo").mkdir()
    for version in (1, 2):
        made_serving.write_model(root / "demo", version)
    made_serving.write_configs(root)
    return root


@pytest.fixture(scope="session", params=["embedded", "tf_serving"])
def server(request, demo_root):
    """Where the demo models are served: here, and by the real server where TF_MODEL_SERVER names it."""
    if request.param == "embedded":
        from official_bert.server import server_config
        from official_bert.server.server import ServerOptions

        options = ServerOptions(
            models=server_config.read_models(str(demo_root / "models.config")),
            rest_port=0,
            grpc_port=0,
            batching=server_config.read_batching(str(demo_root / "batching.config")),
            poll_seconds=0.2,
            drain_seconds=5,
        )
        serving = made_serving.embedded(options)
    else:
        binary = os.environ.get("TF_MODEL_SERVER")
        if not binary:
            pytest.skip(
                "TF_MODEL_SERVER does not name a tensorflow_model_server: apt-get install "
                "tensorflow-model-server, from TensorFlow's repository of packages"
            )
        serving = made_serving.tf_serving(binary, demo_root)
    with serving as running:
        yield running


@pytest.fixture(scope="session")
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
