"""One device as the dashboard shows it: what the ledger knows, what it does now, and a word for both."""

from __future__ import annotations

from typing import Literal

import msgspec

from coordinator.history.live import LiveDevice
from coordinator.history.records import DeviceRecord

Status = Literal[
    "training",
    "fetching",
    "uploading",
    "waiting",
    "reported",
    "here",
    "refused",
    "barred",
    "unusable",
    "away",
    "expired",
    "rejected",
    "unasked",
]
"""What a device does, or, where no coordinator runs, what became of its last order."""

HOT_C = 70.0
"""Degrees from which a device is shown as hot; one that waits for its temperature, or is slowed by it, is too."""

_BUSY: dict[str, Status] = {
    "training": "training",
    "fetching": "fetching",
    "uploading": "uploading",
    "waiting": "waiting",
    "stopping": "away",
}
_ANSWERED: dict[str, Status] = {
    "reported": "reported",
    "refused": "refused",
    "rejected": "rejected",
    "expired": "expired",
}


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """A device on the page.

    Attributes:
        record: None: it is here and was never planned with.
        live: None: nothing was heard of it by the coordinator that runs, or none runs.
        why: of its status, in words; empty where the status says all.
        is_hot, is_on_battery: as far as is known.
    """

    device: str
    status: Status
    why: str
    is_hot: bool
    is_on_battery: bool
    record: DeviceRecord | None
    live: LiveDevice | None


def view_of(
    device: str, record: DeviceRecord | None, live: LiveDevice | None, *, is_running: bool, current_round: int
) -> DeviceView:
    """The device on the page.

    Args:
        is_running: whether a coordinator writes what devices do now.
        current_round: the open round, or the next one.
    """
    status, why = _status(record, live, is_running, current_round)
    return DeviceView(
        device=device,
        status=status,
        why=why,
        is_hot=live is not None and live.is_here and _is_hot(live),
        is_on_battery=live is not None and live.is_here and live.charging is False,
        record=record,
        live=live,
    )


def _is_hot(live: LiveDevice) -> bool:
    is_warm = live.temperature_c is not None and live.temperature_c >= HOT_C
    return is_warm or live.waiting_for == "temperature" or any("temperature" in word for word in live.throttling)


def _status(
    record: DeviceRecord | None, live: LiveDevice | None, is_running: bool, current_round: int
) -> tuple[Status, str]:
    if not is_running:
        if record is None or not record.state:
            return "unasked", ""
        return _ANSWERED.get(record.state, "expired"), record.reason
    if live is None:
        return "away", "it has not said hello to the coordinator that runs now"
    if not live.is_here:
        return "away", live.away_reason or "nothing was heard of it for a minute"
    if live.unusable:
        return "unusable", live.unusable
    if live.state in _BUSY:
        return _BUSY[live.state], live.reason
    if record is not None and record.barred_until > current_round:
        return "barred", f"it sits out until round {record.barred_until + 1}"
    if record is not None and record.round == current_round and record.state in _ANSWERED:
        return _ANSWERED[record.state], record.reason
    return "here", live.reason
