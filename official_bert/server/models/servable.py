"""One version of a SavedModel in memory, loaded by TensorFlow's session loader, as in TF Serving.

The code is independent of BERT: it serves any SavedModel with the tag `serve`. It uses a session and not
`tf.saved_model.load`, because closing a session frees its graph, variables and threads. A server that reloads models
for months needs that.
"""

import dataclasses
import functools
import os
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.runtimes.model_weights import check_saved_model
from official_bert.runtimes.operations import register_operations
from official_bert.runtimes.saved_notes import PADDED_FILE, Padded, read_about, read_labels, read_padded
from official_bert.runtimes.saved_tasks import assets_of
from official_bert.runtimes.split_names import EXAMPLES, FINISH, LENGTHS, ORDER, PARSE, PREPARE, SIZES
from official_bert.server.memory import trim
from official_bert.server.queue.batch_queue import BatchingParameters
from official_bert.server.requests.reading import DEFAULT_SIGNATURE
from official_bert.server.statuses import HTTP_STATUS, RequestError, invalid
from official_bert.server.tensors import Arrays, TensorSpec, check_names
from official_bert.storage.stores import Location, locate

WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
MOST_WARMUP_REQUESTS = 1000
Run = Callable[[Arrays, float | None], dict[str, np.ndarray]]
HEADINGS = ("Graph execution error:", "Detected at node", "Node: ")  # lines of TensorFlow's that say nothing


