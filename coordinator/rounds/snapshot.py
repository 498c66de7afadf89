"""The profile a device is planned with: the one in the run's snapshot, with the budget its owner gives it now."""

from __future__ import annotations

import msgspec

from coordinator.rounds.federation import Federation
from edge.contracts.messages import Hello
from profiles.budget import budget_in_words
from profiles.device import DeviceProfile


def profile_of(federation: Federation, hello: Hello) -> DeviceProfile:
    """The snapshot's profile of a device that is in it, which takes a changed budget from its ``hello``.

    What the device measured of itself stays as the snapshot has it; a budget is asked for, not measured, and one that
    was lowered must be kept to from the next order on.
    """
    profile = federation.ledger.profiles.of(hello.device)
    if profile.budget_bytes == hello.profile.budget_bytes:
        return profile
    changed = msgspec.structs.replace(profile, budget_bytes=hello.profile.budget_bytes)
    federation.ledger.profiles.replace(changed)
    federation.progress.say(
        f"{hello.device}: budget {budget_in_words(profile.budget_bytes)} before, "
        f"{budget_in_words(changed.budget_bytes)} from now on"
    )
    return changed
