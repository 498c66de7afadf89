"""A device's key and certificate request, made on the device: the key never leaves it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from edge.contracts.errors import ConfigError, MessageRejected
from edge.contracts.topics import check_name
from edge.system.atomic_files import publish_file, sync


@dataclass(frozen=True)
class DeviceRequest:
    """PEM files: the private key, and the request that goes to the authority."""

    key: Path
    request: Path


def make_request(folder: Path, device: str) -> DeviceRequest:
    """The request of ``device`` in ``folder``, for the key that is there or a new one on P-256.

    Raises:
        ConfigError: an unusable device id, ``cryptography`` is not installed, or the key that is there cannot be used.
    """
    try:
        check_name(device, what="--device:")
    except MessageRejected as error:
        raise ConfigError([str(error)]) from error
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise ConfigError(
            [f"keys need the package cryptography ({error})"], hint="pip install 'apportion[identity]'"
        ) from error
    files = DeviceRequest(folder / "device.key", folder / "device.csr")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if files.key.exists():
        try:
            loaded = serialization.load_pem_private_key(files.key.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError([f"--out: {files.key} cannot be used ({error}); move it away"]) from error
        if not isinstance(loaded, ec.EllipticCurvePrivateKey) or not isinstance(loaded.curve, ec.SECP256R1):
            raise ConfigError([f"--out: {files.key} is not a key on P-256; move it away"])
        key = loaded
    else:
        key = ec.generate_private_key(ec.SECP256R1())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        write_whole(files.key, private, 0o600)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    write_whole(files.request, request.public_bytes(serialization.Encoding.PEM), 0o644)
    return files


def write_whole(path: Path, data: bytes, mode: int) -> None:
    """Put ``data`` at ``path``; a reader sees the old file or the new one, and nobody else a private one."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        sync(file)
    publish_file(temporary, path)
