"""One coordinator at a time leads: processes that fight for the lease, one that stood still, one that cannot renew."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import queue
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.messaging.inbox import Inbox
from coordinator.messaging.message_loop import MessageLoop
from coordinator.shards.leadership import LEADER, Leadership, wait_for_lead
from edge.contracts.errors import LeaseLost, LedgerError
from edge.transport.base import Connected, Event, Received
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

FEDERATION = "led"
LONG_S = 60.0
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["coordinator.shards.leadership"])


@pytest.fixture
def ledger(ledger_place: Path | str) -> Iterator[Ledger]:
    with Ledger.create(ledger_place, federation=FEDERATION, config="", seed=0) as opened:
        yield opened


@pytest.fixture
def other(ledger: Ledger) -> Iterator[Ledger]:
    """The same ledger as another process has it."""
    with Ledger.open(ledger.path, federation=FEDERATION) as opened:
        yield opened


def clock(ledger: Ledger) -> float:
    """The database's own."""
    return float(ledger._file.one(f"SELECT {ledger._file.clock}")[0])


def fight(where: Path | str, name: str, turns: int, lease_s: float, link: Connection) -> None:
    """Lead ``turns`` times, each time until it is told or as long as the lease lasts; (term, from, to) of each."""
    draw = random.Random(name)
    spans = []
    with Ledger.open(where, federation=FEDERATION) as ledger:
        for turn in range(turns):
            leadership = Leadership(ledger, f"{name}-{turn}", lease_s)
            assert wait_for_lead(leadership, ledger, say=lambda text: None, until_finished=False)
            began = ended = clock(ledger)
            give_up_at = time.monotonic() + draw.uniform(0.0, 1.5 * lease_s)
            while time.monotonic() < give_up_at:
                at = clock(ledger)
                if not leadership.is_held():
                    break
                ended = at
                time.sleep(0.01)
            spans.append((leadership.term, began, ended))
            if draw.random() < 0.5:
                ledger.leases.release(LEADER, leadership.owner, leadership.term)
    link.send(spans)


def test_processes_that_fight_for_the_lease_never_have_it_together(ledger: Ledger) -> None:
    links, children, turns = [], [], 4
    for number in range(3):
        here, there = FORKS.Pipe()
        children.append(FORKS.Process(target=fight, args=(ledger.path, f"p{number}", turns, 0.4, there)))
        children[-1].start()
        links.append(here)
    assert all(link.poll(120.0) for link in links)
    spans = sorted(span for link in links for span in link.recv())
    for child in children:
        child.join(30.0)
    assert [term for term, _, _ in spans] == list(range(1, 3 * turns + 1))
    for (_, _, ended), (term, began, _) in itertools.pairwise(spans):
        assert ended <= began, f"term {term} began before the one before it ended"


def lead_and_write(where: Path | str, lease_s: float, link: Connection) -> None:
    """Take the lease, say so, and when told write with it: what came of that."""
    with Ledger.open(where, federation=FEDERATION) as keeping, Ledger.open(where, federation=FEDERATION) as ledger:
        leadership = Leadership(keeping, "first", lease_s)
        assert leadership.take()
        ledger.leases.fence(LEADER, leadership.owner, leadership.term)
        lost = threading.Event()
        with leadership, leadership.when_lost(lost.set):
            ledger.blobs.add("a" * 64, 1)
            link.send("leads")
            link.recv()
            try:
                ledger.blobs.add("b" * 64, 1)
                outcome = "written"
            except LeaseLost:
                outcome = "lease lost"
            link.send((outcome, lost.wait(30.0), leadership.is_held()))


def test_process_that_stood_still_longer_than_its_lease_writes_nothing(ledger: Ledger) -> None:
    here, there = FORKS.Pipe()
    child = FORKS.Process(target=lead_and_write, args=(ledger.path, 1.0, there))
    child.start()
    assert here.poll(60.0)
    assert here.recv() == "leads"
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)
    try:
        second = Leadership(ledger, "second", LONG_S)
        assert wait_for_lead(second, ledger, say=lambda text: None, until_finished=False)
        assert second.term == 2
        here.send("write")
    finally:
        os.kill(child.pid, signal.SIGCONT)
    assert here.poll(60.0)
    assert here.recv() == ("lease lost", True, False)
    assert ledger.blobs.sizes() == {"a" * 64: 1}
    child.join(30.0)


