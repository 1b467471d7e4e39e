r"""Serves exported models over REST and gRPC as TF Serving does, with a page to try them.

    python -m official_bert.serve --model_base_path=models/small/text
    python -m official_bert.serve --models=models
    python -m official_bert.serve --model_config_file=deploy/models.config \
        --batching_parameters_file=deploy/batching.config

The paths in deploy/models.config are those of its container. Flags with TF Serving's names have the same meaning.
docs/serving.md lists the interface, its limits and its statuses.
"""

from official_bert.command_line import from_flags, refuse_unread, run_main

import asyncio
import dataclasses
import logging
import os
from typing import TYPE_CHECKING, Any

from absl import flags

from official_bert.runtimes.engines import FORMS
from official_bert.storage.files import exists

if TYPE_CHECKING:
    from official_bert.server.server import ServerOptions
    from official_bert.server.server_config import ServedModelConfig

FLAGS = flags.FLAGS
flags.DEFINE_string("model_base_path", "", "Folder of a model's versions, such as models/NAME/text.")
flags.DEFINE_string("model_name", "default", "The name under which --model_base_path is served.")
flags.DEFINE_string("model_config_file", "", "Several models: TF Serving's model configuration (text).")
flags.DEFINE_string(
    "models",
    "",
    "Several models: every exported model below this folder when the server starts. NAME/text is served as "
    "NAME, NAME/ids as NAME_ids.",
)
flags.DEFINE_string(
    "default_model",
    "",
    "The model that answers requests which name none (/embed, /rerank); empty: the only one that can.",
)
flags.DEFINE_string(
    "host",
    "127.0.0.1",
    "Address to listen on. Anyone who reaches it may send requests: keep it local, or give --api_token_file and TLS.",
)
flags.DEFINE_integer("rest_api_port", 8501, "Port of REST and the page; 0: any free port; -1: none.", -1, 65535)
flags.DEFINE_integer(
    "port",
    -1,
    "Port of gRPC, such as TF Serving's 8500; 0: any free port; -1: none. Keep it to clients that you trust: "
    "a flood of HTTP/2 headers takes 200 MB before it is turned away (SECURITY.md).",
    -1,
    65535,
)
flags.DEFINE_bool("enable_batching", True, "Whether waiting requests run together in one batch.")
flags.DEFINE_string(
    "batching_parameters_file", "", "TF Serving's batching parameters (text); empty: 32 rows, no waiting."
)
flags.DEFINE_bool(
    "enable_per_model_batching_parameters",
    False,
    "Whether each version is batched by its own file, batching_params.pbtxt, and not batched without one.",
)
flags.DEFINE_integer(
    "run_cost",
    512,
    "What starting a run of a model costs, as bytes of text or numbers of ids that it could compute "
    "meanwhile. Waiting requests of similar length share a batch as long as that costs less than running each alone; a "
    "batch is full at 16 times this. 0: the oldest requests share a batch, and only rows are counted.",
    0,
)
flags.DEFINE_string(
    "monitoring_config_file", "", "TF Serving's monitoring configuration (text); empty: metrics at their usual address."
)
flags.DEFINE_float("file_system_poll_wait_seconds", 1.0, "Seconds between checks for new versions.", 0.05)
flags.DEFINE_integer("rest_api_timeout_in_ms", 30000, "The longest that a REST request may take.", 1)
flags.DEFINE_float(
    "max_run_seconds", 300.0, "The longest that one run of a model may take, however long clients wait.", 0.001
)
flags.DEFINE_float(
    "lame_duck_seconds",
    5.0,
    "Time after SIGTERM in which requests are still answered, but /readyz and gRPC health say no, so that balancers "
    "choose other servers.",
    0.0,
)
flags.DEFINE_float("drain_seconds", 30.0, "Time for running requests to finish when the server is stopped.", 0.0)
flags.DEFINE_bool("enable_model_warmup", True, "Whether a new version answers its warm-up requests before it serves.")
flags.DEFINE_integer(
    "tensorflow_intra_op_parallelism", 0, "TensorFlow's threads within an operation; 0: one a core.", 0
)
flags.DEFINE_integer("tensorflow_inter_op_parallelism", 0, "TensorFlow's threads between operations; 0: one a core.", 0)
flags.DEFINE_enum(
    "engine",
    "",
    ["", "auto", *FORMS],
    "What computes the models: ONNX Runtime, LiteRT or OpenVINO, with the files that "
    "run_export --format=saved_model,onnx writes beside a SavedModel, which prepares and finishes the answers. In "
    "float32 these must be its own within 1e-5. auto: the fastest for one text, of those that are there, installed, "
    "and within 1e-4. Empty: the SavedModel alone.",
)
flags.DEFINE_float(
    "most_loss",
    None,
    "The share of answers that engines of less precision may lose, on the texts by which run_export judged them, for "
    "--engine=auto to take one; by default it takes none.",
    0.0,
    1.0,
)
flags.DEFINE_string(
    "cache_dir",
    os.path.join("~", ".cache", "official_bert"),
    "A folder where --engine=auto keeps its choice for a model, processor and runtimes; empty: none.",
)
flags.DEFINE_integer("max_request_bytes", 8 << 20, "The largest request.", 1024)
flags.DEFINE_integer("max_request_rows", 1024, "The most rows (texts) in one request.", 1)
flags.DEFINE_integer(
    "max_request_elements",
    2 << 20,
    "The most numbers in one request, counted by its tensors' declared shapes over all inputs; a string counts as 16.",
    1,
)
flags.DEFINE_integer("max_text_bytes", 256 << 10, "The longest string in a request.", 1)
flags.DEFINE_integer(
    "max_batch_elements",
    8 << 20,
    "The most that runs at once: rows x longest row, numbers or bytes of text. "
    "Larger requests run in parts; a row that is larger is refused.",
    1,
)
flags.DEFINE_integer(
    "max_batch_squares",
    16 << 20,
    "The same for rows x longest row squared, for integer inputs: the cost of attention over ids.",
    1,
)
flags.DEFINE_integer("max_answer_bytes", 64 << 20, "The largest answer to one request.", 1024)
flags.DEFINE_integer("max_concurrent_requests", 256, "The most requests at once; more are refused with status 503.", 1)
flags.DEFINE_integer(
    "max_connections",
    512,
    "Connections of REST, and as many of gRPC. Beyond them, REST's connection that has waited longest without a whole "
    "request gives way; gRPC refuses the new one.",
    1,
)
flags.DEFINE_integer(
    "max_unfinished_bytes",
    256 << 20,
    "The most bytes of bodies that are arriving, and of large requests that wait to be read; more are refused with "
    "status 503.",
    1 << 16,
)
flags.DEFINE_float(
    "keepalive_seconds", 15.0, "Time for a connection to send the header of its first or next request.", 0.01
)
flags.DEFINE_float(
    "body_seconds", 20.0, "Time for the body of a request to arrive, and for a client to read a large answer.", 0.01
)
flags.DEFINE_list(
    "allowed_hosts",
    [],
    "Names that requests may give in their Host header, besides those of this machine. All others are "
    "refused if names are given, or if --host is on this machine (the default).",
)
flags.DEFINE_list(
    "allowed_origins", [], "Other sites whose pages may send requests from a browser, such as https://example.org."
)
flags.DEFINE_string(
    "api_token_file", "", "File of tokens, one per line. With it, requests need Authorization: Bearer TOKEN."
)
flags.DEFINE_string(
    "tls_certificate_file", "", "PEM certificate (chain) of the server, for REST and gRPC; with --tls_key_file."
)
flags.DEFINE_string("tls_key_file", "", "PEM key of --tls_certificate_file.")
flags.DEFINE_string("access_log", "", "File that gets a JSON object for each request; -: standard error; empty: none.")
flags.DEFINE_list(
    "text_inputs",
    ["text", "text_pair", "question", "context", "choices"],
    "Inputs that must be UTF-8; other string inputs may have any bytes.",
)


