"""The files of deploy/ under TF Serving's own schemas and rules (release 2.20.0), and as the embedded server reads
them.

`ModelServerConfig` is in the package tensorflow-serving-api. The other two messages are not: they are described here as
session_bundle_config.proto and monitoring_config.proto describe them.
"""

import fnmatch
import importlib.metadata
import json
import re
import subprocess
import sys

import made_serving
import pytest
import yaml
from absl import flags
from absl.testing import flagsaver
from commands import imported_tool
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2
from tensorflow_serving.config import model_server_config_pb2

from official_bert.server import server_config
from official_bert.server.queue.batching import BatchingParameters
from official_bert.server.server import ServerOptions

FIELD = descriptor_pb2.FieldDescriptorProto
INT64, BOOL, STRING = ".google.protobuf.Int64Value", ".google.protobuf.BoolValue", ".google.protobuf.StringValue"
# message: {field: (number, type, is repeated)}
SCHEMAS = {
    "BatchingParameters": {
        "max_batch_size": (1, INT64, False),
        "batch_timeout_micros": (2, INT64, False),
        "max_enqueued_batches": (3, INT64, False),
        "num_batch_threads": (4, INT64, False),
        "thread_pool_name": (5, STRING, False),
        "enable_large_batch_splitting": (8, BOOL, False),
        "max_execution_batch_size": (9, INT64, False),
        "allowed_batch_sizes": (6, FIELD.TYPE_INT64, True),
        "pad_variable_length_inputs": (7, FIELD.TYPE_BOOL, False),
    },
    "MonitoringConfig": {"prometheus_config": (1, ".tensorflow.serving.PrometheusConfig", False)},
    "PrometheusConfig": {"enable": (1, FIELD.TYPE_BOOL, False), "path": (2, FIELD.TYPE_STRING, False)},
}
# Of main.cc, those that deploy/ may use.
FLAGS = (
    "port",
    "rest_api_port",
    "rest_api_timeout_in_ms",
    "enable_batching",
    "enable_per_model_batching_parameters",
    "batching_parameters_file",
    "model_config_file",
    "model_config_file_poll_wait_seconds",
    "monitoring_config_file",
    "enable_model_warmup",
    "tensorflow_intra_op_parallelism",
    "tensorflow_inter_op_parallelism",
    "enable_grpc_healthcheck_service",
)


@pytest.fixture(scope="module")
def messages():
    """Classes of TF Serving's messages."""
    file = descriptor_pb2.FileDescriptorProto(
        name="schemas.proto", package="tensorflow.serving", syntax="proto3", dependency=[wrappers_pb2.DESCRIPTOR.name]
    )
    for name, fields in SCHEMAS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, is_repeated) in fields.items():
            entry = message.field.add(name=field, number=number, label=3 if is_repeated else 1)
            entry.type = FIELD.TYPE_MESSAGE if isinstance(kind, str) else kind
            if isinstance(kind, str):
                entry.type_name = kind
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.serving.{name}"))
        for name in SCHEMAS
    }


@pytest.fixture(scope="module")
def compose(root):
    return yaml.safe_load((root / "deploy" / "docker-compose.yml").read_text())["services"]


def check_batching(parsed):
    """The rules of WrapSessionForBatching and SharedBatchScheduler::AddQueue."""
    if sizes := list(parsed.allowed_batch_sizes):
        assert sizes == sorted(set(sizes)) and sizes[0] > 0 and sizes[-1] == parsed.max_batch_size.value
    assert parsed.max_enqueued_batches.value > 0 and parsed.batch_timeout_micros.value >= 0
    if parsed.enable_large_batch_splitting.value:
        assert 0 < parsed.max_execution_batch_size.value <= parsed.max_batch_size.value


