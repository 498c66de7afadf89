"""The head of a run's audit log as ``summary.json`` keeps it, signed where the run has an identity."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from coordinator.audit_log.head import Head, head_text
from edge.contracts.errors import ConfigError

if TYPE_CHECKING:
    from coordinator.ledger.ledger import Ledger

KEY = "audit_log"
"""In ``summary.json``."""


def head_values(ledger: Ledger, identity: str) -> dict[str, Any]:
    """The head of the log as it is now.

    Args:
        identity: folder of the run's identity; empty: it is not signed.

    Raises:
        IdentityRefused: the identity has no signing key.
    """
    run, last = ledger.federation(), ledger.audit_log.head()
    head = Head(federation=run.id, run=run.nonce, entries=last.number, head=last.digest)
    if identity:
        from coordinator.identity.signing import SigningKey

        key = SigningKey.load(Path(identity))
        signature = key.sign(head_text(head)).hex()
        head = msgspec.structs.replace(head, key=key.public_raw.hex(), signature=signature)
    return msgspec.structs.asdict(head)


def read_head(path: Path) -> Head | None:
    """The head in a ``summary.json``, or alone in a file; None in the summary of a run of an older release.

    Raises:
        ConfigError: nothing of the kind is there.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        values = found.get(KEY) if "rounds" in found else found.get(KEY, found)
        return None if values is None else msgspec.convert(values, Head)
    except (OSError, ValueError, AttributeError, msgspec.ValidationError) as error:
        raise ConfigError([f"--head: {path} holds no head of an audit log ({error})"]) from error
