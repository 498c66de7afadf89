"""The envelope of every message: msgpack ``{v, id, kind, sent_at, body}``, size-checked before it is parsed.

An order may carry a ``signature`` over its body (:mod:`edge.contracts.signing`); where there is none, no such field.

Unknown version: refused with ``unsupported-version``. Unknown field: ignored. Unknown kind: logged and ignored.
Everything a receiver does is idempotent by (assignment id, message id).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from edge.contracts.codec import build_readers, decode_msgpack, encode_msgpack
from edge.contracts.errors import MessageRejected, UnsupportedVersion

VERSION = 1
MAX_MESSAGE_BYTES = 300_000
"""One bulk block of at most 256 KiB and its envelope; the broker is configured to the same limit."""

T = TypeVar("T")


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message. ``sent_at`` is the sender's wall clock, seconds since 1970, for display only.

    ``body`` is the msgpack of the struct that belongs to ``kind`` (:mod:`edge.contracts.messages`).
    """

    v: int
    id: str
    kind: str
    sent_at: float
    body: msgspec.Raw
    signature: bytes = b""

    def read(self, body: type[T]) -> T:
        """The body as a ``body`` struct.

        Raises:
            MessageRejected: it is not one.
        """
        return decode_msgpack(bytes(self.body), body, limit=MAX_MESSAGE_BYTES)


def seal(
    kind: str,
    body: Any,
    *,
    message_id: str | None = None,
    sent_at: float | None = None,
    sign: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """Bytes of a message of ``kind``; a random id unless a repeated message keeps its own.

    ``sign`` gives the signature of the body's exact bytes.

    Raises:
        MessageRejected: larger than :data:`MAX_MESSAGE_BYTES`; a broker drops it and still acknowledges it.
    """
    packed = encode_msgpack(body)
    envelope = Envelope(
        v=VERSION,
        id=message_id or uuid.uuid4().hex,
        kind=kind,
        sent_at=time.time() if sent_at is None else sent_at,
        body=msgspec.Raw(packed),
        signature=b"" if sign is None else sign(packed),
    )
    data = encode_msgpack(envelope)
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageRejected(f"message '{kind}' of {len(data)} bytes is over {MAX_MESSAGE_BYTES}; send it as blocks")
    return data


def unseal(data: bytes) -> Envelope:
    """The envelope in ``data``.

    Raises:
        UnsupportedVersion: ``v`` is not :data:`VERSION`.
        MessageRejected: too large or malformed.
    """
    if len(data) <= MAX_MESSAGE_BYTES:
        version = decode_msgpack(data, _Version, limit=MAX_MESSAGE_BYTES).v
        if version != VERSION:
            raise UnsupportedVersion(
                f"message version {version}, this release speaks {VERSION}; upgrade the older side"
            )
    return decode_msgpack(data, Envelope, limit=MAX_MESSAGE_BYTES)


class _Version(msgspec.Struct):
    v: int = 0


build_readers(Envelope, _Version)

__all__ = ["MAX_MESSAGE_BYTES", "VERSION", "Envelope", "MessageRejected", "seal", "unseal"]