def as_ours(parsed):
    """The same parameters as the embedded server has them."""
    values = {name: getattr(parsed, name) for name in ("allowed_batch_sizes", "pad_variable_length_inputs")}
    values |= {
        name: getattr(parsed, name).value
        for name in SCHEMAS["BatchingParameters"]
        if name not in values and parsed.HasField(name)
    }
    return BatchingParameters(**{**values, "allowed_batch_sizes": tuple(values["allowed_batch_sizes"])})


def test_batching_holds_to_tf_servings_schema_and_rules(root, messages):
    path = root / "deploy" / "batching.config"
    parsed = text_format.Parse(path.read_text(), messages["BatchingParameters"]())
    check_batching(parsed)
    assert server_config.read_batching(str(path)) == as_ours(parsed)
    assert not parsed.allowed_batch_sizes and (parsed.max_batch_size.value, parsed.max_execution_batch_size.value) == (
        1024,
        32,
    )


def test_the_embedded_server_knows_the_fields_of_tf_servings_messages():
    ours = {name: server_config._message_class(name)() for name in ("BatchingParameters", "MonitoringConfig")}
    for name, message in ours.items():
        assert {
            field.name: (field.message_type.full_name if field.message_type else field.type, field.is_repeated)
            for field in message.DESCRIPTOR.fields
        } == {
            field: (
                kind.replace(".tensorflow.serving.", "serving.").lstrip(".") if isinstance(kind, str) else kind,
                is_repeated,
            )
            for field, (_, kind, is_repeated) in SCHEMAS[name].items()
        }


def test_models_hold_to_tf_servings_schema(root):
    path = root / "deploy" / "models.config"
    parsed = text_format.Parse(path.read_text(), model_server_config_pb2.ModelServerConfig())
    entries = parsed.model_config_list.config
    assert [(entry.name, entry.base_path, entry.model_platform) for entry in entries] == [
        ("small", "/models/small/text", "tensorflow"),
        ("small_ids", "/models/small/ids", "tensorflow"),
    ]
    assert [(model.name, model.base_path) for model in server_config.read_models(str(path))] == [
        (entry.name, entry.base_path) for entry in entries
    ]
    # What stands there as a comment is right too.
    shown = re.sub(r"(?m)^ *# (model_version_policy|version_labels)", r"\1", path.read_text())
    parsed = text_format.Parse(shown, model_server_config_pb2.ModelServerConfig())
    policy = parsed.model_config_list.config[0].model_version_policy.specific
    assert set(parsed.model_config_list.config[0].version_labels.values()) <= set(policy.versions)


def test_monitoring_holds_to_tf_servings_schema(root, messages):
    path = root / "deploy" / "monitoring.config"
    parsed = text_format.Parse(path.read_text(), messages["MonitoringConfig"]())
    assert (
        parsed.prometheus_config.enable and server_config.read_metrics_path(str(path)) == parsed.prometheus_config.path
    )
    prometheus = yaml.safe_load((root / "deploy" / "prometheus.yml").read_text())["scrape_configs"][0]
    assert prometheus["metrics_path"] == parsed.prometheus_config.path
    assert prometheus["static_configs"][0]["targets"] == ["serving:8501"]


def test_compose_gives_flags_that_tf_serving_has_and_files_that_are_there(root, compose):
    program, *arguments = compose["serving"]["entrypoint"]
    assert program == "tensorflow_model_server"
    given = dict(argument.removeprefix("--").partition("=")[::2] for argument in arguments)
    assert set(given) <= set(FLAGS)
    for name, value in given.items():
        if name.endswith("_file"):
            assert (root / "deploy" / value.removeprefix("/config/")).is_file()
    assert {name for name in given if name.endswith("_file")} == {
        f"{name}_file" for name in ("model_config", "batching_parameters", "monitoring_config")
    }
    assert "enable_batching" in given and "enable_per_model_batching_parameters" in given


def test_prometheus_waits_for_a_server_that_answers(compose):
    assert compose["prometheus"]["depends_on"] == {"serving": {"condition": "service_healthy"}}
    assert "9090/-/healthy" in compose["prometheus"]["healthcheck"]["test"][-1]


