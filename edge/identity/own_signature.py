"""What a device with a certificate signs by that certificate's key, as ``r || s``: ECDSA on P-256 with SHA-256."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from edge.contracts.signing import SIGNATURE_BYTES
from edge.identity.credentials import CertificateFiles

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

log = logging.getLogger("apportion.credentials")


class OwnSignature:
    """Signs with the key in ``path``, which is read at the first signature; empty ones when it cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._key: EllipticCurvePrivateKey | None = None

    @classmethod
    def of(cls, files: CertificateFiles | None) -> OwnSignature | None:
        """By the key of a device's certificate; None without one."""
        return None if files is None else cls(files.key)

    def __call__(self, text: bytes) -> bytes:
        """The signature of ``text``."""
        try:
            self._key = self._key or self._load()
        except (ImportError, OSError, ValueError, TypeError) as error:
            log.warning("%s cannot sign (%s): what this device says of masks is refused", self._path, error)
            return b""
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        half = SIGNATURE_BYTES // 2
        r, s = decode_dss_signature(self._key.sign(text, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(half, "big") + s.to_bytes(half, "big")

    def _load(self) -> EllipticCurvePrivateKey:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(self._path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise TypeError(f"a {type(key).__name__}, a key on P-256 is wanted; enrol the device")
        return key
