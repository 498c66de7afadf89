"""Has the broker that a run started learn of what other commands change in the identity, such as a revocation.

``apportion device revoke`` is a process of its own and knows nothing of this run's broker; the run looks at the
identity's record, which both of them have.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from coordinator.identity.authority import Authority
from coordinator.identity.folder import IdentityFolder
from edge.contracts.errors import ApportionError

LOOK_EVERY_S = 1.0

log = logging.getLogger("apportion.revocations")


class RevocationWatch:
    """Calls ``tell`` when devices of ``identity`` were revoked or have new passwords, while its context is open."""

    def __init__(self, identity: Path, tell: Callable[[], None], *, every_s: float = LOOK_EVERY_S) -> None:
        self._identity = identity
        self._tell = tell
        self._every_s = every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="revocations", daemon=True)
        self._stamp, self._known = self._seen(), self._standing()

    def __enter__(self) -> RevocationWatch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(5.0)

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                stamp = self._seen()
                if stamp == self._stamp:
                    continue
                known = self._standing()
                if known != self._known:
                    self._tell()
                self._stamp, self._known = stamp, known
            except (ApportionError, OSError) as error:
                # Looked at again the next time: the stamp is still the old one.
                log.warning("the broker could not be told of a change in the identity: %s", error)

    def _seen(self) -> tuple[int, int]:
        found = os.stat(IdentityFolder(self._identity).records)
        return found.st_mtime_ns, found.st_size

    def _standing(self) -> tuple[frozenset[tuple[str, float]], frozenset[str]]:
        """Browsers that stand, with the time of their password, and certificates that do not."""
        with Authority(self._identity) as authority:
            records = authority.records
            browsers = frozenset((b.device, b.since) for b in records.browsers() if b.revoked_at is None)
            return browsers, frozenset(c.serial for c in records.certificates() if c.revoked_at is not None)
