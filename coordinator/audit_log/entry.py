"""An entry of an audit log: who did what, when, to whom; chained to the entry before by that one's SHA-256.

An entry is a line of JSON. What its digest is of are the line's own bytes without their last key, so that a log can be
checked with any tool that splits lines and computes SHA-256: no value has to be read and written again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from edge.contracts.codec import encode_json

FIRST = "0" * 64
"""What the first entry has in place of the digest of the one before."""

MOST_DETAILS = 4096
"""Bytes of an entry's details as JSON; of longer ones the longest texts are cut."""

_DIGEST = re.compile(rb',"digest":"([0-9a-f]{64})"\}\Z')


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """What happened, before it has its place in a log.

    Attributes:
        actor: ``coordinator:<process>``, ``device:<id>`` or ``operator:<user>@<host>, <command>``.
        action: what was done, as a kebab-case word; the list is in ``docs/audit-log.md``.
        subject: what it was done to: ``device:<id>``, ``round:<number>.<attempt>``, ``lease:<name>``, ``run:<name>``.
        details: JSON values by name.
    """

    actor: str
    action: str
    subject: str = ""
    details: Mapping[str, Any] = {}


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry; the order of the fields is that of the line.

    Attributes:
        number: 1, 2, 3, ... without a gap.
        at_ms: milliseconds since 1970 by the clock of the process that wrote it; later entries may have earlier times.
        details: a JSON object, as it stands in the line.
        previous: digest of the entry before; :data:`FIRST` in the first one.
        digest: SHA-256, hex, of the line without this key.
    """

    number: int
    at_ms: int
    actor: str
    action: str
    subject: str
    details: msgspec.Raw
    previous: str
    digest: str

    @classmethod
    def of(cls, event: Event, *, number: int, at_ms: int, previous: str) -> Entry:
        """``event`` at its place."""
        bare = cls(
            number=number,
            at_ms=at_ms,
            actor=_storable(event.actor),
            action=_storable(event.action),
            subject=_storable(event.subject),
            details=msgspec.Raw(details_json(event.details)),
            previous=previous,
            digest="",
        )
        return msgspec.structs.replace(bare, digest=bare.computed())

    def line(self) -> bytes:
        """As it is exported, without the end of the line."""
        return msgspec.json.encode(self)

    def computed(self) -> str:
        """The digest that the other fields give."""
        body = msgspec.json.encode(msgspec.structs.replace(self, digest=""))
        return hashlib.sha256(body.removesuffix(b',"digest":""}') + b"}").hexdigest()

    def values(self) -> dict[str, Any]:
        """The details, read."""
        return msgspec.json.decode(self.details, type=dict[str, Any])


def read_line(line: bytes) -> Entry:
    """The entry in a line.

    Raises:
        ValueError: it is none.
    """
    line = line.rstrip(b"\r\n")
    if _DIGEST.search(line) is None:
        raise ValueError("it does not end with the digest of an entry")
    try:
        entry = msgspec.json.decode(line, type=Entry)
        msgspec.json.decode(entry.details, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error
    if entry.line() != line:
        raise ValueError("it is not written as entries are: order of keys, spaces")
    return entry


def details_json(details: Mapping[str, Any]) -> bytes:
    """Canonical JSON of at most :data:`MOST_DETAILS` bytes: the longest texts of longer ones are cut."""
    data = encode_json(dict(details))
    if len(data) <= MOST_DETAILS:
        return data
    for longest in (512, 128, 32):
        data = encode_json({key[:64]: _cut(value, longest) for key, value in details.items()})
        if len(data) <= MOST_DETAILS:
            return data
    return encode_json({"cut": f"{len(details)} values that are longer than {MOST_DETAILS} bytes"})


def _cut(value: Any, longest: int) -> Any:
    text = value if isinstance(value, str) else encode_json(value).decode()
    if len(text) <= longest:
        return value
    return f"{text[:longest]}... ({len(text)} characters)"


def _storable(words: str) -> str:
    """Without the one character that PostgreSQL stores in no text."""
    return words.replace("\0", "\ufffd")
