"""The messages of KServe's V2 protocol (Open Inference Protocol) over gRPC."""

from official_bert.server.protocols.message_definitions import message_classes

SERVICE = "inference.GRPCInferenceService"
message_class = message_classes(__package__, "messages.pbtxt")
