"""What ``apportion doctor CONFIG`` says of the trackers that a run file names."""

from __future__ import annotations

from coordinator.cli.finding import Finding
from coordinator.config.run_config import RunConfig
from coordinator.tracking.tracked_run import tracker_class
from edge.contracts.errors import ConfigError


def tracking_findings(config: RunConfig) -> list[Finding]:
    """For each tracker whether what it needs is installed; none where the run names none."""
    findings = []
    for name in config.tracking.to:
        try:
            tracker_class(name)
            findings.append(Finding(f"tracking to {name}", "ok", "installed"))
        except ConfigError as error:
            findings.append(Finding.failure(f"tracking to {name}", error))
    return findings
