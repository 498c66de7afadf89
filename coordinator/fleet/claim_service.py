"""Claims over HTTPS: a device with a token gets its certificate, a browser its password.

One service of an :class:`coordinator.https_server.HttpsServer`, alone or beside blobs. Sizes are checked before bytes
are read; what is answered is the claim desk's. What is exchanged: :mod:`edge.contracts.claims`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from coordinator.fleet.claim_desk import Answer, ClaimDesk, refusal
from coordinator.fleet.rate_limit import RateLimit
from coordinator.https_server import HttpsServer, Request
from coordinator.identity.broker_files import server_files
from edge.contracts.claims import CERTIFICATE_PATH, CLAIM_PATH, JOIN_PATH, KEY_CLAIM_PATH, MAX_CLAIM_BYTES, ROOT_PATH

MAX_CONNECTIONS = 64
REQUEST_TIMEOUT_S = 15.0

_CERTIFICATE = re.compile(re.escape(CERTIFICATE_PATH) + "([0-9a-f]{64})")
_JOIN_PAGE = b"""This is a claim link of Apportion: it makes a device one of a fleet, once.
On the device, with the whole link, as it was scanned, between quotes:

    pip install 'apportion[onnxruntime,identity]'
    apportion enrol 'LINK'
"""


class ClaimService:
    """Reads claims and gives the answers of its :class:`ClaimDesk`, whose arguments it takes."""

    def __init__(
        self,
        identity: Path,
        *,
        federation: str = "",
        broker: str = "",
        web_socket: str = "",
        limit: RateLimit | None = None,
        on_claimed: Callable[[str], None] | None = None,
    ) -> None:
        self._desk = ClaimDesk(
            identity,
            federation=federation,
            broker=broker,
            web_socket=web_socket,
            limit=limit,
            on_claimed=on_claimed,
        )

    @property
    def claimed(self) -> list[str]:
        """Devices whose claim was not refused, in order."""
        return self._desk.claimed

    def answer(self, request: Request) -> bool:
        """Answer ``request`` when it is one of this service's."""
        address = request.client_address[0]
        asked = (request.command, request.path)
        if asked == ("GET", ROOT_PATH):
            _give(request, self._desk.root())
        elif asked == ("GET", JOIN_PATH):
            _give(request, Answer(HTTPStatus.OK, {"Content-Type": "text/plain; charset=utf-8"}, _JOIN_PAGE))
        elif request.command == "GET" and (found := _CERTIFICATE.fullmatch(request.path)):
            _give(request, self._desk.issued_before(found[1], address))
        elif asked in (("POST", CLAIM_PATH), ("POST", KEY_CLAIM_PATH)):
            answer = self._desk.too_many(address) or self._exchange(request, address)
            if answer is not None:
                _give(request, answer)
        else:
            return False
        return True

    def _exchange(self, request: Request, address: str) -> Answer | None:
        """The answer to a claim, read once its length is known to be fit; None when its client left."""
        length = request.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or request.headers.get("Transfer-Encoding"):
            return refusal(
                HTTPStatus.LENGTH_REQUIRED, "no-length", "a claim says its Content-Length", "apportion enrol LINK"
            )
        if len(length) > 9 or int(length) > MAX_CLAIM_BYTES:
            return refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too-large",
                f"a claim of {length[:12]} bytes is over the limit of {MAX_CLAIM_BYTES}; it was not read",
                "apportion enrol LINK",
            )
        body = request.read_body(int(length))
        if len(body) != int(length):
            request.close_connection = True
            return None
        return self._desk.admitted(body, address, is_key=request.path == KEY_CLAIM_PATH)


def _give(request: Request, answer: Answer) -> None:
    # One request a connection: what of a body was not read is not taken for the next one.
    request.close_connection = True
    headers = {"Cache-Control": "no-store", **answer.headers, "Connection": "close"}
    request.answer(answer.status, headers, answer.body)


def claim_server(identity: Path, url: str, service: ClaimService) -> HttpsServer:
    """A server for claims alone at ``url``, with the certificate of that host: a context manager.

    Raises:
        IdentityRefused: the identity has no certificate for the host of ``url``.
        BrokerUnreachable: nobody can listen there.
    """
    certificate, key = server_files(identity, urlsplit(url).hostname or "")
    return HttpsServer(
        url,
        certificate,
        key,
        [service.answer],
        what="claims",
        hint="free the port, or give another: --listen https://HOST:PORT",
        max_connections=MAX_CONNECTIONS,
        request_timeout_s=REQUEST_TIMEOUT_S,
    )
