"""Messages of protocol buffers from tables of their fields, for protocols whose generated code no package here has."""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2

FIELD = descriptor_pb2.FieldDescriptorProto
# {message: {field: type}}. A field's number is its place, from 1. `*` is a repeated field, `{}` a map of strings to a
# message; names of other messages begin with a capital letter, those of another package with a dot.
Definitions = Mapping[str, Mapping[str, str]]


class MessagePool:
    """The messages of a package, in a pool of their own: a client in the same process may define the same names."""

    def __init__(self, package: str, definitions: Definitions, one_of: Mapping[str, str]):
        """`one_of` has the messages of which one field at most is set, and the name of that choice."""
        self._package, self._pool = package, descriptor_pool.DescriptorPool()
        self._pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
        file = descriptor_pb2.FileDescriptorProto(
            name=f"official_bert/{package}.proto",
            package=package,
            syntax="proto3",
            dependency=[wrappers_pb2.DESCRIPTOR.name],
        )
        for name, fields in definitions.items():
            message = file.message_type.add(name=name)
            if name in one_of:
                message.oneof_decl.add(name=one_of[name])
            for number, (key, kind) in enumerate(fields.items(), 1):
                field = _add_field(message, key, number, kind.rstrip("*{}"), package)
                if kind.endswith("*"):
                    field.label = FIELD.LABEL_REPEATED
                elif kind.endswith("{}"):
                    _make_map(message, field, package)
                if name in one_of:
                    field.oneof_index = 0
        self._pool.Add(file)

    def message_class(self, name: str) -> Any:
        """Returns the class of a message."""
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"{self._package}.{name}"))


def _add_field(message: Any, name: str, number: int, kind: str, package: str) -> Any:
    field = message.field.add(name=name, number=number, label=FIELD.LABEL_OPTIONAL)
    if kind.rpartition(".")[2][0].isupper():
        field.type, field.type_name = FIELD.TYPE_MESSAGE, kind if kind.startswith(".") else f".{package}.{kind}"
    else:
        field.type = getattr(FIELD, f"TYPE_{kind.upper()}")
    return field


def _make_map(message: Any, field: Any, package: str) -> None:
    """Turns a field into a map, as protocol buffers spell maps: a repeated message of a key and a value."""
    entry = message.nested_type.add(name="".join(word.title() for word in field.name.split("_")) + "Entry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, "string", package)
    _add_field(entry, "value", 2, field.type_name, package)
    field.label, field.type_name = FIELD.LABEL_REPEATED, f".{package}.{message.name}.{entry.name}"
