"""Claims, whoever carries them here: what each gets, as status, headers and JSON. Nobody learns anything else.

:mod:`coordinator.web.claims` reads requests, within a size and a time; from there on it is this file's: how often, what
for, and what goes into the log, which never holds a token or a password.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from coordinator.fleet.rate_limit import RateLimit
from coordinator.identity.authority import Authority
from coordinator.identity.browsers import claim_key
from coordinator.identity.claims import TokenRefused, exchange_token
from edge.contracts.claims import ClaimRefusal, ClaimReply, ClaimRequest, KeyClaimReply, KeyClaimRequest, Refused
from edge.contracts.errors import IdentityRefused, MessageRejected

log = logging.getLogger("apportion.claims")

T = TypeVar("T", ClaimRequest, KeyClaimRequest)

_DIGEST = re.compile("[0-9a-f]{64}")
_STATUS = {
    "no-such-token": HTTPStatus.FORBIDDEN,
    "token-used": HTTPStatus.GONE,
    "token-expired": HTTPStatus.GONE,
}


@dataclass(frozen=True)
class Answer:
    """An answer over HTTP, whoever sends it; its length is for that one to say."""

    status: HTTPStatus
    headers: Mapping[str, str]
    body: bytes


class ClaimHandler:
    """Answers claims from the authority in ``identity``, which is opened anew for each; several threads may ask.

    Args:
        federation, broker: what devices with certificates are told; empty where they are not known.
        web_socket: ``ws(s)://host:port[/path]`` of the broker, for browsers; empty: no browser is let in.
        limit: None: :class:`RateLimit` with its defaults.
        on_claimed: called with the device before it has its answer: what lets it in has to know it by then.

    Attributes:
        claimed: devices whose claim was not refused, in order.
    """

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
        self.claimed: list[str] = []
        self._identity = identity
        self._federation, self._broker, self._web_socket = federation, broker, web_socket
        self._limit = limit if limit is not None else RateLimit()
        self._on_claimed = on_claimed
        # One at a time: SQLite would make them wait for each other anyway, and give up after a while.
        self._exchange = threading.Lock()

    def claim(self, body: bytes, address: str) -> Answer:
        """The certificate for the token and the request in ``body``, a :class:`ClaimRequest`."""
        return self._let_in(address, lambda: self._claim(body, address))

    def claim_key(self, body: bytes, address: str) -> Answer:
        """The broker's password for the token and the key in ``body``, a :class:`KeyClaimRequest`."""
        return self._let_in(address, lambda: self._claim_key(body, address))

    def issued_before(self, digest: str, address: str) -> Answer:
        """The certificate that stands for the key with that SHA-256."""
        return self._let_in(address, lambda: self._issued_before(digest))

    def root(self) -> Answer:
        """The root's certificate."""
        return Answer(HTTPStatus.OK, _headers("application/x-pem-file"), (self._identity / "ca.pem").read_bytes())

    def too_many(self, address: str) -> Answer | None:
        """Why ``address`` has to wait, before anything of its request is read; None, and it is counted, if it has not.

        Whoever asks this first goes on with :meth:`claim`'s ``body`` through :meth:`admitted`.
        """
        wait_s = self._limit.wait_s(address)
        if wait_s <= 0:
            return None
        seconds = int(wait_s) + 1
        log.warning("too many claims, now from %s", address)
        refused = refusal(
            HTTPStatus.TOO_MANY_REQUESTS,
            "too-many-claims",
            "too many claims in a short time; this one was not looked at",
            f"try again in {seconds} s",
        )
        return Answer(refused.status, {**refused.headers, "Retry-After": str(seconds)}, refused.body)

    def admitted(self, body: bytes, address: str, *, is_key: bool) -> Answer:
        """As :meth:`claim` or :meth:`claim_key`, for a request that was counted already."""
        return self._guarded(address, lambda: (self._claim_key if is_key else self._claim)(body, address))

    def _claim(self, body: bytes, address: str) -> Answer:
        asked = _read(body, ClaimRequest)
        if isinstance(asked, Answer):
            return asked
        with self._exchange:
            with Authority(self._identity) as authority:
                claimed = exchange_token(authority, asked.token, asked.csr.encode())
            self._welcome(claimed.device, "certificate", address)
        return self._certified(claimed.device, claimed.certificate, claimed.ca, claimed.signing_public)

    def _claim_key(self, body: bytes, address: str) -> Answer:
        if not self._web_socket:
            return refusal(
                HTTPStatus.NOT_FOUND,
                "no-browsers",
                "no browser is let in here; the token was not looked at",
                "the coordinator's run file names an address for browsers as [broker] web",
            )
        asked = _read(body, KeyClaimRequest)
        if isinstance(asked, Answer):
            return asked
        with self._exchange:
            with Authority(self._identity) as authority:
                claimed = claim_key(authority, asked.token, asked.public_key, asked.proof)
            self._welcome(claimed.device, "broker's password", address)
        reply = KeyClaimReply(
            device=claimed.device,
            federation=self._federation,
            broker=self._web_socket,
            user=claimed.user,
            password=claimed.password,
            signing_public=claimed.signing_public.decode(),
        )
        return Answer(HTTPStatus.OK, _headers(), reply.to_bytes())

    def _welcome(self, device: str, what: str, address: str) -> None:
        self.claimed.append(device)
        log.info("'%s' claimed its %s, from %s", device, what, address)
        if self._on_claimed is not None:
            try:
                self._on_claimed(device)
            except Exception:
                # It has its claim all the same, and the broker may be told again.
                log.exception("'%s' is enrolled, but the broker could not be told", device)

    def _issued_before(self, digest: str) -> Answer:
        if _DIGEST.fullmatch(digest):
            with Authority(self._identity) as authority:
                now, folder = authority.now(), authority.folder
                for found in reversed(authority.records.certificates("device")):
                    if hashlib.sha256(found.public_key).hexdigest() == digest and found.status(now) == "valid":
                        ca, signing = folder.ca.read_bytes(), folder.signing_public.read_bytes()
                        return self._certified(found.name, found.pem, ca, signing)
        return refusal(HTTPStatus.NOT_FOUND, "no-certificate", "no certificate stands for that key", "")

    def _certified(self, device: str, certificate: bytes, ca: bytes, signing_public: bytes) -> Answer:
        reply = ClaimReply(
            device=device,
            certificate=certificate.decode(),
            ca=ca.decode(),
            signing_public=signing_public.decode(),
            federation=self._federation,
            broker=self._broker,
        )
        return Answer(HTTPStatus.OK, _headers(), reply.to_bytes())

    def _let_in(self, address: str, work: Callable[[], Answer]) -> Answer:
        return self.too_many(address) or self._guarded(address, work)

    def _guarded(self, address: str, work: Callable[[], Answer]) -> Answer:
        """What ``work`` gives; what goes wrong in here is for our log, not for whoever asks."""
        try:
            return work()
        except TokenRefused as error:
            log.warning("claim of %s refused: %s", address, error.reason)
            return refusal(_STATUS[error.reason], error.reason, str(error), error.hint)
        except IdentityRefused as error:
            text = str(error)
            if str(self._identity) in text:  # of our own files: nobody else's business
                log.error("a claim could not be answered: %s", text)
                return _broken()
            log.warning("claim of %s refused: %s", address, text)
            return refusal(HTTPStatus.UNPROCESSABLE_ENTITY, error.code, text, error.hint)
        except Exception:
            log.exception("a claim could not be answered")
            return _broken()


def refusal(status: HTTPStatus, code: str, message: str, hint: str) -> Answer:
    """A refusal as an answer."""
    return Answer(status, _headers(), ClaimRefusal(Refused(code, message, hint)).to_bytes())


def _read(body: bytes, kind: type[T]) -> T | Answer:
    try:
        return kind.from_bytes(body)
    except MessageRejected:
        # Not the parser's message: it may quote what was sent.
        wanted = " and ".join(f"'{name}'" for name in kind.__struct_fields__)
        return refusal(
            HTTPStatus.BAD_REQUEST,
            "not-a-claim",
            f"{len(body)} bytes are not JSON with the texts {wanted}",
            "claim with: apportion enrol LINK",
        )


def _headers(kind: str = "application/json") -> dict[str, str]:
    return {"Content-Type": kind, "Cache-Control": "no-store"}


def _broken() -> Answer:
    return refusal(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "authority-failed",
        "the authority could not answer; its log says why",
        "see the log at the coordinator; a token that was not used can be tried again",
    )