@pytest.mark.slow
def test_health_checks_hold_for_a_server_that_answers_and_for_none_else(root, compose, tmp_path):
    program, *serving = compose["serving"]["healthcheck"]["test"]
    (embedded,) = re.findall(
        r"^HEALTHCHECK .*\\\n    CMD (\[.*\])$", (root / "deploy/Dockerfile").read_text(), re.MULTILINE
    )
    checks = [serving, [sys.executable, *json.loads(embedded)[1:]]]
    assert program == "CMD" and [check[1] for check in checks] == ["-c", "-c"]

    def statuses(port):
        return [
            subprocess.run(
                [part.replace("8501", str(port)) for part in check], check=False, capture_output=True, timeout=30
            ).returncode
            for check in checks
        ]

    made_serving.write_model(tmp_path, 1)
    options = ServerOptions(
        models=[server_config.ServedModelConfig(name="small", base_path=str(tmp_path))],
        rest_port=0,
        grpc_port=None,
        poll_seconds=0.1,
    )
    with made_serving.embedded(options) as running:
        port = running.server.ports.rest_port
        assert statuses(port) == [0, 0]
    assert 0 not in statuses(port)


def test_the_image_has_what_its_build_reads_and_flags_that_the_command_has(root):
    lines = (root / "deploy/Dockerfile").read_text()
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", lines, re.MULTILINE)
    program, option, module, *arguments = json.loads(entry)
    assert (program, option, module) == ("python", "-m", "official_bert.serve")
    with imported_tool("serve", "official_bert/commands") as serve, flagsaver.flagsaver():
        flags.FLAGS(["serve", *arguments])
        serve.check_flags(flags.FLAGS)
        assert flags.FLAGS.models == "/models" and flags.FLAGS.host == "0.0.0.0"  # which Docker publishes
    assert re.search(r"^USER (?!root)", lines, re.MULTILINE)
    kept = [
        line[1:] for line in (root / "deploy/Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")
    ]
    assert all(list(root.glob(pattern)) for pattern in kept)
    read = ("README.md", "setup.py", "pyproject.toml")
    assert all(any(fnmatch.fnmatch(name, pattern) for pattern in kept) for name in read)


def test_containers_listen_on_this_machine_and_end_on_sigterm(compose):
    assert all(port.startswith("127.0.0.1:") for service in compose.values() for port in service["ports"])
    assert compose["serving"]["init"] is True


def test_the_image_and_tensorflow_text_go_together(compose):
    image = re.fullmatch(r"tensorflow/serving:(\d+\.\d+)\.\d+", compose["serving"]["image"])
    for package in ("tensorflow", "tensorflow-text", "tensorflow-serving-api"):
        assert importlib.metadata.version(package).rsplit(".", 1)[0] == image[1]
    assert all(":" in service["image"] and not service["image"].endswith("latest") for service in compose.values())


def test_exported_parameters_hold_to_the_rules_and_only_single_values_are_batched(messages):
    import tensorflow as tf

    from official_bert.serving.export import batching_parameters

    text, choices, ids = (
        tf.TensorSpec([None] * rank, dtype) for rank, dtype in ((1, tf.string), (2, tf.string), (2, tf.int32))
    )
    for sizes in ((1, 8, 32), (1,), (2000, 4)):
        written = batching_parameters({"text": text, "text_pair": text}, sizes)
        parsed = text_format.Parse(written, messages["BatchingParameters"]())
        check_batching(parsed)
        assert not parsed.allowed_batch_sizes and parsed.max_execution_batch_size.value == max(sizes)
        assert parsed.max_batch_size.value == max(1024, *sizes)
    assert batching_parameters({"text": text, "choices": choices}, (1, 8)) == ""
    assert batching_parameters({"input_ids": ids, "input_mask": ids}, (1, 8)) == ""
