"""The file that is shared: a measurement, a public key and a signature, as JSON that people can read.

The key is made for the file and thrown away with it. So the signature says that nothing was changed since the file was
written, and two files of one owner cannot be told to be of one owner. It does not say that the figures are true.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from edge.contracts.errors import ConfigError
from edge.sharing.measurement import SCHEMA, SharedMeasurement

CONTEXT = f"{SCHEMA}\n".encode()
"""Before the bytes that are signed: the signature is of no other kind of thing."""

MOST_BYTES = 1 << 20


class FileRefused(ValueError):
    """A file that is not what it says; the text names the file and why."""


class SharedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is in the file.

    Attributes:
        public_key: Ed25519, 32 bytes in hexadecimal digits.
        signature: of :func:`signed_bytes`, 64 bytes.
    """

    measurement: SharedMeasurement
    public_key: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    signature: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$")]
    schema: str = SCHEMA


class _Head(msgspec.Struct):
    schema: str = ""


def signed_bytes(measurement: SharedMeasurement) -> bytes:
    """The bytes that are signed: canonical JSON, keys sorted, no blanks."""
    return CONTEXT + msgspec.json.encode(measurement, order="sorted")


def signed(measurement: SharedMeasurement) -> SharedFile:
    """``measurement`` with a signature by a key that nobody has from now on.

    Raises:
        ConfigError: ``cryptography`` is not installed.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise ConfigError(
            [f"--share: a signature needs the package cryptography ({error})"], hint="pip install 'apportion[identity]'"
        ) from error
    key = Ed25519PrivateKey.generate()
    return SharedFile(
        measurement=measurement,
        public_key=key.public_key().public_bytes_raw().hex(),
        signature=key.sign(signed_bytes(measurement)).hex(),
    )


def file_text(file: SharedFile) -> str:
    """The file as it is written."""
    return msgspec.json.format(msgspec.json.encode(file, order="sorted"), indent=1).decode() + "\n"


def read_shared(path: Path) -> SharedFile:
    """The file, its signature checked.

    Raises:
        FileRefused: it cannot be read, has other fields or values than allowed, or was changed since it was signed.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        with path.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise FileRefused(f"{path.name}: over {MOST_BYTES} bytes, which no such file has")
        schema = msgspec.json.decode(data, type=_Head).schema
        if schema != SCHEMA:
            raise FileRefused(f"{path.name}: schema {schema[:80]!r}, this release reads {SCHEMA!r}")
        file = msgspec.json.decode(data, type=SharedFile)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FileRefused(f"{path.name}: {error}") from error
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(file.public_key))
        key.verify(bytes.fromhex(file.signature), signed_bytes(file.measurement))
    except (InvalidSignature, ValueError) as error:
        raise FileRefused(f"{path.name}: the signature does not fit; it was changed since it was written") from error
    return file
