"""The messages of KServe's V2 protocol (Open Inference Protocol) over gRPC. Source of names and numbers:
`open_inference_grpc.proto`.
"""

import types

from official_bert.server.protocols.message_definitions import Definitions, MessagePool

SERVICE = "inference.GRPCInferenceService"
_NAMED = {"name": "string", "version": "string"}
_TENSOR = {"name": "string", "datatype": "string", "shape": "int64*"}
_DATA = {**_TENSOR, "parameters": "InferParameter{}", "contents": "InferTensorContents"}
MESSAGES: Definitions = types.MappingProxyType(
    {
        "ServerLiveRequest": {},
        "ServerLiveResponse": {"live": "bool"},
        "ServerReadyRequest": {},
        "ServerReadyResponse": {"ready": "bool"},
        "ModelReadyRequest": _NAMED,
        "ModelReadyResponse": {"ready": "bool"},
        "ServerMetadataRequest": {},
        "ServerMetadataResponse": {**_NAMED, "extensions": "string*"},
        "ModelMetadataRequest": _NAMED,
        "TensorMetadata": _TENSOR,
        "ModelMetadataResponse": {
            "name": "string",
            "versions": "string*",
            "platform": "string",
            "inputs": "TensorMetadata*",
            "outputs": "TensorMetadata*",
        },
        "InferParameter": {
            "bool_param": "bool",
            "int64_param": "int64",
            "string_param": "string",
            "double_param": "double",
            "uint64_param": "uint64",
        },
        "InferTensorContents": {
            "bool_contents": "bool*",
            "int_contents": "int32*",
            "int64_contents": "int64*",
            "uint_contents": "uint32*",
            "uint64_contents": "uint64*",
            "fp32_contents": "float*",
            "fp64_contents": "double*",
            "bytes_contents": "bytes*",
        },
        "InferInputTensor": _DATA,
        "InferOutputTensor": _DATA,
        "InferRequestedOutputTensor": {"name": "string", "parameters": "InferParameter{}"},
        "ModelInferRequest": {
            "model_name": "string",
            "model_version": "string",
            "id": "string",
            "parameters": "InferParameter{}",
            "inputs": "InferInputTensor*",
            "outputs": "InferRequestedOutputTensor*",
            "raw_input_contents": "bytes*",
        },
        "ModelInferResponse": {
            "model_name": "string",
            "model_version": "string",
            "id": "string",
            "parameters": "InferParameter{}",
            "outputs": "InferOutputTensor*",
            "raw_output_contents": "bytes*",
        },
    }
)
message_class = MessagePool("inference", MESSAGES, one_of={"InferParameter": "parameter_choice"}).message_class
