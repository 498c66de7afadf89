"""A broker that changes what devices and coordinator say of masks: it is heard by nobody, and nobody is blamed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from coordinator.identity.authority import Authority
from edge.contracts.masking import Keys, Mail, Revealed, Roster, Shares
from edge.masking.keys import new_private, public_of
from tests.federation.in_process import InProcessFederation
from tests.federation.lying_broker import Change, LyingBroker, enrolled_agents
from tests.federation.test_secure_aggregation import DEVICES, MASKED, start_agents, text_of

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


def own_keys(keys: Keys) -> Keys:
    return msgspec.structs.replace(keys, masking=public_of(new_private()))


def other_shares(shares: Shares) -> Shares:
    first, second, *_ = sorted(shares.sealed)
    return msgspec.structs.replace(shares, sealed={**shares.sealed, first: shares.sealed[second]})


def other_roster(roster: Roster) -> Roster:
    members = tuple(msgspec.structs.replace(m, sharing=public_of(new_private())) for m in roster.members[:2])
    return msgspec.structs.replace(roster, members=(*members, *roster.members[2:]))


def other_mail(mail: Mail) -> Mail:
    sender, parcel = sorted(mail.sealed.items())[0]
    return msgspec.structs.replace(mail, sealed={**mail.sealed, sender: parcel[::-1]})


def other_answer(told: Revealed) -> Revealed:
    first, second, *_ = sorted(told.self_masks)
    return msgspec.structs.replace(told, self_masks={**told.self_masks, first: told.self_masks[second]})


CHANGES: dict[tuple[str, str], Change] = {
    ("d0", "mail"): other_mail,
    ("d1", "keys"): own_keys,
    ("d2", "shares"): other_shares,
    ("d3", "revealed"): other_answer,
    ("d4", "roster"): other_roster,
}


def test_broker_that_changes_what_is_said_of_masks_is_heard_by_nobody(exports: Path, tmp_path: Path) -> None:
    with Authority.create(tmp_path / "identity") as authority:
        identity = authority.folder.root
    broker = f'url = "mosquitto"\nidentity = "{identity}"'
    with InProcessFederation(tmp_path, exports, text_of(MASKED, broker=broker, deadline_s=60.0)) as running:
        lying = LyingBroker(running.broker, CHANGES)
        enrolled_agents(running, identity, DEVICES)
        running.run()
        # Whoever tells t shares is enough: one answer that was refused need not come again.
        assert lying.changed == set(CHANGES)
        assert running.ledger.masking.liars() == frozenset()
        (entry,) = running.ledger.rounds.all()
        assert (entry.attempt, entry.state, len(entry.participants)) == (0, "committed", DEVICES)
        assert running.lines.having("'keys' of 'd1' has a signature by none of 1 certificate")
        assert running.lines.having("d4", "'roster' of masks has a signature")


def test_without_certificates_the_same_broker_has_honest_devices_named(exports: Path, tmp_path: Path) -> None:
    """What the signatures are for, and that the test above can fail."""
    with InProcessFederation(tmp_path, exports, text_of(MASKED, min_reports=3, deadline_s=60.0)) as running:
        LyingBroker(running.broker, {("d2", "shares"): other_shares})
        start_agents(running)
        running.run()
        assert running.ledger.masking.liars() == {"d2"}
