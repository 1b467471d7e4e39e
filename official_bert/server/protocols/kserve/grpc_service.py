"""KServe's V2 protocol over gRPC: `inference.GRPCInferenceService`."""

from typing import Any

import grpc

from official_bert.server.protocols.kserve.messages import SERVICE, message_class
from official_bert.server.protocols.kserve.rest import EXTENSIONS, metadata
from official_bert.server.protocols.kserve.tensors import DATATYPES, address_of, datatype_of
from official_bert.server.protocols.tensorflow_serving.grpc_service import answering
from official_bert.server.requests.request_handler import Answer, RequestHandler
from official_bert.server.statuses import RequestError
from official_bert.server.tensors import to_bytes, type_name

METHODS = ("ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer")


class InferenceService:
    """The methods of the service. Each request is counted, limited and batched as TF Serving's requests are."""

    def __init__(self, handler: RequestHandler):
        self.handler = handler

    def handlers(self) -> Any:
        """Returns the method handlers to add to a gRPC server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                name: grpc.unary_unary_rpc_method_handler(
                    getattr(self, name),
                    message_class(f"{name}Request").FromString,
                    message_class(f"{name}Response").SerializeToString,
                )
                for name in METHODS
            },
        )

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802  the protocol's names
        """Answers true: the server is alive."""
        return message_class("ServerLiveResponse")(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answers whether every model is ready."""
        return message_class("ServerReadyResponse")(ready=not self.handler.why_not_ready())

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answers whether a model, or a version of it, is ready."""
        async with answering(self.handler, context, "ModelReady"):
            try:
                async with self.handler.using(*address_of(request.name, request.version)):
                    return message_class("ModelReadyResponse")(ready=True)
            except RequestError as error:
                if error.code != "NOT_FOUND":
                    raise
                return message_class("ModelReadyResponse")(ready=False)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answers with the server's name and its extensions of the protocol."""
        return message_class("ServerMetadataResponse")(name="official_bert", version="2", extensions=EXTENSIONS)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answers with a model's versions, inputs and outputs."""
        async with answering(self.handler, context, "ModelMetadata") as (admission, _):
            admission.name = request.name
            return message_class("ModelMetadataResponse")(
                **await metadata(self.handler, address_of(request.name, request.version))
            )

    async def ModelInfer(self, data: bytes, context: Any) -> Any:  # noqa: N802
        """Runs a model for a serialized `ModelInferRequest`."""
        async with answering(self.handler, context, "ModelInfer") as (admission, deadline):
            request = await self.handler.reader.read("kserve_grpc", data)
            admission.name = name = request.address.name
            async with self.handler.using(*request.address) as servable:
                answer = await self.handler.predict(servable, request, deadline)
            return await answer.written(lambda: _response(name, answer, request.more["id"], request.more["raw"]))


def _response(name: str, answer: Answer, identity: str, raw: bool) -> Any:
    """Returns a `ModelInferResponse`.

    Outputs are raw bytes if the inputs were, or if a type has no field for lists of values.
    """
    types = {key: datatype_of(key, array) for key, array in answer.outputs.items()}
    raw = raw or any(datatype in ("FP16", "BF16") for datatype in types.values())
    response = message_class("ModelInferResponse")(model_name=name, model_version=str(answer.version), id=identity)
    for key, array in answer.outputs.items():
        tensor = response.outputs.add(name=key, datatype=types[key], shape=array.shape)
        if raw:
            response.raw_output_contents.append(to_bytes(array))
        else:
            field = DATATYPES[type_name(array)][1]
            getattr(tensor.contents, field).extend(array.ravel().tolist())
    return response
