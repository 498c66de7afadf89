"""The coordinator's side of the wire as a script: every answer can be changed, withheld or repeated by a scenario.

It sees all that anybody publishes at the broker. What it did not send itself is the agent's, wherever it was published.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from coordinator.conformance.findings import Failed
from edge.contracts import topics
from edge.contracts.envelope import Envelope, seal, unseal
from edge.contracts.errors import MessageRejected
from edge.contracts.messages import BODIES, Ack, Block, Error, Get, Grant, Offer, Put
from edge.contracts.report import TrainReport
from edge.transport.base import Event, Qos, Received, Transport

UPLOAD_BLOCK_BYTES, UPLOAD_WINDOW = 131_072, 4
MAX_BLOCK_BYTES = 262_144


@dataclass(frozen=True)
class Seen:
    """One message that the agent published.

    Attributes:
        body: the struct of its kind, or the sentence why it is none.
        at: seconds on the monotonic clock.
    """

    kind: str
    body: Any
    envelope: Envelope | None
    topic: str
    size: int
    at: float


class Script:
    """Answers in a thread of its own. The attributes are for scenarios to change; :meth:`reset` sets them back.

    Attributes:
        blobs: what ``get`` is answered from, by digest; never reset.
        seen: every message of the agent, in order.
        on_get: the blocks that answer a ``get``; None stands for an error ``unknown-blob``.
        block_bytes, window: of every grant.
        grants: whether offers and puts are answered.
        takes_put: whether a put is taken in; one that is not counts as lost.
        acks: whether reports are acknowledged.
        uploads: what has arrived, by assignment id.
    """

    def __init__(self, transport: Transport, federation: str, device: str) -> None:
        self.blobs: dict[str, bytes] = {}
        self.seen: list[Seen] = []
        self._federation, self._device = federation, device
        self._transport = transport
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._sent: set[bytes] = set()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="script", daemon=True)
        self.reset()

    def reset(self) -> None:
        """Answer as a coordinator does."""
        self.on_get: Callable[[Get], Iterable[Block] | None] = self.blocks
        self.block_bytes, self.window = UPLOAD_BLOCK_BYTES, UPLOAD_WINDOW
        self.grants = self.acks = True
        self.takes_put: Callable[[Put], bool] = lambda put: True
        self.uploads: dict[str, bytearray] = {}
        self._offers: dict[str, Offer] = {}

    def start(self) -> None:
        """Connect.

        Raises:
            BrokerUnreachable: as :meth:`edge.transport.base.Transport.start`; also AccessDenied.
        """
        self._transport.start(self._events.put)
        self._thread.start()

    def stop(self) -> None:
        """Disconnect."""
        self._events.put(None)
        if self._thread.is_alive():
            self._thread.join(5.0)
        self._transport.stop()

    # what is sent

    def send(self, kind: str, body: Any, *, qos: Qos = 1, sign: Callable[[bytes], bytes] | None = None) -> None:
        """Send one message to the device."""
        self.send_bytes(kind, seal(kind, body, sign=sign), qos=qos)

    def send_bytes(self, kind: str, payload: bytes, *, qos: Qos = 1, to_all: bool = False) -> None:
        """Send ``payload`` as it is."""
        everyone, device = topics.everyone(self._federation, kind), topics.down(self._federation, self._device, kind)
        self._sent.add(hashlib.sha256(payload).digest())
        self._transport.publish(everyone if to_all else device, payload, qos=qos)

    def block(self, block: Block) -> None:
        """Send one block."""
        self.send("block", block, qos=0)

    def blocks(self, get: Get) -> list[Block] | None:
        """The honest answer to ``get``."""
        data = self.blobs.get(get.digest)
        if data is None:
            return None
        length = min(max(get.length, 0), MAX_BLOCK_BYTES)
        return [Block(get.digest, get.offset, len(data), data[get.offset : get.offset + length])]

    def grant(self, assignment_id: str, offset: int | None = None) -> None:
        """Say how much of the offered update is here, or that ``offset`` is where to go on."""
        offer = self._offers[assignment_id]
        here = len(self.uploads[assignment_id]) if offset is None else offset
        self.send("grant", Grant(assignment_id, offer.update.digest, here, self.block_bytes, self.window), qos=0)

    def acknowledge(self, assignment_id: str, accepted: bool = True, code: str = "") -> None:
        """Have the agent forget an assignment."""
        self.send("ack", Ack(assignment_id, accepted, code, code))

    # what is seen

    def mark(self) -> int:
        """The place in :attr:`seen` that the next message gets."""
        return len(self.seen)

    def since(self, mark: int, *kinds: str) -> list[Seen]:
        """Messages of ``kinds`` (all where none is named) from ``mark`` on."""
        return [seen for seen in self.seen[mark:] if not kinds or seen.kind in kinds]

    def wait(
        self,
        *kinds: str,
        since: int,
        timeout_s: float,
        where: Callable[[Any], bool] = lambda body: True,
        count: int = 1,
    ) -> Seen:
        """The ``count``-th message of ``kinds`` from ``since`` on that satisfies ``where``.

        Raises:
            Failed: it does not come in time; names what came instead.
        """
        give_up_at = time.monotonic() + timeout_s
        with self._changed:
            while True:
                found = [s for s in self.since(since, *kinds) if not isinstance(s.body, str) and where(s.body)]
                if len(found) >= count:
                    return found[count - 1]
                left_s = give_up_at - time.monotonic()
                if left_s <= 0:
                    wanted = " or ".join(kinds)
                    raise Failed(f"no {wanted} (number {count}) within {timeout_s:g} s; {self.told(since)}")
                self._changed.wait(left_s)

    def told(self, since: int) -> str:
        """What came since ``since``, in a line: kinds, and the words of refusals and errors."""
        words = []
        for seen in self.since(since)[-12:]:
            code = getattr(seen.body, "code", "")
            words.append(f"{seen.kind} {code}".strip())
        return f"came: {', '.join(words) or 'nothing'}"

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            if isinstance(event, Received) and hashlib.sha256(event.payload).digest() not in self._sent:
                self._take(event)

    def _take(self, event: Received) -> None:
        kind, envelope = topics.kind_of(event.topic), None
        try:
            envelope = unseal(event.payload)
            body: Any = envelope.read(BODIES[kind]) if kind in BODIES else f"unknown kind '{kind[:40]}'"
        except MessageRejected as error:
            body = str(error)
        with self._changed:
            self.seen.append(Seen(kind, body, envelope, event.topic, len(event.payload), time.monotonic()))
            self._changed.notify_all()
        self._answer(body)

    def _answer(self, body: Any) -> None:
        match body:
            case Get():
                blocks = self.on_get(body)
                if blocks is None:
                    self.send("error", Error("unknown-blob", f"no blob {body.digest[:12]}", body.digest))
                for block in blocks or ():
                    self.block(block)
            case Offer():
                self._offers[body.assignment_id] = body
                self.uploads.setdefault(body.assignment_id, bytearray())
                if self.grants:
                    self.grant(body.assignment_id)
            case Put() if body.assignment_id in self.uploads and self.takes_put(body):
                here = self.uploads[body.assignment_id]
                if body.offset == len(here):
                    here += body.data
                if self.grants:
                    self.grant(body.assignment_id)
            case TrainReport() if self.acks:
                self.acknowledge(body.assignment_id)
