"""A claim: a device's token and certificate request for its certificate, over HTTPS; and the link that invites to it.

``POST /v1/claim`` takes a :class:`ClaimRequest` and gives a :class:`ClaimReply` or a :class:`ClaimRefusal`, as JSON.
``GET /v1/certificate/<SHA-256 of the public key>`` gives the reply again to a device that never got it: what it holds
is public, and of no use without the private key. ``GET /v1/ca.pem`` gives the root, whose digest is the link's pin.
``POST /v1/claim-key`` takes a :class:`KeyClaimRequest` of a browser, which has a key and no use for a certificate, and
gives a :class:`KeyClaimReply`.
"""

from __future__ import annotations

import base64
import re
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit

import msgspec

from edge.contracts.codec import build_readers, check_size, encode_json
from edge.contracts.errors import ConfigError, MessageRejected
from edge.contracts.topics import check_name

CLAIM_PATH = "/v1/claim"
KEY_CLAIM_PATH = "/v1/claim-key"
CERTIFICATE_PATH = "/v1/certificate/"
ROOT_PATH = "/v1/ca.pem"
JOIN_PATH = "/join"
MAX_CLAIM_BYTES = 24_576
MAX_REPLY_BYTES = 65_536
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "::1")
"""Where a page is a secure context without TLS, and nobody is between it and its server."""

T = TypeVar("T")

_TOKEN = re.compile(r"[0-9a-f]{16}\.[A-Za-z0-9_-]{43}")
_PIN = re.compile(r"[A-Za-z0-9_-]{43}")
_AGAIN = "copy the whole link, or have another made at the coordinator"


class ClaimRequest(msgspec.Struct, frozen=True):
    """What a device sends: its token, and its certificate request as PEM."""

    token: str
    csr: str

    def to_bytes(self) -> bytes:
        """JSON."""
        return encode_json(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> ClaimRequest:
        """The request in ``data``; unknown fields are ignored.

        Raises:
            MessageRejected: over :data:`MAX_CLAIM_BYTES`, or not such JSON.
        """
        return _decode(data, cls, MAX_CLAIM_BYTES)


class ClaimReply(msgspec.Struct, frozen=True):
    """What a device gets: its certificate, the root and the key that checks orders, all PEM, and where to go with them.

    Attributes:
        federation: empty where the service serves no one federation.
        broker: URL, as the agent's ``--broker`` takes it; may be empty.
    """

    device: str
    certificate: str
    ca: str
    signing_public: str
    federation: str = ""
    broker: str = ""

    def to_bytes(self) -> bytes:
        """JSON."""
        return encode_json(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> ClaimReply:
        """The reply in ``data``.

        Raises:
            MessageRejected: over :data:`MAX_REPLY_BYTES`, or not such JSON.
        """
        return _decode(data, cls, MAX_REPLY_BYTES)


class KeyClaimRequest(msgspec.Struct, frozen=True):
    """What a browser sends: its token, its public key, and a proof that it has the private one.

    Attributes:
        public_key: base64 of the DER SubjectPublicKeyInfo of a key on P-256.
        proof: base64 of the signature of :func:`edge.contracts.signing.claim_text`.
    """

    token: str
    public_key: str
    proof: str

    def to_bytes(self) -> bytes:
        """JSON."""
        return encode_json(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyClaimRequest:
        """The request in ``data``; unknown fields are ignored.

        Raises:
            MessageRejected: over :data:`MAX_CLAIM_BYTES`, or not such JSON.
        """
        return _decode(data, cls, MAX_CLAIM_BYTES)


class KeyClaimReply(msgspec.Struct, frozen=True):
    """What a browser gets: how it connects, and the key that checks orders.

    Attributes:
        broker: ``wss://host:port[/path]``, or ``ws://`` on this machine.
        user: the device's id; a broker asks for it and for ``password``, which is this device's own.
        signing_public: PEM.
    """

    device: str
    federation: str
    broker: str
    user: str
    password: str
    signing_public: str

    def to_bytes(self) -> bytes:
        """JSON."""
        return encode_json(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyClaimReply:
        """The reply in ``data``.

        Raises:
            MessageRejected: over :data:`MAX_REPLY_BYTES`, or not such JSON.
        """
        return _decode(data, cls, MAX_REPLY_BYTES)


class Refused(msgspec.Struct, frozen=True):
    """Why not: a stable name, what happened, what to do."""

    code: str
    message: str
    hint: str = ""


class ClaimRefusal(msgspec.Struct, frozen=True):
    """What a device gets instead."""

    error: Refused

    def to_bytes(self) -> bytes:
        """JSON."""
        return encode_json(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> ClaimRefusal:
        """The refusal in ``data``.

        Raises:
            MessageRejected: over :data:`MAX_REPLY_BYTES`, or not such JSON.
        """
        return _decode(data, cls, MAX_REPLY_BYTES)


class ClaimLink(msgspec.Struct, frozen=True):
    """An invitation: where to claim, with which token, and which root to trust. Whoever has it can claim.

    Attributes:
        service: ``https://host:port``; also ``http://`` where the host is this machine itself, for browsers.
        pin: SHA-256 of the root's certificate (DER), 64 hexadecimal digits.
        device: the id the token is for; empty where the link does not say.
    """

    service: str
    token: str
    pin: str
    device: str = ""

    def to_text(self) -> str:
        """The link. All that is secret comes after ``#``, which browsers send to nobody."""
        pin = base64.urlsafe_b64encode(bytes.fromhex(self.pin)).decode().rstrip("=")
        device = f"d={self.device}&" if self.device else ""
        return f"{self.service}{JOIN_PATH}#{device}t={self.token}&p={pin}"

    @classmethod
    def from_text(cls, text: str) -> ClaimLink:
        """The link's parts.

        Raises:
            ConfigError: not such a link; the message says what is wrong with it and never shows its token.
        """
        problems = []
        try:
            parts = urlsplit(text.strip())
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ConfigError([f"LINK: not a link ({error})"], hint=_AGAIN) from error
        values = dict(parse_qsl(parts.fragment))
        token, pin, device = (values.get(name, "") for name in "tpd")
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK_HOSTS)
        if not is_safe or not host or parts.path != JOIN_PATH:
            problems.append(f"LINK: is not https://host:port{JOIN_PATH}#...")
        if not _TOKEN.fullmatch(token):
            problems.append("LINK: has no token after '#t='; put the link between quotes, '&' ends a shell's word")
        if not _PIN.fullmatch(pin):
            problems.append("LINK: has no pin after '&p='; put the link between quotes, '&' ends a shell's word")
        try:
            if device:
                check_name(device, what="LINK: device")
        except MessageRejected as error:
            problems.append(str(error))
        if problems:
            raise ConfigError(problems, hint=_AGAIN)
        shown = f"[{host}]" if ":" in host else host
        digest = base64.urlsafe_b64decode(pin + "=").hex()
        usual_port = 443 if parts.scheme == "https" else 80
        return cls(f"{parts.scheme}://{shown}:{port or usual_port}", token, digest, device)


def _decode(data: bytes, kind: type[T], limit: int) -> T:
    check_size(data, limit, what=kind.__name__)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageRejected(f"{kind.__name__} of {len(data)} bytes cannot be read: {error}") from error


build_readers(ClaimRequest, ClaimReply, KeyClaimRequest, KeyClaimReply, ClaimRefusal)
