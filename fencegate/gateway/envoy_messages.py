"""The messages of ``envoy.service.auth.v3``, as far as they are looked at or sent: names and numbers of their fields.

The packages that ship all of Envoy are no choice (DESIGN.md tells why): this is a dozen messages.
The numbers are a part of Envoy's stable v3 interface; fields that are not here are skipped, as protobuf has it.
A test holds both directions against an independent package.
"""

from __future__ import annotations

from typing import Any, Final

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
except ImportError as error:
    raise ImportError("the gRPC authorizer needs gRPC: pip install 'fencegate[envoy]'") from error

_PACKAGE: Final = "fencegate.envoy"
_FIELDS: Final = {
    # A map is on the wire what a repeated pair is.
    "Pair": {"key": (1, "string"), "value": (2, "string")},
    "CheckRequest": {"attributes": (1, "AttributeContext")},
    "AttributeContext": {"source": (1, "Peer"), "request": (4, "Asked"), "context_extensions": (10, "*Pair")},
    "Peer": {"principal": (4, "string")},
    "Asked": {"http": (2, "HttpRequest")},
    "HttpRequest": {"method": (2, "string"), "headers": (3, "*Pair"), "path": (4, "string")},
    "CheckResponse": {"status": (1, "Status"), "denied_response": (2, "Denied"), "ok_response": (3, "Ok")},
    "Status": {"code": (1, "int32")},
    "Denied": {"status": (1, "HttpStatus"), "headers": (2, "*HeaderValueOption"), "body": (3, "string")},
    "HttpStatus": {"code": (1, "int32")},
    "Ok": {"headers": (2, "*HeaderValueOption"), "headers_to_remove": (5, "*string")},
    "HeaderValueOption": {"header": (1, "Pair"), "append_action": (3, "int32")},
}
_TYPES: Final = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
}


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="fencegate/envoy.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            bare = kind.removeprefix("*")
            described = message.field.add(name=field, number=number)
            described.label = described.LABEL_REPEATED if bare != kind else described.LABEL_OPTIONAL
            described.type = _TYPES.get(bare, described.TYPE_MESSAGE)
            if bare not in _TYPES:
                described.type_name = f".{_PACKAGE}.{bare}"
    pool = descriptor_pool.DescriptorPool()  # Not the process's own, where another package may have put Envoy's.
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _FIELDS}


_made: Final = _classes()
CheckRequest: Final = _made["CheckRequest"]
CheckResponse: Final = _made["CheckResponse"]
OVERWRITE: Final = 2
"""``append_action``: in the place of a header of that name, or where there is none."""
STATUSES: Final = frozenset(
    (100, *range(200, 209), 226, *range(300, 306), 307, 308, *range(400, 418), *range(421, 425), 426, 428, 429, 431)
) | frozenset((*range(500, 509), 510, 511))
"""The statuses of an answer that Envoy takes."""
