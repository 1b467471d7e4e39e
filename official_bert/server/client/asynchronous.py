"""The clients for asyncio; the blocking clients use them."""

import abc
import asyncio
import json
import ssl
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from official_bert.server.client import texts
from official_bert.server.client.attempts import Patience, ServingError, persist, read_retry_after
from official_bert.server.client.messages import (
    Signatures,
    fill_inputs,
    from_json,
    rows_of_proto,
    signatures_of_json,
    signatures_of_proto,
    to_json,
    without_rows,
)
from official_bert.server.statuses import HTTP_STATUS

KEEP_ALIVE = 2.0  # seconds that an idle connection is kept: less than servers keep theirs, so none is found closed
STATE_SECONDS = 0.2  # until the state of a channel shows that its connection has broken
STALE = ("INVALID_ARGUMENT", "FAILED_PRECONDITION")  # codes of a request that was made for other signatures
# Of the codes that share a status, the commonest.
CODES = {**{status: code for code, status in HTTP_STATUS.items()}, 400: "INVALID_ARGUMENT", 413: "RESOURCE_EXHAUSTED",
         500: "INTERNAL"}


class AsyncModelClient(abc.ABC):
    """One model on one server, by default its highest version, within one event loop.

    `timeout` counts for all attempts of a request (a batch of `batch_size` rows) together; `repeat_lost` also repeats what
    may have run. `headers` go with every request (over gRPC as metadata), `token` as `Authorization: Bearer`. `ca_file` (PEM)
    holds the authorities to trust in place of the system's.
    """

    def __init__(self, model: str, *, version: int | None = None, label: str = "", batch_size: int = 32, concurrency: int = 4,
                 headers: Mapping[str, str] | None = None, token: str = "", ca_file: str = "", **patience: Any):
        if version is not None and label:
            raise ValueError("expected a version or a label, got both")
        if batch_size < 1 or concurrency < 1:
            raise ValueError(f"expected batch_size and concurrency of at least 1, got {batch_size} and {concurrency}")
        self.patience = Patience(**patience)
        self.model, self.version, self.label, self.batch_size = model, version, label, batch_size
        self.headers = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        self.ca_file = ca_file
        self.known_signatures: Signatures | None = None
        self._places = asyncio.Semaphore(concurrency)

    async def predict(self, rows: Any, signature: str = "") -> Any:
        """Returns the outputs of each row by name, in the order of the rows; of a single row, its outputs.

        A row is a mapping of inputs, or the value itself if the signature has one input; with several inputs of texts also a tuple of
        them, as `Predictor` takes it: `("Who wrote it?", "It was written by Ada.")`. Bytes are binary data. Rows are a list, or a pandas
        frame or series. Raises ServingError with the server's status if a batch fails for good, ValueError for rows in another form.
        """
        if texts.asks_for_names(rows):
            rows = texts.as_mappings(rows, list(await self._names("inputs", signature)))
        if isinstance(rows, (str, bytes, Mapping)):
            return (await self.predict([rows], signature))[0]
        rows = list(rows)
        batches = [rows[start:start + self.batch_size] for start in range(0, len(rows), self.batch_size)]
        waiting = [asyncio.ensure_future(self._predict_in_turn(batch, signature)) for batch in batches]
        try:
            return [answer for batch in await asyncio.gather(*waiting) for answer in batch]
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _predict_in_turn(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        async with self._places:
            answers = await self._predict_batch(rows, signature)
        if len(answers) != len(rows):
            raise without_rows(len(rows), f"{len(answers)} rows")
        return answers

    @abc.abstractmethod
    async def _predict_batch(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        """Returns the answers to one request."""

    @abc.abstractmethod
    async def signatures(self) -> Signatures:
        """Returns {signature: {"inputs": {name: dtype}, "outputs": {name: dtype}}}, dtypes as in DT_STRING."""

    @abc.abstractmethod
    async def versions(self) -> dict[int, str]:
        """Returns the state of each version that the server knows, as in AVAILABLE."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Ends the connections."""

    async def _names(self, side: str, signature: str) -> dict[str, str]:
        """Returns the inputs or outputs of a signature, with their types; the server is asked if `known_signatures` is None."""
        if self.known_signatures is None:
            self.known_signatures = await self.signatures()
        signatures = self.known_signatures
        if (signature or "serving_default") not in signatures:
            raise ServingError("FAILED_PRECONDITION", f'Serving signature key "{signature}" not found; there are {sorted(signatures)}')
        return signatures[signature or "serving_default"][side]

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        await self.close()


class AsyncRestClient(AsyncModelClient):
    """Over REST. `url` is the server's, as http://127.0.0.1:8501 or https://models.example.org."""

    def __init__(self, url: str, model: str, **options: Any):
        super().__init__(model, **options)
        self._tls: ssl.SSLContext | bool = True
        if self.ca_file:
            try:
                self._tls = ssl.create_default_context(cafile=self.ca_file)
            except OSError as error:
                raise ValueError(f"ca_file={self.ca_file}: expected certificates (PEM): {error.strerror or error}") from None
        version_path = f"/versions/{self.version}" if self.version is not None else ""
        version_path = f"/labels/{urllib.parse.quote(self.label, safe='')}" if self.label else version_path
        self._url = f"{url.rstrip('/')}/v1/models/{urllib.parse.quote(self.model, safe='')}{version_path}"
        self._session: aiohttp.ClientSession | None = None

    async def _predict_batch(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        body: dict[str, Any] = {"instances": [to_json(row) for row in rows]}
        if signature:
            body["signature_name"] = signature
        answers = [from_json(answer) for answer in (await self._ask("POST", ":predict", body))["predictions"]]
        if all(isinstance(answer, dict) for answer in answers):
            return answers
        if self.version is None:
            self.known_signatures = None  # a newer version may have answered, and one output comes without its name
        (name,) = await self._names("outputs", signature)
        return [{name: answer} for answer in answers]

    async def signatures(self) -> Signatures:
        return signatures_of_json(await self._ask("GET", "/metadata"))

    async def versions(self) -> dict[int, str]:
        return {int(entry["version"]): entry["state"] for entry in (await self._ask("GET", ""))["model_version_status"]}

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Returns the JSON that the server answers. Raises ServingError."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self.headers, timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
                connector=aiohttp.TCPConnector(ssl=self._tls, keepalive_timeout=KEEP_ALIVE, limit=0))
        data = None if body is None else json.dumps(body).encode("utf-8")
        return await persist(lambda _: self._send_once(method, self._url + path, data), self.patience)

    async def _send_once(self, method: str, url: str, data: bytes | None) -> Any:
        """Sends a request once."""
        assert self._session is not None
        try:
            async with self._session.request(method, url, data=data, allow_redirects=False,
                                             headers={"Content-Type": "application/json"} if data else None) as response:
                status, headers, content = response.status, response.headers, await response.read()
        except aiohttp.ClientSSLError as error:
            raise ServingError("UNAVAILABLE", f"{url}: {error}") from None
        except aiohttp.ClientConnectorError as error:
            raise ServingError("UNAVAILABLE", f"{url}: {error}", is_refused=True) from None
        except aiohttp.ClientError as error:
            raise ServingError("UNAVAILABLE", f"{url}: {error}", is_lost=True) from None
        return _read_answer(url, status, headers, content)


def _read_answer(url: str, status: int, headers: Mapping[str, str], content: bytes) -> Any:
    """Returns the JSON of an answer. Raises ServingError for any status but 200."""
    code, is_refused = CODES.get(status, "UNKNOWN"), status == HTTP_STATUS["UNAVAILABLE"]
    retry_after = read_retry_after(headers.get("Retry-After"))
    try:
        answer = json.loads(content)
    except ValueError:
        raise ServingError(code, f"{url}: expected JSON, got status {status} and {content[:80]!r}", is_refused=is_refused,
                           retry_after=retry_after) from None
    if status != 200:
        message = answer.get("error", answer) if isinstance(answer, dict) else answer
        raise ServingError(code, str(message), is_refused=is_refused, retry_after=retry_after)
    return answer


class AsyncGrpcClient(AsyncModelClient):
    """Over gRPC with the official stubs. `target` is the server's address, as 127.0.0.1:8500.

    Imports grpc and tensorflow (the protocol's tensors). `credentials` are grpc's; without them or `ca_file`, nothing is encrypted.
    """

    def __init__(self, target: str, model: str, *, credentials: Any = None, **options: Any):
        super().__init__(model, **options)
        import grpc
        self._grpc, self._target, self._credentials, self._channel = grpc, target, credentials, None
        if self.ca_file and credentials is None:
            try:
                with open(self.ca_file, "rb") as file:
                    self._credentials = grpc.ssl_channel_credentials(file.read())
            except OSError as error:
                raise ValueError(f"ca_file={self.ca_file}: {error.strerror}") from None
        self._metadata = tuple((name.lower(), value) for name, value in self.headers.items())

    async def _predict_batch(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        signatures = self.known_signatures
        try:
            return await self._predict_as_known(rows, signature)
        except (ServingError, ValueError) as error:  # perhaps because a newer version has other inputs than the known ones
            if signatures is None or getattr(error, "code", STALE[0]) not in STALE:
                raise
            self.known_signatures = await self.signatures()
            if self.known_signatures == signatures:
                raise
        return await self._predict_as_known(rows, signature)

    async def _predict_as_known(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        """Returns the answers to a request in the types of the known inputs."""
        from tensorflow_serving.apis import predict_pb2
        request = predict_pb2.PredictRequest()
        self._address(request.model_spec)
        request.model_spec.signature_name = signature
        fill_inputs(request, rows, await self._names("inputs", signature))
        return rows_of_proto(await self._call("PredictionService", "Predict", request), len(rows))

    async def signatures(self) -> Signatures:
        from tensorflow_serving.apis import get_model_metadata_pb2
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        self._address(request.model_spec)
        return signatures_of_proto(await self._call("PredictionService", "GetModelMetadata", request))

    async def versions(self) -> dict[int, str]:
        from tensorflow_serving.apis import get_model_status_pb2
        request = get_model_status_pb2.GetModelStatusRequest()
        self._address(request.model_spec)
        response = await self._call("ModelService", "GetModelStatus", request)
        return {entry.version: entry.State.Name(entry.state) for entry in response.model_version_status}

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close()

    def _address(self, spec: Any) -> None:
        """Fills a `ModelSpec`."""
        spec.name = self.model
        if self.version is not None:
            spec.version.value = self.version
        if self.label:
            spec.version_label = self.label

    def _connect(self) -> Any:
        """Returns the channel, made by the first request; what is sent again is decided here and not by grpc."""
        if self._channel is None:
            options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1),
                       ("grpc.initial_reconnect_backoff_ms", 100)]
            self._channel = (self._grpc.aio.secure_channel(self._target, self._credentials, options) if self._credentials else
                             self._grpc.aio.insecure_channel(self._target, options))
        return self._channel

    async def _call(self, service: str, method: str, request: Any) -> Any:
        """Returns the answer to a call. Raises ServingError."""
        from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc
        stubs = {"PredictionService": prediction_service_pb2_grpc.PredictionServiceStub,
                 "ModelService": model_service_pb2_grpc.ModelServiceStub}
        channel = self._connect()
        return await persist(lambda seconds: self._send_once(channel, getattr(stubs[service](channel), method), request, seconds),
                             self.patience)

    async def _send_once(self, channel: Any, method: Any, request: Any, seconds: float) -> Any:
        """Sends a request once, on a connection that stands: then a broken one means that the request may have run."""
        states = self._grpc.ChannelConnectivity
        while (state := channel.get_state(try_to_connect=True)) != states.READY:
            if state in (states.TRANSIENT_FAILURE, states.SHUTDOWN):
                raise ServingError("UNAVAILABLE", f"{self._target}: cannot connect", is_refused=state != states.SHUTDOWN)
            await channel.wait_for_state_change(state)
        try:
            return await method(request, timeout=seconds, metadata=self._metadata)
        except self._grpc.aio.AioRpcError as error:
            is_refused = is_lost = False
            if error.code() == self._grpc.StatusCode.UNAVAILABLE:
                is_lost = await self._is_broken(channel)
                is_refused = not is_lost
            raise ServingError(error.code().name, error.details() or "", is_refused=is_refused, is_lost=is_lost) from None

    async def _is_broken(self, channel: Any) -> bool:
        """Whether the connection has broken: gRPC tells its calls, and some milliseconds later the channel's state shows it."""
        try:
            async with asyncio.timeout(STATE_SECONDS):
                await channel.wait_for_state_change(self._grpc.ChannelConnectivity.READY)
            return True
        except TimeoutError:
            return False
