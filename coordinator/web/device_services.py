"""What devices without a browser come to over HTTPS: blobs, updates and claims of a run, or claims alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from coordinator.blobs.blob_store import BlobStore
from coordinator.brokers.broker_files import server_files
from coordinator.fleet.claim_handler import ClaimHandler
from coordinator.messaging.named_blobs import NamedBlobs
from coordinator.web.app import web_application
from coordinator.web.blobs import Blobs
from coordinator.web.server import MAX_CONNECTIONS, WebServer
from coordinator.web.tickets import Tickets
from edge.serving.budgets import Budgets
from edge.serving.traffic import ByteAccount
from edge.serving.uploads import UploadHandler

REQUEST_TIMEOUT_S = 30.0
CLAIM_TIMEOUT_S = 15.0


class BlobService:
    """Serves ``blobs`` while its context is open.

    Args:
        url: ``https://host:port`` as devices reach it. On a loopback name it listens there only, else everywhere.
        certificate, key: PEM files, for that host.
        claims: answers claims at the same address; None: nobody does.
        account: counts bytes by device.
        connections_of_an_address: as :class:`coordinator.web.server.WebServer`.
        now: seconds since 1970.
    """

    def __init__(
        self,
        blobs: BlobStore,
        url: str,
        certificate: Path,
        key: Path,
        *,
        claims: ClaimHandler | None = None,
        account: ByteAccount | None = None,
        connections_of_an_address: int = 0,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.blobs = blobs
        self.account = account or ByteAccount()
        self._tickets = Tickets(now)
        self._served = Blobs(blobs, self._tickets, self.account)
        self._server = WebServer(
            url,
            web_application(None, claims, blobs=self._served),
            certificate,
            key,
            what="blobs",
            hint="free the port, or change $.broker.bulk",
            max_connections=MAX_CONNECTIONS,
            connections_of_an_address=connections_of_an_address,
            request_timeout_s=REQUEST_TIMEOUT_S,
        )

    def __enter__(self) -> BlobService:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def take_updates(self, uploads: UploadHandler[Any] | None) -> None:
        """Take updates from now on; None: no more."""
        self._served.uploads = uploads

    def only(self, named: NamedBlobs, budgets: Budgets | None = None) -> None:
        """Give each device what its orders name, from now on, as often as its budget allows."""
        self._served.named, self._served.budgets = named, budgets

    def url_for(self, device: str, valid_s: float) -> str:
        """Where ``device`` finds blobs for ``valid_s`` seconds from now (0: an hour); a digest is added to it."""
        return self._server.address + self._tickets.path_for(device, valid_s)

    def end_tickets(self, device: str) -> None:
        """Give ``device`` nothing more for the addresses it was told."""
        self._tickets.end(device)

    def upload_to(self, bulk: str) -> str:
        """Where the device that has its blobs from ``bulk`` may put its update; empty when they are not from here."""
        return f"{bulk}upload/" if bulk.startswith(f"{self._server.address}/") else ""

    def holder(self, ticket: str) -> str | None:
        """The device a ticket was made for, None when it was not made here or has ended."""
        return self._tickets.holder(ticket)


def claim_server(identity: Path, url: str, handler: ClaimHandler) -> WebServer:
    """A server for claims alone at ``url``, with the certificate of that host: a context manager.

    Raises:
        IdentityRefused: the identity has no certificate for the host of ``url``.
        BrokerUnreachable: nobody can listen there.
    """
    return WebServer(
        url,
        web_application(None, handler),
        *server_files(identity, urlsplit(url).hostname or ""),
        what="claims",
        hint="free the port, or give another: --listen https://HOST:PORT",
        max_connections=MAX_CONNECTIONS,
        request_timeout_s=CLAIM_TIMEOUT_S,
    )
