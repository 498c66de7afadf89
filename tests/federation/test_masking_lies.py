"""Members that lie about their masks among real agents: they are named, others are not, and rounds are made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.identity.authority import Authority
from edge.contracts.masking import Checked, Complaint, Keys, Revealed, Shares
from edge.contracts.plan import read_order
from edge.supervisor.masking_state import MaskingState
from edge.transport.base import Qos
from tests.federation.in_process import InProcessFederation
from tests.federation.lying_broker import enrolled_agents
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


def reveals_first(running: InProcessFederation, device: str) -> None:
    """Let the others unmask once ``device`` has: enough answers end the wait, and a later lie is found later."""
    has_spoken = threading.Event()
    for name, (agent, *_) in running._agents.items():
        masker = agent._masker

        def send(
            kind: str, body: msgspec.Struct, *how: Any, say: Callable[..., None] = masker._send, name: str = name
        ) -> None:
            if isinstance(body, Revealed) and name != device:
                assert has_spoken.wait(20.0)
            say(kind, body, *how)
            if isinstance(body, Revealed) and name == device:
                has_spoken.set()

        masker._send = send


def test_whoever_lies_is_out_after_one_attempt_and_the_rounds_are_made(exports: Path, tmp_path: Path) -> None:
    text = text_of(MASKED, rounds=2, size=7, min_reports=3, deadline_s=40.0)
    with InProcessFederation(tmp_path, exports, text) as running:
        start_agents(running, 7)
        for device, lie in (("d1", zero_key), ("d2", shares_of_noise), ("d3", anothers_share)):
            lies(running, device, lie)
        reveals_first(running, "d3")
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


def test_who_answers_nothing_when_a_liar_is_taken_out_is_remembered_as_silent(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that are left are needed then: each can stop one attempt so, and nobody can again and again."""
    monkeypatch.setattr("coordinator.rounds.masking.unmasking.REVEAL_S", 3.0)
    Authority.create(tmp_path / "identity").close()
    broker = f'url = "mosquitto"\nidentity = "{tmp_path / "identity"}"'
    text = text_of(MASKED, broker=broker, size=6, local=6, min_reports=3, deadline_s=40.0)
    with InProcessFederation(tmp_path, exports, text) as running:
        enrolled_agents(running, tmp_path / "identity", 12)
        chosen: list[str] = []

        def misdeals(kind: str, body: msgspec.Struct) -> msgspec.Struct:
            entries = running.ledger.assignments.of_attempt(0, 0)
            chosen[:] = [entry.device for entry in entries]
            is_first = isinstance(body, Shares) and body.assignment_id == entries[0].assignment_id
            return another_secret(kind, body) if is_first else body

        def drop(topic: str, payload: bytes, qos: Qos) -> bool:
            return topic.endswith("/excluded") and chosen[1] in topic.split("/")

        running.broker.drop = drop
        for device in list(running._agents):
            lies(running, device, misdeals)
        running.run()
        first, second = running.ledger.rounds.all()
        assert (first.state, second.state) == ("abandoned", "committed")
        assert running.ledger.masking.liars() == {chosen[0]}
        assert running.ledger.masking.of_attempt(0, 0, "silent") == {
            chosen[1]: b"no 'excluded' when the sum was unmasked"
        }


def complain_of(running: InProcessFederation, device: str, sender: str) -> None:
    """Let an agent complain of ``sender``, whatever it was given, where others say that all is in order."""
    masker = running._agents[device][0]._masker
    say = masker._say

    def lie(state: MaskingState, kind: str, body: msgspec.Struct) -> None:
        if isinstance(body, Checked):
            kind, body = "complaint", Complaint(body.assignment_id, sender)
        say(state, kind, body)

    masker._say = lie  # type: ignore[method-assign]


def test_whoever_complains_of_good_shares_is_barred_and_the_round_is_made(exports: Path, tmp_path: Path) -> None:
    with Authority.create(tmp_path / "identity") as authority:
        identity = authority.folder.root
    broker = f'url = "mosquitto"\nidentity = "{identity}"'
    text = text_of(MASKED, broker=broker, min_reports=3, deadline_s=40.0)
    with InProcessFederation(tmp_path, exports, text) as running:
        enrolled_agents(running, identity, 5)
        complain_of(running, "d1", "d3")
        running.run()
        assert [(r.attempt, r.state, r.participants) for r in running.ledger.rounds.all()] == [
            (0, "abandoned", ()),
            (1, "committed", ("d0", "d2", "d3", "d4")),
        ]
        assert running.ledger.masking.liars() == {"d1"}


def test_whoever_does_not_open_its_shares_is_left_out_once_and_no_liar(exports: Path, tmp_path: Path) -> None:
    with InProcessFederation(tmp_path, exports, text_of(MASKED, rounds=2, min_reports=3, deadline_s=20.0)) as running:
        start_agents(running)
        complain_of(running, "d1", "d3")
        running._agents["d3"][0]._masker._dispute = lambda dispute: None  # type: ignore[method-assign]

        def on_point(point: str) -> None:
            if point == "planned" and running.ledger.rounds.find(0, 1) is not None:
                vars(running._agents["d1"][0]._masker).pop("_say", None)

        running.on_point = on_point
        running.run()
        assert [(r.round, r.attempt, r.state, r.participants) for r in running.ledger.rounds.all()] == [
            (0, 0, "abandoned", ()),
            (0, 1, "committed", ("d0", "d1", "d2", "d4")),
            (1, 0, "committed", ("d0", "d1", "d2", "d3", "d4")),
        ]
        assert running.ledger.masking.liars() == frozenset()
        assert running.lines.having("d3 is left out of the next attempt: it did not open the shares")


def test_broker_that_keeps_complaints_back_has_no_key_of_anybody(exports: Path, tmp_path: Path) -> None:
    """The one who would complain is left out, its victims lose nothing, and nothing it ever sends opens a parcel."""
    with InProcessFederation(tmp_path, exports, text_of(MASKED, min_reports=3, deadline_s=20.0)) as running:
        heard: list[bytes] = []

        def drop(topic: str, payload: bytes, qos: Qos) -> bool:
            heard.append(payload)
            return topic.endswith("/complaint")

        running.broker.drop = drop
        start_agents(running)
        lies(running, "d3", shares_of_noise_for("d1"))
        keys: list[bytes] = []

        def on_point(point: str) -> None:
            state = running._agents["d1"][0]._masker._state
            if state is not None and state.sharing_key:
                keys.append(state.sharing_key)

        running.on_point = on_point
        running.run()
        (entry,) = running.ledger.rounds.all()
        assert (entry.attempt, entry.participants) == (0, ("d0", "d2", "d3", "d4"))
        assert running.ledger.masking.liars() == frozenset()
        assert keys
        assert not any(key in payload for key in keys for payload in heard)


def shares_of_noise_for(victim: str) -> Lie:
    def lie(kind: str, body: msgspec.Struct) -> msgspec.Struct:
        if not isinstance(body, Shares):
            return body
        parcel = body.sealed[victim]
        return msgspec.structs.replace(body, sealed={**body.sealed, victim: parcel[:32] + bytes(len(parcel) - 32)})

    return lie
