"""What ``apportion doctor`` says about masked sums: who can take part, what is signed, and what a cohort stands."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.cli.finding import Finding
from edge.contracts.errors import ApportionError

if TYPE_CHECKING:
    from coordinator.config.run_config import RunConfig

WHAT = "masked sums"


def masking_findings(config: RunConfig) -> list[Finding]:
    """Of a run with ``[privacy] secure-aggregation``; none of others."""
    if not config.privacy.secure_aggregation:
        return []
    from coordinator.privacy.guarantee import guarantee_of

    stands = guarantee_of(config.privacy, config.cohort.size)
    detail = (
        f"of {stands.size} devices {stands.threshold - 1} may collude: {stands.threshold} take masks off, a sum is of "
        f"{stands.reports} at least and has {stands.honest} honest updates or more"
    )
    return [Finding(WHAT, "ok", detail), _who_signs(config, max(stands.reports, config.cohort.min_reports))]


def _who_signs(config: RunConfig, needed: int) -> Finding:
    if not config.broker.knows_certificates:
        return Finding(
            WHAT,
            "warn",
            "devices sign nothing, so that whoever carries messages can change what they say of masks",
            "give $.broker.identity, and a broker that knows devices by their certificates",
        )
    from coordinator.identity.folder import IdentityFolder
    from coordinator.identity.records import Records
    from coordinator.planning.capacity_levels import device_names

    try:
        records = Records(IdentityFolder(Path(config.broker.identity)).records)
    except ApportionError as error:
        return Finding.failure(WHAT, error)
    try:
        standing = {issued.name for issued in records.certificates("device") if issued.status(time.time()) == "valid"}
    finally:
        records.close()
    count = len(standing | {*device_names(config.cohort)})
    return Finding(
        WHAT,
        "ok" if count >= needed else "warn",
        f"{count} with a certificate that stands or started here, {needed} needed; other devices are not selected",
        f"enrol {needed - count} more: apportion device add, or apportion ca token",
    )
