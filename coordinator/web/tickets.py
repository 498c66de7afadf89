"""Tickets for blobs over HTTPS: each names a device and an end, sealed with a key that lives as long as the process.

After a restart devices fall back to MQTT until they get a new order. What a ticket opens is for whoever serves blobs.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Callable

GRACE_S = 60.0
"""How long a ticket outlives its order: the last block may still be on its way."""
NO_DEADLINE_S = 3600.0

_PATH = re.compile(r"/v1/([^/]{1,200})/([0-9a-f]{64})")
_UPLOAD = re.compile(r"/v1/([^/]{1,200})/upload/([0-9a-f]{64})")
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")


class Tickets:
    """Makes and checks tickets.

    Args:
        now: seconds since 1970.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._key = secrets.token_bytes(32)
        self._ended: dict[str, int] = {}

    def path_for(self, device: str, valid_s: float) -> str:
        """Where ``device`` finds blobs for ``valid_s`` seconds from now (0: an hour); a digest is added to it."""
        expires = int(self._now() + (valid_s or NO_DEADLINE_S) + GRACE_S)
        return f"/v1/{device}.{expires}.{self._seal(device, expires)}/"

    def end(self, device: str) -> None:
        """Every ticket that ``device`` was given until now opens nothing more."""
        self._ended[device] = self._ended.get(device, 0) + 1

    def holder(self, ticket: str) -> str | None:
        """The device a ticket was made for, None when it was not made here or has ended."""
        claim, _, seal = ticket.rpartition(".")
        device, _, expires = claim.rpartition(".")
        if not expires.isascii() or not expires.isdigit() or len(expires) > 12:
            return None
        is_ours = hmac.compare_digest(self._seal(device, int(expires)).encode(), seal.encode())
        return device if is_ours and self._now() < int(expires) else None

    def opened(self, path: str) -> tuple[str, str] | None:
        """Device and digest of a request's ``path``, None where its ticket does not open it."""
        return self._opened(_PATH.fullmatch(path))

    def opened_upload(self, path: str) -> tuple[str, str] | None:
        """Device and assignment id of an upload's ``path``, None where its ticket does not open it."""
        return self._opened(_UPLOAD.fullmatch(path))

    def _opened(self, asked: re.Match[str] | None) -> tuple[str, str] | None:
        device = self.holder(asked[1]) if asked else None
        return None if asked is None or device is None else (device, asked[2])

    def _seal(self, device: str, expires: int) -> str:
        return hmac.new(
            self._key, f"{device}\n{expires}\n{self._ended.get(device, 0)}".encode(), hashlib.sha256
        ).hexdigest()


def asked_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and last byte that a ``Range`` header asks for of ``size`` bytes, all of them without one.

    None when it cannot be satisfied: beyond the end, or several ranges, which no device asks for.
    """
    part = _RANGE.fullmatch(header or "bytes=0-")
    first = int(part[1]) if part else size
    last = min(int(part[2]), size - 1) if part and part[2] else size - 1
    return None if first > last else (first, last)
