"""Devices that nobody can log in to: a link with a claim token, its QR code, and the service that they come to."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coordinator.brokers.broker_files import server_files
from coordinator.cli.device_greeting import open_greeter
from coordinator.cli.device_table import profile_lines
from coordinator.cli.page_serving import is_browser, page_server, told_broker
from coordinator.fleet.book import FleetBook, FleetSettings
from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.fleet.claim_link import claim_link, qr_lines, root_fingerprint, save_qr
from coordinator.web.device_services import claim_server
from coordinator.web.pages import Pages
from edge.contracts.claims import LOOPBACK_HOSTS, ClaimLink
from edge.contracts.errors import ConfigError, DeadlineExpired
from edge.runtimes import DEFAULT

PORT = 8443
LOOK_EVERY_S = 0.2


def invite(
    book: FleetBook,
    settings: FleetSettings,
    device: str,
    *,
    listen: str,
    expires: str,
    qr_file: Path | None,
    wait_s: float | None,
) -> dict[str, Any]:
    """Show a claim link for ``device`` and serve it until it is used; the values of ``--json``.

    Where a run serves the page for phones, and nothing is said of ``listen``, the link leads to the run.

    Args:
        wait_s: for its hello once it has claimed; None: only the link is made, ``apportion device claims`` serves it.

    Raises:
        DeadlineExpired: nobody came while the link was good, or the device said no hello.
        IdentityRefused: the device has a certificate, or the identity none for the host of ``listen``.
    """
    if settings.web and not listen:
        return _invite_to_run(book, settings, device, expires=expires, qr_file=qr_file, waits=wait_s is not None)
    begun = time.monotonic()
    if wait_s is None:
        url = listen_url(settings, listen)
        has_certificate(settings, url)  # before a token is made for nothing
        link, good_s = make_link(book, settings, device, url, expires)
        values = _show(link, good_s, device, expires, qr_file, is_page=bool(settings.web_socket))
        print(f"Then answer it here: apportion device claims --listen {url}")
        return values
    with (
        open_door(settings, listen) as door,
        open_greeter(settings) as greeter,
    ):
        link, good_s = make_link(book, settings, device, door.address, expires)
        values = _show(link, good_s, device, expires, qr_file, is_page=door.has_page)
        while device not in door.claimed:
            if time.monotonic() - begun > good_s:
                raise _nobody_came(device, expires)
            time.sleep(LOOK_EVERY_S)
        book.change(device, enrolled_at=time.time())
        print(f"{device}: {what_it_got(settings, device)}", file=sys.stderr)
        hello = greeter.wait(device, wait_s)
    path = book.keep_profile(hello.profile, method="hello")
    book.change(device, seen_at=time.time())
    print(f"{device} is here with {hello.num_examples} examples")
    for line in profile_lines(hello.profile):
        print(f"  {line}")
    return {**values, "claimed": True, "profile": path, "seconds": round(time.monotonic() - begun, 2)}


def _invite_to_run(
    book: FleetBook, settings: FleetSettings, device: str, *, expires: str, qr_file: Path | None, waits: bool
) -> dict[str, Any]:
    """The run that is up answers the claim; it and this command know of it by the identity that both have."""
    from coordinator.identity.authority import Authority

    begun = time.monotonic()
    link, good_s = make_link(book, settings, device, settings.web, expires)
    values = _show(link, good_s, device, expires, qr_file, is_page=True)
    print(f"Answered by the run whose page is at {settings.web}", flush=True)
    if not waits:
        return values
    token_id = ClaimLink.from_text(link).token.partition(".")[0]
    while True:
        with Authority(Path(settings.identity)) as authority:
            token = authority.records.token(token_id)
        if token is not None and token.used_at is not None:
            break
        if time.monotonic() - begun > good_s:
            raise _nobody_came(device, expires)
        time.sleep(1.0)
    book.change(device, enrolled_at=time.time())
    print(f"{device}: {what_it_got(settings, device)}; the run says when it is there")
    return {**values, "claimed": True, "seconds": round(time.monotonic() - begun, 2)}


def _nobody_came(device: str, expires: str) -> DeadlineExpired:
    return DeadlineExpired(
        f"nobody claimed '{device}' within {expires}; the link is of no use any more",
        hint="the same command makes another",
    )


def what_it_got(settings: FleetSettings, device: str) -> str:
    """What a device that has claimed is told of, and what comes next."""
    if is_browser(Path(settings.identity), device):
        return "joined in its browser; its page stays open"
    return "claimed its certificate; now start its agent as apportion enrol says"


def _show(link: str, good_s: int, device: str, expires: str, qr_file: Path | None, *, is_page: bool) -> dict[str, Any]:
    if qr_file is not None:
        save_qr(link, qr_file)
    print(qr_lines(link, colours=sys.stdout.isatty()), end="")
    print(f"{link}\n\nGood for one device, '{device}', for {expires}.")
    if is_page:
        print("On a phone: scan the code, or open the link, and press Join. Nothing is installed.")
    if link.startswith("https://"):
        print("On a Raspberry Pi or another machine:")
        print(
            f"  pip install 'apportion[{DEFAULT},identity]'\n  apportion enrol -          # and paste the link\n",
            flush=True,
        )
    else:
        print("The link is for browsers on this machine: others need https.", flush=True)
    return {"device": device, "link": link, "expires_s": good_s, "claimed": False, "profile": None}


def make_link(book: FleetBook, settings: FleetSettings, device: str, address: str, expires: str) -> tuple[str, int]:
    """A claim link for ``device`` and the seconds that it is good for; the device is in the book from now on."""
    from coordinator.identity.authority import Authority
    from coordinator.identity.claims import create_token, parse_duration

    seconds = parse_duration(expires)
    entry = book.find(device)
    if entry is not None and entry.way != "claim" and not entry.revoked_at:
        raise ConfigError(
            [f"device '{device}' is reached over {entry.way}; it needs no claim link"],
            hint=f"another --device, or first: apportion device revoke {device}",
        )
    with Authority(Path(settings.identity)) as authority:
        token = create_token(authority, device, seconds)
        pin = root_fingerprint(authority.folder.ca.read_bytes())
    book.change(
        device, way="claim", target="", installation={}, added_at=time.time(), enrolled_at=0.0, revoked_at=0.0, left=""
    )
    return claim_link(address, token, pin, device), seconds


def serve_claims(book: FleetBook, settings: FleetSettings, listen: str, duration: str = "") -> dict[str, Any]:
    """Answer claims until interrupted, or for ``duration`` (``90s``, ``1h``); the values of ``--json``.

    Raises:
        IdentityRefused: another duration, or the identity has no certificate for the host of ``listen``.
    """
    from coordinator.identity.claims import parse_duration

    until = time.monotonic() + (parse_duration(duration) if duration else float("inf"))
    told = 0
    with open_door(settings, listen) as door:
        how_long = f" for {duration}" if duration else ""
        page = ", the page for phones too" if door.has_page else ""
        print(f"answering claims at {door.address}{how_long}{page}; Ctrl-C ends it", file=sys.stderr, flush=True)
        try:
            while time.monotonic() < until or len(door.claimed) > told:
                for device in door.claimed[told:]:
                    told += 1
                    if book.find(device) is not None:
                        book.change(device, enrolled_at=time.time())
                    print(f"{device}: {what_it_got(settings, device)}", flush=True)
                time.sleep(LOOK_EVERY_S)
        except KeyboardInterrupt:
            pass
    print(f"{len(door.claimed)} devices claimed", file=sys.stderr)
    return {"claimed": list(door.claimed), "page": door.has_page}


def listen_url(settings: FleetSettings, listen: str) -> str:
    """Where devices claim: as told, else beside the broker, which usually runs on this machine.

    Raises:
        ConfigError: it is not ``https://host:port``.
    """
    host = urlsplit(settings.broker.partition(",")[0]).hostname or "localhost"
    url = listen or f"https://{f'[{host}]' if ':' in host else host}:{PORT}"
    parts = urlsplit(url)
    is_here = parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS and bool(settings.web_socket)
    if not (parts.scheme == "https" or is_here) or not parts.hostname or parts.path.strip("/"):
        raise ConfigError([f"{url!r} is not https://host:port, as devices reach this machine"])
    return url


def has_certificate(settings: FleetSettings, url: str) -> None:
    """Nothing, where a server can be at ``url``.

    Raises:
        IdentityRefused: the identity has no certificate for that host.
    """
    if url.startswith("https://"):
        server_files(Path(settings.identity), urlsplit(url).hostname or "")


@dataclass(frozen=True)
class Door:
    """A server that claims come to.

    Attributes:
        claimed: devices whose claim was not refused, in order.
        has_page: whether phones find the page there.
    """

    address: str
    claimed: list[str]
    has_page: bool


@contextlib.contextmanager
def open_door(settings: FleetSettings, listen: str) -> Iterator[Door]:
    """A server of claims, and of the page where phones reach the broker and the page is here.

    Raises:
        BrokerUnreachable: nobody can listen there.
        IdentityRefused: the identity has no certificate for the host of ``listen``.
    """
    identity, url = Path(settings.identity), listen_url(settings, listen)
    hint = "free the port, or give another: --listen https://HOST:PORT"

    def claimed(device: str) -> None:
        if is_browser(identity, device):
            folder = Path(settings.broker_folder) if settings.broker_folder else None
            pid_file = Path(settings.broker_pid_file) if settings.broker_pid_file else None
            for line in told_broker(identity, folder, pid_file):
                print(f"{device}: {line}", file=sys.stderr, flush=True)

    handler = ClaimHandler(
        identity,
        federation=settings.federation,
        broker=settings.broker,
        web_socket=settings.web_socket,
        on_claimed=claimed,
    )
    if settings.web_socket:
        try:
            Pages()
        except ConfigError as error:
            if url.startswith("http://"):
                raise
            print(f"no page for phones: {'; '.join(error.problems)}; {error.hint}", file=sys.stderr)
        else:
            with page_server(url, identity, handler, settings.web_socket, hint=hint) as page:
                yield Door(page.address, handler.claimed, True)
            return
    with claim_server(identity, url, handler) as server:
        yield Door(server.address, handler.claimed, False)
