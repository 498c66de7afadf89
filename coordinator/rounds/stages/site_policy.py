"""Devices whose owners' policies refused an order: who is not asked again, what is said of it and counted.

A refusal is no fault of the device: nothing here touches its reliability.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from coordinator.ledger.records import Round
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.submodels.values import State
from edge.contracts.errors import PolicyRefused, PolicyWaits

CODES = (PolicyRefused.code, PolicyWaits.code)

ASK_AGAIN_S = 600.0
"""After a refusal because of the hour or the day a device is left alone for so long, where others are enough."""


class SitePolicies(RoundStage):
    """Who refused for good is in the ledger; when others were asked last is known to this process alone."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, int, int]] = set()
        self._since = 0
        self._for_good: set[str] = set()
        self._asked_at: dict[str, float] = {}

    def eligible(self, federation: Federation, devices: list[str], round_index: int) -> list[str]:
        """Those of ``devices`` that may be asked; who waits is asked after all where too few others are left."""
        self._read(federation, round_index)
        allowed = [device for device in devices if device not in self._for_good]
        now = time.monotonic()
        ready = [d for d in allowed if now - self._asked_at.get(d, -ASK_AGAIN_S) >= ASK_AGAIN_S]
        return ready if len(ready) >= federation.config.cohort.min_reports else allowed

    def metrics(self, federation: Federation, current: Round, program: str, state: State) -> Mapping[str, Any]:
        """Who refused the round, with the rule and its value."""
        refused = federation.ledger.assignments.refused(CODES, current.round)
        told = {device: reason for device, of_round, _, _, reason in refused if of_round == current.round}
        return {"policy_refusals": told} if told else {}

    def _read(self, federation: Federation, round_index: int) -> None:
        """What was refused since the last look; a later attempt at the same round may have added to it."""
        for device, of_round, attempt, code, reason in federation.ledger.assignments.refused(CODES, self._since):
            if (device, of_round, attempt) in self._seen:
                continue
            self._seen.add((device, of_round, attempt))
            self._asked_at[device] = time.monotonic()
            if code == PolicyRefused.code and device not in self._for_good:
                self._for_good.add(device)
                federation.progress.say(
                    f"{device} is not asked again in this run, its owner's policy says {reason[:300]}"
                )
        self._since = max(self._since, round_index - 1)
        self._seen = {key for key in self._seen if key[1] >= self._since}
