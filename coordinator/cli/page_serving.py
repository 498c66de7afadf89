"""Puts the web server for phones beside a run, or beside the claims of a fleet: its page, claims, blobs and broker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from coordinator.blobs.blob_store import BlobStore
from coordinator.brokers.broker_files import server_files
from coordinator.brokers.mosquitto import WebSocketListener
from coordinator.brokers.opening import BrokerAddress
from coordinator.cli.revocation_watch import RevocationWatch
from coordinator.config.run_config import BrokerConfig
from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.fleet.revocation import tell_broker
from coordinator.identity.authority import Authority
from coordinator.identity.web_certificate import WebCertificate, read_web_certificate
from coordinator.messaging.named_blobs import NamedBlobs
from edge.contracts.claims import LOOPBACK_HOSTS
from edge.contracts.errors import ApportionError
from edge.serving.budgets import Budgets

if TYPE_CHECKING:  # a web server takes 4 MB of memory, and most runs have none
    from coordinator.web.blobs import Blobs
    from coordinator.web.server import WebServer
    from coordinator.web.tickets import Tickets


class PageService:
    """The server of a run's page while it is open.

    Attributes:
        address: ``https://host:port``.
        account: bytes of blobs that browsers had here.
    """

    def __init__(self, address: str, tickets: Tickets, identity: Path, served: Blobs) -> None:
        self.address = address
        self.account = served.account
        self._served = served
        self._tickets = tickets
        self._identity = identity

    def url_for(self, device: str, valid_s: float) -> str:
        """Where a device in a browser finds blobs, at the page's own origin; empty for any other device."""
        return self.address + self._tickets.path_for(device, valid_s) if is_browser(self._identity, device) else ""

    def only(self, named: NamedBlobs, budgets: Budgets | None = None) -> None:
        """Give each device what its orders name, from now on, as often as its budget allows."""
        self._served.named, self._served.budgets = named, budgets

    def end_tickets(self, device: str) -> None:
        """Give ``device`` nothing more for the addresses it was told."""
        self._tickets.end(device)


def is_browser(identity: Path, device: str) -> bool:
    """Whether ``device`` is one of a browser: it has a key instead of a certificate."""
    with Authority(identity) as authority:
        return authority.records.standing_browser(device) is not None


def web_listener(config: BrokerConfig) -> WebSocketListener | None:
    """Where a broker that a run starts listens for browsers, by the address of the page; None where it does not.

    Raises:
        IdentityRefused: as :func:`page_files`.
    """
    if not config.web or "://" in config.url:
        return None
    parts = urlsplit(config.web)
    host = parts.hostname or ""
    is_here = host in LOOPBACK_HOSTS
    bind = ("::1" if host == "::1" else "127.0.0.1") if is_here else ""
    if parts.scheme == "http":
        return WebSocketListener(bind=bind, host=host)
    certificate, key = page_files(config)
    return WebSocketListener(bind=bind, certificate=certificate, key=key, host=host)


def page_files(config: BrokerConfig) -> tuple[Path, Path]:
    """Certificate and key of a page over TLS: ``web-certificate`` and ``web-key``, else of the identity.

    Raises:
        IdentityRefused: they cannot serve its host, or the identity has none for it.
    """
    given = given_certificate(config)
    if given is not None:
        return given.certificate, given.key
    return server_files(Path(config.identity), urlsplit(config.web).hostname or "")


def given_certificate(config: BrokerConfig) -> WebCertificate | None:
    """``web-certificate`` and ``web-key``, found good; None where the identity's own certificate is served.

    Raises:
        IdentityRefused: they cannot serve the host of ``web``.
    """
    if not config.web_certificate:
        return None
    host = urlsplit(config.web).hostname or ""
    return read_web_certificate(Path(config.web_certificate), Path(config.web_key), host)


@contextlib.contextmanager
def open_page(
    config: BrokerConfig, federation: str, blobs: BlobStore, broker: BrokerAddress, say: Callable[[str], None]
) -> Iterator[PageService | None]:
    """The page of a run at ``config.web``, open while the context is; None where the run has none.

    Args:
        broker: a claim is made known to it, where it was started here.

    Raises:
        BrokerUnreachable: nobody can listen there.
        ConfigError: the page is not built.
        IdentityRefused: as :func:`page_files`.
    """
    if not config.web:
        # The broker of a run has to learn of revocations with or without a page.
        is_told = bool(config.identity) and broker.kind != "external"
        with RevocationWatch(Path(config.identity), broker.reload) if is_told else contextlib.nullcontext():
            yield None
        return
    from coordinator.web.blobs import Blobs
    from coordinator.web.pages import Pages
    from coordinator.web.tickets import Tickets

    Pages()  # before anything else is asked for
    files = page_files(config) if config.web.startswith("https://") else None
    given = given_certificate(config)
    if given is not None and (warning := given.warning()):
        say(warning)
    identity, tickets = Path(config.identity), Tickets()

    def claimed(device: str) -> None:
        say(f"{device}: joined by its link")
        broker.reload()
        if broker.kind == "external":
            for line in told_broker(identity, Path(config.folder) if config.folder else None):
                say(f"{device}: {line}")

    parts = urlsplit(config.url)
    # A password in the broker's URL is the coordinator's own.
    reached_at = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""
    handler = ClaimHandler(
        identity, federation=federation, broker=reached_at, web_socket=broker.web_socket, on_claimed=claimed
    )
    with contextlib.ExitStack() as stack:
        if broker.kind != "external":
            stack.enter_context(RevocationWatch(identity, broker.reload))
        served = Blobs(blobs, tickets)
        server = stack.enter_context(
            page_server(
                config.web,
                identity,
                handler,
                broker.web_socket,
                served,
                files=files,
                connections_of_an_address=config.address_connections,
            )
        )
        yield PageService(server.address, tickets, identity, served)


def told_broker(identity: Path, folder: Path | None, pid_file: Path | None = None) -> list[str]:
    """Have a broker that was not started here read its users again; what a person still has to do for it, in words."""
    try:
        news = tell_broker(identity, folder, pid_file=pid_file)
    except ApportionError as error:
        return [f"the broker could not be told: {error}"]
    return [f"the broker does not know it yet; run: {command}" for command in news.commands]


def page_server(
    url: str,
    identity: Path,
    handler: ClaimHandler,
    web_socket: str,
    blobs: Blobs | None = None,
    *,
    files: tuple[Path, Path] | None = None,
    hint: str = "",
    connections_of_an_address: int = 0,
) -> WebServer:
    """A server of the page and of claims at ``url``, and of ``blobs`` where there are any: a context manager.

    Args:
        files: certificate and key; the identity's for that host where None.
        connections_of_an_address: as :class:`coordinator.web.server.WebServer`.

    Raises:
        BrokerUnreachable: nobody can listen there.
        ConfigError: the page is not built.
        IdentityRefused: the identity has no certificate for that host.
    """
    from coordinator.web.app import web_application
    from coordinator.web.pages import Pages
    from coordinator.web.server import WebServer

    pages, parts = Pages(), urlsplit(url)
    if files is None and parts.scheme == "https":
        files = server_files(identity, parts.hostname or "")
    app = web_application(pages, handler, web_socket=web_socket, blobs=blobs)
    return WebServer(
        url,
        app,
        *(files or (None, None)),
        hint=hint or "free the port, or change $.broker.web",
        connections_of_an_address=connections_of_an_address,
    )
