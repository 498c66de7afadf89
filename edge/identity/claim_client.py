"""A claim service as a device asks it, over HTTPS: who it is, what it has for a token, what it issued before.

It is known by the digest of its root, which the link says; nothing that is secret is sent before that has been checked.
"""

from __future__ import annotations

import hashlib
import ssl
import time
from datetime import UTC, datetime
from http.client import HTTPException, HTTPSConnection
from urllib.parse import urlsplit

from edge.contracts.claims import (
    CERTIFICATE_PATH,
    CLAIM_PATH,
    MAX_REPLY_BYTES,
    ROOT_PATH,
    ClaimLink,
    ClaimRefusal,
    ClaimReply,
    ClaimRequest,
)
from edge.contracts.errors import ApportionError, MessageRejected

TIMEOUT_S = 20.0
CONNECT_AGAIN_S = (0.1, 0.3, 0.6, 1.0, 2.0)
"""Pauses before another try, where a server ended the connection before anything was said."""
ANSWER_LOST = "answer-lost"
"""Whether something was issued is not known; the key has to be kept."""
NOT_SENT = "the token was not sent"

_NOT_YET_VALID, _EXPIRED, _WRONG_HOST, _WRONG_ADDRESS = 9, 10, 62, 64
"""X509_V_ERR_* of OpenSSL's x509_vfy.h."""


class EnrolmentFailed(ApportionError):
    """Nothing was enrolled; ``code`` says why: the service's own, or ``service-unreachable``, ``wrong-server``, ...."""

    exit_code = 3

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


def fetch_root(link: ClaimLink, now: float) -> str:
    """The root's certificate as PEM, which has the digest that the link says; nothing that is secret was sent for it.

    Raises:
        EnrolmentFailed: nobody answers, another root does, or this device's clock is outside the root's time.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    unchecked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
    status, date, body = _ask(link.service, unchecked, "GET", ROOT_PATH)
    try:
        if status != 200:
            raise ValueError(f"status {status}")
        root = x509.load_pem_x509_certificate(body)
    except (ValueError, x509.InvalidVersion) as error:
        raise EnrolmentFailed(
            "not-a-claim-service",
            f"{link.service} gives no root ({error}); nothing was sent to it",
            hint="see the link's host and port; at the coordinator: apportion device claims",
        ) from error
    der = root.public_bytes(Encoding.DER)
    found = hashlib.sha256(der).hexdigest()
    if found != link.pin:
        raise EnrolmentFailed(
            "wrong-server",
            f"{link.service} has the root {found[:16]}..., the link says {link.pin[:16]}...: it is someone else's "
            f"server, or the identity was made anew; {NOT_SENT}",
            hint="have another link made at the coordinator, and see who answers at that address",
        )
    if not root.not_valid_before_utc.timestamp() <= now < root.not_valid_after_utc.timestamp():
        raise clock_is_off(
            now,
            f"the root is good from {root.not_valid_before_utc:%Y-%m-%d} to {root.not_valid_after_utc:%Y-%m-%d}",
            date,
        )
    return root.public_bytes(Encoding.PEM).decode()


class ClaimClient:
    """The claim service, certified by ``root``."""

    def __init__(self, link: ClaimLink, root: str) -> None:
        self._url = link.service
        self._context = ssl.create_default_context(cadata=root)
        self._context.minimum_version = ssl.TLSVersion.TLSv1_2

    def issued_before(self, public_der: bytes) -> ClaimReply | None:
        """What was issued for that key; None if nothing was."""
        path = CERTIFICATE_PATH + hashlib.sha256(public_der).hexdigest()
        status, _, body = _ask(self._url, self._context, "GET", path)
        return ClaimReply.from_bytes(body) if status == 200 else None

    def claim(self, request: ClaimRequest) -> ClaimReply:
        """What the token gives.

        Raises:
            EnrolmentFailed: it gives nothing; ``ANSWER_LOST`` when that is not known.
        """
        status, _, body = _ask(self._url, self._context, "POST", CLAIM_PATH, request.to_bytes())
        try:
            if status == 200:
                return ClaimReply.from_bytes(body)
            refused = ClaimRefusal.from_bytes(body).error
        except MessageRejected as error:
            raise EnrolmentFailed(
                "not-a-claim-service",
                f"{self._url} answered {status} and nothing that can be read ({error})",
                hint="see that the coordinator has the release that this device has",
            ) from error
        raise EnrolmentFailed(refused.code, f"{self._url} refused: {refused.message}", hint=refused.hint)


def _ask(
    url: str, context: ssl.SSLContext, method: str, path: str, body: bytes | None = None
) -> tuple[int, str, bytes]:
    """Status, the server's date and the body.

    Raises:
        EnrolmentFailed: no answer, or from a server that ``context`` does not trust.
    """
    parts = urlsplit(url)
    connection = HTTPSConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S, context=context)
    is_sent = False
    try:
        _connect(connection)
        is_sent = body is not None
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        data = answer.read(MAX_REPLY_BYTES + 1)
        return answer.status, answer.headers.get("Date", ""), data
    except ssl.SSLCertVerificationError as error:
        raise _not_trusted(url, error) from error
    except (OSError, HTTPException) as error:
        if is_sent:
            raise EnrolmentFailed(
                ANSWER_LOST,
                f"the connection to {url} ended before its answer ({error}); a certificate may have been issued",
                hint="run the same command again: it fetches what was issued for this key, or claims once more",
            ) from error
        raise EnrolmentFailed(
            "service-unreachable",
            f"{url} cannot be reached ({error or type(error).__name__})",
            hint="is this device in the same network, and does it run? at the coordinator: apportion device claims",
        ) from error
    finally:
        connection.close()


def _connect(connection: HTTPSConnection) -> None:
    """Open it; a server with no place left ends connections, and has one a moment later."""
    for wait_s in (*CONNECT_AGAIN_S, None):
        try:
            connection.connect()
            return
        except (ConnectionResetError, BrokenPipeError, ssl.SSLZeroReturnError, ssl.SSLEOFError):
            connection.close()
            if wait_s is None:
                raise
            time.sleep(wait_s)


def _not_trusted(url: str, error: ssl.SSLCertVerificationError) -> EnrolmentFailed:
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        return clock_is_off(time.time(), f"the certificate of {url} is not valid at this time ({error.verify_message})")
    if error.verify_code in (_WRONG_HOST, _WRONG_ADDRESS):
        return EnrolmentFailed(
            "wrong-server",
            f"the server's certificate is not for that host ({error.verify_message}); {NOT_SENT}",
            hint="at the coordinator: apportion ca issue-server --name HOST for the host of the link, with --replace",
        )
    return EnrolmentFailed(
        "wrong-server",
        f"{url} shows the right root and has no certificate of it ({error.verify_message}): "
        f"someone may be in between; {NOT_SENT}",
        hint="try another network; at the coordinator: apportion ca ls",
    )


def clock_is_off(now: float, why: str, server_date: str = "", *, and_so: str = NOT_SENT) -> EnrolmentFailed:
    """The error for a clock that certificates are not valid at; ``and_so`` says what has become of the token."""
    theirs = f"; the server's says {server_date}" if server_date else ""
    return EnrolmentFailed(
        "clock",
        f"this device's clock says {datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M} UTC{theirs}, and {why}; {and_so}",
        hint="set the clock (sudo timedatectl set-ntp true, or sudo date -s '...'), then run the same command again",
    )
