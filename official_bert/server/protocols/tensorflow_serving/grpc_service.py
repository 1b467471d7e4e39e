"""TF Serving's gRPC services with their official messages: PredictionService and ModelService."""

import contextlib
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import tensorflow as tf
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from official_bert.server.models.model_manager import Version
from official_bert.server.requests.reading import ModelAddress
from official_bert.server.requests.request_handler import Admission, Answer, RequestHandler
from official_bert.server.statuses import RequestError, invalid

LOG = logging.getLogger("official_bert.server")
SIGNATURES = "signature_def"  # the only field of metadata that TF Serving knows


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict and GetModelMetadata.

    Classify, Regress and MultiInference are UNIMPLEMENTED, because Keras 3 exports none.
    """

    def __init__(self, handler: RequestHandler):
        self.handler = handler

    async def Predict(self, data: bytes, context: Any) -> Any:  # noqa: N802  the protocol's name
        """Runs a signature for a serialized `PredictRequest`."""
        async with answering(self.handler, context, "Predict") as (admission, deadline):
            request = await self.handler.reader.read("predict_grpc", data)
            admission.name = name = request.address.name
            async with self.handler.using(*request.address) as servable:
                answer = await self.handler.predict(servable, request, deadline)
            return await answer.written(lambda: _response(name, answer))

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Returns the signatures of a version."""
        async with answering(self.handler, context, "GetModelMetadata", request):
            return (await metadata(self.handler, ModelAddress.of(request.model_spec), request.metadata_field))[0]


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus. HandleReloadConfigRequest is UNIMPLEMENTED, because files configure the models."""

    def __init__(self, handler: RequestHandler):
        self.handler = handler

    async def GetModelStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Returns the versions of a model and their states."""
        async with answering(self.handler, context, "GetModelStatus", request):
            return status(self.handler.statuses(ModelAddress.of(request.model_spec)))


def _response(name: str, answer: Answer) -> Any:
    """Returns a `PredictResponse` with the outputs of an answer."""
    response = predict_pb2.PredictResponse()
    response.model_spec.name, response.model_spec.signature_name = name, answer.signature
    response.model_spec.version.value = answer.version
    for key, array in answer.outputs.items():
        response.outputs[key].CopyFrom(tf.make_tensor_proto(array, shape=array.shape))
    return response


async def metadata(
    handler: RequestHandler, address: ModelAddress, fields: Any = (SIGNATURES,)
) -> tuple[Any, dict[str, Any]]:
    """Returns a `GetModelMetadataResponse`, and the names of classes and notes (`about.json`), for which it has no
    field.

    Raises RequestError for an unknown model or an unknown metadata field.
    """
    if not fields:
        raise invalid("GetModelMetadataRequest must specify at least one metadata_field")
    if unknown := [field for field in fields if field != SIGNATURES]:
        raise invalid(f"Metadata field {unknown[0]} is not supported")
    async with handler.using(*address) as servable:
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.model_spec.name, response.model_spec.version.value = address.name, servable.version
        response.metadata[SIGNATURES].Pack(get_model_metadata_pb2.SignatureDefMap(signature_def=servable.definitions))
        return response, servable.about | ({"labels": servable.labels} if servable.labels else {})


def status(versions: list[Version]) -> Any:
    """Returns a `GetModelStatusResponse` for the versions of a model."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for version in versions:
        entry = response.model_version_status.add(version=version.number, state=version.state)
        entry.status.error_code = 2 if version.error else 0  # UNKNOWN, as TF Serving says of what failed to load
        entry.status.error_message = version.error
    return response


@contextlib.asynccontextmanager
async def answering(
    handler: RequestHandler, context: Any, api: str, request: Any = None
) -> AsyncIterator[tuple[Admission, float | None]]:
    """Counts a request inside the block; yields its admission and its deadline (of `time.monotonic`; None: none).

    Raises RequestError for every failure. After the deadline it is always DEADLINE_EXCEEDED: the client reports this
    status itself, and which of the two comes first is chance.
    """
    seconds = context.time_remaining()
    deadline = None if seconds is None else time.monotonic() + seconds
    try:
        with handler.admitted(
            request.model_spec.name if request is not None else "", api, "GRPC", deadline
        ) as admission:
            if seconds is not None and seconds <= 0:
                raise RequestError("DEADLINE_EXCEEDED", "the deadline was over when the request arrived")
            if request is not None and not request.HasField("model_spec"):
                raise invalid("Missing ModelSpec")
            yield admission, deadline
    except RequestError as error:
        if deadline is not None and time.monotonic() >= deadline:
            raise RequestError("DEADLINE_EXCEEDED", error.message) from None
        raise
    except Exception:
        LOG.exception("gRPC %s", api)
        raise RequestError("INTERNAL", "internal error; the server's log says more") from None
