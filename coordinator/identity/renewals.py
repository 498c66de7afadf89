"""Certificates of devices that renew them in time, over the connection they have: one request, answered in a thread.

Whoever asks is known by the topic, which is its certificate's; that it has the key is proved by the request itself.
Nobody gets in by this: it takes a certificate that stands and has not ended, and gives another for the same key.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from coordinator.identity.authority import Authority
from coordinator.identity.certificates import public_bytes, read_request
from edge.contracts.envelope import Envelope
from edge.contracts.errors import ApportionError, IdentityRefused
from edge.contracts.identity import Renew, Renewed
from edge.contracts.messages import Error

log = logging.getLogger("apportion.renewals")

WAITING = 256
"""Requests that wait for their turn; a device whose request found no room asks again within the hour."""


def renew_device(authority: Authority, device: str, request: bytes) -> bytes:
    """PEM of a certificate for ``device`` and the key of its ``request``; the one there is, but for its last 30 days.

    Raises:
        IdentityRefused: no certificate for that key stands: it was revoked, has ended, or never was.
    """
    key = public_bytes(read_request(request, device))
    mine = [c for c in authority.records.certificates("device", device) if c.public_key == key]
    states = {c.status(authority.now()) for c in mine}
    if "valid" not in states:
        why = "was revoked" if "revoked" in states else "has ended" if states else "was never issued"
        raise IdentityRefused(
            f"device '{device}': the certificate of this key {why}; it is not renewed", hint="enrol the device again"
        )
    return authority.sign_device(request, device).certificate.pem


class RenewalHandler:
    """Answers ``renew`` messages from the authority in ``identity`` while its context is open.

    Args:
        answer: sends a body of a kind to a device; called from this handler's thread.
        say: progress lines for people.
    """

    def __init__(
        self, identity: Path, answer: Callable[[str, str, msgspec.Struct], None], say: Callable[[str], None]
    ) -> None:
        self._identity, self._answer, self._say = identity, answer, say
        self._asked: queue.Queue[tuple[str, Renew] | None] = queue.Queue(WAITING)
        self._thread = threading.Thread(target=self._serve, name="renewals", daemon=True)

    @property
    def handlers(self) -> Mapping[str, Callable[[str, Envelope], None]]:
        """What an inbox needs of it: it takes no longer than a look at the message."""
        return {"renew": self._take}

    def __enter__(self) -> RenewalHandler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._asked.put(None)
        self._thread.join(10.0)

    def _take(self, device: str, envelope: Envelope) -> None:
        asked = envelope.read(Renew)
        try:
            self._asked.put_nowait((device, asked))
        except queue.Full:
            log.info("'%s' wants its certificate renewed and %d wait already; it asks again", device, WAITING)

    def _serve(self) -> None:
        while (asked := self._asked.get()) is not None:
            device, renew = asked
            try:
                with Authority(self._identity) as authority:
                    pem = renew_device(authority, device, renew.csr.encode())
                self._answer(device, "renewed", Renewed(pem.decode()))
                self._say(f"{device}: its certificate was renewed")
            except ApportionError as error:
                self._say(f"{device}: {error}")
                text = str(error) if str(self._identity) not in str(error) else "the authority could not answer"
                self._answer(device, "error", Error(error.code, text[:1000]))
            except Exception:
                log.exception("'%s': its certificate was not renewed; please report this", device)
