"""Makes message classes of protocol buffers from text definitions, for protocols without packaged generated code."""

import importlib.resources
from collections.abc import Callable
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, wrappers_pb2


def message_classes(package: str, file_name: str) -> Callable[[str], Any]:
    """Returns a function from a message's name to its class, for a `FileDescriptorProto` in a file of a package.

    The messages are in a pool of their own, because a client in the same process may define the same names.
    """
    text = importlib.resources.files(package).joinpath(file_name).read_text(encoding="utf-8")
    file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))
