"""Devices that nobody can log in to: a link with a claim token, its QR code, and the service that they come to."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coordinator.cli.device_greeting import open_greeter
from coordinator.cli.device_table import profile_lines
from coordinator.fleet.book import FleetBook, FleetSettings
from coordinator.fleet.claim_link import claim_link, qr_lines, root_fingerprint, save_qr
from coordinator.fleet.claim_service import ClaimService, claim_server
from coordinator.https_server import HttpsServer
from coordinator.identity.broker_files import server_files
from edge.contracts.errors import ConfigError, DeadlineExpired

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

    Args:
        wait_s: for its hello once it has claimed; None: only the link is made, ``apportion device claims`` serves it.

    Raises:
        DeadlineExpired: nobody came while the link was good, or the device said no hello.
        IdentityRefused: the device has a certificate, or the identity none for the host of ``listen``.
    """
    begun = time.monotonic()
    if wait_s is None:
        url = listen_url(settings, listen)
        server_files(Path(settings.identity), urlsplit(url).hostname or "")  # before a token is made for nothing
        values = _show(*make_link(book, settings, device, url, expires), device, expires, qr_file)
        print(f"Then answer it here: apportion device claims --listen {url}")
        return values
    service = _service(settings)
    with (
        _server(settings, service, listen) as server,
        open_greeter(settings) as greeter,
    ):
        link, good_s = make_link(book, settings, device, server.address, expires)
        values = _show(link, good_s, device, expires, qr_file)
        while device not in service.claimed:
            if time.monotonic() - begun > good_s:
                raise DeadlineExpired(
                    f"nobody claimed '{device}' within {expires}; the link is of no use any more",
                    hint="the same command makes another",
                )
            time.sleep(LOOK_EVERY_S)
        book.change(device, enrolled_at=time.time())
        print(f"{device}: claimed its certificate; now start its agent as apportion enrol says", file=sys.stderr)
        hello = greeter.wait(device, wait_s)
    path = book.keep_profile(hello.profile, method="hello")
    book.change(device, seen_at=time.time())
    print(f"{device} is here with {hello.num_examples} examples")
    for line in profile_lines(hello.profile):
        print(f"  {line}")
    return {**values, "claimed": True, "profile": path, "seconds": round(time.monotonic() - begun, 2)}


def _show(link: str, good_s: int, device: str, expires: str, qr_file: Path | None) -> dict[str, Any]:
    if qr_file is not None:
        save_qr(link, qr_file)
    print(qr_lines(link, colours=sys.stdout.isatty()), end="")
    print(f"{link}\n\nGood for one device, '{device}', for {expires}. On it, the link between quotes:")
    print("  pip install 'apportion[onnxruntime,identity]'\n  apportion enrol 'LINK'\n", flush=True)
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
    service = _service(settings)
    told = 0
    with _server(settings, service, listen) as server:
        how_long = f" for {duration}" if duration else ""
        print(f"answering claims at {server.address}{how_long}; Ctrl-C ends it", file=sys.stderr, flush=True)
        try:
            while time.monotonic() < until or len(service.claimed) > told:
                for device in service.claimed[told:]:
                    told += 1
                    if book.find(device) is not None:
                        book.change(device, enrolled_at=time.time())
                    print(f"{device}: claimed its certificate", flush=True)
                time.sleep(LOOK_EVERY_S)
        except KeyboardInterrupt:
            pass
    print(f"{len(service.claimed)} devices claimed", file=sys.stderr)
    return {"claimed": list(service.claimed)}


def listen_url(settings: FleetSettings, listen: str) -> str:
    """Where devices claim: as told, else beside the broker, which usually runs on this machine.

    Raises:
        ConfigError: it is not ``https://host:port``.
    """
    host = urlsplit(settings.broker).hostname or "localhost"
    url = listen or f"https://{f'[{host}]' if ':' in host else host}:{PORT}"
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or parts.path.strip("/"):
        raise ConfigError([f"{url!r} is not https://host:port, as devices reach this machine"])
    return url


def _service(settings: FleetSettings) -> ClaimService:
    return ClaimService(Path(settings.identity), federation=settings.federation, broker=settings.broker)


def _server(settings: FleetSettings, service: ClaimService, listen: str) -> HttpsServer:
    return claim_server(Path(settings.identity), listen_url(settings, listen), service)
