"""The dashboard's answers: the whole and what changes, requests behind the token, and nothing for strangers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from coordinator.cli.watch import served
from coordinator.dashboard.app import HEADERS
from coordinator.dashboard.board import Board
from coordinator.dashboard.device_log import last_lines
from coordinator.dashboard.fleet import view_of
from coordinator.history.history import History
from coordinator.history.live import LiveDevice, LiveState
from coordinator.ledger.ledger import Ledger
from coordinator.web.server import REQUEST_TIMEOUT_S
from edge.contracts.plan import assignment_id
from tests.coordinator.history.small_ledger import begin, commit, report, small_ledger

HERE = LiveDevice(device="pi-1", is_here=True, heard_at=1.0)


class Client:
    """Speaks to a dashboard at ``address``, with ``token`` where it is to be sent."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self.token = token

    def ask(self, method: str, path: str, *, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        parts = urlsplit(self.address)
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=REQUEST_TIMEOUT_S)
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        is_json = answer.headers.get("content-type", "").startswith("application/json")
        return answer.status, json.loads(data) if is_json else data.decode(), dict(answer.headers)

    def do(self, path: str, body: Any = None) -> tuple[int, Any]:
        status, said, _ = self.ask("POST", path, body=body, Authorization=f"Bearer {self.token}")
        return status, said


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Ledger]:
    with small_ledger(tmp_path / "ledger.sqlite") as ledger:
        yield ledger


@pytest.fixture
def client(run: Ledger, tmp_path: Path) -> Iterator[Client]:
    with served(tmp_path) as (address, link):
        yield Client(address, link.partition("#token=")[2])


def test_state_is_that_of_the_ledger(client: Client) -> None:
    status, state, headers = client.ask("GET", "/api/state")
    assert (status, headers["cache-control"]) == (200, "no-store")
    assert (state["run"]["name"], state["run"]["rounds_committed"], state["is_running"]) == ("small", 2, False)
    assert [view["device"] for view in state["devices"]] == ["pi-1", "pi-2", "pi-3"]
    assert [view["status"] for view in state["devices"]] == ["reported", "expired", "expired"]
    assert len(state["rounds"]) == 4
    assert state["run"]["config"] == ""  # may hold a password


def test_page_and_its_headers(client: Client) -> None:
    status, page, headers = client.ask("GET", "/")
    assert status == 200
    assert "<title>Apportion dashboard</title>" in page
    assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in headers["content-security-policy"]
    assert {name.lower(): value for name, value in HEADERS.items()}.items() <= headers.items()
    assert client.ask("GET", "/../app.py")[0] == 404


@pytest.mark.parametrize("token", ["", "wrong"])
def test_request_without_the_right_token_changes_nothing(client: Client, run: Ledger, token: str) -> None:
    client.token = token
    for path in ("/api/requests/stop", "/api/devices/pi-1/quarantine", "/api/devices/pi-2/release"):
        status, said = client.do(path)
        assert (status, said["error"]["code"]) == (401, "bad-token")
        assert "the command that opened the dashboard" in said["error"]["hint"]
    assert run.requests.find("control") is None
    assert len(run.quarantine.all()) == 1


@pytest.mark.parametrize(("word", "asked"), [("pause", "pause"), ("drain", "drain"), ("stop", "stop")])
def test_requests_are_those_of_the_verbs(client: Client, run: Ledger, word: str, asked: str) -> None:
    assert client.do(f"/api/requests/{word}") == (200, {"ok": True, "asked": word})
    assert run.requests.find("control") == asked
    entry = list(run.audit_log.entries())[-1]
    assert (entry.action, entry.values()["value"]) == ("run-asked", asked)
    assert entry.actor.startswith("operator:")
    assert client.do("/api/requests/continue")[0] == 200
    assert run.requests.find("control") == ""
    status, said = client.do("/api/requests/dance")
    assert (status, said["error"]["message"]) == (
        404,
        "'dance' is no request; there are pause, continue, drain, stop",
    )


def test_quarantine_and_release_are_those_of_the_verbs(client: Client, run: Ledger) -> None:
    status, said = client.do("/api/devices/pi-1/quarantine", {"reason": "looks odd"})
    assert (status, said["round"]) == (200, 2)
    assert run.quarantine.all()[-1].evidence == {"reason": "looks odd"}
    status, said = client.do("/api/devices/pi-3/quarantine")
    assert (status, said["error"]["code"]) == (409, "ledger-error")
    assert "no update of device 'pi-3' waits to be counted" in said["error"]["message"]
    status, said = client.do("/api/devices/pi-2/release")
    assert (status, said) == (200, {"ok": True, "device": "pi-2", "released": 1, "barred_until": 2})
    assert [entry.device for entry in run.quarantine.all()] == ["pi-1"]


