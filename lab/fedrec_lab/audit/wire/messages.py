"""Recorded messages taken apart by their descriptors, unknown fields included."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

import fedrec.wire.v1

__all__ = ["Leaf", "Value", "leaves", "parse"]

Value = bytes | str | int | float
"""What a single field holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One value of a message.

    Attributes:
        name: `Message.field`; `Message.<field 99>` where the descriptor does not know it.
        top: the field of the outermost message that it came under, empty for its own.
    """

    name: str
    value: Value
    top: str = ""


def parse(method: str, *, is_request: bool, raw: bytes) -> Any | None:
    """Return the message of a call; None where the method is not ours or the bytes are damaged.

    Args:
        method: as gRPC names it, such as `/package.Service/Method`.
    """
    kinds = _methods().get(method)
    if kinds is None:
        return None
    try:
        return kinds[0 if is_request else 1].FromString(raw)
    except DecodeError:
        return None


def leaves(message: Any, top: str = "") -> Iterator[Leaf]:
    """Yield every value that a message holds, however deep, and every field it should not have."""
    name = message.DESCRIPTOR.name
    for field, value in message.ListFields():
        values = value if field.is_repeated else (value,)
        for one in values:
            if field.message_type is None:
                yield Leaf(name=f"{name}.{field.name}", value=one, top=top)
            else:
                yield from leaves(one, top or field.name)
    for unknown in UnknownFieldSet(message):
        data = unknown.data
        known: Value = data if isinstance(data, (bytes, int)) else str(data)
        yield Leaf(name=f"{name}.<field {unknown.field_number}>", value=known, top=top)


@cache
def _methods() -> dict[str, tuple[Any, Any]]:
    """Return by method the classes of its requests and responses."""
    return {
        f"/{service.full_name}/{method.name}": (
            GetMessageClass(method.input_type),
            GetMessageClass(method.output_type),
        )
        for file in _files()
        for service in file.services_by_name.values()
        for method in service.methods
    }


def _files() -> list[Any]:
    """Return the descriptors of all files of the protocol."""
    path = fedrec.wire.v1.__path__
    names = [entry.name for entry in pkgutil.iter_modules(path) if entry.name.endswith("_pb2")]
    return [importlib.import_module(f"fedrec.wire.v1.{name}").DESCRIPTOR for name in names]
