"""Invitations: the link that a device enrols with, and the QR code that a phone reads it from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from edge.contracts.claims import ClaimLink
from edge.contracts.errors import ConfigError

BORDER = 4
"""Modules of light around the code, as ISO/IEC 18004 asks for: without them, readers on dark screens find nothing."""

_SUFFIXES = (".png", ".svg")


def root_fingerprint(ca_pem: bytes) -> str:
    """SHA-256 of the root's certificate (DER), as ``openssl x509 -fingerprint -sha256`` gives it, in plain hex."""
    return hashlib.sha256(x509.load_pem_x509_certificate(ca_pem).public_bytes(Encoding.DER)).hexdigest()


def claim_link(service_url: str, token: str, ca_fingerprint: str, device: str = "") -> str:
    """``https://host:port/join#...``: whoever has it can claim; all that is secret comes after ``#``.

    Args:
        service_url: ``https://host:port`` of the claim service, as the device reaches it.
        ca_fingerprint: of the root, see :func:`root_fingerprint`; colons and capitals are fine.
        device: the id the token is for; a link without it needs ``apportion enrol --device``.
    """
    pin = ca_fingerprint.replace(":", "").lower()
    return ClaimLink(service_url.rstrip("/"), token, pin, device).to_text()


def qr_lines(link: str, *, colours: bool = True) -> str:
    """The link's QR code for a terminal, two modules to a character; lines end in a line feed.

    Args:
        colours: black on white whatever the terminal's own colours are. Without, the light modules are drawn:
            right on a dark terminal, inverted on a light one, which not every phone reads.
    """
    rows = [list(row) for row in _code(link).matrix_iter(border=BORDER)]
    if len(rows) % 2:
        rows.append([0] * len(rows[0]))
    drawn = {(0, 0): "█", (0, 1): "▀", (1, 0): "▄", (1, 1): " "}
    lines = []
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        text = "".join(drawn[int(bool(up)), int(bool(low))] for up, low in zip(upper, lower, strict=True))
        # 256-colour black and white: the sixteen are what a theme makes of them.
        lines.append(f"\x1b[38;5;231;48;5;16m{text}\x1b[0m" if colours else text)
    return "\n".join(lines) + "\n"


def save_qr(link: str, path: Path) -> None:
    """The link's QR code as a picture, by the suffix of ``path``; readable by its owner alone, as the link is a secret.

    Raises:
        ConfigError: another suffix than .png or .svg.
    """
    if path.suffix not in _SUFFIXES:
        raise ConfigError([f"'{path.name}' is not a picture that can be written; known: {', '.join(_SUFFIXES)}"])
    path.touch(mode=0o600)
    path.chmod(0o600)
    _code(link).save(str(path), scale=8, border=BORDER, dark="#000", light="#fff")


def _code(link: str) -> Any:
    """Level M restores 15 % of a code: a thumb on the screen or a line of the font missing is not the end of it."""
    try:
        import segno
    except ImportError as error:
        raise ConfigError(
            [f"QR codes need the package segno ({error})"], hint="pip install 'apportion[fleet]'"
        ) from error
    return segno.make(link, error="m", micro=False, boost_error=False)