def main(_: list[str]) -> None:
    """Reads the configuration, then serves until SIGINT or SIGTERM."""
    logging.getLogger("official_bert.server").setLevel(logging.INFO)
    # hides the warning that the session loader, which TF Serving uses too, is old
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    check_flags(FLAGS)
    models = read_served(
        FLAGS.model_name, FLAGS.model_base_path, FLAGS.model_config_file, FLAGS.default_model, FLAGS.models
    )
    from official_bert.server.server import Server

    server = Server(read_options(models, FLAGS))
    asyncio.run(
        server.run(
            lambda started: print(
                f"Serving {', '.join(model.name for model in models)}. {started.ports.addresses()}", flush=True
            )
        )
    )


def check_flags(values: Any) -> None:
    """Raises ValueError for flags that would do nothing beside the others (`values`: absl's `FLAGS`)."""
    if max(values.rest_api_port, values.port) < 0:
        raise ValueError("--rest_api_port, --port: expected a port from 0 for REST, gRPC or both, got -1 twice")
    refuse_unread(
        values,
        [
            (["most_loss", "cache_dir"], values.engine == "auto", "--engine=auto"),
            (
                ["model_name"],
                bool(values.model_base_path or not (values.model_config_file or values.models)),
                "--model_base_path (--model_config_file has the names of its models, --models those of its folders)",
            ),
            (
                ["batching_parameters_file", "enable_per_model_batching_parameters", "run_cost"],
                values.enable_batching,
                "--enable_batching",
            ),
            (
                [
                    "monitoring_config_file",
                    "rest_api_timeout_in_ms",
                    "body_seconds",
                    "allowed_hosts",
                    "allowed_origins",
                    "default_model",
                ],
                values.rest_api_port >= 0,
                "REST (a --rest_api_port from 0)",
            ),
        ],
    )


