"""A device as a browser is one: a key on P-256 that signs, and what a claim gave it."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coordinator.identity.authority import Authority
from coordinator.identity.browsers import KeyClaimed, claim_key
from coordinator.identity.claims import create_token
from edge.contracts.envelope import seal
from edge.contracts.signing import claim_text, message_text


class BrowserDevice:
    """A device with a key of its own; ``curve`` is for keys that are refused."""

    def __init__(self, device: str, curve: ec.EllipticCurve | None = None) -> None:
        self.device = device
        self._key = ec.generate_private_key(curve or ec.SECP256R1())
        self.spki = self._key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.public_key = base64.b64encode(self.spki).decode()

    def sign(self, text: bytes) -> bytes:
        """``r || s``, as WebCrypto gives it."""
        r, s = decode_dss_signature(self._key.sign(text, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    def proof(self, token: str) -> str:
        return base64.b64encode(self.sign(claim_text(token, self.public_key))).decode()

    def claim(self, authority: Authority, token: str) -> KeyClaimed:
        return claim_key(authority, token, self.public_key, self.proof(token))

    def enrol(self, identity: Path) -> KeyClaimed:
        """Made known to the identity, with a token of its own."""
        with Authority(identity) as authority:
            return self.claim(authority, create_token(authority, self.device, 600))

    def sealed(self, kind: str, body: Any, *, federation: str, signed_as: Mapping[str, str] | None = None) -> bytes:
        """A message with the id ``m1``, signed by this key; ``signed_as`` are other words in place of its own."""
        words = {"federation": federation, "device": self.device, "kind": kind, "message_id": "m1", **(signed_as or {})}

        def sign(packed: bytes) -> bytes:
            return self.sign(message_text(**words, body=packed))

        return seal(kind, body, message_id="m1", sign=sign)
