"""Claims over HTTPS: a device with a token gets its certificate, and nobody learns anything else.

One service of an :class:`coordinator.https_server.HttpsServer`, alone or beside blobs. Sizes are checked before bytes
are read, bytes before they are parsed; tokens are in no log. What is exchanged: :mod:`edge.contracts.claims`.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

from coordinator.https_server import HttpsServer, Request
from coordinator.identity.authority import Authority
from coordinator.identity.broker_files import server_files
from coordinator.identity.claims import TokenRefused, exchange_token
from edge.contracts.claims import (
    CERTIFICATE_PATH,
    CLAIM_PATH,
    JOIN_PATH,
    MAX_CLAIM_BYTES,
    ROOT_PATH,
    ClaimRefusal,
    ClaimReply,
    ClaimRequest,
    Refused,
)
from edge.contracts.errors import IdentityRefused, MessageRejected

log = logging.getLogger("apportion.claims")

PER_ADDRESS, IN_ALL = (30, 0.5), (120, 5.0)
"""How many claims at once, and how many more a second. A token cannot be guessed; this is against load."""
MAX_CONNECTIONS = 64
REQUEST_TIMEOUT_S = 15.0

_MAX_ADDRESSES = 4096
_KEY_DIGEST = re.compile(re.escape(CERTIFICATE_PATH) + "([0-9a-f]{64})")
_STATUS = {
    "no-such-token": HTTPStatus.FORBIDDEN,
    "token-used": HTTPStatus.GONE,
    "token-expired": HTTPStatus.GONE,
}
_JOIN_PAGE = b"""This is a claim link of Apportion: it makes a device one of a fleet, once.
On the device, with the whole link, as it was scanned, between quotes:

    pip install 'apportion[onnxruntime,identity]'
    apportion enrol 'LINK'