def read_served(
    model_name: str, model_base_path: str, model_config_file: str, default_model: str = "", folder: str = ""
) -> "list[ServedModelConfig]":
    """Returns the models to serve: one, those of a file, or those below a folder."""
    from official_bert.server.models.version_folders import model_versions, tasks_of, why_no_versions
    from official_bert.server.server_config import each_task, is_ids_twin

    models = _given_models(model_name, model_base_path, model_config_file, folder)
    for model in models:  # checked now, before the seconds that TensorFlow takes to start
        if not model_versions(model.base_path):
            raise ValueError(f"model {model.name}: {why_no_versions(model.base_path)}")
    models = [each for model in models for each in each_task(model, tasks_of(model.base_path))]
    places: dict[str, str] = {}
    for model in models:
        if (other := places.setdefault(model.name, model.base_path)) != model.base_path:
            raise ValueError(
                f"expected different names of models and tasks, got {model.name} twice: {other} and {model.base_path}"
            )
    if folder:  # ids beside text, which would double time and memory
        models = [dataclasses.replace(model, on_demand=is_ids_twin(model, models)) for model in models]
    if default_model and default_model not in (names := [model.name for model in models]):
        raise ValueError(f"--default_model: expected one of {', '.join(names)}, got {default_model!r}")
    return models


def _given_models(
    model_name: str, model_base_path: str, model_config_file: str, folder: str
) -> "list[ServedModelConfig]":
    """Returns the models that the flags name, whatever their tasks."""
    from official_bert.server.models.version_folders import find_models
    from official_bert.server.server_config import ServedModelConfig, read_models

    ways = {"--model_base_path": model_base_path, "--models": folder, "--model_config_file": model_config_file}
    if len(given := [name for name, value in ways.items() if value]) != 1:
        raise ValueError(f"expected one of {', '.join(ways)}, got {' and '.join(given) or 'none'}")
    if model_config_file and not exists(model_config_file):
        raise ValueError(f"--model_config_file={model_config_file}: no such file")
    if model_base_path and (not model_name or set("/:") & set(model_name)):
        raise ValueError(
            f"--model_name: expected a name without / and :, which addresses of REST have around it, got {model_name!r}"
        )
    if model_config_file:
        return read_models(model_config_file)
    paths = find_models(folder) if folder else {model_name: model_base_path}
    return [ServedModelConfig(name=name, base_path=path) for name, path in paths.items()]


def read_options(models: "list[ServedModelConfig]", values: Any) -> "ServerOptions":
    """Reads the server's options from the flags and the files that they name (`values`: absl's `FLAGS`)."""
    from official_bert.server.listeners.access import AccessRules, read_tokens
    from official_bert.server.queue.batch_queue import DEFAULT_PARAMETERS
    from official_bert.server.requests.request_checks import Limits
    from official_bert.server.server_config import METRICS_PATH, ServerOptions, read_batching, read_metrics_path

    batching = None
    if values.enable_batching:
        file = values.batching_parameters_file
        batching = (
            read_batching(file)
            if file
            else dataclasses.replace(
                DEFAULT_PARAMETERS, max_batch_size=max(DEFAULT_PARAMETERS.largest, values.max_request_rows)
            )
        )
    tokens = read_tokens(values.api_token_file) if values.api_token_file else ()
    return from_flags(
        ServerOptions,
        values,
        models=models,
        batching=batching,
        per_model_batching=values.enable_per_model_batching_parameters,
        access=AccessRules.for_server(
            values.host, hosts=values.allowed_hosts, origins=values.allowed_origins, tokens=tokens
        ),
        rest_port=None if values.rest_api_port < 0 else values.rest_api_port,
        grpc_port=None if values.port < 0 else values.port,
        metrics_path=read_metrics_path(values.monitoring_config_file)
        if values.monitoring_config_file
        else METRICS_PATH,
        poll_seconds=values.file_system_poll_wait_seconds,
        timeout_seconds=values.rest_api_timeout_in_ms / 1000,
        enable_warmup=values.enable_model_warmup,
        cache_dir=os.path.expanduser(values.cache_dir),
        intra_op_threads=values.tensorflow_intra_op_parallelism,
        inter_op_threads=values.tensorflow_inter_op_parallelism,
        limits=from_flags(Limits, values, text_inputs=tuple(values.text_inputs)),
    )


if __name__ == "__main__":
    run_main(main)
