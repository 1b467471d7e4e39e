"""TF Serving's configuration files (text protocol buffers), read strictly: models, batching, monitoring."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from google.protobuf import text_format

from official_bert.files import read_text
from official_bert.server.batch_queue import BatchingParameters
from official_bert.server.protocols.message_definitions import MessagePool

METRICS_PATH = "/monitoring/prometheus/metrics"
PER_MODEL_BATCHING_FILE = "batching_params.pbtxt"  # in a version's folder, beside saved_model.pb
_NUMBER = ".google.protobuf.Int64Value"
# TF Serving's messages, which its Python package does not hold. Only names and types matter in text form.
_MESSAGES = MessagePool(
    "serving", {
        "BatchingParameters": {
            "max_batch_size": _NUMBER, "batch_timeout_micros": _NUMBER, "max_enqueued_batches": _NUMBER,
            "num_batch_threads": _NUMBER, "thread_pool_name": ".google.protobuf.StringValue",
            "max_execution_batch_size": _NUMBER, "enable_large_batch_splitting": ".google.protobuf.BoolValue",
            "allowed_batch_sizes": "int64*", "pad_variable_length_inputs": "bool"
        }, "MonitoringConfig": {"prometheus_config": "PrometheusConfig"},
        "PrometheusConfig": {"enable": "bool", "path": "string"}
    }, one_of={})


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
            raise ValueError(
                f"{place} ({entry.name}): expected model_platform 'tensorflow', got {entry.model_platform!r}")
        models.append(ServedModelConfig(name=entry.name, base_path=entry.base_path, labels=dict(entry.version_labels),
                                        **_policy(entry.model_version_policy, place)))
    if not models or len({model.name for model in models}) < len(models):
        raise ValueError(f"{path}: expected models of different names, got {[model.name for model in models]}")
    return models


def _policy(policy: Any, place: str) -> dict[str, Any]:
    """Turns a `ServableVersionPolicy` into fields of ServedModelConfig."""
    choice = policy.WhichOneof("policy_choice") or "latest"
    if choice == "specific":
        if not policy.specific.versions:
            raise ValueError(f"{place}: expected versions in its specific policy")
        return {"policy": "specific", "specific": tuple(policy.specific.versions)}
    return {"policy": choice} if choice == "all" else {"latest": max(1, policy.latest.num_versions)}


def read_batching(path: str) -> BatchingParameters:
    """Reads a `--batching_parameters_file`; large requests are split only if it says so. Raises ValueError naming the
    file.
    """
    parsed = _parse(path, _MESSAGES.message_class("BatchingParameters")())
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
    prometheus = _parse(path, _MESSAGES.message_class("MonitoringConfig")()).prometheus_config
    if prometheus.enable and prometheus.path and not prometheus.path.startswith("/"):
        raise ValueError(f"{path}: prometheus_config.path: expected an address from /, got {prometheus.path!r}")
    return (prometheus.path or METRICS_PATH) if prometheus.enable else ""


def _parse(path: str, message: Any) -> Any:
    """Parses a text protocol buffer into `message`."""
    try:
        return text_format.Parse(read_text(path), message)
    except text_format.ParseError as error:
        raise ValueError(f"{path}:{error}") from None
