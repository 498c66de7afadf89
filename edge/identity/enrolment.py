"""Enrolment by a claim link: this device makes its key, proves with a token who it is, and gets its certificate.

The server is known by the root's digest in the link, before anything that is secret is sent. A refusal leaves the
folder as it was; when the answer was lost, the key stays, and the same command fetches what was issued for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge.contracts.claims import ClaimLink, ClaimReply, ClaimRequest
from edge.contracts.errors import ConfigError
from edge.identity.certificate_chain import check_chain
from edge.identity.claim_client import ANSWER_LOST, ClaimClient, EnrolmentFailed, clock_is_off, fetch_root
from edge.identity.device_identity import make_request, write_whole


@dataclass(frozen=True)
class Enrolment:
    """A device's files in ``folder``, and where it goes with them.

    Attributes:
        not_after: seconds since 1970.
        is_new: whether this call wrote them.
    """

    folder: Path
    device: str
    federation: str
    broker: str
    not_after: float
    is_new: bool

    def agent_command(self) -> str:
        """What to start next, ready to be copied."""
        words = {
            "--broker": self.broker or "mqtts://HOST",
            "--federation": self.federation or "FEDERATION",
            "--device": self.device,
            "--data": "DATA",
            "--ca": f"{self.folder / 'ca.pem'}",
            "--cert": f"{self.folder / 'device.pem'}",
            "--key": f"{self.folder / 'device.key'}",
            "--trust": f"{self.folder / 'signing.pub'}",
        }
        return "apportion agent " + " ".join(f"{flag} {shlex.quote(value)}" for flag, value in words.items())


def enrol(link: ClaimLink, folder: Path, device: str = "", *, now: Callable[[], float] = time.time) -> Enrolment:
    """The enrolment of this device in ``folder``: what is there, if it is still good, or one claimed with ``link``.

    Args:
        device: this device's id; empty: as the link says.
        now: this device's clock, seconds since 1970.

    Raises:
        ConfigError: no device id, ``cryptography`` is missing, or ``folder`` holds something else.
        EnrolmentFailed: the service cannot be reached, is not the link's, or refuses.
    """
    named = device or link.device
    if not named:
        raise ConfigError(
            ["--device: the link names no device"], hint="give the id the token was made for: --device ID"
        )
    if device and link.device and device != link.device:
        raise ConfigError([f"--device: is '{device}', the link is for '{link.device}'"], hint="leave --device out")
    try:
        standing = _standing(folder, named, link, now())
    except ImportError as error:
        raise ConfigError(
            [f"enrolment needs the package cryptography ({error})"], hint="pip install 'apportion[identity]'"
        ) from error
    if standing is not None:
        return standing
    root = fetch_root(link, now())
    with _Draft(folder) as draft:
        csr = make_request(folder, named).request.read_bytes()
        client = ClaimClient(link, root)
        reply = client.issued_before(_public_der(csr)) if draft.had_key else None
        if reply is None:
            draft.is_kept = True  # from here on there may be a certificate for this key
            try:
                reply = client.claim(ClaimRequest(link.token, csr.decode()))
            except EnrolmentFailed as error:
                draft.is_kept = error.code == ANSWER_LOST
                raise
        draft.is_kept = True
        return _accept(folder, named, reply, root, csr, now())


class _Draft:
    """Key and request in ``folder``: taken back on the way out, with folders made for them, unless they are kept."""

    def __init__(self, folder: Path) -> None:
        self._files = {path: _bytes_of(path) for path in (folder / "device.key", folder / "device.csr")}
        self._folders = [path for path in (folder, *folder.parents) if not path.exists()]
        self.had_key = self._files[folder / "device.key"] is not None
        self.is_kept = False

    def __enter__(self) -> _Draft:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_kept:
            return
        for path, before in self._files.items():
            if before is None:
                path.unlink(missing_ok=True)
            elif _bytes_of(path) != before:
                write_whole(path, before, path.stat().st_mode & 0o777)
        for made in self._folders:
            with contextlib.suppress(OSError):  # something else may be in it by now
                made.rmdir()


def _standing(folder: Path, device: str, link: ClaimLink, now: float) -> Enrolment | None:
    """What ``folder`` holds, when it is whole and good; None when there is nothing, or it has ended."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
    from cryptography.x509.oid import NameOID

    path = folder / "device.pem"
    if not path.exists():
        return None
    elsewhere = "give another folder: --out DIR"
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = [a.value for a in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        root = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
        key = load_pem_private_key((folder / "device.key").read_bytes(), None)
        signing = (folder / "signing.pub").exists()
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError([f"--out: {folder} is not whole ({error})"], hint=f"move it away, or {elsewhere}") from error
    if names != [device]:
        raise ConfigError([f"--out: {folder} is of device {names}, the link is for '{device}'"], hint=elsewhere)
    if hashlib.sha256(root.public_bytes(Encoding.DER)).hexdigest() != link.pin:
        raise ConfigError([f"--out: {folder} is enrolled under another root than the link's"], hint=elsewhere)
    if key.public_key() != certificate.public_key() or not signing:
        raise ConfigError([f"--out: {folder} is not whole: its files are not of one enrolment"], hint=elsewhere)
    if now >= certificate.not_valid_after_utc.timestamp():
        return None
    where = _read_notes(folder)
    until = certificate.not_valid_after_utc.timestamp()
    return Enrolment(folder, device, where.get("federation", ""), where.get("broker", ""), until, False)


def _accept(folder: Path, device: str, reply: ClaimReply, root: str, csr: bytes, now: float) -> Enrolment:
    """Write what came, once it has proved to be a certificate of the root for this device and its key."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = x509.load_pem_x509_csr(csr).public_key()
        certificate = check_chain(reply.certificate.encode(), root.encode(), device, key)
        if not isinstance(load_pem_public_key(reply.signing_public.encode()), Ed25519PublicKey):
            raise ValueError("what checks orders is not an Ed25519 key")
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise EnrolmentFailed(
            "bad-reply", f"what the service sent cannot be used ({error}); nothing was written"
        ) from error
    if not certificate.not_valid_before_utc.timestamp() <= now < certificate.not_valid_after_utc.timestamp():
        raise clock_is_off(
            now,
            f"the certificate is good from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC",
            and_so="it was issued, and the same command fetches it once the clock is right",
        )
    notes = {"device": device, "federation": reply.federation, "broker": reply.broker}
    write_whole(folder / "ca.pem", root.encode(), 0o644)
    write_whole(folder / "signing.pub", reply.signing_public.encode(), 0o644)
    write_whole(folder / "enrolment.json", json.dumps(notes).encode(), 0o644)
    write_whole(folder / "device.pem", reply.certificate.encode(), 0o644)  # last: with it the rest is there
    until = certificate.not_valid_after_utc.timestamp()
    return Enrolment(folder, device, reply.federation, reply.broker, until, True)


def _public_der(csr: bytes) -> bytes:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return x509.load_pem_x509_csr(csr).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _read_notes(folder: Path) -> dict[str, str]:
    try:
        found = json.loads((folder / "enrolment.json").read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _bytes_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
