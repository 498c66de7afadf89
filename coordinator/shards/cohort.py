"""Who is there, through the ledger: written by whoever holds a device's shard, read by the coordinator that leads.

What a member is, and who of them can take part, is :mod:`coordinator.messaging.cohort`'s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from coordinator.ledger.coordination import Presence
from coordinator.ledger.ledger import Ledger
from coordinator.messaging.cohort import PRESENCE_S, Cohort, Member
from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.errors import ApportionError, LedgerError
from edge.contracts.messages import Heartbeat, Hello

log = logging.getLogger("apportion.coordinator")

READ_S = 0.25
"""How often the leader looks who has come and gone."""

OVERLAP_S = 3.0
"""A presence may be seen so long after its time: it was given in a transaction that waited."""

REST = 4.0
"""Times as long as a read took until the next one: of thousands of devices it takes a while, and rounds compute."""

WHOLE_S = 15.0
"""How often the leader reads all presences, whatever was late."""


class WrittenCohort(Cohort):
    """The devices of one shard, with what of them is not in the ledger yet."""

    def __init__(self, runtimes: Sequence[str] = ()) -> None:
        super().__init__(runtimes)
        self._unwritten: set[str] = set()
        self._in_ledger: dict[str, Hello] = {}
        self._urgent = False

    def know(self, presences: Sequence[Presence]) -> None:
        """Takes what an earlier holder of the shard wrote."""
        for presence in presences:
            if (member := _member(self, presence)) is not None:
                self._in_ledger[presence.device] = member.hello
                super()._put(presence.device, member)

    def _put(self, device: str, member: Member) -> None:
        with self._changed:
            before = self._members.get(device)
            self._unwritten.add(device)
            is_news = before is None or before.hello is not member.hello or before.away_reason != member.away_reason
            self._urgent = self._urgent or is_news
        super()._put(device, member)

    def _forget(self, device: str) -> None:
        super()._forget(device)
        self._unwritten.discard(device)
        self._in_ledger.pop(device, None)

    def has_news(self) -> bool:
        """Whether somebody has come, gone or changed since :meth:`unwritten`; heartbeats can wait."""
        return self._urgent

    def unwritten(self, owner: str) -> list[Presence]:
        """What the ledger does not have yet, as ``owner`` writes it; given once."""
        with self._changed:
            devices, self._unwritten, self._urgent = sorted(self._unwritten), set(), False
            members = [(device, self._members[device]) for device in devices]
            old = {device for device, member in members if self._in_ledger.get(device) is member.hello}
            self._in_ledger |= {device: member.hello for device, member in members}
        return [
            Presence(
                device=device,
                owner=owner,
                hello=b"" if device in old else encode_msgpack(member.hello),
                heartbeat=b"" if member.heartbeat is None else encode_msgpack(member.heartbeat),
                away_reason=member.away_reason,
            )
            for device, member in members
        ]

    def not_written(self, presences: Sequence[Presence]) -> None:
        """The ledger did not take them: they are given again."""
        with self._changed:
            self._unwritten |= {presence.device for presence in presences}
            for presence in presences:
                self._in_ledger.pop(presence.device, None)


class ReadCohort(Cohort):
    """All devices of the federation, as the holders of their shards last heard them; read while the context is open."""

    def __init__(self, ledger: Ledger, runtimes: Sequence[str] = ()) -> None:
        super().__init__(runtimes)
        self._ledger = ledger
        self._seen: dict[str, tuple[bytes, Hello]] = {}
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="presences", daemon=True)

    def __enter__(self) -> ReadCohort:
        self._read(PRESENCE_S)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(10.0)

    def _follow(self) -> None:
        read_at = whole_at = time.monotonic()
        took_s = 0.0
        while not self._ends.wait(max(READ_S, REST * took_s)):
            now = time.monotonic()
            is_whole = now - whole_at >= WHOLE_S
            try:
                self._read(PRESENCE_S if is_whole else min(PRESENCE_S, now - read_at + OVERLAP_S))
            except LedgerError as error:
                log.warning("who is there is not known: %s", error)
                continue
            read_at, whole_at, took_s = now, now if is_whole else whole_at, time.monotonic() - now

    def _read(self, since_s: float) -> None:
        for presence in self._ledger.presences.all(since_s):
            before = self._seen.get(presence.device)
            hello = before[1] if before is not None and before[0] == presence.hello else None
            member = _member(self, presence, hello)
            if member is not None:
                self._seen[presence.device] = presence.hello, member.hello
                self._put(presence.device, member)


def _member(cohort: Cohort, presence: Presence, hello: Hello | None = None) -> Member | None:
    """The member that ``presence`` tells of; None where it cannot be read."""
    try:
        hello = hello or decode_msgpack(presence.hello, Hello, limit=MAX_MESSAGE_BYTES)
        beat = decode_msgpack(presence.heartbeat, Heartbeat, limit=MAX_MESSAGE_BYTES) if presence.heartbeat else None
    except ApportionError as error:
        log.warning("presence of %s cannot be read: %s", presence.device, error)
        return None
    return Member(
        hello,
        time.monotonic() - presence.age_s,
        heartbeat=beat,
        away_reason=presence.away_reason,
        runtime_error=cohort.unusable_for(hello),
    )