"""


class RateLimit:
    """So many at once and so many more a second, for each address and for all together.

    Args:
        now: seconds, on a clock that is never set back.
    """

    def __init__(
        self,
        per_address: tuple[int, float] = PER_ADDRESS,
        in_all: tuple[int, float] = IN_ALL,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_address, self._in_all, self._now = per_address, in_all, now
        self._lock = threading.Lock()
        self._left: dict[str, tuple[float, float]] = {}
        self._left_in_all = (float(in_all[0]), now())

    def wait_s(self, address: str) -> float:
        """0 when ``address`` may go on now, which is then counted; else how long it has to wait."""
        with self._lock:
            now = self._now()
            count, rate = self._per_address
            mine = _refilled(self._left.get(address, (float(count), now)), self._per_address, now)
            everyones = _refilled(self._left_in_all, self._in_all, now)
            short = max((1.0 - mine) / rate, (1.0 - everyones) / self._in_all[1])
            if short > 0:
                return short
            if len(self._left) >= _MAX_ADDRESSES:
                # Whoever is full again is as good as new.
                kept = {
                    name: left for name, left in self._left.items() if _refilled(left, self._per_address, now) < count
                }
                self._left = kept if len(kept) < _MAX_ADDRESSES else {}
            self._left[address] = (mine - 1.0, now)
            self._left_in_all = (everyones - 1.0, now)
            return 0.0


def _refilled(left: tuple[float, float], limit: tuple[int, float], now: float) -> float:
    return min(float(limit[0]), left[0] + (now - left[1]) * limit[1])


class ClaimService:
    """Answers claims from the authority in ``identity``, which is opened anew for each.

    Args:
        federation, broker: what devices are told; empty where the service does not know.
        limit: None: :class:`RateLimit` with its defaults.

    Attributes:
        claimed: devices that got a certificate, in order.
    """

    def __init__(
        self, identity: Path, *, federation: str = "", broker: str = "", limit: RateLimit | None = None
    ) -> None:
        self.claimed: list[str] = []
        self._identity = identity
        self._federation, self._broker = federation, broker
        self._limit = limit if limit is not None else RateLimit()
        # One at a time: SQLite would make them wait for each other anyway, and give up after a while.
        self._exchange = threading.Lock()

    def answer(self, request: Request) -> bool:
        """Answer ``request`` when it is one of this service's."""
        path = request.path
        if request.command == "GET" and path == ROOT_PATH:
            self._give(request, HTTPStatus.OK, (self._identity / "ca.pem").read_bytes(), "application/x-pem-file")
        elif request.command == "GET" and path == JOIN_PATH:
            self._give(request, HTTPStatus.OK, _JOIN_PAGE, "text/plain; charset=utf-8")
        elif request.command == "GET" and (asked := _KEY_DIGEST.fullmatch(path)):
            if self._is_let_in(request):
                self._guarded(request, lambda: self._issued_before(asked[1]))
        elif request.command == "POST" and path == CLAIM_PATH:
            if self._is_let_in(request):
                body = self._body(request)
                if body is not None:
                    self._guarded(request, lambda: self._claim(request, body))
        else:
            return False
        return True

    def _claim(self, request: Request, body: bytes) -> tuple[HTTPStatus, ClaimReply | ClaimRefusal]:
        try:
            asked = ClaimRequest.from_bytes(body)
        except MessageRejected:
            # Not the parser's message: it may quote what was sent.
            return _refusal(
                HTTPStatus.BAD_REQUEST,
                "not-a-claim",
                f"{len(body)} bytes are not JSON with the texts 'token' and 'csr'",
                "claim with: apportion enrol LINK",
            )
        address = request.client_address[0]
        try:
            with self._exchange, Authority(self._identity) as authority:
                claimed = exchange_token(authority, asked.token, asked.csr.encode())
        except TokenRefused as error:
            log.warning("claim of %s refused: %s", address, error.reason)
            return _refusal(_STATUS[error.reason], error.reason, str(error), error.hint)
        self.claimed.append(claimed.device)
        log.info("'%s' claimed its certificate, from %s", claimed.device, address)
        return HTTPStatus.OK, self._reply(
            claimed.device, claimed.certificate, ca=claimed.ca, signing_public=claimed.signing_public
        )

    def _issued_before(self, key_digest: str) -> tuple[HTTPStatus, ClaimReply | ClaimRefusal]:
        with Authority(self._identity) as authority:
            now = authority.now()
            for found in reversed(authority.records.certificates("device")):
                if hashlib.sha256(found.public_key).hexdigest() == key_digest and found.status(now) == "valid":
                    folder = authority.folder
                    return HTTPStatus.OK, self._reply(
                        found.name,
                        found.pem,
                        ca=folder.ca.read_bytes(),
                        signing_public=folder.signing_public.read_bytes(),
                    )
        return _refusal(HTTPStatus.NOT_FOUND, "no-certificate", "no certificate stands for that key", "")

    def _reply(self, device: str, certificate: bytes, *, ca: bytes, signing_public: bytes) -> ClaimReply:
        return ClaimReply(
            device=device,
            certificate=certificate.decode(),
            ca=ca.decode(),
            signing_public=signing_public.decode(),
            federation=self._federation,
            broker=self._broker,
        )

    def _guarded(self, request: Request, work: Callable[[], tuple[HTTPStatus, ClaimReply | ClaimRefusal]]) -> None:
        """Answer with what ``work`` gives; what goes wrong in here is for our log, not for whoever asks."""
        try:
            status, answer = work()
        except IdentityRefused as error:
            text = str(error)
            if str(self._identity) in text:  # of our own files: nobody else's business
                log.error("a claim could not be answered: %s", text)
                status, answer = _broken()
            else:
                log.warning("claim of %s refused: %s", request.client_address[0], text)
                status, answer = _refusal(HTTPStatus.UNPROCESSABLE_ENTITY, error.code, text, error.hint)
        except Exception:
            log.exception("a claim could not be answered")
            status, answer = _broken()
        self._give(request, status, answer.to_bytes())

    def _is_let_in(self, request: Request) -> bool:
        wait_s = self._limit.wait_s(request.client_address[0])
        if wait_s <= 0:
            return True
        seconds = int(wait_s) + 1
        log.warning("too many claims, now from %s", request.client_address[0])
        _, refusal = _refusal(
            HTTPStatus.TOO_MANY_REQUESTS,
            "too-many-claims",
            "too many claims in a short time; this one was not looked at",
            f"try again in {seconds} s",
        )
        self._give(request, HTTPStatus.TOO_MANY_REQUESTS, refusal.to_bytes(), retry_s=seconds)
        return False

    def _body(self, request: Request) -> bytes | None:
        """The body, once its length is known to be fit; None when the request has been answered, or its client left."""
        length = request.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit() or request.headers.get("Transfer-Encoding"):
            status, refusal = _refusal(
                HTTPStatus.LENGTH_REQUIRED, "no-length", "a claim says its Content-Length", "apportion enrol LINK"
            )
        elif len(length) > 9 or int(length) > MAX_CLAIM_BYTES:
            status, refusal = _refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "too-large",
                f"a claim of {length[:12]} bytes is over the limit of {MAX_CLAIM_BYTES}; it was not read",
                "apportion enrol LINK",
            )
        else:
            body = request.read_body(int(length))
            if len(body) == int(length):
                return body
            request.close_connection = True
            return None
        self._give(request, status, refusal.to_bytes())
        return None

    def _give(
        self,
        request: Request,
        status: HTTPStatus,
        body: bytes,
        kind: str = "application/json",
        *,
        retry_s: int = 0,
    ) -> None:
        # One request a connection: what of a body was not read is not taken for the next one.
        request.close_connection = True
        headers = {"Content-Type": kind, "Connection": "close", "Cache-Control": "no-store"}
        if retry_s:
            headers["Retry-After"] = str(retry_s)
        request.answer(status, headers, body)


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


def _refusal(status: HTTPStatus, code: str, message: str, hint: str) -> tuple[HTTPStatus, ClaimRefusal]:
    return status, ClaimRefusal(Refused(code, message, hint))


def _broken() -> tuple[HTTPStatus, ClaimRefusal]:
    return _refusal(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "authority-failed",
        "the authority could not answer; its log says why",
        "see the log at the coordinator; a token that was not used can be tried again",
    )
