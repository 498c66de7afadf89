"""Messages that must not be used, each wrong by construction or by its schema, endlessly, from a seed.

A message is made from a sound one of a device with open work and spoilt in one way; the way is told with it. Where a
spoilt message could be sound by chance (a flipped bit in a text), the schema decides, and such a one is not given.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from edge.contracts import topics
from edge.contracts.codec import decode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES, VERSION
from edge.contracts.errors import FigureRejected, MessageRejected
from edge.contracts.messages import BODIES

Spoiler = Callable[[random.Random, str, dict[str, Any]], tuple[str, bytes]]
"""(generator, kind, sound body) -> (topic, payload)."""

BOMBS = (
    b"\xdd\xff\xff\xff\xff",  # an array of 4,294,967,295 entries
    b"\xdf\xff\xff\xff\xff",  # a map of as many
    b"\xc6\xff\xff\xff\xff",  # as many bytes
    b"\xdb\xff\xff\xff\xff",  # a text as long
    b"\x91" * 50_000,  # arrays in arrays
    b"\x81\xa1v" * 20_000,  # maps in maps
    b"\xc9\xff\xff\xff\xff\x05",  # an extension type as long
    b"\xd9\xff",
    b"",
)

WRONG_VALUES: tuple[Any, ...] = (
    None, True, -1, 2**63, 2**64 - 1, -(2**63), 1.5, float("nan"), float("inf"), "", "x", "\0", "../../etc/passwd",
    b"", b"\xff\xfe", [], {}, [[]], {"a": []}, "9" * 64, "a" * 63, "A" * 64, "\ud7ff" * 100,
)  # fmt: skip

WRONG_NAMES = ("", "+", "#", "a/b", "..", "a..b", "-x", "x" * 65, "p\0", "é", " ", "pi-1 ", "PI-1\n")


class Malformed:
    """Endless malformed messages.

    Args:
        bodies: sound bodies by kind, of ``device``, as plain values.
        strangers: plain bodies whose ids belong to nobody or to another device; wrong though of the right form.
    """

    def __init__(
        self,
        federation: str,
        device: str,
        bodies: dict[str, dict[str, Any]],
        strangers: dict[str, list[dict[str, Any]]],
        *,
        seed: int,
    ) -> None:
        self._federation, self._device = federation, device
        self._bodies, self._strangers = bodies, strangers
        self._kinds = sorted(bodies)
        self._draw = random.Random(seed)
        self.ways: dict[str, Spoiler] = {
            "cut off": self._cut_off,
            "bytes behind": self._bytes_behind,
            "bytes changed": self._bytes_changed,
            "another version": self._another_version,
            "another kind": self._another_kind,
            "a wrong topic": self._wrong_topic,
            "a wrong value": self._wrong_value,
            "a field missing": self._field_missing,
            "another's work": self._anothers_work,
            "a bomb": self._bomb,
            "noise": self._noise,
            "too large": self._too_large,
        }
        self._weights = [1 if way == "too large" else 20 for way in self.ways]

    def __iter__(self) -> Iterator[tuple[str, str, bytes]]:
        """(way, topic, payload), without end."""
        ways = list(self.ways)
        while True:
            way = self._draw.choices(ways, self._weights)[0]
            kind = self._draw.choice(self._kinds)
            topic, payload = self.ways[way](self._draw, kind, self._bodies[kind])
            yield way, topic, payload

    def _topic(self, kind: str) -> str:
        return topics.up(self._federation, self._device, kind)

    def _sound(self, kind: str, body: Any, **changes: Any) -> bytes:
        return msgspec.msgpack.encode({"v": VERSION, "id": "1", "kind": kind, "sent_at": 0.5, "body": body, **changes})

    def _cut_off(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        data = self._sound(kind, body)
        return self._topic(kind), data[: draw.randrange(len(data))]

    def _bytes_behind(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        return self._topic(kind), self._sound(kind, body) + draw.randbytes(draw.randint(1, 8))

    def _bytes_changed(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        while True:
            data = bytearray(self._sound(kind, body))
            for _ in range(draw.randint(1, 6)):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            if not is_sound(bytes(data), kind):
                return self._topic(kind), bytes(data)

    def _another_version(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        return self._topic(kind), self._sound(kind, body, v=draw.choice([0, 2, 3, -1, 2**40, "1", None, 1.5, [1]]))

    def _another_kind(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        other = draw.choice([k for k in self._kinds if k != kind])
        return self._topic(other), self._sound(kind, body)

    def _wrong_topic(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        name = draw.choice(WRONG_NAMES)
        topic = draw.choice(
            [
                f"{topics.PREFIX}/{self._federation}/up/{name}/{kind}",
                f"{topics.PREFIX}/{name}/up/{self._device}/{kind}",
                f"{topics.PREFIX}/another/up/{self._device}/{kind}",
                f"{topics.PREFIX}/{self._federation}/dn/{self._device}/{kind}",
                f"{topics.PREFIX}/{self._federation}/up/{self._device}/{kind}/{kind}",
                f"{topics.PREFIX}/{self._federation}/up/{self._device}",
                f"other/v1/{self._federation}/up/{self._device}/{kind}",
                "",
                "/" * draw.randint(1, 60_000),
            ]
        )
        return topic, self._sound(kind, body)

    def _wrong_value(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        while True:
            spoilt = dict(body)
            spoilt[draw.choice(sorted(spoilt))] = draw.choice(WRONG_VALUES)
            data = self._sound(kind, spoilt)
            if not is_sound(data, kind):
                return self._topic(kind), data

    def _field_missing(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        while True:
            spoilt = dict(body)
            for _ in range(draw.randint(1, len(spoilt))):
                del spoilt[draw.choice(sorted(spoilt))]
            data = self._sound(kind, spoilt)
            if not is_sound(data, kind):
                return self._topic(kind), data

    def _anothers_work(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        kind = draw.choice(sorted(self._strangers))
        return self._topic(kind), self._sound(kind, draw.choice(self._strangers[kind]))

    def _bomb(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        bomb = draw.choice(BOMBS)
        if draw.random() < 0.5:
            return self._topic(kind), bomb
        head = self._sound(kind, {})[:-1]  # without the empty body, whose place the bomb takes
        return self._topic(kind), head + bomb

    def _noise(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        return self._topic(kind), draw.randbytes(draw.randint(0, 300))

    def _too_large(self, draw: random.Random, kind: str, body: dict[str, Any]) -> tuple[str, bytes]:
        size = MAX_MESSAGE_BYTES + draw.randint(1, 1000)
        return self._topic(kind), self._sound(kind, {**body, "further": b"x" * size})


def is_sound(data: bytes, kind: str) -> bool:
    """Whether ``data`` is an envelope of this version and of ``kind`` around a body of that kind's form.

    Read with the schema alone, field by field: what a field that nobody knows holds does not matter. A report whose
    form is right and whose figures are not is answered: its assignment is rejected.
    """
    try:
        head = msgspec.msgpack.decode(data, type=_Head)
        decode_msgpack(bytes(head.body), BODIES[kind], limit=MAX_MESSAGE_BYTES)
    except FigureRejected:
        return kind == "report"
    except MessageRejected:
        return False
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return False
    return head.v == VERSION and head.kind == kind


class _Head(msgspec.Struct):
    v: int
    id: str
    kind: str
    sent_at: float
    body: msgspec.Raw
    signature: bytes = b""
