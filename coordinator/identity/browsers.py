"""Devices in browsers: a key that signs their messages instead of a certificate, and a broker's password of their own.

A page cannot show its WebCrypto key as a TLS client's certificate. So the broker knows such a device by its id and a
password that is made here and told once, and the coordinator knows it by its signatures
(:mod:`coordinator.identity.message_check`). A device has a certificate or such a key, never both.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.serialization import load_der_public_key

from coordinator.identity.authority import SUPERSEDED, Authority
from coordinator.identity.certificates import public_bytes
from coordinator.identity.claims import known_token, token_expired, token_used
from coordinator.identity.password_hash import mosquitto_password
from coordinator.identity.records import BrowserDevice
from edge.contracts.errors import IdentityRefused
from edge.contracts.signing import SIGNATURE_BYTES, claim_text

MAX_KEY_TEXT = 400
"""Characters of base64; a key on P-256 has 124."""


@dataclass(frozen=True)
class KeyClaimed:
    """What a browser gets for a token; nothing but this holds its password, which is ``user``'s at the broker."""

    device: str
    user: str
    password: str
    signing_public: bytes

    def __repr__(self) -> str:
        """Without the password."""
        return f"KeyClaimed({self.device})"


def browser_public_key(der: bytes) -> ec.EllipticCurvePublicKey:
    """The key in a SubjectPublicKeyInfo.

    Raises:
        IdentityRefused: no key, or not one on P-256 with its curve by name.
    """
    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise IdentityRefused(
            f"the public key of {len(der)} bytes cannot be read; an SPKI of a key on P-256 is wanted"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        kind = key.curve.name if isinstance(key, ec.EllipticCurvePublicKey) else type(key).__name__
        raise IdentityRefused(f"the public key is a {kind}, one on P-256 is wanted")
    return key


def is_signed(key: ec.EllipticCurvePublicKey, signature: bytes, text: bytes) -> bool:
    """Whether ``signature``, ``r || s`` as WebCrypto gives it, is of ``text`` by the key: ECDSA with SHA-256."""
    if len(signature) != SIGNATURE_BYTES:
        return False
    half = SIGNATURE_BYTES // 2
    r, s = int.from_bytes(signature[:half], "big"), int.from_bytes(signature[half:], "big")
    try:
        key.verify(encode_dss_signature(r, s), text, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def claim_key(authority: Authority, token: str, public_key: str, proof: str) -> KeyClaimed:
    """What the device that the token is for gets for its key; the token is then that key's.

    The same key may claim again with it until it expires: the answer may have been lost. The password that is made
    then takes the place of the former. A claim that is refused changes nothing.

    Args:
        public_key: base64 of the SPKI; ``proof``: base64 of the signature of :func:`claim_text`.

    Raises:
        TokenRefused: no such token, it has expired, or another key or a certificate has it.
        IdentityRefused: not a key on P-256, a proof that is not its own, a key that was revoked, or the device has a
            certificate or another key.
    """
    records = authority.records
    with records.transaction():
        token_id, row = known_token(authority, token)
        der = _decoded(public_key, "the public key", MAX_KEY_TEXT)
        use = f"key-{hashlib.sha256(der).hexdigest()}"
        if row.used_at is not None and not hmac.compare_digest(row.used_for, use):
            raise token_used(row)
        if authority.now() >= row.expires_at:
            raise token_expired(row)
        key = browser_public_key(der)
        if public_bytes(key) != der:
            raise IdentityRefused(
                "the public key is not the canonical SPKI of a key on P-256; send it as WebCrypto does"
            )
        if not is_signed(key, _decoded(proof, "the proof", MAX_KEY_TEXT), claim_text(token, public_key)):
            raise IdentityRefused(
                "the proof is not a signature of this claim by its key", hint="sign the token and the key anew"
            )
        _refuse_others(authority, row.device, der)
        password = secrets.token_urlsafe(32)
        line = mosquitto_password(row.device, password).decode().strip()
        records.keep_browser(BrowserDevice(row.device, der, line, authority.now()))
        records.use_token(token_id, authority.now(), use)
    return KeyClaimed(row.device, row.device, password, authority.folder.signing_public.read_bytes())


def browser_devices(authority: Authority) -> list[BrowserDevice]:
    """All there are and were, oldest first."""
    return authority.records.browsers()


def browser_key(authority: Authority, device: str) -> ec.EllipticCurvePublicKey | None:
    """The key that messages of ``device`` are signed with; None where it has none that stands."""
    standing = authority.records.standing_browser(device)
    return None if standing is None else browser_public_key(standing.public_key)


def password_lines(authority: Authority) -> bytes:
    """The password file of a Mosquitto: the browser devices that stand."""
    return "".join(f"{b.password_line}\n" for b in authority.records.browsers() if b.revoked_at is None).encode()


def _refuse_others(authority: Authority, device: str, der: bytes) -> None:
    if any(c.status(authority.now()) == "valid" for c in authority.records.certificates("device", device)):
        raise IdentityRefused(
            f"device '{device}' has a certificate: it cannot have a browser's key too",
            hint=f"revoke it first: apportion ca revoke {device}",
        )
    for other in authority.records.browsers():
        if other.public_key == der and other.revoked_at is not None and other.reason != SUPERSEDED:
            raise IdentityRefused(
                f"the key of this claim was revoked ({other.reason}); it was that of '{other.device}'",
                hint="forget this device in the browser, so that it makes another key, and open another link",
            )
        if other.device == device and other.public_key != der and other.revoked_at is None:
            raise IdentityRefused(
                f"device '{device}' has another browser's key; nothing was changed",
                hint=f"revoke it first: apportion ca revoke {device}",
            )


def _decoded(text: str, what: str, limit: int) -> bytes:
    try:
        if len(text) > limit:
            raise ValueError(f"{len(text)} characters, at most {limit}")
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (ValueError, binascii.Error) as error:
        raise IdentityRefused(f"{what} is not base64 ({error})") from error
