"""The bytes that were counted since the last round, into the ledger."""

from __future__ import annotations

from coordinator.rounds.federation import Federation, RoundStage


class TrafficAccount(RoundStage):
    """In every run."""

    def before_commit(self, federation: Federation) -> None:
        """Write what was counted."""
        write_account(federation)


def write_account(federation: Federation) -> None:
    """Add what was counted to the ledger."""
    federation.ledger.traffic.add(federation.devices.traffic())
