"""Whether an identity has changed, whoever changed it: a claim here, a revocation by another command."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from coordinator.identity.folder import IdentityFolder

log = logging.getLogger("apportion.identity")

POLL_S = 0.5
_CHANGES = slice(24, 28)
"""SQLite's file change counter, in the header of the record: it rises with every change, by whatever process."""


def change_count(identity: Path) -> bytes:
    """Something that is another with every change of the identity's record; empty when that cannot be read."""
    try:
        with IdentityFolder(identity).records.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), _CHANGES.stop, 0)[_CHANGES]
    except OSError:
        return b""


class IdentityWatch:
    """Calls ``changed`` from a thread of its own after a change of the identity, from :meth:`start` to :meth:`stop`.

    What fails in there is logged and tried again with the next change.
    """

    def __init__(self, identity: Path, changed: Callable[[], None]) -> None:
        self._identity, self._changed = identity, changed
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Watch from what the identity is now."""
        self._ends.clear()
        self._thread = threading.Thread(target=self._watch, args=(change_count(self._identity),), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self, known: bytes) -> None:
        while not self._ends.wait(POLL_S):
            count = change_count(self._identity)
            if count == known:
                continue
            known = count
            try:
                self._changed()
            except Exception:
                log.exception("the identity has changed, and the broker could not be told")
