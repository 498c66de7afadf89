"""Where devices stand: who sits out because its last updates were all rejected or set aside.

Worked out from the assignments in the ledger, so that a resumed run comes to the same; only when a bar begins it is
written down, and from its end on a device starts with a clean slate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from coordinator.config.aggregation import DefencesConfig
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.quarantine import Reliability

WINDOW = 50
"""Rounds looked back; what a device did before them is past."""


def may_take_part(
    ledger: Ledger, config: DefencesConfig, devices: Sequence[str], round_index: int, *, say: Callable[[str], None]
) -> list[str]:
    """Those of ``devices`` that are not barred in round ``round_index``."""
    if not config.bar_after:
        return list(devices)
    reliabilities = ledger.reliabilities.all()
    since = max(0, round_index - WINDOW)
    for device in sorted(ledger.reliabilities.offenders(since).intersection(devices)):
        reliability = reliabilities.get(device, Reliability(device=device, score=0.0))
        found = ledger.reliabilities.conduct(device, max(since, reliability.barred_until))
        streak = list(itertools.takewhile(lambda entry: entry[1], reversed(found)))
        if len(streak) < config.bar_after:
            continue
        until = streak[0][0] + 1 + config.bar_rounds
        reliabilities[device] = reliability_of(ledger, device, barred_until=until)
        ledger.reliabilities.put([reliabilities[device]])
        if until > round_index:
            say(
                f"{device}: its last {len(streak)} updates were rejected or set aside; it sits out until round "
                f"{until + 1}"
            )
    return [
        device for device in devices if device not in reliabilities or reliabilities[device].barred_until <= round_index
    ]


def reliability_of(ledger: Ledger, device: str, *, barred_until: int) -> Reliability:
    """A device's reliability with all it did so far counted."""
    accepted, rejected, quarantined = ledger.reliabilities.outcomes().get(device, (0, 0, 0))
    total = accepted + rejected + quarantined
    return Reliability(
        device=device,
        score=accepted / total if total else 1.0,
        accepted=accepted,
        rejected=rejected,
        quarantined=quarantined,
        barred_until=barred_until,
    )


def cleared(ledger: Ledger, device: str, round_index: int) -> Reliability:
    """Lets ``device`` take part from round ``round_index`` on, whatever it did before; its reliability after that."""
    reliability = reliability_of(ledger, device, barred_until=round_index)
    ledger.reliabilities.put([reliability])
    return reliability
