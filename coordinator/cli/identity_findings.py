"""What ``apportion doctor`` says about the certificates and the revocation list of a run file's identity."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from coordinator.cli.finding import Finding
from edge.contracts.errors import ApportionError

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig

WHAT = "certificates"
_SHOWN = 5


def identity_findings(config: RunConfig) -> list[Finding]:
    """What has run out or soon will, in one finding each; a root or issuer that has run out stops the run."""
    if not config.broker.identity:
        return []
    from coordinator.identity.authority import Authority
    from coordinator.identity.expiry import WITHIN_DAYS, endings

    try:
        with Authority(Path(config.broker.identity)) as authority:
            found = endings(authority)
    except ApportionError as error:
        return [Finding.failure(WHAT, error)]
    findings = _broker_list(config)
    if not found:
        return [Finding(WHAT, "ok", f"none of the identity ends within {WITHIN_DAYS} days"), *findings]
    for ending in found[:_SHOWN]:
        is_fatal = ending.has_ended and ending.kind in ("root", "issuer")
        findings.append(Finding(WHAT, "fail" if is_fatal else "warn", str(ending), ending.remedy, 2))
    if len(found) > _SHOWN:
        findings.append(Finding(WHAT, "warn", f"and {len(found) - _SHOWN} more", "apportion ca ls shows all"))
    return findings


def _broker_list(config: RunConfig) -> list[Finding]:
    """The revocation list in ``$.broker.folder``: the broker's own copy, which nobody renews by itself."""
    path = Path(config.broker.folder) / "crl.pem"
    if not config.broker.folder or not path.is_file():
        return []
    from coordinator.identity.expiry import DAY_S, LIST_DAYS, list_end

    fix = f"apportion ca crl --broker-folder {config.broker.folder} --dir {config.broker.identity}"
    try:
        left_days = (list_end(path.read_bytes()) - time.time()) / DAY_S
    except ApportionError as error:
        return [Finding("broker's revocation list", "fail", f"{path}: {error}", fix, 2)]
    if left_days <= 0:
        return [Finding("broker's revocation list", "fail", f"{path} has run out: nobody is let in", fix, 3)]
    state: Literal["ok", "warn"] = "warn" if left_days <= LIST_DAYS else "ok"
    return [Finding("broker's revocation list", state, f"{path}: good for {left_days:.1f} days", fix)]
