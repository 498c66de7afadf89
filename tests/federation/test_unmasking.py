"""The end of a masked round among real agents: members that are found out late, helpers that are away when asked."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from coordinator.identity.authority import Authority
from coordinator.rounds.masking.agreement import TOLD
from edge.contracts.errors import DeadlineExpired, PlanError
from edge.contracts.messages import Refuse
from edge.masking.keys import new_private
from edge.masking.shares import split
from edge.supervisor.assignment import Assignment
from edge.transport.base import Qos
from tests.federation.in_process import InProcessFederation
from tests.federation.lying_broker import enrolled_agents
from tests.federation.test_masking_lies import another_secret, lies
from tests.federation.test_secure_aggregation import DEVICES, MASKED, Stopped, hold_back, start_agents, text_of, vanish

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


def test_who_dealt_shares_of_other_secrets_is_taken_out_of_a_sum_of_all_devices(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with another self mask that reports, one with another masking key that vanishes; nobody else is there."""
    with Authority.create(tmp_path / "identity") as authority:
        identity = authority.folder.root
    broker = f'url = "mosquitto"\nidentity = "{identity}"'
    privacy = MASKED + "recovery-share = 0.6\n"
    text = text_of(privacy, broker=broker, size=6, local=6, min_reports=3, deadline_s=25.0)
    with InProcessFederation(tmp_path, exports, text) as running:
        enrolled_agents(running, identity, 6)
        lies(running, "d1", another_secret)

        def misdealt(secret: bytes, threshold: int, count: int) -> list[bytes]:
            state = running._agents["d2"][0]._masker._state
            is_key = state is not None and secret == state.masking_key
            return split(new_private() if is_key else secret, threshold, count)

        monkeypatch.setattr("edge.supervisor.masked_round.split", misdealt)
        hold_back(running, "d2")
        gone: list[str] = []

        def on_point(point: str) -> None:
            if point == "collecting" and not gone and running.ledger.masking.of_attempt(0, 0, "proceed"):
                vanish(running, "d2")
                gone.append("d2")

        running.on_point = on_point
        running.run()
        (entry,) = running.ledger.rounds.all()
        assert (entry.attempt, entry.state, entry.participants) == (0, "committed", ("d0", "d3", "d4", "d5"))
        assert running.ledger.masking.liars() == {"d1", "d2"}
        # The masked weights of the four add up to what they reported: no mask is left on the sum.
        assert not running.lines.having("weights of")


