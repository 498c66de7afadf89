"""A device's own certificate and the keys it trusts, kept good while it runs: nobody has to come and change them.

Before its certificate ends a device asks the coordinator for another one, for the same key: the key stays where it was
made, and one file that is replaced whole is never half a pair. The connection that is open stays open; the next one is
made with the new certificate.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge.contracts.errors import ConfigError, MessageRejected
from edge.contracts.identity import Renew, Renewed, Signers
from edge.identity.certificate_term import Term, read_term
from edge.identity.trust import Trust

if TYPE_CHECKING:
    from edge.contracts.envelope import Envelope

log = logging.getLogger("apportion.credentials")

LOOK_EVERY_S = 3600.0
"""How often the certificate's term is looked at, and an answer to a request is asked for again."""


@dataclass(frozen=True)
class CertificateFiles:
    """PEM files, and what is called when the certificate has been replaced; ``ca`` is the root's."""

    ca: Path
    certificate: Path
    key: Path
    taken_up: Callable[[], None]


class Credentials:
    """For one device; ``send`` as an outbox's.

    Args:
        files: None where the device has no certificate, or the broker's authority is not its own.
        trust: None where it checks no orders.
        now: seconds since 1970.
    """

    def __init__(
        self,
        device: str,
        files: CertificateFiles | None,
        trust: Trust | None,
        send: Callable[[str, Renew], None],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._device, self._files, self._trust, self._send, self._now = device, files, trust, send, now
        self._look_at = 0.0

    def tick(self, monotonic: float, *, is_connected: bool) -> None:
        """Now and then: warn of a certificate that ends, and ask for another in time."""
        if self._files is None or not is_connected or monotonic < self._look_at:
            return
        self._look_at = monotonic + LOOK_EVERY_S
        try:
            term = read_term(self._files.certificate)
            if warning := term.warning(self._now()):
                log.warning("%s", warning)
            if renew_at(term, self._device) <= self._now() < term.not_after:
                self._send("renew", Renew(_request(self._files.key, self._device)))
        except ConfigError as error:
            log.warning("the certificate cannot be renewed: %s", error)

    def received(self, envelope: Envelope) -> bool:
        """Use a message of the kinds that are for this; False for any other.

        Raises:
            MessageRejected: what it holds cannot be used.
        """
        match envelope.kind:
            case "renewed":
                self._renewed(envelope.read(Renewed))
            case "signers":
                signers = envelope.read(Signers)
                if self._trust is not None and self._trust.learn(signers.statements):
                    log.info("orders are now checked with %s", self._trust)
            case _:
                return False
        return True

    def _renewed(self, renewed: Renewed) -> None:
        if self._files is None:
            return
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature

        from edge.identity.certificate_chain import check_chain

        files = self._files
        try:
            own = x509.load_pem_x509_certificate(files.certificate.read_bytes())
            root = files.ca.read_bytes()
            made = check_chain(renewed.certificate.encode(), root, self._device, own.public_key())
        except (OSError, ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
            raise MessageRejected(f"renewed certificate: it cannot be used ({error}); the former one stays") from error
        if made.not_valid_after_utc <= own.not_valid_after_utc or made.not_valid_before_utc.timestamp() > self._now():
            return  # what there is already, or an older one again
        from edge.identity.device_identity import write_whole

        try:
            write_whole(files.certificate, renewed.certificate.encode(), 0o644)
            files.taken_up()
        except (OSError, ConfigError) as error:
            log.warning(
                "the renewed certificate cannot be kept in %s: %s; give the agent its folder", files.certificate, error
            )
            return
        log.info("this device's certificate was renewed, until %s UTC", f"{made.not_valid_after_utc:%Y-%m-%d %H:%M}")


def renew_at(term: Term, device: str) -> float:
    """When ``device`` first asks: devices that were enrolled together spread over the first third of the time."""
    share = int.from_bytes(hashlib.sha256(device.encode()).digest()[:4], "big") / 2**32
    return term.renew_from + share * (term.not_after - term.renew_from) / 3


def _request(key_file: Path, device: str) -> str:
    """A certificate request for the key that is there."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID

        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
    except ImportError as error:
        raise ConfigError(
            [f"--cert: renewing needs cryptography ({error}): pip install 'apportion[identity]'"]
        ) from error
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError([f"--key: {key_file} cannot be read ({error})"]) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError([f"--key: {key_file} is no key on P-256: it is renewed where it was issued"])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, device)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()
