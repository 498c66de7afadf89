"""Whose orders this device follows: the public keys its owner gave it, and the checks of orders and manifests.

Without keys everything is followed, as before there were any. ``cryptography`` is imported with the keys and not
before: a supervisor without keys is 4 to 6 MB smaller (measured, x86-64; :mod:`edge.startup_pages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edge.contracts.errors import ConfigError, MessageRejected, SignatureRejected
from edge.contracts.messages import Error, Refuse
from edge.contracts.plan import WorkOrder
from edge.contracts.signing import SIGNATURE_BYTES, order_message

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from edge.assignment import Assignment

MAX_FILE_BYTES = 65_536
_END = b"-----END PUBLIC KEY-----"


class Trust:
    """Ed25519 public keys, any one of which is enough: while keys are changed, a device trusts two."""

    def __init__(self, keys: Sequence[Ed25519PublicKey]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def load(cls, path: Path) -> Trust:
        """The keys in the PEM file ``path``, one after the other.

        Raises:
            ConfigError: no such file, no key or another kind of key in it, or ``cryptography`` is not installed.
        """
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
            from cryptography.hazmat.primitives.serialization import load_pem_public_key
        except ImportError as error:
            raise ConfigError([f"--trust: needs the package cryptography ({error})"]) from error
        keys = []
        try:
            with path.open("rb") as file:
                *blocks, rest = file.read(MAX_FILE_BYTES).split(_END)
            for block in blocks:
                key = load_pem_public_key(block + _END)
                if not isinstance(key, Ed25519PublicKey):
                    raise ConfigError([f"--trust: {path} holds a {type(key).__name__}, an Ed25519 key is wanted"])
                keys.append(key)
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(
                [f"--trust: {path} cannot be read ({error}); give the authority's signing.pub"]
            ) from error
        if not keys or rest.strip():
            raise ConfigError([f"--trust: {path} holds no PEM public key; give the authority's signing.pub"])
        return cls(keys)

    def check_order(self, order: WorkOrder, body: bytes, signature: bytes) -> None:
        """Nothing when one of the keys has signed ``body``, the bytes ``order`` was read from.

        Raises:
            SignatureRejected: none has.
        """
        what = f"order {order.assignment_id[:12]} of round {order.round}"
        self._check(order_message(body), signature, what, order.assignment_id)

    def check_manifest(self, data: bytes, signature: bytes) -> None:
        """Nothing when one of the keys has signed the manifest ``data``.

        Raises:
            SignatureRejected: none has.
        """
        self._check(data, signature, f"manifest of {len(data)} bytes", "")

    def _check(self, message: bytes, signature: bytes, what: str, assignment_id: str) -> None:
        from cryptography.exceptions import InvalidSignature

        known = f"{len(self._keys)} trusted key{'s' if len(self._keys) > 1 else ''}"
        if not signature:
            raise SignatureRejected(
                f"{what} is not signed and this device has {known}; give the coordinator its identity "
                "([broker] identity), or start the agent without --trust",
                assignment_id=assignment_id,
            )
        for key in self._keys:
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


def complaint(error: MessageRejected, work: Assignment | None) -> tuple[str, msgspec.Struct]:
    """Kind and body of the answer to a message that was rejected.

    An order that is not trusted is refused, so that its round need not wait for this device; but never one under the
    assignment in hand, ``work``: whoever forges it could end the real one.
    """
    in_hand = "" if work is None else work.order.assignment_id
    if isinstance(error, SignatureRejected) and error.assignment_id and error.assignment_id != in_hand:
        return "refuse", Refuse(assignment_id=error.assignment_id, code=error.code, reason=str(error))
    return "error", Error(error.code, str(error))
