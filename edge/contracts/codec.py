"""Structs to bytes and back: size first, then schema, then content; third-party errors end here."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from edge.contracts.errors import FigureRejected, MessageRejected, UnsupportedVersion

T = TypeVar("T")

_BOUND = re.compile(r"Expected `\w+` (?:of length )?[<>]= ")
_PLACE = re.compile(r"at `(\$(?:\.\w+)+)`$")


def encode_json(value: Any) -> bytes:
    """Canonical JSON of a struct: field order of the struct, dictionaries sorted, no whitespace."""
    return msgspec.json.encode(value, order="deterministic")


def decode_json(data: bytes, kind: type[T], *, schema: str, limit: int) -> T:
    """A ``kind`` from JSON bytes whose ``schema`` field is exactly ``schema``; unknown fields are ignored.

    Raises:
        MessageRejected: over ``limit`` bytes or malformed.
        UnsupportedVersion: the schema is another one.
    """
    check_size(data, limit, what=kind.__name__)
    try:
        head = msgspec.json.decode(data, type=_Schema)
        if head.schema != schema:
            raise UnsupportedVersion(
                f"{kind.__name__} has schema {head.schema!r}, this release reads {schema!r}; upgrade"
            )
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageRejected(f"{kind.__name__} of {len(data)} bytes cannot be read: {error}; send it again") from error


def encode_msgpack(value: Any) -> bytes:
    """Msgpack of a struct or plain value, dictionaries sorted."""
    return msgspec.msgpack.encode(value, order="deterministic")


def decode_msgpack(data: bytes, kind: type[T], *, limit: int) -> T:
    """A ``kind`` from msgpack bytes; unknown fields are ignored.

    Raises:
        FigureRejected: a value out of the bounds that ``kind`` gives it.
        MessageRejected: over ``limit`` bytes or malformed.
    """
    check_size(data, limit, what=kind.__name__)
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        refused = FigureRejected if _BOUND.match(str(error)) else MessageRejected
        raise refused(
            f"{kind.__name__} of {len(data)} bytes cannot be read: {error}{_found(data, str(error))}; send it again"
        ) from error


def _found(data: bytes, error: str) -> str:
    """``, not -5`` for an error that says where a number was expected that ``data`` does not hold."""
    place = _PLACE.search(error)
    if place is None:
        return ""
    try:
        for key in place[1].split(".")[1:]:
            data = msgspec.msgpack.decode(data, type=dict[str, msgspec.Raw])[key]
        return f", not {msgspec.msgpack.decode(data, type=int | float)}"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError):
        return ""


def check_size(data: bytes, limit: int, *, what: str) -> None:
    """Check that ``data`` is at most ``limit`` bytes.

    Raises:
        MessageRejected: it is longer.
    """
    if len(data) > limit:
        raise MessageRejected(f"{what} of {len(data)} bytes is over the limit of {limit}; it was not parsed")


def build_readers(*kinds: type) -> None:
    """Have msgspec learn how ``kinds`` are read, now and not at their first message; call it where they are defined.

    It learns a struct at its first use, and a second thread that needs the same one meanwhile finds it half built:
    measured with msgspec 0.22.0, two threads that read their first device profile at once end with a segmentation
    fault in one of sixteen processes.
    """
    for kind in kinds:
        msgspec.msgpack.Decoder(kind)


class _Schema(msgspec.Struct):
    schema: str = ""


build_readers(_Schema)
