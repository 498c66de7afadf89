"""Members that lie about their masks among real agents: they are named, others are not, and rounds are made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from edge.contracts.masking import Keys, Revealed, Shares
from edge.contracts.plan import read_order
from tests.federation.in_process import InProcessFederation
from tests.federation.test_secure_aggregation import MASKED, start_agents, text_of

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

Lie = Callable[[str, msgspec.Struct], msgspec.Struct]
"""(kind, what an honest agent would say) -> what this one says."""


def zero_key(kind: str, body: msgspec.Struct) -> msgspec.Struct:
    return msgspec.structs.replace(body, masking=bytes(32)) if isinstance(body, Keys) else body


def shares_of_noise(kind: str, body: msgspec.Struct) -> msgspec.Struct:
    if not isinstance(body, Shares):
        return body
    return msgspec.structs.replace(body, sealed={name: b"x" * len(box) for name, box in body.sealed.items()})


def anothers_share(kind: str, body: msgspec.Struct) -> msgspec.Struct:
    if not isinstance(body, Revealed):
        return body
    first, second, *_ = sorted(body.self_masks)
    return msgspec.structs.replace(body, self_masks={**body.self_masks, first: body.self_masks[second]})


def another_secret(kind: str, body: msgspec.Struct) -> msgspec.Struct:
    return msgspec.structs.replace(body, self_mask=bytes(32)) if isinstance(body, Shares) else body


def lies(running: InProcessFederation, device: str, lie: Lie) -> None:
    """Let an agent say what ``lie`` makes of its words."""
    masker = running._agents[device][0]._masker
    say = masker._send
    masker._send = lambda kind, body, qos, identity, sign: say(kind, lie(kind, body), qos, identity, sign)


def test_whoever_lies_is_out_after_one_attempt_and_the_rounds_are_made(exports: Path, tmp_path: Path) -> None:
    text = text_of(MASKED, rounds=2, size=7, min_reports=3, deadline_s=40.0)
    with InProcessFederation(tmp_path, exports, text) as running:
        start_agents(running, 7)
        for device, lie in (("d1", zero_key), ("d2", shares_of_noise), ("d3", anothers_share)):
            lies(running, device, lie)
        running.run()
        ledger = running.ledger
        assert [(r.round, r.attempt, r.state, r.participants) for r in ledger.rounds.all()] == [
            (0, 0, "abandoned", ()),
            (0, 1, "committed", ("d0", "d3", "d4", "d5", "d6")),  # what d3 gave counts, what it told does not
            (1, 0, "committed", ("d0", "d4", "d5", "d6")),
        ]
        assert ledger.masking.liars() == {"d1", "d2", "d3"}
        rejected = {e.device: e.code for e in ledger.assignments.of_attempt(0, 0, "rejected")}
        assert rejected["d1"] == "masking-lie"


def test_after_shares_of_another_secret_devices_that_unmasked_nothing_yet_make_the_round(
    exports: Path, tmp_path: Path
) -> None:
    text = text_of(MASKED, size=4, local=4, min_reports=3, deadline_s=40.0)
    with InProcessFederation(tmp_path, exports, text) as running:
        for index in range(8):
            running.write_data(f"d{index}", index % 4)
            running.agent(f"d{index}")

        def first_lies(kind: str, body: msgspec.Struct) -> msgspec.Struct:
            """Only the first device of the first attempt lies."""
            identity = running.ledger.assignments.of_attempt(0, 0)[0].assignment_id
            return another_secret(kind, body) if isinstance(body, Shares) and body.assignment_id == identity else body

        for device in list(running._agents):
            lies(running, device, first_lies)
        running.run()
        first, second = running.ledger.rounds.all()
        assert (first.state, second.state) == ("abandoned", "committed")
        chosen = running.ledger.assignments.of_attempt(0, 0)
        assert running.ledger.masking.liars() == {chosen[0].device}
        assert not {entry.device for entry in chosen} & set(second.participants)
        weights = {read_order(e.order).weights.digest for e in [*chosen, *running.ledger.assignments.of_attempt(0, 1)]}
        assert len(weights) == 1