def test_finished_run_takes_no_request(client: Client, run: Ledger) -> None:
    run.move_federation("finished")
    status, said = client.do("/api/requests/pause")
    assert (status, said["error"]["message"]) == (409, "the run is finished; there is nothing to pause")


def test_read_only_dashboard_does_nothing_whoever_asks(run: Ledger, tmp_path: Path) -> None:
    with served(tmp_path, read_only=True) as (address, link):
        assert "#" not in link
        status, said = Client(address, "").do("/api/requests/stop")
        assert (status, said["error"]["code"]) == (403, "read-only")
    assert run.requests.find("control") is None


def test_another_name_is_refused(client: Client) -> None:
    status, said, _ = client.ask("GET", "/api/state", Host="rebound.example")
    assert (status, said) == (
        421,
        "'rebound.example' is no name of this dashboard; if it is yours: apportion watch RUN_DIR --host NAME\n",
    )


def test_device_page_and_one_that_is_not_there(client: Client, tmp_path: Path) -> None:
    (tmp_path / "devices" / "pi-2").mkdir(parents=True)
    (tmp_path / "devices" / "pi-2" / "agent.log").write_text("first\nsecond\n")
    page = client.ask("GET", "/api/devices/pi-2")[1]
    assert [entry["round"] for entry in page["assignments"]] == [2, 1, 0, 0]
    assert page["log"] == ["first", "second"]
    assert page["profile"]["board"] == "Raspberry Pi 4"
    assert client.ask("GET", "/api/devices/nobody")[0] == 404
    (tmp_path / "agent.log").write_text("of another")
    assert last_lines(tmp_path / "devices", "..") == ()


def test_changes_are_what_happened_since(run: Ledger, tmp_path: Path) -> None:
    with History.of(tmp_path) as history:
        board = Board(history)
        board.look()
        version = board.version
        assert board.since(version) == []
        board.look()
        assert board.version == version  # nothing was written
        report(run, "pi-2", 2, 0)
        board.look()
        (data,) = board.since(version) or []
        change = json.loads(data)
        assert [view["device"] for view in change["devices"]] == ["pi-2"]
        assert [(entry["round"], entry["assigned"]["reported"]) for entry in change["rounds"]] == [(2, 2)]
        run.assignments.expire(assignment_id("small", 2, "pi-3", 0))
        commit(run, 2, 0, ("pi-1", "pi-2"), train_loss=1.0)
        begin(run, 3, 0)
        board.look()
        change = json.loads((board.since(version) or [])[-1])
        assert [(entry["round"], entry["state"]) for entry in change["rounds"]] == [(2, "committed"), (3, "collecting")]
        assert change["events"][-1]["action"] == "round-committed"
        assert board.since(version + 99) is None
        with History.of(tmp_path) as other:
            anew = Board(other)
            anew.look()
            mine, theirs = json.loads(board.whole().data), json.loads(anew.whole().data)
        assert {**mine, "version": 0} == {**theirs, "version": 0}


def test_live_state_is_joined_with_the_ledger(run: Ledger, tmp_path: Path) -> None:
    state = LiveState(
        written_at=time.time(), deadline_left_s=9.0, devices=(HERE, msgspec.structs.replace(HERE, device="new"))
    )
    (tmp_path / "live.json").write_bytes(msgspec.json.encode(state))
    with History.of(tmp_path) as history:
        board = Board(history)
        board.look()
        whole = json.loads(board.whole().data)
    assert (whole["is_running"], whole["deadline_left_s"]) == (True, 9.0)
    assert {view["device"]: view["status"] for view in whole["devices"]} == {
        "new": "here",
        "pi-1": "reported",
        "pi-2": "away",
        "pi-3": "away",
    }


@pytest.mark.parametrize(
    ("change", "status", "why"),
    [
        ({"state": "training"}, "training", ""),
        ({"state": "waiting", "reason": "12 %"}, "waiting", "12 %"),
        ({"unusable": "no runtime"}, "unusable", "no runtime"),
        ({"is_here": False, "away_reason": "bye"}, "away", "bye"),
        ({}, "here", ""),
    ],
)
def test_status_of_a_device_that_the_coordinator_hears(change: dict[str, Any], status: str, why: str) -> None:
    view = view_of("pi-1", None, msgspec.structs.replace(HERE, **change), is_running=True, current_round=0)
    assert (view.status, view.why) == (status, why)


@pytest.mark.parametrize(
    ("change", "is_hot"),
    [({"temperature_c": 69.9}, False), ({"temperature_c": 70.0}, True), ({"waiting_for": "temperature"}, True)],
)
def test_hot_device(change: dict[str, Any], is_hot: bool) -> None:
    view = view_of("pi-1", None, msgspec.structs.replace(HERE, **change), is_running=True, current_round=0)
    assert view.is_hot is is_hot
