"""Messages between a process and its children: msgpack behind a length, over a pipe."""

from __future__ import annotations

import struct
from typing import IO

import msgspec

from edge.contracts.errors import MessageRejected

_LENGTH = struct.Struct(">Q")


def write_frame(stream: IO[bytes], message: msgspec.Struct) -> None:
    """Send ``message``.

    Raises:
        BrokenPipeError: the other side is gone.
    """
    write_bytes(stream, msgspec.msgpack.encode(message))


def write_bytes(stream: IO[bytes], data: bytes) -> None:
    """Send a message that is encoded already.

    Raises:
        BrokenPipeError: the other side is gone.
    """
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes], *, limit: int) -> bytes | None:
    """The bytes of the next message; None at the other side's end.

    Raises:
        MessageRejected: a message over ``limit`` bytes.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > limit:
        raise MessageRejected(f"frame of {length} bytes is over {limit}; something else writes to this pipe")
    data = stream.read(length)
    return data if len(data) == length else None
