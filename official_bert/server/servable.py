"""One version of a SavedModel in memory, loaded by the session loader as TF Serving loads it.

Nothing here knows BERT: any SavedModel with the tag `serve` will do. A session and not `tf.saved_model.load`, because its
graph, variables and threads are given back when it is closed, which a server that reloads for months depends on.
"""

import dataclasses
import os
import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from official_bert.server.batching import BatchingParameters
from official_bert.server.statuses import HTTP_STATUS, RequestError, invalid

DEFAULT_SIGNATURE = "serving_default"
LABELS_FILE = os.path.join("assets", "labels.txt")
MOST_LABEL_BYTES = 1 << 20
WARMUP_FILE = os.path.join("assets.extra", "tf_serving_warmup_requests")
MOST_WARMUP_REQUESTS = 1000
HEADINGS = ("Graph execution error:", "Detected at node")  # lines of TensorFlow's that say nothing
Arrays = Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """An input or output of a signature. `shape` is None for unknown rank, its sizes are None where any will do."""

    tensor: str
    dtype: tf.DType
    shape: tuple[int | None, ...] | None

    @classmethod
    def of(cls, info: Any) -> "TensorSpec":
        """From a `TensorInfo`."""
        shape = info.tensor_shape
        sizes = None if shape.unknown_rank else tuple(None if dim.size < 0 else dim.size for dim in shape.dim)
        return cls(info.name, tf.as_dtype(info.dtype), sizes)

    @property
    def has_rows(self) -> bool:
        """Whether its first axis can be the batch. Unknown rank may be; a run will tell."""
        return self.shape is None or (len(self.shape) > 0 and self.shape[0] is None)

    def __str__(self):
        sizes = "?" if self.shape is None else ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype.name} [{sizes}]"


class Signature:
    """Named inputs and outputs of a SavedModel, and the call that runs them."""

    def __init__(self, name: str, definition: Any, session: tf.compat.v1.Session):
        self.name = name
        self.method_name = definition.method_name
        self.inputs = {key: TensorSpec.of(info) for key, info in sorted(definition.inputs.items())}
        self.outputs = {key: TensorSpec.of(info) for key, info in sorted(definition.outputs.items())}
        # Sparse and composite tensors have no single name to feed.
        self.is_dense = bool(self.outputs) and all(
            info.WhichOneof("encoding") == "name" for info in [*definition.inputs.values(), *definition.outputs.values()])
        self.is_batched = bool(self.inputs) and all(
            spec.has_rows for spec in [*self.inputs.values(), *self.outputs.values()])
        self._call = session.make_callable(
            [spec.tensor for spec in self.outputs.values()], feed_list=[spec.tensor for spec in self.inputs.values()],
            accept_options=True) if self.is_dense else None

    def run(self, inputs: Arrays, deadline: float | None = None) -> dict[str, np.ndarray]:
        """Returns the outputs for inputs that fit the signature. Raises RequestError with TensorFlow's own status.

        A run that is not done at `deadline` (of `time.monotonic`) is cancelled: loops end at their next turn, and what is
        not a loop runs to its end.
        """
        if self._call is None:
            raise RequestError("UNIMPLEMENTED", f'signature "{self.name}" has tensors that are not dense')
        options = None
        if deadline is not None:
            left = int(1000 * (deadline - time.monotonic()))
            if left <= 0:
                raise RequestError("DEADLINE_EXCEEDED", "Run() timeout exceeded before the run")
            options = tf.compat.v1.RunOptions(timeout_in_ms=left)
        try:
            values = self._call(*(inputs[name] for name in self.inputs), options=options)
        except tf.errors.OpError as error:
            raise RequestError(_status_name(error), _first_line(error.message)) from None
        return dict(zip(self.outputs, map(np.asarray, values)))


def check_names(signature: Signature, given: Any) -> None:
    """Refuses inputs that are missing or unknown."""
    wanted, given = set(signature.inputs), set(given)
    if wanted != given:
        raise invalid(f"input size does not match signature: {len(given)}!={len(wanted)} len({{{_names(given)}}}) != "
                      f"len({{{_names(wanted)}}}). Sent extra: {{{_names(given - wanted)}}}. "
                      f"Missing but required: {{{_names(wanted - given)}}}.")


