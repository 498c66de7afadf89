"""What devices say of masks is their own by their certificates' keys: a broker cannot speak in their name.

The keys are those of the identity's record that stand, so nothing has to be sent with a message and a revoked device's
next word is refused. What is refused is held against nobody: whoever carried it may have made it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from coordinator.identity.browsers import browser_public_key, is_signed
from coordinator.identity.folder import IdentityFolder
from coordinator.identity.message_check import change_count
from coordinator.identity.records import Records
from edge.contracts.envelope import Envelope
from edge.contracts.errors import IdentityRefused, SignatureRejected
from edge.contracts.masking import SAID_BY_DEVICES
from edge.contracts.signing import device_masking_text


class MaskingSignatures:
    """Checks what devices say of masks in the run with nonce ``run``; a message check, for one thread."""

    def __init__(self, identity: Path, run: str, now: Callable[[], float] = time.time) -> None:
        self._identity, self._run, self._now = identity, run, now
        self._changes: bytes | None = None
        self._keys: dict[str, list[tuple[float, ec.EllipticCurvePublicKey]]] = {}

    def __call__(self, device: str, envelope: Envelope) -> None:
        """Check that ``envelope``, if it is about masks, is signed by a certificate of ``device`` that stands.

        Raises:
            SignatureRejected: it is not, or the device has none.
        """
        if envelope.kind not in SAID_BY_DEVICES:
            return
        try:
            self._refresh()
        except IdentityRefused as error:
            raise SignatureRejected("the coordinator cannot read its identity now; the message was not used") from error
        what = f"'{envelope.kind}' of '{device}'"
        if not envelope.signature:
            raise SignatureRejected(f"{what} is not signed by its certificate's key; enrol the device, give it --cert")
        text = device_masking_text(self._run, envelope.kind, bytes(envelope.body))
        keys = [key for until, key in self._keys.get(device, ()) if self._now() < until]
        if not any(is_signed(key, envelope.signature, text) for key in keys):
            known = f"{len(keys)} certificate{'s' if len(keys) != 1 else ''} of the device that stand"
            raise SignatureRejected(f"{what} has a signature by none of {known}, or was changed on its way")

    def unfit(self, device: str) -> str:
        """Why ``device`` cannot take part in masked rounds: nothing that it says of masks would be believed.

        Empty when it can.
        """
        try:
            self._refresh()
        except IdentityRefused as error:
            return f"{device} cannot take part yet: the coordinator cannot read its identity now ({error})"
        if any(self._now() < until for until, _ in self._keys.get(device, ())):
            return ""
        return (
            f"{device} has no certificate of this run's identity that stands, and what devices say of masks is signed "
            "with one; enrol it (apportion device add, or apportion ca token) and give the agent --cert"
        )

    def _refresh(self) -> None:
        changes = change_count(self._identity)
        if changes == self._changes:
            return
        records = Records(IdentityFolder(self._identity).records)
        try:
            keys: dict[str, list[tuple[float, ec.EllipticCurvePublicKey]]] = {}
            for issued in records.certificates("device"):
                if issued.revoked_at is None:
                    key = browser_public_key(issued.public_key)
                    keys.setdefault(issued.name, []).append((issued.not_after, key))
        finally:
            records.close()
        # The count from before the reading: what changed during it is read again next time.
        self._keys, self._changes = keys, changes
