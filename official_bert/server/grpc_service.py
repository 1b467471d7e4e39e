"""TF Serving's gRPC services, with the official protocol: PredictionService and ModelService."""

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    get_model_status_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from official_bert.server.model_manager import Version
from official_bert.server.request_checks import read_tensor
from official_bert.server.request_handler import ModelAddress, RequestHandler
from official_bert.server.servable import Signature, check_names
from official_bert.server.statuses import RequestError, invalid

LOG = logging.getLogger("official_bert.server")
SIGNATURES = "signature_def"  # the only field of metadata that TF Serving knows


class PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    """Predict and GetModelMetadata; Classify, Regress and MultiInference answer UNIMPLEMENTED, as Keras 3 exports none."""

    def __init__(self, handler: RequestHandler):
        self.handler = handler

    async def Predict(self, request: Any, context: Any) -> Any:  # noqa: N802  the protocol's name
        """Runs a signature."""
        async with _answering(self.handler, context, request, "Predict"):
            spec = request.model_spec

            def read(signature: Signature):
                check_names(signature, request.inputs)
                return {name: read_tensor(name, proto, self.handler.limits) for name, proto in request.inputs.items()}

            answer = await self.handler.predict(ModelAddress.of(spec), spec.signature_name, read, list(request.output_filter))
            response = predict_pb2.PredictResponse()
            response.model_spec.name, response.model_spec.signature_name = spec.name, answer.signature
            response.model_spec.version.value = answer.version
            for name, array in answer.outputs.items():
                response.outputs[name].CopyFrom(tf.make_tensor_proto(array, shape=array.shape))
            return response

    async def GetModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The signatures of a version."""
        async with _answering(self.handler, context, request, "GetModelMetadata"):
            return metadata(self.handler, ModelAddress.of(request.model_spec), request.metadata_field)


class ModelService(model_service_pb2_grpc.ModelServiceServicer):
    """GetModelStatus; models are configured by files, so HandleReloadConfigRequest answers UNIMPLEMENTED."""

    def __init__(self, handler: RequestHandler):
        self.handler = handler

    async def GetModelStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The versions of a model and their states."""
        async with _answering(self.handler, context, request, "GetModelStatus"):
            return status(self.handler.statuses(ModelAddress.of(request.model_spec)))


def metadata(handler: RequestHandler, address: ModelAddress, fields: Any = (SIGNATURES,)) -> Any:
    """A `GetModelMetadataResponse`. Raises RequestError."""
    if not fields or set(fields) != {SIGNATURES}:
        raise invalid(f"metadata_field: expected {SIGNATURES}, got {list(fields)}")
    version, definitions = handler.definitions(address)
    response = get_model_metadata_pb2.GetModelMetadataResponse()
    response.model_spec.name, response.model_spec.version.value = address.name, version
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, definition in definitions.items():
        signatures.signature_def[name].CopyFrom(definition)
    response.metadata[SIGNATURES].Pack(signatures)
    return response


def status(versions: list[Version]) -> Any:
    """A `GetModelStatusResponse`."""
    response = get_model_status_pb2.GetModelStatusResponse()
    for version in versions:
        entry = response.model_version_status.add(version=version.number, state=version.state)
        entry.status.error_code = 2 if version.error else 0  # UNKNOWN, as TF Serving says of what failed to load
        entry.status.error_message = version.error
    return response


class RefuseGarbage(grpc.aio.ServerInterceptor):
    """Bytes that are no message get INTERNAL, as from TF Serving; grpc.aio would say UNKNOWN and log a stack for each."""

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """The method, made to read its request itself."""
        method = await continuation(details)
        if method is None or method.unary_unary is None:
            return method

        async def answer(data: bytes, context: Any) -> Any:
            try:
                request = method.request_deserializer(data)
            except DecodeError:
                await context.abort(grpc.StatusCode.INTERNAL, f"not a message that {details.method} takes")
            return await method.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(answer, None, method.response_serializer)


@contextlib.asynccontextmanager
async def _answering(handler: RequestHandler, context: Any, request: Any, api: str) -> AsyncIterator[None]:
    """Counts a request; what goes wrong in it becomes a gRPC status, never a broken server."""
    try:
        with handler.admitted(request.model_spec.name, api, "GRPC"):
            yield
    except RequestError as error:
        await context.abort(grpc.StatusCode[error.code], error.message)
    except Exception:
        LOG.exception("gRPC %s", api)
        await context.abort(grpc.StatusCode.INTERNAL, "internal error; the server's log says more")
