"""The messages of KServe's V2 protocol (Open Inference Protocol) over gRPC, without generated code.

Source of names and numbers: `open_inference_grpc.proto`. A pool of their own keeps them apart from a client's in the same process.
"""

import types
from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

SERVICE = "inference.GRPCInferenceService"
FIELD = descriptor_pb2.FieldDescriptorProto
# A message's fields: name -> number and type; `*` is a repeated field, `{}` a map of strings to a message, other names are messages.
_NAMED = {"name": (1, "string"), "version": (2, "string")}
_TENSOR = {"name": (1, "string"), "datatype": (2, "string"), "shape": (3, "int64*")}
_DATA = {**_TENSOR, "parameters": (4, "InferParameter{}"), "contents": (5, "InferTensorContents")}
MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = types.MappingProxyType({
    "ServerLiveRequest": {}, "ServerLiveResponse": {"live": (1, "bool")},
    "ServerReadyRequest": {}, "ServerReadyResponse": {"ready": (1, "bool")},
    "ModelReadyRequest": _NAMED, "ModelReadyResponse": {"ready": (1, "bool")},
    "ServerMetadataRequest": {}, "ServerMetadataResponse": {**_NAMED, "extensions": (3, "string*")},
    "ModelMetadataRequest": _NAMED,
    "TensorMetadata": _TENSOR,
    "ModelMetadataResponse": {"name": (1, "string"), "versions": (2, "string*"), "platform": (3, "string"),
                              "inputs": (4, "TensorMetadata*"), "outputs": (5, "TensorMetadata*")},
    "InferParameter": {"bool_param": (1, "bool"), "int64_param": (2, "int64"), "string_param": (3, "string"),
                       "double_param": (4, "double"), "uint64_param": (5, "uint64")},
    "InferTensorContents": {"bool_contents": (1, "bool*"), "int_contents": (2, "int32*"), "int64_contents": (3, "int64*"),
                            "uint_contents": (4, "uint32*"), "uint64_contents": (5, "uint64*"), "fp32_contents": (6, "float*"),
                            "fp64_contents": (7, "double*"), "bytes_contents": (8, "bytes*")},
    "InferInputTensor": _DATA, "InferOutputTensor": _DATA,
    "InferRequestedOutputTensor": {"name": (1, "string"), "parameters": (2, "InferParameter{}")},
    "ModelInferRequest": {"model_name": (1, "string"), "model_version": (2, "string"), "id": (3, "string"),
                          "parameters": (4, "InferParameter{}"), "inputs": (5, "InferInputTensor*"),
                          "outputs": (6, "InferRequestedOutputTensor*"), "raw_input_contents": (7, "bytes*")},
    "ModelInferResponse": {"model_name": (1, "string"), "model_version": (2, "string"), "id": (3, "string"),
                           "parameters": (4, "InferParameter{}"), "outputs": (5, "InferOutputTensor*"),
                           "raw_output_contents": (6, "bytes*")}})
ONE_OF = {"InferParameter": "parameter_choice"}  # messages of which one field is set


def _file() -> descriptor_pb2.FileDescriptorProto:
    """Returns the definition of all messages."""
    file = descriptor_pb2.FileDescriptorProto(name="official_bert/open_inference.proto", package="inference", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in ONE_OF:
            message.oneof_decl.add(name=ONE_OF[name])
        for key, (number, kind) in fields.items():
            repeated, element = kind.endswith(("*", "{}")), kind.rstrip("*{}")
            field = message.field.add(name=key, number=number, label=FIELD.LABEL_REPEATED if repeated else FIELD.LABEL_OPTIONAL)
            if name in ONE_OF:
                field.oneof_index = 0
            if kind.endswith("{}"):
                element = f"{name}.{_map_entry(message, key, element)}"
            if element.rpartition(".")[2][0].isupper():
                field.type, field.type_name = FIELD.TYPE_MESSAGE, f".inference.{element}"
            else:
                field.type = getattr(FIELD, f"TYPE_{element.upper()}")
    return file


def _map_entry(message: Any, key: str, element: str) -> str:
    """Adds the message of a map's entries, as protocol buffers spell maps; returns its name."""
    entry = message.nested_type.add(name="".join(part.title() for part in key.split("_")) + "Entry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=FIELD.TYPE_STRING, label=FIELD.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=FIELD.TYPE_MESSAGE, type_name=f".inference.{element}", label=FIELD.LABEL_OPTIONAL)
    return entry.name


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_file())


def message_class(name: str) -> Any:
    """Returns the class of a message of `MESSAGES`."""
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"inference.{name}"))
