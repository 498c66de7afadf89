"""Where devices stand: who sits out because its last updates were all rejected or set aside.

Worked out from the assignments in the ledger, so that a resumed run comes to the same; only when a bar begins it is
written down, and from its end on a device starts with a clean slate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from coordinator.configuration_defences import DefencesConfig
from coordinator.ledger import Ledger
from coordinator.ledger_conduct import Standing

WINDOW = 50
"""Rounds looked back; what a device did before them is past."""


def may_take_part(
    ledger: Ledger, config: DefencesConfig, devices: Sequence[str], round_index: int, *, say: Callable[[str], None]
) -> list[str]:
    """Those of ``devices`` that are not barred in round ``round_index``."""
    if not config.bar_after:
        return list(devices)
    standings = ledger.standings()
    since = max(0, round_index - WINDOW)
    for device in sorted(ledger.offenders(since).intersection(devices)):
        standing = standings.get(device, Standing(device=device, score=0.0))
        found = ledger.conduct(device, max(since, standing.barred_until))
        streak = list(itertools.takewhile(lambda entry: entry[1], reversed(found)))
        if len(streak) < config.bar_after:
            continue
        until = streak[0][0] + 1 + config.bar_rounds
        standings[device] = standing_of(ledger, device, barred_until=until)
        ledger.put_standings([standings[device]])
        if until > round_index:
            say(
                f"{device}: its last {len(streak)} updates were rejected or set aside; it sits out until round "
                f"{until + 1}"
            )
    return [device for device in devices if device not in standings or standings[device].barred_until <= round_index]


def standing_of(ledger: Ledger, device: str, *, barred_until: int) -> Standing:
    """A device's standing with all it did so far counted."""
    accepted, rejected, quarantined = ledger.outcomes().get(device, (0, 0, 0))
    total = accepted + rejected + quarantined
    return Standing(
        device=device,
        score=accepted / total if total else 1.0,
        accepted=accepted,
        rejected=rejected,
        quarantined=quarantined,
        barred_until=barred_until,
    )


def cleared(ledger: Ledger, device: str, round_index: int) -> Standing:
    """Lets ``device`` take part from round ``round_index`` on, whatever it did before; its standing after that."""
    standing = standing_of(ledger, device, barred_until=round_index)
    ledger.put_standings([standing])
    return standing
