"""How fast this device's link is, from the transfers it makes anyway: the last ones are kept in the agent's store.

A rate is bytes on the wire over the time from asking for the first block to having the last one, so it has the round
trips of a device-paced transfer in it; that is what the next one will take, too.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path

import msgspec

from edge.system.meter import percentile
from profiles.device import DeviceProfile
from profiles.stored_profile import write_whole

log = logging.getLogger("apportion.fetch")

FILE_NAME = "link.json"
LEAST_BYTES = 256_000
"""Shorter transfers are round trips more than anything else."""

KEPT = 8
METHOD = "transfers"
_SCHEMA = "apportion.link-rate/1"
_MAX_BYTES = 1 << 14


class Transfer(msgspec.Struct, frozen=True):
    """One that was long enough; ``at`` is seconds since 1970."""

    bytes_per_s: float
    at: float


class _LinkFile(msgspec.Struct, frozen=True):
    transfers: tuple[Transfer, ...]
    schema: str = _SCHEMA


class LinkRate:
    """The last transfers into the store in ``folder``; a file that cannot be read counts as none."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._transfers = _read(self._path)

    @property
    def bytes_per_s(self) -> float | None:
        """Their median, the lower of two; None when there are none."""
        return percentile([transfer.bytes_per_s for transfer in self._transfers], 0.5) or None

    @property
    def measured_at(self) -> float:
        """When the last one ended, seconds since 1970; 0 when there are none."""
        return max((transfer.at for transfer in self._transfers), default=0.0)

    def add(self, size: int, seconds: float) -> None:
        """Count a transfer of ``size`` bytes in, if it is long enough; a full disk costs the rate only."""
        if size < LEAST_BYTES or seconds <= 0:
            return
        self._transfers = (*self._transfers, Transfer(size / seconds, time.time()))[-KEPT:]
        try:
            write_whole(self._path, msgspec.json.encode(_LinkFile(self._transfers)))
        except OSError as error:
            log.warning("the link's rate cannot be kept: %s", error)

    def put_into(self, profile: DeviceProfile) -> DeviceProfile:
        """``profile`` with the rate, if one is known."""
        if self.bytes_per_s is None:
            return profile
        return msgspec.structs.replace(
            profile,
            link_bytes_per_s=self.bytes_per_s,
            link_measured_at=self.measured_at,
            link_method=METHOD,
            sources={**profile.sources, "link_bytes_per_s": f"{FILE_NAME}, {len(self._transfers)} transfers"},
        )


def _read(path: Path) -> tuple[Transfer, ...]:
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(_MAX_BYTES), type=_LinkFile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return ()
    sound = [transfer for transfer in found.transfers if transfer.bytes_per_s > 0 and transfer.at > 0]
    return tuple(sound[-KEPT:]) if found.schema == _SCHEMA else ()
