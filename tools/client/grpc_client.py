"""The client over gRPC, with TF Serving's own stubs."""

import time
from collections.abc import Sequence
from typing import Any

from official_bert.tools.client.messages import Signatures, fill_inputs, rows_of_proto, signatures_of_proto
from official_bert.tools.client.model_client import ModelClient
from official_bert.tools.client.retries import ServingError

STALE = ("INVALID_ARGUMENT", "FAILED_PRECONDITION")  # codes of a request that was made for other signatures


class GrpcClient(ModelClient):
    """A client over gRPC with the official stubs. `target` is the server's address, such as 127.0.0.1:8500.

    Imports grpc, and tensorflow for the protocol's tensors. `credentials` are grpc's; without them or `ca_file`,
    nothing is encrypted.
    """

    known_signatures: Signatures | None

    def __init__(self, target: str, model: str, *, credentials: Any = None, **options: Any):
        super().__init__(model, **options)
        import grpc

        self._grpc = grpc
        if self.ca_file and credentials is None:
            try:
                with open(self.ca_file, "rb") as file:
                    credentials = grpc.ssl_channel_credentials(file.read())
            except OSError as error:
                raise ValueError(f"ca_file={self.ca_file}: {error.strerror}") from None
        # What is sent again is decided here and not by grpc.
        channel_options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", 100),
        ]
        self._channel = (
            grpc.secure_channel(target, credentials, channel_options)
            if credentials
            else grpc.insecure_channel(target, channel_options)
        )
        self._metadata = tuple((name.lower(), value) for name, value in self.headers.items())

    def _predict_batch(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        signatures = self.known_signatures
        try:
            return self._predict_as_known(rows, signature)
        except (
            ServingError,
            ValueError,
        ) as error:  # perhaps because a newer version has other inputs than the known ones
            if signatures is None or getattr(error, "code", STALE[0]) not in STALE:
                raise
            self.known_signatures = self.signatures()
            if self.known_signatures == signatures:
                raise
        return self._predict_as_known(rows, signature)

    def _predict_as_known(self, rows: Sequence[Any], signature: str) -> list[dict[str, Any]]:
        """Returns the answers to a request whose inputs have the types of the known signatures."""
        from tensorflow_serving.apis import predict_pb2

        request = predict_pb2.PredictRequest()
        request.model_spec.signature_name = signature
        fill_inputs(request, rows, self._names("inputs", signature))
        return rows_of_proto(self._call("PredictionService", "Predict", request), len(rows))

    def signatures(self) -> Signatures:
        from tensorflow_serving.apis import get_model_metadata_pb2

        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        return signatures_of_proto(self._call("PredictionService", "GetModelMetadata", request))

    def versions(self) -> dict[int, str]:
        from tensorflow_serving.apis import get_model_status_pb2

        response = self._call("ModelService", "GetModelStatus", get_model_status_pb2.GetModelStatusRequest())
        return {entry.version: entry.State.Name(entry.state) for entry in response.model_version_status}

    def _disconnect(self) -> None:
        self._channel.close()

    def _call(self, service: str, method: str, request: Any) -> Any:
        """Sends a request, fills its `ModelSpec`, and returns the answer. Raises ServingError."""
        from tensorflow_serving.apis import model_service_pb2_grpc, prediction_service_pb2_grpc

        stubs = {
            "PredictionService": prediction_service_pb2_grpc.PredictionServiceStub,
            "ModelService": model_service_pb2_grpc.ModelServiceStub,
        }
        request.model_spec.name = self.model
        if self.version is not None:
            request.model_spec.version.value = self.version
        if self.label:
            request.model_spec.version_label = self.label
        return self.retry_policy.call(
            lambda deadline: self._send(getattr(stubs[service](self._channel), method), request, deadline)
        )

    def _send(self, method: Any, request: Any, deadline: float) -> Any:
        """Sends a request once."""
        try:
            return method(request, timeout=max(0.0, deadline - time.monotonic()), metadata=self._metadata)
        except self._grpc.RpcError as error:
            raise ServingError(error.code().name, error.details() or "") from None
