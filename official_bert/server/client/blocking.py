"""The clients for programs without asyncio: each runs an asynchronous one in a thread of its own."""

import asyncio
import threading
import weakref
from collections.abc import Coroutine
from typing import Any

from official_bert.server.client.asynchronous import AsyncGrpcClient, AsyncModelClient, AsyncRestClient
from official_bert.server.client.messages import Signatures


class _EventLoop:
    """An event loop in a thread, that runs coroutines for other threads."""

    def __init__(self):
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="model client", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine) -> Any:
        """Returns what the coroutine returns; ends it if this thread is interrupted."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def end(self, closing: Coroutine) -> None:
        """Runs a last coroutine, then ends the thread."""
        self.run(closing)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class ModelClient:
    """One model on one server, by default its highest version. Safe to use from several threads.

    Takes the options of AsyncModelClient.
    """

    def __init__(self, client: AsyncModelClient):
        self.client = client
        self._loop = _EventLoop()
        self._end = weakref.finalize(self, lambda loop: loop.end(client.close()), self._loop)

    def predict(self, rows: Any, signature: str = "") -> Any:
        """Returns the outputs of each row by name, in the order of the rows; of a single row, its outputs.

        Rows and errors are those of `AsyncModelClient.predict`.
        """
        return self._run(self.client.predict(rows, signature))

    def signatures(self) -> Signatures:
        """Returns {signature: {"inputs": {name: dtype}, "outputs": {name: dtype}}}, dtypes as in DT_STRING."""
        return self._run(self.client.signatures())

    def versions(self) -> dict[int, str]:
        """Returns the state of each version that the server knows, as in AVAILABLE."""
        return self._run(self.client.versions())

    def close(self) -> None:
        """Ends the thread and the connections."""
        self._end()

    def _run(self, coroutine: Coroutine) -> Any:
        if not self._end.alive:
            coroutine.close()
            raise ValueError("the client is closed")
        return self._loop.run(coroutine)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class RestClient(ModelClient):
    """Over REST. `url` is the server's, as http://127.0.0.1:8501 or https://models.example.org."""

    def __init__(self, url: str, model: str, **options: Any):
        super().__init__(AsyncRestClient(url, model, **options))


class GrpcClient(ModelClient):
    """Over gRPC with the official stubs. `target` is the server's address, as 127.0.0.1:8500.

    Imports grpc and tensorflow (the protocol's tensors). `credentials` are grpc's; without them or `ca_file`, nothing is encrypted.
    """

    def __init__(self, target: str, model: str, *, credentials: Any = None, **options: Any):
        super().__init__(AsyncGrpcClient(target, model, credentials=credentials, **options))
