"""Hellos, heartbeats, answers to orders, and messages that cannot be used: the inbox without its uploads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.ledger.ledger import Ledger
from edge.contracts.envelope import seal
from edge.contracts.messages import Accept, Bye, Error, Get, Heartbeat, Refuse
from profiles.device import DeviceProfile
from tests.contracts.samples import MANIFEST
from tests.coordinator.messaging.inbox_bench import FEDERATION, MessageLoop, hello


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[MessageLoop]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        handler = MessageLoop(tmp_path, ledger)
        yield handler
        handler.publisher.close()


def test_hello_is_answered_with_the_open_order_and_the_time_left(handler: MessageLoop) -> None:
    ((kind, order),) = handler.gets("pi-1", "hello", hello("pi-1"))
    assert kind == "order"
    assert order == msgspec.structs.replace(handler.orders["pi-1"], deadline_s=12.5)
    assert [h.device for h in handler.cohort.present()] == ["pi-1"]
    assert handler.said == ["pi-1 is here: budget 160 MB, 7 examples"]


def test_hello_of_a_device_without_an_order_is_not_answered(handler: MessageLoop) -> None:
    assert handler.gets("pi-9", "hello", hello("pi-9", data_error="a.npz is truncated")) == []
    assert handler.said == ["pi-9 is here: budget 160 MB, 7 examples, data: a.npz is truncated"]


def test_hello_repeated_is_said_once(handler: MessageLoop) -> None:
    handler.gets("pi-1", "hello", hello("pi-1"))
    handler.gets("pi-1", "hello", hello("pi-1"))
    assert len(handler.said) == 1


def test_hello_on_the_topic_of_another_is_not_used(handler: MessageLoop) -> None:
    ((kind, error),) = handler.gets("pi-1", "hello", hello("pi-2"))
    assert (kind, error.code) == ("error", "bad-message")
    assert "hello of 'pi-2' arrived on the topic of 'pi-1'" in error.message
    assert handler.cohort.present() == []


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"probed_at": float("nan")}, "`$.profile.probed_at`, not nan"),
        ({"supervisor_idle_bytes": 2**63}, f"`$.profile.supervisor_idle_bytes`, not {2**63}"),
        ({"trainer_idle_bytes": {"onnxruntime": 2**63}}, "`$.profile.trainer_idle_bytes[...]`"),
        ({"link_bytes_per_s": float("inf")}, "`$.profile.link_bytes_per_s`, not inf"),
        ({"runtimes": {f"runtime-{n}": "1" for n in range(65)}}, "length <= 64 - at `$.profile.runtimes`"),
    ],
)
def test_hello_with_a_profile_that_no_device_has_is_not_used(
    handler: MessageLoop, changes: dict[str, Any], at: str
) -> None:
    profile = DeviceProfile(device="pi-1", **changes)
    ((kind, error),) = handler.gets("pi-1", "hello", hello("pi-1", profile=profile))
    assert (kind, error.code) == ("error", "bad-figure")
    assert at in error.message
    assert handler.cohort.present() == []


def test_profile_replaces_the_one_of_the_hello(handler: MessageLoop) -> None:
    newer = DeviceProfile(device="pi-1", budget_bytes=96 * 2**20)
    assert handler.gets("pi-1", "profile", newer) == [("hello", None)]
    handler.gets("pi-1", "hello", hello("pi-1"))
    assert handler.gets("pi-1", "profile", newer) == []
    assert [h.profile for h in handler.cohort.present()] == [newer]
    ((kind, error),) = handler.gets("pi-1", "profile", DeviceProfile(device="pi-2"))
    assert (kind, error.code) == ("error", "bad-message")
    assert [h.profile for h in handler.cohort.present()] == [newer]


def test_heartbeat_of_a_stranger_is_answered_with_a_call_for_its_hello(handler: MessageLoop) -> None:
    assert handler.gets("pi-1", "heartbeat", Heartbeat(state="training")) == [("hello", None)]
    handler.gets("pi-1", "hello", hello("pi-1"))
    assert handler.gets("pi-1", "heartbeat", Heartbeat(state="training", loss=float("nan"))) == []
    member = handler.cohort.member("pi-1")
    assert member is not None
    assert member.heartbeat is not None
    assert member.heartbeat.state == "training"


def test_bye_takes_a_device_away(handler: MessageLoop) -> None:
    handler.gets("pi-1", "hello", hello("pi-1"))
    assert handler.gets("pi-1", "bye", Bye("connection lost")) == []
    assert handler.cohort.present() == []


def test_accept_moves_the_assignment_once_and_wakes_the_round(handler: MessageLoop) -> None:
    assert handler.gets("pi-1", "accept", Accept(handler.id())) == []
    assert handler.state() == "accepted"
    handler.inbox.wait(5.0)  # returns at once: there was news before it was asked
    assert handler.gets("pi-1", "accept", Accept(handler.id())) == []
    assert handler.state() == "accepted"


def test_refuse_is_recorded_and_acknowledged(handler: MessageLoop) -> None:
    refusal = Refuse(assignment_id=handler.id(), code="device-refused", reason="needs 200 bytes, the budget is 100")
    ((kind, ack),) = handler.gets("pi-1", "refuse", refusal)
    assert (kind, ack.accepted, ack.code) == ("ack", False, "refused")
    entry = handler.ledger.assignments.find(handler.id())
    assert entry is not None
    assert (entry.state, entry.code, entry.reason) == ("refused", refusal.code, refusal.reason)
    ((_, again),) = handler.gets("pi-1", "accept", Accept(handler.id()))
    assert (again.accepted, again.code) == (False, "device-refused")


class Signer:
    """Signs whatever it is given; who would check that is not here."""

    statements = ()

    def manifest(self, data: bytes) -> bytes:
        return b"s" * 64

    def order(self, body: bytes) -> bytes:
        return b"s" * 64

    def masking(self, kind: str, body: bytes) -> bytes:
        return b"s" * 64


def test_refusal_of_a_forged_order_does_not_end_the_true_one(
    handler: MessageLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the device does not trust may be somebody else's order under the same id: ours is sent again, once."""
    handler.publisher._signer = Signer()
    now = [100.0]
    monkeypatch.setattr("coordinator.messaging.inbox.time.monotonic", lambda: now[0])
    refusal = Refuse(assignment_id=handler.id(), code="bad-signature", reason="by none of the 1 trusted key")
    ((kind, order),) = handler.gets("pi-1", "refuse", refusal)
    assert (kind, order.assignment_id) == ("order", handler.id())
    assert handler.gets("pi-1", "refuse", refusal) == []  # another forged one, which came before ours
    assert handler.state() == "open"
    assert [line for line in handler.said if "bad-signature" in line and "sent again" in line]
    handler.gets("pi-1", "accept", Accept(handler.id()))
    assert handler.state() == "accepted"
    # A device that trusts other keys refuses ours too, whenever it comes.
    other = msgspec.structs.replace(refusal, assignment_id=handler.orders["pi-2"].assignment_id)
    handler.gets("pi-2", "refuse", other)
    now[0] += 15.0
    ((kind, ack),) = handler.gets("pi-2", "refuse", other)
    assert (kind, ack.code) == ("ack", "refused")


