"""Reads TF Serving's configuration files (text protocol buffers): models, batching, monitoring.

Unknown fields are errors.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from google.protobuf import text_format

from official_bert.server.listeners.access import AccessRules
from official_bert.server.protocols.message_definitions import message_classes
from official_bert.server.queue.batch_queue import DEFAULT_PARAMETERS, DEFAULT_RUN_COST, BatchingParameters
from official_bert.server.requests.request_checks import Limits
from official_bert.storage.files import normal, read_text

METRICS_PATH = "/monitoring/prometheus/metrics"
PER_MODEL_BATCHING_FILE = "batching_params.pbtxt"  # in a version's folder, beside saved_model.pb
_message_class = message_classes(__package__, "serving_messages.pbtxt")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServedModelConfig:
    """A served model: its folder of versions, the policy that chooses among them, and labels for some."""

    name: str
    base_path: str
    policy: Literal["latest", "all", "specific"] = "latest"
    latest: int = 1  # so many of the highest
    specific: tuple[int, ...] = ()
    labels: Mapping[str, int] = dataclasses.field(default_factory=dict)
    task: str = ""  # of several in one SavedModel
    on_demand: bool = False  # whether it is loaded when the first request asks for it

    def chosen(self, versions: Iterable[int]) -> list[int]:
        """Returns the versions that the policy chooses among the existing ones, lowest first."""
        numbers = sorted(set(versions))
        if self.policy == "specific":
            return [version for version in numbers if version in self.specific]
        return numbers if self.policy == "all" else numbers[-self.latest :]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The models to serve, addresses, access rules and limits."""

    models: Sequence[ServedModelConfig]
    host: str = "127.0.0.1"  # on other addresses, anyone who reaches the port may ask unless there are tokens
    rest_port: int | None = 8501  # 0: any that is free; None: no REST
    grpc_port: int | None = 8500
    batching: BatchingParameters | None = DEFAULT_PARAMETERS  # None: each request alone
    # only versions with a file of their own (`batching_params.pbtxt`) are batched, by it
    per_model_batching: bool = False
    run_cost: int = DEFAULT_RUN_COST  # bytes of text or numbers of ids; 0: batches are chosen by age and rows alone
    limits: Limits = dataclasses.field(default_factory=Limits)
    default_model: str = ""  # that answers requests which name none; "": the only one
    metrics_path: str = METRICS_PATH
    poll_seconds: float = 1.0  # between looks at the folders of models
    timeout_seconds: float = 30.0  # of a REST request; gRPC requests bring their own
    max_run_seconds: float = 300.0  # of one run of a model, however long its clients wait
    access: AccessRules | None = None  # None: what suits `host`, without tokens
    tls_certificate_file: str = ""  # PEM; both or none, for REST and gRPC
    tls_key_file: str = ""
    access_log: str = ""  # a file; `-`: standard error
    lame_duck_seconds: float = 5.0  # in which it answers after SIGTERM, and says that it is not ready
    drain_seconds: float = 30.0  # for requests under way when the server is stopped
    enable_warmup: bool = True
    intra_op_threads: int = 0  # of TensorFlow; 0: one a core
    inter_op_threads: int = 0
    engine: str = ""  # that computes models (`runtimes`); "": TensorFlow; `auto`: the fastest
    most_loss: float | None = None  # of answers, by engines of less precision among which `auto` chooses; None: none
    cache_dir: str = ""  # where `auto` keeps its choice; "": nowhere


def twin(model: ServedModelConfig, models: Iterable[ServedModelConfig], form: str) -> ServedModelConfig | None:
    """Returns the served model that is the other form (`text`, `ids`) of the same export; None if there is none."""
    folder = os.path.join(os.path.dirname(normal(model.base_path)), form)
    return next((other for other in models if (normal(other.base_path), other.task) == (folder, model.task)), None)


def is_ids_twin(model: ServedModelConfig, models: Iterable[ServedModelConfig]) -> bool:
    """Returns whether a model takes ids and the text form of the same export is served too."""
    return os.path.basename(normal(model.base_path)) == "ids" and twin(model, models, "text") is not None


def each_task(model: ServedModelConfig, tasks: Iterable[str]) -> list[ServedModelConfig]:
    """Returns a served model for each of the tasks in `model`, named by the task (TASK_ids if it takes ids); `[model]`
    if it has no tasks.
    """
    ending = "_ids" if os.path.basename(normal(model.base_path)) == "ids" else ""
    return [dataclasses.replace(model, name=f"{task}{ending}", task=task) for task in tasks] or [model]


def read_models(path: str) -> list[ServedModelConfig]:
    """Returns the models in a `--model_config_file`. Raises ValueError that names the file, and line or model."""
    from tensorflow_serving.config import model_server_config_pb2

    parsed = _parse(path, model_server_config_pb2.ModelServerConfig())
    models = []
    for number, entry in enumerate(parsed.model_config_list.config, 1):
        place = f"{path}: model {number}"
        if not entry.name or not entry.base_path:
            raise ValueError(f"{place}: expected a name and a base_path")
        if entry.model_platform not in ("", "tensorflow"):
            raise ValueError(
                f"{place} ({entry.name}): expected model_platform 'tensorflow', got {entry.model_platform!r}"
            )
        models.append(
            ServedModelConfig(
                name=entry.name,
                base_path=entry.base_path,
                labels=dict(entry.version_labels),
                **_policy(entry.model_version_policy, place),
            )
        )
    if not models or len({model.name for model in models}) < len(models):
        raise ValueError(f"{path}: expected models of different names, got {[model.name for model in models]}")
    return models


def _policy(policy: Any, place: str) -> dict[str, Any]:
    """Returns the fields of ServedModelConfig for a `ServableVersionPolicy`."""
    choice = policy.WhichOneof("policy_choice") or "latest"
    if choice == "specific":
        if not policy.specific.versions:
            raise ValueError(f"{place}: expected versions in its specific policy")
        return {"policy": "specific", "specific": tuple(policy.specific.versions)}
    return {"policy": choice} if choice == "all" else {"latest": max(1, policy.latest.num_versions)}


def read_batching(path: str) -> BatchingParameters:
    """Returns the parameters in a `--batching_parameters_file`. Large requests are split only if the file says so.

    Raises ValueError that names the file.
    """
    parsed = _parse(path, _message_class("BatchingParameters")())
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
    """Returns the path of the metrics in a `--monitoring_config_file`; "" if they are not enabled."""
    prometheus = _parse(path, _message_class("MonitoringConfig")()).prometheus_config
    if prometheus.enable and prometheus.path and not prometheus.path.startswith("/"):
        raise ValueError(f"{path}: prometheus_config.path: expected a path that begins with /, got {prometheus.path!r}")
    return (prometheus.path or METRICS_PATH) if prometheus.enable else ""


def _parse(path: str, message: Any) -> Any:
    """Parses a text protocol buffer into `message`."""
    try:
        return text_format.Parse(read_text(path), message)
    except text_format.ParseError as error:
        raise ValueError(f"{path}:{error}") from None