class Servable:
    """A loaded version: its signatures by name. Raises OSError or ValueError if the folder cannot be loaded.

    `batching` are the parameters by which its requests share batches; None: each runs alone. `labels` are the lines of
    `assets/labels.txt`: names that a model's exporter gives to its classes.
    """

    def __init__(self, name: str, version: int, folder: str, session_config: tf.compat.v1.ConfigProto | None = None,
                 batching: BatchingParameters | None = None):
        self.name, self.version, self.batching = name, version, batching
        self.labels = read_labels(folder)
        self._session = tf.compat.v1.Session(graph=tf.Graph(), config=session_config)
        try:
            with self._session.graph.as_default():
                meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], folder)
            self.definitions = {key: value for key, value in meta_graph.signature_def.items()
                                if not key.startswith("__saved_model")}
            self.signatures = {key: Signature(key, value, self._session) for key, value in self.definitions.items()}
        except tf.errors.OpError as error:
            self.close()
            raise ValueError(f"{folder}: {_first_line(error.message)}") from None
        except (RuntimeError, KeyError) as error:  # a tag or a tensor that is not there
            self.close()
            raise ValueError(f"{folder}: {_first_line(str(error))}") from None
        except BaseException:
            self.close()
            raise

    def signature(self, name: str) -> Signature:
        """The signature of a name, `serving_default` for none."""
        found = self.signatures.get(name or DEFAULT_SIGNATURE)
        if found is None:
            raise RequestError("FAILED_PRECONDITION", f'Serving signature key "{name or DEFAULT_SIGNATURE}" not found.')
        return found

    def warm_up(self, folder: str) -> int:
        """Runs the requests in `assets.extra`, if there are any; returns how many. ValueError where one fails."""
        from tensorflow_serving.apis import prediction_log_pb2
        path = os.path.join(folder, WARMUP_FILE)
        if not os.path.exists(path):
            return 0
        count = 0
        for record in tf.data.TFRecordDataset(path).take(MOST_WARMUP_REQUESTS).as_numpy_iterator():
            log = prediction_log_pb2.PredictionLog.FromString(record)
            if log.WhichOneof("log_type") != "predict_log":
                continue
            request = log.predict_log.request
            try:
                signature = self.signature(request.model_spec.signature_name)
                check_names(signature, request.inputs)
                signature.run({key: tf.make_ndarray(value) for key, value in request.inputs.items()})
            except RequestError as error:
                raise ValueError(f"{path}: request {count + 1}: {error.message}") from None
            count += 1
        return count

    def close(self) -> None:
        """Gives the memory back."""
        self._session.close()
        self.signatures = {}


def read_labels(folder: str) -> list[str]:
    """Reads the names of a model's classes; none if there is no such file, or one that is no short list of text."""
    path = os.path.join(folder, LABELS_FILE)
    try:
        if os.path.getsize(path) > MOST_LABEL_BYTES:
            return []
        with open(path, encoding="utf-8") as file:
            return file.read().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError):
        return []


def _names(names: Any) -> str:
    return ",".join(sorted(map(str, names)))


def _status_name(error: tf.errors.OpError) -> str:
    """The gRPC name of a TensorFlow error: TensorFlow's numbers are gRPC's."""
    names = list(HTTP_STATUS)
    return names[error.error_code - 1] if 0 < error.error_code <= len(names) else "UNKNOWN"


def _first_line(message: str) -> str:
    """What TensorFlow says went wrong, without the nodes and stacks around it."""
    for line in (message or "").splitlines():
        text = re.sub(r"\{\{.*?\}\}|\(\d+\) [A-Z_]+:", "", line.split("[[{{")[0]).strip()
        if text and not text.startswith(HEADINGS) and not text.endswith("root error(s) found."):
            return text[:500]
    return "no message"
