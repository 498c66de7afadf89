"""Whose orders this device follows: the public keys its owner gave it, and the checks of orders and manifests.

Without keys everything is followed, as before there were any. ``cryptography`` is imported with the keys and not
before: a supervisor without keys is 4 to 6 MB smaller (measured, x86-64; :mod:`edge.system.startup_pages`).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.errors import ConfigError, MessageRejected, SignatureRejected
from edge.contracts.identity import MAX_SIGNERS, MAX_STATEMENTS, KeyStatement
from edge.contracts.messages import Error, Refuse
from edge.contracts.plan import WorkOrder
from edge.contracts.signing import SIGNATURE_BYTES, masking_text, order_message, signers_text
from edge.identity.device_identity import write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


log = logging.getLogger("apportion.trust")

MAX_FILE_BYTES = 65_536
KEY_BYTES = 32
_END = b"-----END PUBLIC KEY-----"


class LearntKeys(msgspec.Struct, frozen=True):
    """What statements have made of the keys that the owner gave, whose digest is ``given``."""

    number: int
    given: str
    keys: tuple[bytes, ...]


class Trust:
    """Ed25519 public keys, any one of which is enough: while keys are changed, a device trusts two.

    Args:
        keys: of the coordinator: they sign orders, manifests, what is said of masks, and changes of themselves.
        site: of the relay of the device's site: they sign orders to it, and nothing else.
    """

    def __init__(self, keys: Sequence[Ed25519PublicKey], site: Sequence[Ed25519PublicKey] = ()) -> None:
        self._keys = self._given = tuple(keys)
        self._site = tuple(site)
        self._learnt = LearntKeys(0, "", ())
        self._kept: Path | None = None

    def __str__(self) -> str:
        """How many keys, and since which change."""
        return f"{len(self._keys)} trusted key{'s' if len(self._keys) > 1 else ''} (change {self._learnt.number})"

    @classmethod
    def load(cls, path: Path, site: Path | None = None) -> Trust:
        """The keys in the PEM file ``path``, one after the other, and those of a site's relay in ``site``.

        Raises:
            ConfigError: no such file, no key or another kind of key in it, or ``cryptography`` is not installed.
        """
        return cls(_read_keys(path, "--trust"), () if site is None else _read_keys(site, "--trust-site"))

    @property
    def given(self) -> tuple[bytes, ...]:
        """The raw bytes of the keys that the owner gave."""
        return tuple(key.public_bytes_raw() for key in self._given)

    def keep_in(self, path: Path) -> None:
        """Remember in ``path`` what is learnt, and go on with what was: of another file of the owner's it is forgotten.

        Raises:
            ConfigError: the file there cannot be read.
        """
        self._kept = path
        try:
            learnt = decode_msgpack(path.read_bytes(), LearntKeys, limit=MAX_FILE_BYTES) if path.exists() else None
        except (OSError, MessageRejected) as error:
            raise ConfigError([f"--store: {path} cannot be read ({error}); delete it: it is learnt again"]) from error
        if learnt is not None and learnt.given == _digest(self._given):
            self._take(learnt)

    def learn(self, statements: Sequence[KeyStatement]) -> bool:
        """Follow ``statements``, oldest first, and say whether that changed anything.

        Each has to be signed by a key that is trusted at that point and stays trusted after it, so that nobody can put
        all keys out at once. What is known already is passed over, what cannot be followed too: the last one counts for
        a device that was given the newest key only.
        """
        from cryptography.exceptions import InvalidSignature

        before = self._learnt
        for statement in statements[:MAX_STATEMENTS]:
            is_fit = 0 < len(statement.keys) <= MAX_SIGNERS and all(len(key) == KEY_BYTES for key in statement.keys)
            if statement.number <= self._learnt.number or not is_fit:
                continue
            for key in self._keys:
                if key.public_bytes_raw() not in statement.keys:
                    continue
                try:
                    key.verify(statement.signature, signers_text(statement.number, statement.keys))
                except InvalidSignature:
                    continue
                self._take(LearntKeys(statement.number, _digest(self._given), statement.keys))
                break
        if self._learnt == before:
            return False
        if self._kept is not None:
            try:
                write_whole(self._kept, encode_msgpack(self._learnt), 0o644)
            except OSError as error:
                log.warning(
                    "%s cannot be written (%s): the change is learnt again at the next start", self._kept, error
                )
        return True

    def _take(self, learnt: LearntKeys) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        self._keys = tuple(map(Ed25519PublicKey.from_public_bytes, learnt.keys))
        self._learnt = learnt

    def check_order(self, order: WorkOrder, body: bytes, signature: bytes) -> None:
        """Check that one of the keys, or of the site's, has signed ``body``, the bytes ``order`` was read from.

        Raises:
            SignatureRejected: none has.
        """
        what = f"order {order.assignment_id[:12]} of round {order.round}"
        self._check(order_message(body), signature, what, order.assignment_id, site=self._site)

    def check_manifest(self, data: bytes, signature: bytes) -> None:
        """Check that one of the keys has signed the manifest ``data``.

        Raises:
            SignatureRejected: none has.
        """
        self._check(data, signature, f"manifest of {len(data)} bytes", "")

    def check_masking(self, kind: str, body: bytes, signature: bytes) -> None:
        """Check that one of the keys has signed what the coordinator says of masks as ``kind``.

        Raises:
            SignatureRejected: none has.
        """
        self._check(masking_text(kind, body), signature, f"'{kind}' of masks", "")

    def _check(
        self, message: bytes, signature: bytes, what: str, assignment_id: str, site: Sequence[Ed25519PublicKey] = ()
    ) -> None:
        from cryptography.exceptions import InvalidSignature

        keys = (*self._keys, *site)
        known = f"{len(keys)} trusted key{'s' if len(keys) > 1 else ''}"
        if not signature:
            raise SignatureRejected(
                f"{what} is not signed and this device has {known}; give the coordinator its identity "
                "([broker] identity), or start the agent without --trust",
                assignment_id=assignment_id,
            )
        for key in keys:
            try:
                key.verify(signature, message)
            except InvalidSignature:
                continue
            return
        size = "" if len(signature) == SIGNATURE_BYTES else f" of {len(signature)} bytes"
        raise SignatureRejected(
            f"{what} has a signature{size} by none of the {known}, or was changed on its way; "
            "give the device the coordinator's signing.pub (--trust)",
            assignment_id=assignment_id,
        )


def _digest(keys: Sequence[Ed25519PublicKey]) -> str:
    return hashlib.sha256(b"".join(sorted(key.public_bytes_raw() for key in keys))).hexdigest()


def complaint(error: MessageRejected, in_hand: str) -> tuple[str, msgspec.Struct]:
    """Kind and body of the answer to a message that was rejected.

    An order that is not trusted is refused, so that its round need not wait for this device; but never one under the
    assignment in hand (empty for none): whoever forges it could end the real one.
    """
    if isinstance(error, SignatureRejected) and error.assignment_id and error.assignment_id != in_hand:
        return "refuse", Refuse(assignment_id=error.assignment_id, code=error.code, reason=str(error))
    return "error", Error(error.code, str(error))


def _read_keys(path: Path, flag: str) -> list[Ed25519PublicKey]:
    """The keys in a PEM file that ``flag`` names.

    Raises:
        ConfigError: as :meth:`Trust.load`.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise ConfigError([f"{flag}: needs the package cryptography ({error})"]) from error
    keys = []
    try:
        with path.open("rb") as file:
            *blocks, rest = file.read(MAX_FILE_BYTES).split(_END)
        for block in blocks:
            key = load_pem_public_key(block + _END)
            if not isinstance(key, Ed25519PublicKey):
                raise ConfigError([f"{flag}: {path} holds a {type(key).__name__}, an Ed25519 key is wanted"])
            keys.append(key)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError([f"{flag}: {path} cannot be read ({error}); give the authority's signing.pub"]) from error
    if not keys or rest.strip():
        raise ConfigError([f"{flag}: {path} holds no PEM public key; give the authority's signing.pub"])
    return keys
