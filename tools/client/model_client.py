"""The client of one model. It sends batches of rows, several at once, with `rest_client` or `grpc_client`."""

import abc
import concurrent.futures
from collections.abc import Mapping, Sequence
from typing import Any, Self

from official_bert.tools.client.messages import Signatures
from official_bert.tools.client.retries import RetryPolicy, ServingError
from official_bert.tools.client.rows import as_mappings, needs_input_names


class ModelClient(abc.ABC):
    """One model on one server, by default its highest version. Several threads may use it.

    `timeout` is for all attempts of a request (a batch of `batch_size` rows) together; there are at most `attempts`.
    `headers` go with every request (over gRPC as metadata), `token` as `Authorization: Bearer`. `ca_file` (PEM)
    replaces the system's trusted authorities.
    """

    def __init__(
        self,
        model: str,
        *,
        version: int | None = None,
        label: str = "",
        batch_size: int = 32,
        concurrency: int = 4,
        headers: Mapping[str, str] | None = None,
        token: str = "",
        ca_file: str = "",
        **retries: Any,
    ):
        if version is not None and label:
            raise ValueError("expected a version or a label, got both")
        if batch_size < 1 or concurrency < 1:
            raise ValueError(f"expected batch_size and concurrency of at least 1, got {batch_size} and {concurrency}")
        self.retry_policy = RetryPolicy(**retries)
        self.model, self.version, self.label, self.batch_size = model, version, label, batch_size
        self.headers = {**(headers or {}), **({"Authorization": f"Bearer {token}"} if token else {})}
        self.ca_file = ca_file
        self.known_signatures: Signatures | None = None
        self.is_closed = False
        self._threads = concurrent.futures.ThreadPoolExecutor(concurrency, "model client")

    def predict(self, rows: Any, signature: str = "") -> Any:
        """Returns the outputs of each row by name, in the order of the rows; for a single row, its outputs.

        A row is a mapping of inputs, or the value itself if the signature has one input. If it has several text inputs,
        a row may also be a tuple of them, as for `Predictor`: `("Who wrote it?", "It was written by Ada.")`. Bytes are
        binary data. Rows may be a list, or a pandas frame or series. Raises ServingError with the server's status if a
        batch finally fails, ValueError for rows of another form.
        """
        if self.is_closed:
            raise ValueError("the client is closed")
        if needs_input_names(rows):
            rows = as_mappings(rows, list(self._names("inputs", signature)))
        if isinstance(rows, (str, bytes, Mapping)):
            return self.predict([rows], signature)[0]
        rows = list(rows)
        batches = [
            self._threads.submit(self._predict_batch, rows[start : start + self.batch_size], signature)
            for start in range(0, len(rows), self.batch_size)
        ]
        try:
            for batch in concurrent.futures.as_completed(batches):
                batch.result()  # the first error at once, whichever batch has it
        finally:
            for batch in batches:
                batch.cancel()
        return [answer for batch in batches for answer in batch.result()]

    @abc.abstractmethod
    def _predict_batch(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        """Returns the answers to one request, one for each row. Raises ServingError."""

    @abc.abstractmethod
    def signatures(self) -> Signatures:
        """Returns {signature: {"inputs": {name: dtype}, "outputs": {name: dtype}}}, with dtypes such as DT_STRING."""

    @abc.abstractmethod
    def versions(self) -> dict[int, str]:
        """Returns the state of each version that the server knows, such as AVAILABLE."""

    @abc.abstractmethod
    def _disconnect(self) -> None:
        """Closes the connections, which also ends running requests."""

    def close(self) -> None:
        """Closes the connections. Running requests of other threads end with an error."""
        self.is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._disconnect()

    def _names(self, side: str, signature: str) -> dict[str, str]:
        """Returns the inputs or outputs of a signature, with their types.

        Asks the server if `known_signatures` is None.
        """
        if self.known_signatures is None:
            self.known_signatures = self.signatures()
        signatures = self.known_signatures
        if (signature or "serving_default") not in signatures:
            raise ServingError(
                "FAILED_PRECONDITION", f'Serving signature key "{signature}" not found; there are {sorted(signatures)}'
            )
        return signatures[signature or "serving_default"][side]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