def test_leader_renews_and_lets_go_at_its_end(ledger: Ledger, other: Ledger) -> None:
    first, second = Leadership(ledger, "first", 0.9), Leadership(other, "second", LONG_S)
    assert first.take()
    with first:
        time.sleep(1.5)
        assert first.is_held()
        first.check()
        assert not second.take()
    assert second.take()
    assert (first.term, second.term) == (1, 2)


def test_leader_that_cannot_renew_stops_before_the_database_gives_the_lease_away(ledger: Ledger, other: Ledger) -> None:
    first = Leadership(ledger, "first", 0.6)
    assert first.take()
    ledger.close()  # as a network that is gone: every renewal fails
    with first:
        while first.is_held():
            time.sleep(0.01)
        assert other.leases.all()[0].left_s > -0.5
        with pytest.raises(LeaseLost, match=r"lease 'leader' of first, term 1, is no longer held; another"):
            first.check()


class Wire:
    """A TCP relay to ``port`` on this machine, which can swallow everything from some moment on."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._sockets: list[socket.socket] = [socket.create_server(("127.0.0.1", 0))]
        self.port = int(self._sockets[0].getsockname()[1])
        self.goes_through = threading.Event()
        self.goes_through.set()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._sockets[0].accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._sockets += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    def _pass_on(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                self.goes_through.wait()
                other.sendall(data)

    def cut(self) -> None:
        """Every connection ends."""
        for opened in self._sockets:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
            opened.close()
        self.goes_through.set()


def test_leader_whose_database_is_silent_knows_that_its_lease_is_over(postgres_server: PostgresServer) -> None:
    place, lost = postgres_server.new_database(), threading.Event()
    wire = Wire(postgres_server.port)
    with Ledger.create(place, federation=FEDERATION, config="", seed=0) as ledger:
        far = Ledger.open(place.replace(f":{postgres_server.port}/", f":{wire.port}/"), federation=FEDERATION)
        first, second = Leadership(far, "first", 1.0), Leadership(ledger, "second", LONG_S)
        assert first.take()
        with first, first.when_lost(lost.set):
            wire.goes_through.clear()
            while first.is_held():
                time.sleep(0.01)
            assert wait_for_lead(second, ledger, say=lambda text: None, until_finished=False)
            assert not first.is_held()
            assert not lost.is_set()  # it was told nothing, and answers nobody all the same
            wire.cut()
        far.close()
        assert [(lease.owner, lease.term) for lease in ledger.leases.all()] == [("second", 2)]


def test_whoever_waits_says_for_whom_and_leaves_when_the_run_is_finished(ledger: Ledger, other: Ledger) -> None:
    first, second = Leadership(ledger, "first", LONG_S), Leadership(other, "second", LONG_S)
    assert first.take()
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        ledger.move_federation("running")
        ledger.move_federation("finished")

    assert not wait_for_lead(second, other, say=say, until_finished=True)
    assert said == ["first leads the run; this process waits for its lease"]


def test_whoever_waits_asks_a_database_that_does_not_answer_again(ledger: Ledger) -> None:
    leadership = Leadership(ledger, "only", LONG_S)
    answers = ledger.leases.all
    fails = iter([True, True])

    def leases() -> object:
        if next(fails, False):
            raise LedgerError("the server is gone")
        return answers()

    said: list[str] = []
    ledger.leases.all = leases  # type: ignore[method-assign,assignment]
    assert wait_for_lead(leadership, ledger, say=said.append, until_finished=True)
    assert said == ["the server is gone"]


def test_desk_without_the_lease_answers_nobody_and_asks_who_is_there_once_it_is_back() -> None:
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    is_held, asked = [True], threading.Semaphore(0)

    class Heard(Inbox):
        """Notes what reaches it."""

        def __init__(self) -> None:
            self.calls: list[str] = []

        def handle(self, topic: str, payload: bytes) -> None:
            self.calls.append(topic)

        def connected(self) -> None:
            self.calls.append("connected")

        def settle(self) -> None:
            """There are no accepts here."""

    def may_answer() -> bool:
        answer = is_held[0]
        asked.release()
        return answer

    def hand_over(*some: Event) -> None:
        for event in some:
            events.put(event)
        for _ in some:
            assert asked.acquire(timeout=10.0)

    inbox = Heard()
    with MessageLoop(inbox, events, may_answer):
        hand_over(Received("one", b""))
        is_held[0] = False
        hand_over(Connected(), Received("two", b""))
        is_held[0] = True
        hand_over(Received("three", b""))
    assert inbox.calls == ["one", "connected", "three"]
