"""The head of an audit log, signed: what shows that a log was written anew, or that entries were cut off its end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from coordinator.audit_log.chain import Checked


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What a run says of its log when it ends; in ``summary.json`` as ``audit_log``.

    Attributes:
        run: the run's nonce.
        entries: number of the last entry; ``head`` is its digest.
        key, signature: raw Ed25519 public key and signature of :func:`head_text`, hex; empty without an identity.
    """

    federation: str
    run: str
    entries: int
    head: str
    key: str = ""
    signature: str = ""


def head_text(head: Head) -> bytes:
    """What is signed."""
    return f"apportion audit log\n{head.federation}\n{head.run}\n{head.entries}\n{head.head}\n".encode()


def compared(checked: Checked, head: Head) -> list[str]:
    """What the log and the head that was kept of it disagree on; nothing in a log that only grew since."""
    found = checked.digests.get(head.entries)
    if found is None and checked.last < head.entries:
        gone = f"{checked.last + 1} to {head.entries}" if checked.last + 1 < head.entries else str(head.entries)
        return [f"the log ends at entry {checked.last}, its head is entry {head.entries}: {gone} was cut off"]
    if found != head.head:
        have = f"has digest {found[:12]}" if found else "is not there"
        return [f"entry {head.entries} {have}, the head that was kept says {head.head[:12]}: the log was written anew"]
    return []


def is_signed_by(head: Head, keys: Sequence[bytes]) -> bool:
    """Whether one of the raw Ed25519 public ``keys`` has signed ``head``."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    for key in keys:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(bytes.fromhex(head.signature), head_text(head))
            return True
        except (InvalidSignature, ValueError):
            continue
    return False
