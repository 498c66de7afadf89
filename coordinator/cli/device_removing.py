"""``apportion device revoke``: out at the authority, out at the broker, then off the device, in that order.

The first two do not need the device; a machine that is gone for good is shut out all the same, and what it still holds
is told.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.cli.device_reaching import Login, Reach, open_host
from coordinator.cli.device_requests import installation_of
from coordinator.cli.device_work import run_together
from coordinator.fleet.book import DeviceEntry, FleetBook, FleetSettings
from coordinator.fleet.revocation import BrokerNews, revoke_device, tell_broker
from edge.contracts.errors import ApportionError, ConfigError


def revoke_one(
    book: FleetBook,
    settings: FleetSettings,
    device: str,
    *,
    reason: str,
    keep: bool,
    login: Login,
) -> dict[str, Any]:
    """Shut ``device`` out and remove its agent; the values of ``--json``.

    Raises:
        ConfigError: neither the book nor the identity knows it, or no identity is named.
    """
    entry = book.find(device)
    if not settings.identity:
        raise ConfigError(
            [f"--identity: the fleet book {book.folder} names none; give the folder of apportion ca init"]
        )
    if entry is None and not _is_enrolled(Path(settings.identity), device):
        book.get(device)  # says what there is
    serials = revoke_device(Path(settings.identity), device, reason=reason)
    is_news = bool(serials) or (entry is not None and not entry.revoked_at)
    print(f"{device}: {_revoked(serials)}")
    folder = Path(settings.broker_folder) if settings.broker_folder else None
    pid_file = Path(settings.broker_pid_file) if settings.broker_pid_file else None
    if settings.web and folder is None and not settings.broker:
        news = BrokerNews(None, None, ())
        print(f"broker: the run with the page at {settings.web} tells its own within seconds, or when it is up again")
    else:
        news = tell_broker(Path(settings.identity), folder, pid_file=pid_file)
        _print_news(news)
    was_browser = _is_browser(Path(settings.identity), device)
    removed, left = _remove(book, entry, login, keep=keep, was_browser=was_browser)
    place = "" if entry is None else Reach.of_entry(entry, login).shown
    if entry is not None:
        book.change(device, revoked_at=entry.revoked_at or time.time(), left=left)
    print(left or (f"removed from {place}: {', '.join(removed)}" if removed else f"nothing of it was left on {place}"))
    return {
        "device": device,
        "revoked": serials,
        "is_news": is_news,
        "broker": {
            "folder": None if news.folder is None else str(news.folder),
            "pid": news.pid,
            "commands": list(news.commands),
            "cluster_commands": list(news.cluster_commands),
        },
        "removed": list(removed),
        "left": left or None,
    }


def _revoked(serials: Sequence[str]) -> str:
    if not serials:
        return "no certificate of it stands"
    keys = sum(serial.startswith("key-") for serial in serials)
    parts = [f"{len(serials) - keys} certificates"] if len(serials) > keys else []
    return " and ".join([*parts, *(["its browser's key"] if keys else [])]) + " revoked"


def _remove(
    book: FleetBook, entry: DeviceEntry | None, login: Login, *, keep: bool, was_browser: bool
) -> tuple[tuple[str, ...], str]:
    """What was removed, and what was left, with how to remove it; the latter is empty when all is gone."""
    if entry is None:
        return (), "the fleet book does not know it: whatever it has is still there"
    reach = Reach.of_entry(entry, login)
    folder = str(entry.installation.get("folder", f".apportion/{entry.device}"))
    place = folder if folder.startswith("/") else f"~/{folder}"
    if keep:
        return (), f"left as it is on {reach.shown}: {place}"
    if entry.way == "claim" and was_browser:
        return (), "it is a browser: its page says so at its next message; its data stay until deleted there"
    if entry.way == "claim":
        return (), "it came by itself: stop its agent there and delete its files (sh install.sh --remove)"

    async def remove_there() -> tuple[str, ...]:
        from coordinator.fleet.provisioning import remove

        async with open_host(reach) as host:
            return await remove(host, installation_of(entry, book.settings()))

    try:
        with book.working_on(entry.device):
            return run_together(remove_there()), ""
    except ApportionError as error:
        return (), (
            f"its agent is still on {reach.shown}, in {place}: {error}; "
            f"when it can be reached: apportion device revoke {entry.device}, again"
        )


def _print_news(news: BrokerNews) -> None:
    if news.pid is not None:
        print(f"broker: {news.folder} written anew, process {news.pid} told; the next connection is refused")
        return
    done = f"{news.folder} written anew, " if news.folder else ""
    print(f"broker: {done}not told yet. Until this is done the device is still let in:")
    for command in news.commands:
        print(f"  {command}")
    if news.cluster_commands:
        print("if it is a RabbitMQ cluster, this instead:")
    for command in news.cluster_commands:
        print(f"  {command}")


def _is_enrolled(identity: Path, device: str) -> bool:
    from coordinator.identity.authority import Authority

    with Authority(identity) as authority:
        return bool(authority.records.certificates("device", device)) or _is_browser(identity, device)


def _is_browser(identity: Path, device: str) -> bool:
    from coordinator.identity.authority import Authority

    with Authority(identity) as authority:
        return any(browser.device == device for browser in authority.records.browsers())
