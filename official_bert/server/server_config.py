"""TF Serving's configuration files (text protocol buffers), read strictly: models, batching, monitoring."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2

from official_bert.files import read_text
from official_bert.server.batch_queue import BatchingParameters

FIELD = descriptor_pb2.FieldDescriptorProto
METRICS_PATH = "/monitoring/prometheus/metrics"
PER_MODEL_BATCHING_FILE = "batching_params.pbtxt"  # in a version's folder, beside saved_model.pb


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedModelConfig:
    """One served model: its folder of versions, the choice among them, and names for some."""

    name: str
    base_path: str
    policy: Literal["latest", "all", "specific"] = "latest"
    latest: int = 1  # so many of the highest
    specific: tuple[int, ...] = ()
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def chosen(self, versions: Iterable[int]) -> list[int]:
        """Chooses among the versions that exist, lowest first."""
        numbers = sorted(set(versions))
        if self.policy == "specific":
            return [version for version in numbers if version in self.specific]
        return numbers if self.policy == "all" else numbers[-self.latest:]


def read_models(path: str) -> list[ServedModelConfig]:
    """Reads a `--model_config_file`. Raises ValueError naming file and line."""
    from tensorflow_serving.config import model_server_config_pb2
    parsed = _parse(path, model_server_config_pb2.ModelServerConfig())
    models = []
    for number, entry in enumerate(parsed.model_config_list.config, 1):
        place = f"{path}: model {number}"
        if not entry.name or not entry.base_path:
            raise ValueError(f"{place}: expected a name and a base_path")
        if entry.model_platform not in ("", "tensorflow"):
            raise ValueError(f"{place} ({entry.name}): expected model_platform 'tensorflow', got {entry.model_platform!r}")
        models.append(ServedModelConfig(name=entry.name, base_path=entry.base_path, labels=dict(entry.version_labels),
                                        **_policy(entry.model_version_policy, place)))
    if not models or len({model.name for model in models}) < len(models):
        raise ValueError(f"{path}: expected models of different names, got {[model.name for model in models]}")
    return models


def _policy(policy: Any, place: str) -> dict[str, Any]:
    """Turns a `ServableVersionPolicy` into fields of ServedModelConfig."""
    kind = policy.WhichOneof("policy_choice") or "latest"
    if kind == "specific":
        if not policy.specific.versions:
            raise ValueError(f"{place}: expected versions in its specific policy")
        return {"policy": "specific", "specific": tuple(policy.specific.versions)}
    return {"policy": kind} if kind == "all" else {"latest": max(1, policy.latest.num_versions)}


def read_batching(path: str) -> BatchingParameters:
    """Reads a `--batching_parameters_file`; large requests are split only if it says so. Raises ValueError naming the file."""
    parsed = _parse(path, _batching_message())
    values: dict[str, Any] = {"enable_large_batch_splitting": False}
    for field in parsed.DESCRIPTOR.fields:
        if field.is_repeated:
            values[field.name] = tuple(getattr(parsed, field.name))
        elif field.message_type is None:
            values[field.name] = getattr(parsed, field.name)
        elif parsed.HasField(field.name):
            values[field.name] = getattr(parsed, field.name).value
    try:
        return BatchingParameters(**values)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_metrics_path(path: str) -> str:
    """Reads the address of the metrics in a `--monitoring_config_file`; empty if they are not enabled."""
    prometheus = _parse(path, _monitoring_message()).prometheus_config
    if prometheus.enable and prometheus.path and not prometheus.path.startswith("/"):
        raise ValueError(f"{path}: prometheus_config.path: expected an address from /, got {prometheus.path!r}")
    return (prometheus.path or METRICS_PATH) if prometheus.enable else ""


def _parse(path: str, message: Any) -> Any:
    """Parses a text protocol buffer into `message`."""
    try:
        return text_format.Parse(read_text(path), message)
    except text_format.ParseError as error:
        raise ValueError(f"{path}:{error}") from None


# The two messages below are TF Serving's; its Python package does not hold them. Only names and types matter in text form.
def _batching_message() -> Any:
    """Makes an empty `BatchingParameters`."""
    number, flag, name = (f".google.protobuf.{kind}" for kind in ("Int64Value", "BoolValue", "StringValue"))
    fields = [("max_batch_size", number), ("batch_timeout_micros", number), ("max_enqueued_batches", number),
              ("num_batch_threads", number), ("thread_pool_name", name), ("max_execution_batch_size", number),
              ("enable_large_batch_splitting", flag)]
    return _make({"BatchingParameters": [
        *(FIELD(name=key, type=FIELD.TYPE_MESSAGE, type_name=kind) for key, kind in fields),
        FIELD(name="allowed_batch_sizes", type=FIELD.TYPE_INT64, label=FIELD.LABEL_REPEATED),
        FIELD(name="pad_variable_length_inputs", type=FIELD.TYPE_BOOL)]})


def _monitoring_message() -> Any:
    """Makes an empty `MonitoringConfig`."""
    return _make({
        "MonitoringConfig": [FIELD(name="prometheus_config", type=FIELD.TYPE_MESSAGE, type_name=".serving.PrometheusConfig")],
        "PrometheusConfig": [FIELD(name="enable", type=FIELD.TYPE_BOOL), FIELD(name="path", type=FIELD.TYPE_STRING)]})


def _make(messages: Mapping[str, Sequence[Any]]) -> Any:
    """Makes an empty message of the first of the types, which are defined by their fields."""
    file = descriptor_pb2.FileDescriptorProto(name="serving.proto", package="serving", syntax="proto3",
                                              dependency=[wrappers_pb2.DESCRIPTOR.name])
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for number, field in enumerate(fields, 1):
            message.field.add().MergeFrom(field)
            message.field[-1].number = number
            message.field[-1].label = field.label or FIELD.LABEL_OPTIONAL
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"serving.{next(iter(messages))}"))()
