"""Devices that were revoked while a run goes on, by whatever command: the run is told of each, once."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from coordinator.identity.folder import IdentityFolder
from coordinator.identity.message_check import change_count, shut_out
from coordinator.identity.records import Records
from edge.contracts.errors import ApportionError

LOOK_EVERY_S = 0.5
"""28 bytes are read each time; everything only when the record has changed."""

log = logging.getLogger("apportion.revocations")


class Revocations:
    """Calls ``on_revoked`` with each device that was shut out, also before it began, while its context is open.

    It is called from a thread of its own, and again for one whose call raised.
    """

    def __init__(self, identity: Path, on_revoked: Callable[[str], None], *, every_s: float = LOOK_EVERY_S) -> None:
        self._identity, self._on_revoked, self._every_s = identity, on_revoked, every_s
        self._known: frozenset[str] = frozenset()
        self._seen = b""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="revoked devices", daemon=True)

    def __enter__(self) -> Revocations:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(10.0)

    def _watch(self) -> None:
        while True:
            try:
                self._look()
            except (ApportionError, OSError) as error:
                log.warning("revocations are looked at again: %s", error)
            except Exception:
                log.exception("a revocation was not carried out; please report this")
            if self._ended.wait(self._every_s):
                return

    def _look(self) -> None:
        seen = change_count(self._identity)
        if seen == self._seen:
            return
        records = Records(IdentityFolder(self._identity).records)
        try:
            out = shut_out(records)
        finally:
            records.close()
        self._known &= out  # who was let in again may be shut out again
        for device in sorted(out - self._known):
            self._on_revoked(device)
            self._known |= {device}
        self._seen = seen
