"""Claim tokens: whoever has one gets one certificate for one device, once, until it expires.

A token is ``<id>.<secret>``; only the secret's SHA-256 is kept. The secret has 256 random bits, so a plain hash is as
good as a slow one. How a token travels to a device (a QR code, a message) and over what it comes back is not told here.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from coordinator.identity.authority import Authority
from coordinator.identity.names import check_id
from coordinator.identity.records import TokenRow
from edge.contracts.errors import AccessDenied, IdentityRefused

MAX_TOKEN_S = 30 * 86_400
_TOKEN = re.compile(r"([0-9a-f]{16})\.([A-Za-z0-9_-]{43})")
_DURATION = re.compile(r"([0-9]{1,9})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NOBODYS = hashlib.sha256(b"no such token").digest()


class TokenRefused(AccessDenied):
    """A claim token that gives nothing; ``reason`` is ``no-such-token``, ``token-used`` or ``token-expired``."""

    def __init__(self, reason: str, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


@dataclass(frozen=True)
class Claimed:
    """What a device gets for a token, as PEM: its certificate, the root, and the key that checks orders."""

    device: str
    certificate: bytes
    ca: bytes
    signing_public: bytes


def parse_duration(text: str) -> int:
    """Seconds in ``90s``, ``30m``, ``1h`` or ``7d``.

    Raises:
        IdentityRefused: something else, nothing, or more than 30 days.
    """
    match = _DURATION.fullmatch(text)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < seconds <= MAX_TOKEN_S:
        raise IdentityRefused(f"'{text}' is not a time between 1 second and 30 days", hint="write 90s, 30m, 1h or 7d")
    return seconds


def create_token(authority: Authority, device: str, expires_s: int) -> str:
    """A token for ``device``, the only place where its secret ever is; earlier unused ones of the device end.

    Raises:
        IdentityRefused: an unusable device id, or the device has a certificate or a browser's key.
    """
    check_id(device, what="device id")
    if not 0 < expires_s <= MAX_TOKEN_S:
        raise IdentityRefused(f"a token is good for 1 to {MAX_TOKEN_S} seconds, not {expires_s}")
    if any(c.status(authority.now()) == "valid" for c in authority.records.certificates("device", device)):
        raise IdentityRefused(
            f"device '{device}' has a certificate: a token would be refused",
            hint=f"revoke it first: apportion ca revoke {device}",
        )
    if authority.records.standing_browser(device) is not None:
        raise IdentityRefused(
            f"device '{device}' is in a browser that has its key: a token would be refused",
            hint=f"revoke it first: apportion ca revoke {device}",
        )
    token_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    with authority.records.transaction():
        authority.records.drop_tokens(device)
        row = TokenRow(device, _hash(secret), authority.now() + expires_s, None)
        authority.records.add_token(token_id, row)
    return f"{token_id}.{secret}"


def exchange_token(authority: Authority, token: str, request: bytes) -> Claimed:
    """What the device that the token is for gets for its PEM certificate ``request``; the token is then used.

    A request that cannot be signed leaves the token as it was. Whoever does not know the secret learns nothing: an
    unknown id and a wrong secret give the same answer.

    Raises:
        TokenRefused: no such token, or it has expired or was used.
        IdentityRefused: the request is not one for the token's device.
    """
    with authority.records.transaction():
        token_id, row = known_token(authority, token)
        if row.used_at is not None:
            raise token_used(row)
        if authority.now() >= row.expires_at:
            raise token_expired(row)
        issued = authority.certify_device(request, row.device)
        authority.records.use_token(token_id, authority.now(), issued.certificate.serial)
    authority.deliver(issued)
    folder = authority.folder
    return Claimed(row.device, issued.certificate.pem, folder.ca.read_bytes(), folder.signing_public.read_bytes())


def known_token(authority: Authority, token: str) -> tuple[str, TokenRow]:
    """Id and row of a token whose secret is right, used or not; to be called in a transaction.

    Raises:
        TokenRefused: there is none.
    """
    match = _TOKEN.fullmatch(token)
    row = authority.records.token(match[1]) if match else None
    is_right = hmac.compare_digest(
        _hash(match[2]) if match else b"", row.secret_sha256 if row is not None else _NOBODYS
    )
    if row is None or match is None or not is_right:
        raise TokenRefused(
            "no-such-token", "no such claim token", hint="check it, or make one: apportion ca token DEVICE"
        )
    return match[1], row


def token_used(row: TokenRow) -> TokenRefused:
    """What whoever comes with a used token is told."""
    return TokenRefused(
        "token-used",
        f"the claim token for '{row.device}' was used {_time(row.used_at or 0.0)}; it is good for one device, once",
        hint=f"if that was not the device: apportion ca revoke {row.device}; then {_another(row)}",
    )


def token_expired(row: TokenRow) -> TokenRefused:
    """What whoever comes with an expired token is told."""
    expired = f"the claim token for '{row.device}' expired {_time(row.expires_at)}"
    return TokenRefused("token-expired", expired, hint=_another(row))


def _another(row: TokenRow) -> str:
    return f"make another: apportion ca token {row.device}"


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


def _time(seconds: float) -> str:
    return f"{datetime.datetime.fromtimestamp(seconds, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
