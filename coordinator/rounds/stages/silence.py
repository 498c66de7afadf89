"""Devices that take orders and never report, or refuse each, are left out for some rounds while others are enough."""

from __future__ import annotations

from coordinator.config.run_config import RunConfig
from coordinator.defences.silence import still_asked, wasted_in_a_row
from coordinator.rounds.federation import Federation, RoundStage


class Silence(RoundStage):
    """In synchronous rounds; with noise a cohort is drawn from all, or the privacy bound would not be true."""

    def __init__(self) -> None:
        self._told: set[tuple[str, int]] = set()

    @classmethod
    def is_used(cls, config: RunConfig) -> bool:
        """Whether the run asks for it."""
        return config.aggregation.mode != "buffered" and not config.privacy.noise_multiplier

    def eligible(self, federation: Federation, devices: list[str], round_index: int) -> list[str]:
        """Those of ``devices`` that do not sit out, and as many of these as the cohort needs."""
        cohort = federation.config.cohort
        # Whoever is ordered beside the cohort's size is often not waited for: that says nothing of a device.
        wasted = wasted_in_a_row(federation.ledger, round_index, counts_expired=not cohort.over_selection)
        asked = still_asked(devices, wasted, round_index, enough=cohort.size + cohort.over_selection)
        for device in sorted(set(devices) - set(asked)):
            count, last = wasted[device]
            if (device, last) not in self._told:
                self._told.add((device, last))
                federation.progress.say(
                    f"{device}: its last {count} orders came to nothing; others are asked while they are enough"
                )
        return asked