class Signature:
    """Named inputs and outputs of a SavedModel, and the call that runs them.

    `padded` names the outputs whose second axis is padded to the longest row of a batch. For each it names what gives a
    row's own length: an output with counts (`counted_by`), or an input of the same width (`as_wide_as`). Raises
    KeyError if `padded` names an unknown input or output.
    """

    def __init__(self, name: str, definition: Any, session: tf.compat.v1.Session, padded: Padded | None = None):
        self.name = name
        self.method_name = definition.method_name
        self.inputs = {key: TensorSpec.of(info) for key, info in sorted(definition.inputs.items())}
        self.outputs = {key: TensorSpec.of(info) for key, info in sorted(definition.outputs.items())}
        # Sparse and composite tensors have no single name to feed.
        self.is_dense = bool(self.outputs) and all(
            info.WhichOneof("encoding") == "name"
            for info in [*definition.inputs.values(), *definition.outputs.values()]
        )
        self.is_batched = bool(self.inputs) and all(
            spec.has_rows for spec in [*self.inputs.values(), *self.outputs.values()]
        )
        self._session = session
        self.computed_by: Run | None = None  # in place of the graph (`engines`, `ExampleRun`)
        # for small operations alone, which take less than to hand them to another thread
        self.in_callers_thread = False
        self._counted = {
            output: str(how["counted_by"]) for output, how in (padded or {}).items() if "counted_by" in how
        }
        self._as_wide = {
            output: str(how["as_wide_as"]) for output, how in (padded or {}).items() if "counted_by" not in how
        }
        outputs = [*self._counted, *self._counted.values(), *self._as_wide]
        for places, names in ((self.outputs, outputs), (self.inputs, [*self._as_wide.values()])):
            if missing := [key for key in names if key not in places]:
                raise KeyError(f"{PADDED_FILE}: signature {name} has no {missing[0]}")

    @functools.cached_property
    def _call(self) -> Callable[..., Any] | None:
        """The callable of the session.

        It holds a copy of the graph's constants, so a signature that an engine computes makes none.
        """
        if not self.is_dense:
            return None
        return self._session.make_callable(
            [spec.tensor for spec in self.outputs.values()],
            feed_list=[spec.tensor for spec in self.inputs.values()],
            accept_options=True,
        )

    def without_padding(self, inputs: Arrays, outputs: Arrays) -> dict[str, np.ndarray]:
        """Returns the outputs of one request from a batch, without the padding that longer rows of other requests
        caused.
        """
        widths = {name: int(np.max(outputs[count], initial=0)) for name, count in self._counted.items()}
        widths |= {name: inputs[key].shape[1] for name, key in self._as_wide.items()}
        return {name: array[:, : widths[name]] if name in widths else array for name, array in outputs.items()}

    def run(self, inputs: Arrays, deadline: float | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs for inputs that fit the signature, from the graph or an engine (`computed_by`)."""
        return (self.computed_by or self.run_graph)(inputs, deadline)

    def run_graph(self, inputs: Arrays, deadline: float | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs for inputs that fit the signature. Raises RequestError with TensorFlow's own status.

        A run that is not done at `deadline` (of `time.monotonic`) is cancelled. TensorFlow cancels a loop at its next
        step; other operations run to their end.
        """
        if self._call is None:
            raise RequestError("UNIMPLEMENTED", f'signature "{self.name}" has tensors that are not dense')
        options = tf.compat.v1.RunOptions(inter_op_thread_pool=-1) if self.in_callers_thread else None
        if deadline is not None:
            timeout = int(1000 * (deadline - time.monotonic()))
            if timeout <= 0:
                raise RequestError("DEADLINE_EXCEEDED", "Run() timeout exceeded before the run")
            options = tf.compat.v1.RunOptions(
                timeout_in_ms=timeout, inter_op_thread_pool=-1 if self.in_callers_thread else 0
            )
        try:
            values = self._call(*(inputs[name] for name in self.inputs), options=options)
        except tf.errors.OpError as error:
            raise RequestError(_status_name(error), _first_line(error.message)) from None
        except MemoryError:
            raise RequestError("RESOURCE_EXHAUSTED", "not enough memory for this request") from None
        except RuntimeError:  # the session is closed: a fault of the server
            raise
        except Exception as error:
            # The inputs fit the signature, and still TensorFlow's Python fails over them. For example, it cannot decode
            # its own error message if that quotes bytes of the request.
            raise invalid(f"TensorFlow cannot run this request: {type(error).__name__}") from None
        return dict(zip(self.outputs, map(np.asarray, values)))


@dataclasses.dataclass(frozen=True)
class ExampleRun:
    """Answers serialized Examples: one signature parses them, the default one computes, so weights are stored once."""

    parse: Signature
    answer: Signature

    def __call__(self, inputs: Arrays, deadline: float | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs, and the parsed features that are no inputs.

        Raises RequestError as `Signature.run` does.
        """
        parsed = self.parse.run(inputs, deadline)
        tensors = {name: parsed.pop(name) for name in self.answer.inputs}
        return self.answer.run(tensors, deadline) | parsed


class LoadedGraph:
    """A SavedModel in a session, which several tasks may share. `users` counts them.

    When the last user releases it, the session is closed and a copy of its folder is deleted. Raises OSError or
    ValueError if the folder cannot be loaded.
    """

    def __init__(self, path: str, session_config: tf.compat.v1.ConfigProto | None = None):
        self._location, self.users = locate(path), 0
        self.folder = folder = self._location.fetch()
        self.session = tf.compat.v1.Session(graph=tf.Graph(), config=session_config)
        try:
            register_operations(folder)
            with self.session.graph.as_default():
                meta_graph = tf.compat.v1.saved_model.load(self.session, ["serve"], folder)
            check_saved_model(folder, meta_graph.graph_def, folder)
        except BaseException as error:
            self.session.close()
            raise _as_reported(error, folder) from None
        self.definitions = {
            key: definition
            for key, definition in meta_graph.signature_def.items()
            if not key.startswith("__saved_model")
        }

    def release(self) -> None:
        """Ends the use by one user. After the last one the session is closed, which cancels running requests."""
        self.users -= 1
        if not self.users:
            self.session.close()
            self._location.forget()


class Servable:
    """A loaded version: its signatures by name. Raises OSError or ValueError if the folder cannot be loaded.

    `batching` are the parameters by which its requests share batches; None: each runs alone. `labels` are the names of
    classes in `labels.txt`. `split_signatures` are the internal parts of other signatures. With `task`, the servable is
    that task of the folder, and its signature is the default. `graph` is the graph if it is loaded already.
    """

    def __init__(
        self,
        name: str,
        version: int,
        folder: str,
        session_config: tf.compat.v1.ConfigProto | None = None,
        batching: BatchingParameters | None = None,
        task: str = "",
        graph: LoadedGraph | None = None,
    ):
        self._fetched: list[Location] = []  # whose copies are removed at the end
        self.name, self.version, self.batching, self.task = name, version, batching, task
        assets = assets_of(folder, task)
        self.labels, self.about = read_labels(assets), read_about(assets)
        self.graph: LoadedGraph | None = None
        try:
            self.graph = graph or LoadedGraph(folder, session_config)
            self.graph.users += 1
            definitions = self.graph.definitions
            if task and task not in definitions:
                raise ValueError(f"{folder}: expected the task {task}, got one with {', '.join(definitions)}")
            definitions = {DEFAULT_SIGNATURE: definitions[task]} if task else definitions
            padded = read_padded(assets)
            self.signatures = {
                key: Signature(key, definition, self.graph.session, padded.get(key))
                for key, definition in definitions.items()
            }
            # No client may ask for split signatures: nothing checks what the second takes.
            self.split_signatures = {
                key: self.signatures.pop(key) for key in _names_of_split_signatures(self.signatures)
            }
            if self.signatures.keys() >= {PARSE, EXAMPLES, DEFAULT_SIGNATURE}:
                self.split_signatures[PARSE] = parse = self.signatures.pop(PARSE)
                self.signatures[EXAMPLES].computed_by = ExampleRun(parse, self.signatures[DEFAULT_SIGNATURE])
            for signature in self.split_signatures.values():
                signature.in_callers_thread = True
            self.definitions = {key: definitions[key] for key in self.signatures}
            self.input_specs = {key: signature.inputs for key, signature in self.signatures.items()}
        except BaseException as error:
            self.close()
            raise _as_reported(error, folder) from None

    def fetch(self, path: str) -> str:
        """Returns the path on this machine of a folder beside this version; a copy is deleted with the servable."""
        self._fetched.append(locate(path))
        return self._fetched[-1].fetch()

    def signature(self, name: str) -> Signature:
        """Returns the signature of a name, `serving_default` for "". Raises RequestError for an unknown name."""
        signature = self.signatures.get(name or DEFAULT_SIGNATURE)
        if signature is None:
            raise RequestError("FAILED_PRECONDITION", f'Serving signature key "{name or DEFAULT_SIGNATURE}" not found.')
        return signature

    def warm_up(self, folder: str) -> int:
        """Runs the warm-up requests in `assets.extra`, if any, and returns their number. Raises ValueError if one
        fails.

        At the first run of a signature TensorFlow optimises its graph for seconds, and blocks its other runs. After the
        warm-up that is done.
        """
        from tensorflow_serving.apis import prediction_log_pb2

        path = os.path.join(folder, WARMUP_FILE)
        if not os.path.exists(path):
            return 0
        count = 0
        for record in tf.data.TFRecordDataset(path).take(MOST_WARMUP_REQUESTS).as_numpy_iterator():
            log = prediction_log_pb2.PredictionLog.FromString(record)
            request = log.predict_log.request
            if log.WhichOneof("log_type") == "predict_log" and self.task in ("", request.model_spec.signature_name):
                request.model_spec.signature_name = "" if self.task else request.model_spec.signature_name
                count += 1
                self._warm_up_by(f"{path}: request {count}", request)
        trim()  # TensorFlow's rewriting has left gigabytes of copies of a graph's constants
        return count

    def _warm_up_by(self, place: str, request: Any) -> None:
        try:
            signature = self.signature(request.model_spec.signature_name)
            check_names(signature.inputs, request.inputs)
            signature.run({key: tf.make_ndarray(value) for key, value in request.inputs.items()})
        except RequestError as error:
            raise ValueError(f"{place}: {error.message}") from None

    def close(self) -> None:
        """Frees the memory; running requests are cancelled."""
        if self.graph is not None:
            self.graph.release()
            self.graph = None
        self.signatures = {}
        self.split_signatures = {}
        for location in self._fetched:
            location.forget()


def _as_reported(error: BaseException, folder: str) -> BaseException:
    """Returns the error to raise if a folder cannot be loaded. TensorFlow's errors, and errors about a missing tag,
    tensor or metadata, become a ValueError of one line.
    """
    if isinstance(error, (tf.errors.OpError, RuntimeError, KeyError, TypeError, AttributeError)):
        return ValueError(f"{folder}: {_first_line(getattr(error, 'message', str(error)))}")
    return error


def _names_of_split_signatures(signatures: Mapping[str, Signature]) -> list[str]:
    """Returns the names of signatures that are halves of another one."""
    pairs = [
        (name, FINISH + name.removeprefix(PREPARE))
        for name, signature in signatures.items()
        if name.startswith(PREPARE) and signature.outputs.keys() >= {ORDER, SIZES, LENGTHS}
    ]
    return [name for pair in pairs if pair[1] in signatures for name in pair]


def _status_name(error: tf.errors.OpError) -> str:
    """Returns the gRPC status name of a TensorFlow error; both use the same numbers."""
    names = list(HTTP_STATUS)
    return names[error.error_code - 1] if 0 < error.error_code <= len(names) else "UNKNOWN"


def _first_line(message: str) -> str:
    """Returns the first informative line of a TensorFlow message, without node names and stacks."""
    for line in (message or "").splitlines():
        text = re.sub(r"\{\{.*?\}\}|\(\d+\) [A-Z_]+:", "", line.split("[[{{")[0]).strip()
        if text and not text.startswith(HEADINGS) and not text.endswith("root error(s) found."):
            return text[:500]
    return "no message"