def test_refuse_for_corruption_drops_a_blob_that_is_rotten_here(handler: MessageLoop) -> None:
    path = handler.blobs.path(handler.weights)
    path.write_bytes(b"weightz")
    handler.gets("pi-1", "get", Get(handler.weights, "raw", 0, 7))
    handler.gets("pi-1", "refuse", Refuse(assignment_id=handler.id(), code="artifact-corrupt", reason="twice"))
    assert not path.exists()
    assert handler.artifact.digest in handler.blobs
    assert any(f"blob {handler.weights[:12]} holds bytes of digest" in line for line in handler.said)
    ((kind, error),) = handler.gets("pi-2", "get", Get(handler.weights, "raw", 0, 7))
    assert (kind, error.code) == ("error", "unknown-blob")


def test_refuse_for_corruption_on_the_way_drops_nothing(handler: MessageLoop) -> None:
    handler.gets("pi-1", "refuse", Refuse(assignment_id=handler.id(), code="artifact-corrupt", reason="twice"))
    assert handler.weights in handler.blobs
    assert handler.artifact.digest in handler.blobs


def test_assignment_of_another_device_is_an_error(handler: MessageLoop) -> None:
    ((kind, error),) = handler.gets("pi-2", "accept", Accept(handler.id("pi-1")))
    assert (kind, error.code) == ("error", "bad-message")
    assert "belongs to 'pi-1', not to 'pi-2'" in error.message
    assert handler.state("pi-1") == "open"


