"""Turns of coordinators whose database comes and goes: who waits, who gives up, who need not wait."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.cli.taking_turns import held_at, take_turns
from coordinator.config.run_config import RunConfig
from coordinator.ledger.connections import LedgerAway
from coordinator.ledger.ledger import Ledger
from coordinator.messaging.cohort import Cohort
from coordinator.rounds.control import RunStopped
from coordinator.rounds.round_clock import RoundClock
from coordinator.rounds.status import RoundStatus
from coordinator.run_file.loading import load_config_text
from coordinator.shards.leadership import LEADER, Leadership
from edge.contracts.errors import LeaseLost, LedgerError
from edge.contracts.messages import Accept
from tests.coordinator.messaging import inbox_bench as inbox_desk
from tests.federation.small_run import config_text
from tests.postgres_server import PostgresServer

FEDERATION = "small"
LEASE_S = 2.0

Lead = Callable[[Leadership], dict[str, Any]]


class Turns:
    """A run in a database, and one process that takes its turns; what it said and how often it prepared."""

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.server = server
        self.place = server.new_database()
        self.folder = folder
        self.said: list[str] = []
        self.prepared = 0
        text = f'{config_text()}\n[store]\nledger = "{self.place}"\nlease-s = {LEASE_S}\n'
        self.config: RunConfig = load_config_text(text)
        Ledger.create(self.place, federation=FEDERATION, config=text, seed=0).close()

    def take(self, lead: Lead) -> dict[str, Any]:
        def prepare() -> None:
            self.prepared += 1

        return take_turns(
            self.config,
            self.folder,
            prepare=prepare,
            lead=lambda _, leadership: lead(leadership),
            say=self.said.append,
            until_finished=False,
        )

    def open(self) -> Ledger:
        return Ledger.open(self.place, federation=FEDERATION)

    def cut(self) -> None:
        """Every connection to the database ends, as with a restart of the server."""
        name = self.place.rpartition("/")[2]
        self.server.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")


@pytest.fixture
def turns(postgres_server: PostgresServer, tmp_path: Path) -> Turns:
    return Turns(postgres_server, tmp_path)


def test_leader_that_is_cut_off_from_the_database_takes_its_next_turn(turns: Turns) -> None:
    terms: list[int] = []

    def lead(leadership: Leadership) -> dict[str, Any]:
        terms.append(leadership.term)
        with turns.open() as ledger, ledger._file.transaction() as sql:
            if len(terms) == 1:
                turns.cut()
            sql.exec_driver_sql("SELECT 1")
        return {"term": leadership.term}

    assert turns.take(lead) == {"term": 2}
    assert (terms, turns.prepared) == ([1, 2], 2)
    assert sum("not written" in line and "waits for its next turn" in line for line in turns.said) == 1


def test_leader_whose_lease_is_taken_takes_its_next_turn(turns: Turns) -> None:
    points: list[str] = []

    def lead(leadership: Leadership) -> dict[str, Any]:
        with turns.open() as ledger:
            ledger.leases.fence(LEADER, leadership.owner, leadership.term)
            if leadership.term == 1:
                ledger.leases.release(LEADER, leadership.owner, 1)
                assert ledger.leases.take(LEADER, "other", 0.5) == 2
            ledger.move_federation("running")
        held_at(leadership, points.append)("planned")
        return {"term": leadership.term}

    assert turns.take(lead) == {"term": 3}
    assert points == ["planned"]


@pytest.mark.parametrize(
    "error", [RunStopped("stopped as asked"), LedgerError("round 1: illegal move"), KeyboardInterrupt("SIGTERM")]
)
def test_leader_that_fails_or_is_ended_lets_go_of_the_lease(turns: Turns, error: BaseException) -> None:
    def lead(leadership: Leadership) -> dict[str, Any]:
        raise error

    with pytest.raises(type(error), match=str(error)):
        turns.take(lead)
    with turns.open() as ledger:
        assert ledger.leases.take(LEADER, "next", LEASE_S) == 2


def test_process_that_is_started_again_in_its_directory_waits_for_no_lease_of_its_own(turns: Turns) -> None:
    owners: list[str] = []

    def lead(leadership: Leadership) -> dict[str, Any]:
        owners.append(leadership.owner)
        return {"left_s": leadership.is_held()}

    turns.take(lead)
    with turns.open() as ledger:
        # As if it had been killed: the lease is still its own, and for long.
        assert ledger.leases.take(LEADER, owners[0], 600.0) == 1
    turns.take(lead)
    assert len(set(owners)) == 2


def test_point_that_is_passed_without_the_lease_raises(turns: Turns) -> None:
    with turns.open() as ledger:
        never_taken = Leadership(ledger, "never", LEASE_S)
        with pytest.raises(LeaseLost, match="lease 'leader' of never, term 0"):
            held_at(never_taken, lambda point: None)("planned")


def test_server_that_is_not_there_is_told_from_one_that_refuses(turns: Turns) -> None:
    with pytest.raises(LedgerAway, match="ledger cannot be opened"):
        Ledger.open("postgresql://x@127.0.0.1:9/x", federation=FEDERATION)
    with pytest.raises(LedgerError, match="not written") as caught, turns.open() as ledger:
        with ledger._file.transaction() as sql:
            sql.exec_driver_sql("SELECT nothing")
    assert not isinstance(caught.value, LedgerAway)


@pytest.mark.parametrize("fails", ["lease", "server"])
def test_device_hears_nothing_of_a_ledger_that_cannot_be_written(
    turns: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    place = turns.server.new_database()
    with Ledger.create(place, federation=inbox_desk.FEDERATION, config="", seed=0) as ledger:
        handler = inbox_desk.MessageLoop(tmp_path, ledger)
        accept = Accept(handler.orders["pi-1"].assignment_id)
        if fails == "lease":
            ledger.leases.fence(LEADER, "nobody", 1)
        else:

            def away(assignment_id: str) -> None:
                raise LedgerAway(f"{place}: cannot be read")

            monkeypatch.setattr(ledger.assignments, "find", away)
        assert handler.gets("pi-1", "accept", accept) == []
        assert len(handler.said) == 1
        assert handler.said[0].startswith("pi-1: ")
        handler.publisher.close()


def test_status_says_that_the_server_is_away(turns: Turns, monkeypatch: pytest.MonkeyPatch) -> None:
    with turns.open() as ledger:
        status = RoundStatus(
            turns.config, ledger, Cohort(), RoundClock(), expected=[], ended=dict, say=turns.said.append
        )
        assert status.line().startswith("waiting for devices")

        def away() -> None:
            raise LedgerAway("cannot be read")

        monkeypatch.setattr(ledger.rounds, "open", away)
        assert status.line() == "the ledger's server does not answer"
