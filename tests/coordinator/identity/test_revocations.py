"""A run learns of a revocation: what the inbox then takes from the device, its upload, its tickets."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.identity.authority import Authority
from coordinator.identity.message_check import BrowserSignatures
from coordinator.identity.revocations import Revocations
from coordinator.ledger.ledger import Ledger
from coordinator.web.tickets import Tickets
from edge.contracts.errors import IdentityRefused
from edge.contracts.messages import Accept, Heartbeat, Offer
from edge.identity.device_identity import make_request
from tests.coordinator.messaging.inbox_bench import FEDERATION, UPDATE, MessageLoop, hello, ref_of


@pytest.fixture
def identity(tmp_path: Path) -> Path:
    with Authority.create(tmp_path / "identity") as authority:
        for name in ("pi-1", "pi-2"):
            authority.sign_device(make_request(tmp_path / name, name).request.read_bytes(), name)
    return tmp_path / "identity"


@pytest.fixture
def handler(tmp_path: Path, identity: Path) -> Iterator[MessageLoop]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        handler = MessageLoop(tmp_path, ledger, check=BrowserSignatures(identity, FEDERATION))
        yield handler
        handler.publisher.close()


def revoke(identity: Path, device: str = "pi-1") -> None:
    with Authority(identity) as authority:
        authority.revoke(device)


def test_every_message_of_a_revoked_certificate_is_refused_whatever_the_broker_does(
    handler: MessageLoop, identity: Path
) -> None:
    assert handler.gets("pi-1", "hello", hello("pi-1"))[0][0] == "order"
    revoke(identity)
    for kind, body in (
        ("hello", hello("pi-1")),
        ("heartbeat", Heartbeat(state="idle")),
        ("accept", Accept(handler.id())),
        ("offer", Offer(handler.id(), ref_of(UPDATE))),
    ):
        ((answer, error),) = handler.gets("pi-1", kind, body)
        assert (answer, error.code) == ("error", "bad-signature")
        assert "was revoked" in error.message
    assert handler.state() == "open"
    assert handler.gets("pi-2", "hello", hello("pi-2"))[0][0] == "order"


def test_shutting_out_expires_the_open_assignment_and_its_upload(handler: MessageLoop) -> None:
    handler.gets("pi-1", "hello", hello("pi-1"))
    handler.gets("pi-1", "offer", Offer(handler.id(), ref_of(UPDATE)))
    handler.inbox.shut_out("pi-1")
    entry = handler.ledger.assignments.find(handler.id())
    assert entry is not None
    assert (entry.state, entry.code) == ("expired", "revoked")
    assert [here.device for here in handler.cohort.present()] == []
    with pytest.raises(Exception, match="is over"):
        handler.inbox.uploads.write("pi-1", handler.id(), 0, UPDATE)
    handler.inbox.shut_out("pi-1")  # again, and of nobody
    handler.inbox.shut_out("pi-9")
    assert handler.state("pi-2") == "open"


def test_reported_update_stays_when_its_device_is_shut_out(handler: MessageLoop) -> None:
    handler.report(handler.upload())
    handler.inbox.shut_out("pi-1")
    assert handler.state() == "reported"


def test_tickets_of_a_device_end_and_later_ones_are_good() -> None:
    tickets = Tickets(lambda: 1_000.0)
    old, others = (tickets.path_for(device, 60.0).split("/")[2] for device in ("pi-1", "pi-2"))
    tickets.end("pi-1")
    assert (tickets.holder(old), tickets.holder(others)) == (None, "pi-2")
    assert tickets.holder(tickets.path_for("pi-1", 60.0).split("/")[2]) == "pi-1"


def test_watch_tells_of_each_once_also_of_earlier_ones_and_after_a_return(identity: Path, tmp_path: Path) -> None:
    revoke(identity, "pi-2")
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with Revocations(identity, told.put, every_s=0.02):
        assert told.get(timeout=10) == "pi-2"
        revoke(identity)
        assert told.get(timeout=10) == "pi-1"
        again = make_request(tmp_path / "again", "pi-1").request.read_bytes()
        with Authority(identity) as authority:
            authority.sign_device(again, "pi-1")
        with pytest.raises(queue.Empty):
            told.get(timeout=0.2)
        revoke(identity)
        assert told.get(timeout=10) == "pi-1"


def test_watch_tries_again_what_failed(identity: Path) -> None:
    calls: queue.SimpleQueue[str] = queue.SimpleQueue()
    failures = iter([IdentityRefused("not now")])

    def fail_once(device: str) -> None:
        calls.put(device)
        if failure := next(failures, None):
            raise failure

    revoke(identity)
    with Revocations(identity, fail_once, every_s=0.02):
        assert [calls.get(timeout=10) for _ in range(1)] == ["pi-1"]
        calls.put("in between")
        assert [calls.get(timeout=10) for _ in range(2)] == ["in between", "pi-1"]


def test_renewed_or_replaced_certificate_is_no_revocation(identity: Path, tmp_path: Path) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with Revocations(identity, told.put, every_s=0.02):
        other = make_request(tmp_path / "other", "pi-1").request.read_bytes()
        with Authority(identity) as authority:
            authority.sign_device(other, "pi-1", replace=True)
        with pytest.raises(queue.Empty):
            told.get(timeout=0.2)
