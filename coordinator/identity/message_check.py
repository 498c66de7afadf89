"""Whether a message of a device may be used: a browser's is its own by its signature, and nobody was revoked.

Certificates are checked by the broker; here only whether all that a device ever had was revoked: a broker that does not
know it yet lets it in, and nothing it says counts. A browser's password is on its topics only, but it is no more than a
password: whatever a broker lets through has to be signed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.identity.browsers import browser_public_key, is_signed
from coordinator.identity.folder import IdentityFolder
from coordinator.identity.records import Records
from edge.contracts.envelope import Envelope
from edge.contracts.errors import IdentityRefused, SignatureRejected
from edge.contracts.signing import SIGNATURE_BYTES, message_text

MessageCheck = Callable[[str, Envelope], None]
"""Nothing for a message of the device that may be used; raises SignatureRejected for one that may not."""

MAX_ID = 128
_CHANGES = slice(24, 28)
"""SQLite's file change counter, in the header of the record: it rises with every change, by whatever process."""


class BrowserSignatures:
    """Checks the messages of ``federation``; a :data:`MessageCheck`, for one thread.

    The keys are read from the identity when it has changed since: a revoked device's next message is refused.
    """

    def __init__(self, identity: Path, federation: str) -> None:
        self._identity = identity
        self._federation = federation
        self._changes: bytes | None = None
        self._keys: dict[str, ec.EllipticCurvePublicKey | None] = {}

    def __call__(self, device: str, envelope: Envelope) -> None:
        """Check that ``envelope``, on a topic of ``device``, may be used.

        Raises:
            SignatureRejected: the device has a browser's key and this is not signed by it, or that key was revoked.
        """
        try:
            self._refresh()
        except IdentityRefused as error:
            raise SignatureRejected("the coordinator cannot read its identity now; the message was not used") from error
        if device not in self._keys:
            return
        key = self._keys[device]
        what = f"'{envelope.kind[:40]}' of '{device}'"
        if key is None:
            raise SignatureRejected(f"{what}: its key was revoked; the message was not used")
        if not envelope.signature:
            raise SignatureRejected(f"{what} is not signed, and that device has a browser's key; it was not used")
        is_fit = len(envelope.signature) == SIGNATURE_BYTES and len(envelope.id) <= MAX_ID and "\n" not in envelope.id
        text = b""
        if is_fit:
            text = message_text(self._federation, device, envelope.kind, envelope.id, bytes(envelope.body))
        if not is_fit or not is_signed(key, envelope.signature, text):
            raise SignatureRejected(
                f"{what} has a signature that is not of its key, or was changed on its way; it was not used"
            )

    def _refresh(self) -> None:
        changes = change_count(self._identity)
        if changes == self._changes:
            return
        records = Records(IdentityFolder(self._identity).records)
        try:
            keys: dict[str, ec.EllipticCurvePublicKey | None] = {}
            for browser in records.browsers():
                # Oldest first: the one that stands, if any, is the last of its device.
                stands = browser.revoked_at is None
                keys[browser.device] = browser_public_key(browser.public_key) if stands else None
            certified = {c.name for c in records.certificates("device") if c.revoked_at is None}
            out = shut_out(records)
        finally:
            records.close()
        self._keys = {device: key for device, key in keys.items() if key is not None or device not in certified}
        self._keys |= dict.fromkeys(out)
        # The count from before the reading: what changed during it is read again next time.
        self._changes = changes


def shut_out(records: Records) -> frozenset[str]:
    """Devices that had a certificate or a browser's key, and have none now that was not revoked."""
    issued = records.certificates("device")
    browsers = records.browsers()
    standing = {c.name for c in issued if c.revoked_at is None} | {b.device for b in browsers if b.revoked_at is None}
    return frozenset({c.name for c in issued} | {b.device for b in browsers}) - standing


def change_count(identity: Path) -> bytes:
    """Something that is another with every change of the identity's record; empty when that cannot be read."""
    try:
        with IdentityFolder(identity).records.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), _CHANGES.stop, 0)[_CHANGES]
    except OSError:
        return b""
