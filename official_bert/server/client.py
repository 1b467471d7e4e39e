"""Clients of TF Serving and of the embedded server: rows in, rows out, over REST or gRPC.

    with RestClient("http://127.0.0.1:8501", "sentiment") as client:
        for answer in client.predict(["a fine film", "two hours of rain"]):
            print(answer["label"], answer["probabilities"])

Long lists are sent in batches, several at a time, and come back in order. Asking a model changes nothing on the server, so
what fails for the moment (no connection, UNAVAILABLE, status 503) is sent again, later and later. The REST client needs
neither TensorFlow nor gRPC.
"""

import abc
import base64
import concurrent.futures
import functools
import json
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import urllib3

from official_bert.server.statuses import HTTP_STATUS

Row = Mapping[str, Any]
FIRST_BACKOFF, LONGEST_BACKOFF = 0.1, 5.0  # seconds
MOST_ATTEMPTS = 5  # gRPC's own retries take no more
# Of the codes that share a status, the commonest.
CODES = {**{status: code for code, status in HTTP_STATUS.items()}, 400: "INVALID_ARGUMENT", 413: "RESOURCE_EXHAUSTED",
         500: "INTERNAL"}


class ServingError(OSError):
    """A request without an answer: `code` is a gRPC status name, over REST too; `message` is the server's."""

    def __init__(self, code: str, message: str):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class ModelClient(abc.ABC):
    """One model on one server, by default its highest version. Safe to use from several threads."""

    def __init__(self, model: str, *, version: int | None = None, label: str = "", batch_size: int = 32, concurrency: int = 4,
                 timeout: float = 30.0, attempts: int = MOST_ATTEMPTS):
        if version is not None and label:
            raise ValueError("expected a version or a label, got both")
        if batch_size < 1 or concurrency < 1 or not 1 <= attempts <= MOST_ATTEMPTS:
            raise ValueError(f"expected batch_size and concurrency of at least 1 and 1 to {MOST_ATTEMPTS} attempts, got "
                             f"{batch_size}, {concurrency} and {attempts}")
        self.model, self.version, self.label = model, version, label
        self.batch_size, self.timeout, self.attempts = batch_size, timeout, attempts
        self._pool = concurrent.futures.ThreadPoolExecutor(concurrency)

    def predict(self, rows: Iterable[Any], signature: str = "") -> list[dict[str, Any]]:
        """The outputs of each row by name, in the order of the rows.

        A row is a mapping of inputs, or the value itself where the signature has one input; bytes are binary data. Raises
        ServingError with the server's status where a batch fails for good.
        """
        rows = list(rows)
        batches = [rows[start:start + self.batch_size] for start in range(0, len(rows), self.batch_size)]
        waiting = [self._pool.submit(self._predict_batch, batch, signature) for batch in batches]
        try:
            return [answer for future in waiting for answer in future.result()]
        finally:
            for future in waiting:
                future.cancel()

    @abc.abstractmethod
    def _predict_batch(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        """The answers to one request."""

    @abc.abstractmethod
    def signatures(self) -> dict[str, dict[str, dict[str, str]]]:
        """{signature: {"inputs": {name: dtype}, "outputs": {name: dtype}}}, dtypes as in DT_STRING."""

    @abc.abstractmethod
    def versions(self) -> dict[int, str]:
        """The state of each version that the server knows, as in AVAILABLE."""

    @functools.cached_property
    def _known_signatures(self) -> dict[str, dict[str, dict[str, str]]]:
        return self.signatures()

    def _names(self, side: str, signature: str) -> dict[str, str]:
        """The inputs or outputs of a signature, with their types."""
        known = self._known_signatures
        if (signature or "serving_default") not in known:
            raise ServingError("FAILED_PRECONDITION", f'Serving signature key "{signature}" not found; there are {sorted(known)}')
        return known[signature or "serving_default"][side]

    def close(self) -> None:
        """Ends the threads and connections."""
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class RestClient(ModelClient):
    """Over REST. `url` is the server's, as http://127.0.0.1:8501."""

    def __init__(self, url: str, model: str, **options: Any):
        super().__init__(model, **options)
        retries = urllib3.Retry(self.attempts - 1, backoff_factor=FIRST_BACKOFF, backoff_max=LONGEST_BACKOFF,
                                backoff_jitter=FIRST_BACKOFF, status_forcelist=(503,), allowed_methods=None,
                                raise_on_status=False)
        self._http = urllib3.PoolManager(maxsize=self._pool._max_workers, retries=retries, timeout=self.timeout)
        chosen = f"/versions/{self.version}" if self.version is not None else ""
        chosen = f"/labels/{urllib.parse.quote(self.label, safe='')}" if self.label else chosen
        self._url = f"{url.rstrip('/')}/v1/models/{urllib.parse.quote(self.model, safe='')}{chosen}"

    def _predict_batch(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        body: dict[str, Any] = {"instances": [_to_json(row) for row in rows]}
        if signature:
            body["signature_name"] = signature
        answers = [_from_json(answer) for answer in self._ask("POST", ":predict", body)["predictions"]]
        if all(isinstance(answer, dict) for answer in answers):
            return answers
        (name,) = self._names("outputs", signature)  # one output comes without its name
        return [{name: answer} for answer in answers]

    def signatures(self) -> dict[str, dict[str, dict[str, str]]]:
        definitions = self._ask("GET", "/metadata")["metadata"]["signature_def"]["signature_def"]
        return {key: {side: {name: info["dtype"] for name, info in definition[side].items()} for side in ("inputs", "outputs")}
                for key, definition in definitions.items()}

    def versions(self) -> dict[int, str]:
        return {int(entry["version"]): entry["state"] for entry in self._ask("GET", "")["model_version_status"]}

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON that the server answers. Raises ServingError."""
        try:
            data = None if body is None else json.dumps(body).encode("utf-8")
            response = self._http.request(method, self._url + path, body=data, headers={"Content-Type": "application/json"})
        except urllib3.exceptions.HTTPError as error:
            reason = getattr(error, "reason", error)  # a refused connection is a kind of timeout for urllib3
            late = (isinstance(reason, urllib3.exceptions.TimeoutError)
                    and not isinstance(reason, urllib3.exceptions.NewConnectionError))
            raise ServingError("DEADLINE_EXCEEDED" if late else "UNAVAILABLE", f"{self._url}: {error}") from None
        try:
            answer = json.loads(response.data)
        except ValueError:
            raise ServingError(CODES.get(response.status, "UNKNOWN"), f"{self._url}: expected JSON, got status "
                                                                      f"{response.status} and {response.data[:80]!r}") from None
        if response.status != 200:
            raise ServingError(CODES.get(response.status, "UNKNOWN"), str(answer.get("error", answer)))
        return answer

    def close(self) -> None:
        super().close()
        self._http.clear()


class GrpcClient(ModelClient):
    """Over gRPC with the official stubs. `target` is the server's address, as 127.0.0.1:8500.

    Imports grpc and tensorflow (the protocol's tensors) when it is made. `credentials` are grpc's; none: no encryption.
    """

    def __init__(self, target: str, model: str, *, credentials: Any = None, **options: Any):
        super().__init__(model, **options)
        import grpc
        import tensorflow as tf
        from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc
        self._grpc, self._tf = grpc, tf
        channel_options: list[tuple[str, Any]] = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        if self.attempts > 1:
            channel_options.append(("grpc.service_config", json.dumps(_service_config(self.attempts))))
        self._channel = (grpc.secure_channel(target, credentials, channel_options) if credentials else
                         grpc.insecure_channel(target, channel_options))
        self._prediction = prediction_service_pb2_grpc.PredictionServiceStub(self._channel)
        self._model_service = model_service_pb2_grpc.ModelServiceStub(self._channel)

    def _predict_batch(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        from tensorflow_serving.apis import predict_pb2
        inputs = self._names("inputs", signature)
        if not all(isinstance(row, Mapping) for row in rows):
            if len(inputs) != 1:
                raise ValueError(f"rows: expected mappings with the inputs {sorted(inputs)}")
            rows = [{next(iter(inputs)): row} for row in rows]
        request = predict_pb2.PredictRequest()
        self._address(request.model_spec)
        request.model_spec.signature_name = signature
        for name in dict.fromkeys(name for row in rows for name in row):
            request.inputs[name].CopyFrom(self._tensor(name, [row.get(name) for row in rows], inputs))
        outputs = self._call(self._prediction.Predict, request).outputs
        arrays = {name: self._tf.make_ndarray(outputs[name]) for name in sorted(outputs)}
        return [{name: _plain(array[index], name) for name, array in arrays.items()} for index in range(len(rows))]

    def _tensor(self, name: str, values: Sequence[Any], inputs: Mapping[str, str]) -> Any:
        """A column as a `TensorProto`; a name that the model does not know is left for it to refuse."""
        dtype = self._tf.as_dtype(inputs[name].removeprefix("DT_").lower()) if name in inputs else None
        try:
            return self._tf.make_tensor_proto([_lists(value) for value in values], dtype)
        except (ValueError, TypeError) as error:
            raise ValueError(f"rows: {name}: expected values of one type and length in a batch: "
                             f"{str(error).splitlines()[0]}") from None

    def signatures(self) -> dict[str, dict[str, dict[str, str]]]:
        from tensorflow.core.framework import types_pb2
        from tensorflow_serving.apis import get_model_metadata_pb2
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        self._address(request.model_spec)
        found = get_model_metadata_pb2.SignatureDefMap()
        self._call(self._prediction.GetModelMetadata, request).metadata["signature_def"].Unpack(found)
        return {key: {side: {name: types_pb2.DataType.Name(info.dtype) for name, info in getattr(definition, side).items()}
                      for side in ("inputs", "outputs")} for key, definition in found.signature_def.items()}

    def versions(self) -> dict[int, str]:
        from tensorflow_serving.apis import get_model_status_pb2
        request = get_model_status_pb2.GetModelStatusRequest()
        self._address(request.model_spec)
        return {entry.version: entry.State.Name(entry.state)
                for entry in self._call(self._model_service.GetModelStatus, request).model_version_status}

    def _address(self, spec: Any) -> None:
        """Fills a `ModelSpec`."""
        spec.name = self.model
        if self.version is not None:
            spec.version.value = self.version
        if self.label:
            spec.version_label = self.label

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=self.timeout)
        except self._grpc.RpcError as error:
            raise ServingError(error.code().name, error.details()) from None

    def close(self) -> None:
        super().close()
        self._channel.close()


def _service_config(attempts: int) -> dict[str, Any]:
    """gRPC's own retries, for all services."""
    return {"methodConfig": [{"name": [{}], "retryPolicy": {
        "maxAttempts": attempts, "initialBackoff": f"{FIRST_BACKOFF}s", "maxBackoff": f"{LONGEST_BACKOFF}s",
        "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]}


def _lists(value: Any) -> Any:
    """Arrays as lists, whose values are checked one by one."""
    if isinstance(value, (list, tuple)):
        return [_lists(item) for item in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def _to_json(value: Any) -> Any:
    """A value as TF Serving's JSON: bytes as b64, arrays as lists."""
    if isinstance(value, Mapping):
        return {name: _to_json(item) for name, item in value.items()}
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray):
        return _to_json(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_to_json(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value


def _from_json(value: Any) -> Any:
    """TF Serving's JSON as values: b64 as bytes."""
    if isinstance(value, dict):
        return base64.b64decode(value["b64"]) if value.keys() == {"b64"} else {
            name: _from_json(item) for name, item in value.items()}
    return [_from_json(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any, name: str) -> Any:
    """A tensor's part as Python's values, as REST gives them: strings decoded unless their name or nature is binary."""
    if isinstance(value, bytes):
        try:
            return value if name.endswith("_bytes") else value.decode("utf-8")
        except UnicodeDecodeError:
            return value
    if isinstance(value, np.ndarray):
        return [_plain(item, name) for item in value] if value.dtype == object else value.tolist()
    return value.item() if isinstance(value, np.generic) else value
