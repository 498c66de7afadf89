"""The conformance kit: a scripted coordinator that any agent can be run against. docs/conformance.md."""

from coordinator.conformance.connection import AgentDriver, Connection
from coordinator.conformance.findings import Finding, NotApplicable, Scenario
from coordinator.conformance.session import KitOptions, all_scenarios, run_conformance

__all__ = [
    "AgentDriver",
    "Connection",
    "Finding",
    "KitOptions",
    "NotApplicable",
    "Scenario",
    "all_scenarios",
    "run_conformance",
]
