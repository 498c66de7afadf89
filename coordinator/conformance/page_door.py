"""The page of the agent for browsers as an agent of the kit: served here, let in to the kit's broker by its own link.

The page is the built one with its own headers, but that blobs may come from the kit's server of them, on another port
of this machine; the answer to its claim is the kit's. All of it is on this machine alone: a phone on a cable reaches it
by ``adb reverse``.
"""

from __future__ import annotations

import base64
import json
import sys
from http import HTTPStatus
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from coordinator.conformance.connection import Connection
from coordinator.conformance.drivers import AttachedDriver
from coordinator.conformance.findings import NotApplicable
from coordinator.fleet.claim_handler import Answer, ClaimHandler
from coordinator.web.app import web_application
from coordinator.web.headers import WithHeaders, security_headers
from coordinator.web.pages import Pages
from coordinator.web.server import WebServer
from edge.contracts.claims import ClaimLink, KeyClaimReply, KeyClaimRequest
from edge.runtimes import BROWSER

RUNTIME = BROWSER
TOKEN = f"{'0' * 16}.{'k' * 43}"
"""In every link: whoever reaches the door is on this machine, and may come in again."""


class PageDoor:
    """A server of the page, until :meth:`close`.

    Attributes:
        connection: what the next claim is answered with.
        public_key: of the last claim; SubjectPublicKeyInfo, DER; empty before.
        address: ``http://127.0.0.1:port``.

    Raises:
        ConfigError: the page is not built.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.public_key = b""
        socket = connection.web_socket_url
        # What else is asked of the handler fails: there is no authority behind it.
        app = web_application(Pages(), _Handler(self), web_socket=socket)
        self._server = WebServer("http://127.0.0.1:0", _with_blobs_elsewhere(app, socket))
        self._server.__enter__()
        self.address = self._server.address

    def link(self) -> str:
        """The invitation that the page is opened with."""
        return ClaimLink(self.address, TOKEN, "0" * 64, self.connection.device).to_text()

    def close(self) -> None:
        """Serve no more."""
        self._server.__exit__(None, None, None)


class PageDriver(AttachedDriver):
    """The page, opened, given its data and ended by hand: what needs it ended is not applicable.

    Args:
        tell: gets one JSON object, the link and what to do with it.
    """

    def __init__(self, *, tell: IO[str] | None = None) -> None:
        super().__init__()
        self._tell_page = tell or sys.stdout
        self._door: PageDoor | None = None

    def start(self, connection: Connection) -> None:
        """As :meth:`coordinator.conformance.connection.AgentDriver.start`."""
        if self._door is None:
            self._door = PageDoor(connection)
            sockets = [urlsplit(address).port for address in (self._door.address, connection.web_socket_url)]
            said = {
                "link": self._door.link(),
                "data": sorted(str(path) for path in Path(connection.data).glob("*.npz")),
                "budget_mb": connection.budget_mb,
                "ports": sockets,
            }
            print(json.dumps(said), file=self._tell_page, flush=True)
        self._door.connection = connection

    def public_key(self) -> bytes:
        """The page's."""
        return b"" if self._door is None else self._door.public_key

    def _call(self, action: str) -> None:
        raise NotApplicable("the page is opened and closed by hand, which the kit cannot do")

    def close(self) -> None:
        """Serve the page no more."""
        if self._door is not None:
            self._door.close()


class _Handler(ClaimHandler):
    """Answers every claim of a key with the kit's connection."""

    def __init__(self, door: PageDoor) -> None:
        super().__init__(Path(door.connection.state), web_socket=door.connection.web_socket_url)
        self._door = door

    def admitted(self, body: bytes, address: str, *, is_key: bool) -> Answer:
        """As :meth:`coordinator.fleet.claim_handler.ClaimHandler.admitted`; any token is good."""
        if not is_key:
            return super().admitted(body, address, is_key=False)
        asked, given = KeyClaimRequest.from_bytes(body), self._door.connection
        self._door.public_key = base64.b64decode(asked.public_key)
        reply = KeyClaimReply(
            given.device, given.federation, given.web_socket_url, given.user, given.password, given.trust
        )
        return Answer(HTTPStatus.OK, {"Content-Type": "application/json"}, reply.to_bytes())


def _with_blobs_elsewhere(app: ASGIApp, web_socket: str) -> ASGIApp:
    policy = security_headers(web_socket)["Content-Security-Policy"]
    allowed = policy.replace("connect-src 'self'", "connect-src 'self' http://127.0.0.1:*")
    return WithHeaders(app, {"Content-Security-Policy": allowed})