def test_sum_whose_helpers_are_away_waits_until_they_are_back(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All devices are in the cohort, so nobody could make the round in their place; the coordinator starts again."""
    monkeypatch.setattr("coordinator.rounds.masking.unmasking.REVEAL_S", 2.0)
    away = {"d1", "d2", "d3"}
    with InProcessFederation(tmp_path, exports, text_of(MASKED, deadline_s=30.0)) as running:
        asked: list[float] = []

        def drop(topic: str, payload: bytes, qos: Qos) -> bool:
            return topic.endswith("/reveal") and bool(away & set(topic.split("/")))

        running.broker.drop = drop
        start_agents(running)

        def on_point(point: str) -> None:
            if not running.ledger.masking.of_attempt(0, 0, "reveal") or point != "collecting":
                return
            asked.append(time.monotonic())
            if len(asked) == 1:
                for device in sorted(away):
                    vanish(running, device)
            if len(asked) == 2:
                raise Stopped
            if away and time.monotonic() - asked[0] > 6.0:
                for device in sorted(away):
                    running._agents[device][1].join(10)
                    running.agent(device)
                away.clear()

        running.on_point = on_point
        with pytest.raises(Stopped):
            running.run()
        running.run()
        (entry,) = running.ledger.rounds.all()
        assert (entry.attempt, entry.state, len(entry.participants)) == (0, "committed", DEVICES)
        assert time.monotonic() - asked[0] > 6.0
        assert not away


def test_run_whose_helpers_stay_away_stops_where_it_is_and_goes_on_when_they_are_back(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Giving the attempt up would be the end: each of them may unmask one sum of this model, nobody else is here."""
    monkeypatch.setattr("coordinator.rounds.masking.unmasking.REVEAL_S", 1.0)
    monkeypatch.setattr("coordinator.rounds.masking.unmasking.WAIT_ROUNDS", 0.4)
    with InProcessFederation(tmp_path, exports, text_of(MASKED, deadline_s=20.0, join_timeout_s=15.0)) as running:
        running.broker.drop = lambda topic, payload, qos: topic.endswith("/revealed") and "/d0/" not in topic
        start_agents(running)
        with pytest.raises(
            DeadlineExpired, match=r"1 of 5 .*, 4 needed: d1, d2, d3, d4 said nothing for 8 s .* resume"
        ):
            running.run()
        assert running.ledger.rounds.all()[0].state == "collecting"
        assert running.lines.having("1 of 5 devices helped to unmask the sum, 4 needed: waiting for them, for 8 s")
        running.broker.drop = lambda topic, payload, qos: False
        running.run()
        (entry,) = running.ledger.rounds.all()
        assert (entry.attempt, entry.state, len(entry.participants)) == (0, "committed", DEVICES)


def test_misdealer_beside_a_silent_reporter_does_not_end_a_run_of_everybody(
    exports: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that are left have to tell their masks with who was found out; who is away says it when it is back."""
    monkeypatch.setattr("coordinator.rounds.masking.unmasking.REVEAL_S", 1.0)
    monkeypatch.setattr("coordinator.rounds.masking.unmasking.WAIT_ROUNDS", 0.2)
    Authority.create(tmp_path / "identity").close()
    broker = f'url = "mosquitto"\nidentity = "{tmp_path / "identity"}"'
    text = text_of(MASKED + "recovery-share = 0.6\n", broker=broker, min_reports=3, deadline_s=30.0)
    with InProcessFederation(tmp_path, exports, text) as running:
        enrolled_agents(running, tmp_path / "identity", DEVICES)
        lies(running, "d1", another_secret)
        running.broker.drop = lambda topic, payload, qos: topic.endswith("/excluded") and "/d3/" in topic
        with pytest.raises(DeadlineExpired, match=r"3 of 4 devices helped .*, 4 needed: d3 said nothing"):
            running.run()
        running.broker.drop = lambda topic, payload, qos: False
        running.run()
        (entry,) = running.ledger.rounds.all()
        assert (entry.attempt, entry.state, entry.participants) == (0, "committed", ("d0", "d2", "d3", "d4"))
        assert running.ledger.masking.liars() == {"d1"}
        assert not running.lines.having("weights of")


def test_who_is_silent_again_and_again_is_left_out_for_a_while_and_who_was_slow_once_is_not(
    exports: Path, tmp_path: Path
) -> None:
    text = text_of(MASKED + "recovery-share = 0.6\n", rounds=6, min_reports=3, deadline_s=14.0)
    with InProcessFederation(tmp_path, exports, text) as running:
        start_agents(running)
        running._agents["d1"][0]._masker._roster = lambda roster: None  # type: ignore[method-assign]
        slow = running._agents["d2"][0]._masker
        slow._roster = lambda roster: None  # type: ignore[method-assign]

        def on_point(point: str) -> None:
            if point == "committed":
                vars(slow).pop("_roster", None)

        running.on_point = on_point
        running.run()
        ordered = [
            [entry.device for entry in running.ledger.assignments.of_attempt(r.round, r.attempt)]
            for r in running.ledger.rounds.all()
        ]
        everybody, others = ["d0", "d1", "d2", "d3", "d4"], ["d0", "d2", "d3", "d4"]
        assert ordered == [everybody, everybody, others, others, others, everybody]
        assert {r.state for r in running.ledger.rounds.all()} == {"committed"}
        assert running.lines.having("round 3: d1 said nothing in 2 of 3 attempts and is left out until round 6")
        assert running.ledger.masking.liars() == frozenset()


def test_run_whose_devices_all_unmasked_its_model_before_says_so_after_one_attempt(
    exports: Path, tmp_path: Path
) -> None:
    """A second run from the same weights: there is nobody to ask again, however often."""
    text = text_of(MASKED, size=3, local=3, min_reports=3, deadline_s=30.0, join_timeout_s=60.0)
    with InProcessFederation(tmp_path, exports, text) as running:
        start_agents(running, 3)
        for device in running._agents:
            running._agents[device][0]._masker.refusal = told_before  # type: ignore[method-assign]
        began = time.monotonic()
        with pytest.raises(PlanError, match=r"d0, d1, d2 .* \$\.federation\.seed or \$\.model\.weights"):
            running.run()
        assert [r.attempt for r in running.ledger.rounds.all()] == [0]
        assert time.monotonic() - began < 30.0


def told_before(taken: Assignment) -> Refuse:
    return taken.refusal(TOLD, "masks were taken off before")


def test_broker_that_keeps_updates_back_has_no_sum_of_fewer_honest_ones_than_the_run_asks_for(
    exports: Path, tmp_path: Path
) -> None:
    """Two may collude (3 of 5 take masks off), so a sum with two honest updates is of four: of three none is made."""
    text = text_of(
        MASKED + "recovery-share = 0.6\nleast-honest = 2\n", min_reports=3, deadline_s=8.0, join_timeout_s=4.0
    )
    with InProcessFederation(tmp_path, exports, text) as running:
        kept_back = {"d1", "d3"}
        running.broker.drop = lambda topic, payload, qos: (
            topic.endswith("/report") and bool(kept_back & {*topic.split("/")})
        )
        start_agents(running)

        def on_point(point: str) -> None:
            if point == "planned" and running.ledger.rounds.find(0, 1) is not None:
                kept_back.clear()

        running.on_point = on_point
        running.run()
        first, second = running.ledger.rounds.all()
        assert (first.state, second.state) == ("abandoned", "committed")
        assert not running.ledger.masking.of_attempt(0, 0, "reveal")
        assert running.lines.having("round 1: 3 masked updates are here, 4 needed so that their sum tells of none")
        assert second.participants == ("d0", "d1", "d2", "d3", "d4")