def test_assignment_of_another_run_is_to_be_forgotten(handler: MessageLoop) -> None:
    ((kind, ack),) = handler.gets("pi-1", "accept", Accept("e" * 64))
    assert (kind, ack.accepted, ack.code) == ("ack", False, "unknown-assignment")


def test_error_is_told(handler: MessageLoop) -> None:
    assert handler.gets("pi-1", "error", Error("bad-message", "Grant cannot be read")) == []
    assert handler.said == ["pi-1 reports bad-message: Grant cannot be read"]


def test_unknown_kind_is_told_and_ignored(handler: MessageLoop) -> None:
    assert handler.gets("pi-1", "dance", {}) == []
    assert handler.said == ["pi-1: message kind 'dance' is unknown here and was ignored"]


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("apportion/v1/fed/dn/pi-1/hello", "is not apportion/v1/<federation>/up/<device>/<kind>"),
        ("apportion/v1/fed/up/../hello", "device id '..' is not usable"),
        ("apportion/v1/other/up/pi-1/hello", "topic names federation 'other', this is 'fed'"),
        ("apportion/v1/fed/up/pi-1/accept", "topic says 'accept', the envelope says 'hello'"),
    ],
)
def test_wrong_topic_is_told_and_changes_nothing(handler: MessageLoop, topic: str, why: str) -> None:
    handler.inbox.handle(topic, seal("hello", hello("pi-1")))
    assert why in handler.said[0]
    assert handler.cohort.present() == []


def test_connected_calls_everyone_and_announces_to_those_known(handler: MessageLoop) -> None:
    handler.gets("pi-1", "hello", hello("pi-1"))
    handler.sent.clear()
    handler.inbox.connected()
    assert [(device, kind) for device, kind, _ in handler.sent] == [("all", "hello"), ("pi-1", "order")]


def test_announce_sends_nothing_that_a_round_has_given_up(handler: MessageLoop) -> None:
    handler.report(handler.upload())
    assert handler.ledger.assignments.expire(handler.id("pi-2"))
    handler.ledger.rounds.move(0, 0, "collecting")
    handler.ledger.rounds.move(0, 0, "aggregating", participants=["pi-1"])
    assert handler.gets("pi-2", "hello", hello("pi-2")) == []


def test_device_may_have_what_its_order_names_and_no_more(handler: MessageLoop) -> None:
    others_update = handler.blobs.put(b"of another device")
    for digest in (handler.weights, handler.artifact.digest):
        ((kind, block),) = handler.gets("pi-1", "get", Get(digest, "raw", 0, 7))
        assert (kind, block.digest) == ("block", digest)
    files = {file.sha256 for file in MANIFEST.files}
    assert all(("pi-1", digest) in handler.inbox.named for digest in files)
    ((kind, error),) = handler.gets("pi-1", "get", Get(others_update, "raw", 0, 7))
    assert (kind, error.code, error.about) == ("error", "unknown-blob", others_update)
    assert "is not named by an order of this device" in error.message
    assert ("stranger", handler.weights) not in handler.inbox.named


def test_what_an_order_named_may_still_be_had_when_it_is_over(handler: MessageLoop) -> None:
    assert ("pi-1", handler.weights) in handler.inbox.named
    handler.ledger.assignments.expire(handler.id("pi-1"))
    assert ("pi-1", handler.weights) in handler.inbox.named
