"""Hellos, heartbeats, answers to orders, and messages that cannot be used: the inbox without its uploads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coordinator.ledger import Ledger
from edge.contracts.envelope import seal
from edge.contracts.messages import Accept, Bye, Error, Get, Heartbeat, Refuse
from profiles.device import DeviceProfile
from tests.coordinator.inbox_desk import FEDERATION, Desk, hello


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        desk = Desk(tmp_path, ledger)
        yield desk
        desk.publisher.close()


def test_hello_is_answered_with_the_open_order_and_the_time_left(desk: Desk) -> None:
    ((kind, order),) = desk.gets("pi-1", "hello", hello("pi-1"))
    assert kind == "order"
    assert order == msgspec.structs.replace(desk.orders["pi-1"], deadline_s=12.5)
    assert [h.device for h in desk.cohort.present()] == ["pi-1"]
    assert desk.said == ["pi-1 is here: budget 160 MB, 7 examples"]


def test_hello_of_a_device_without_an_order_is_not_answered(desk: Desk) -> None:
    assert desk.gets("pi-9", "hello", hello("pi-9", data_error="a.npz is truncated")) == []
    assert desk.said == ["pi-9 is here: budget 160 MB, 7 examples, data: a.npz is truncated"]


def test_hello_repeated_is_said_once(desk: Desk) -> None:
    desk.gets("pi-1", "hello", hello("pi-1"))
    desk.gets("pi-1", "hello", hello("pi-1"))
    assert len(desk.said) == 1


def test_hello_on_the_topic_of_another_is_not_used(desk: Desk) -> None:
    ((kind, error),) = desk.gets("pi-1", "hello", hello("pi-2"))
    assert (kind, error.code) == ("error", "bad-message")
    assert "hello of 'pi-2' arrived on the topic of 'pi-1'" in error.message
    assert desk.cohort.present() == []


def test_hello_with_a_profile_the_ledger_could_not_read_back_is_not_used(desk: Desk) -> None:
    profile = DeviceProfile(device="pi-1", probed_at=float("nan"))
    ((kind, error),) = desk.gets("pi-1", "hello", hello("pi-1", profile=profile))
    assert (kind, error.code) == ("error", "bad-message")
    assert "pi-1: profile: holds a number that is not finite" in error.message
    assert desk.cohort.present() == []


def test_profile_replaces_the_one_of_the_hello(desk: Desk) -> None:
    newer = DeviceProfile(device="pi-1", budget_bytes=96 * 2**20)
    assert desk.gets("pi-1", "profile", newer) == [("hello", None)]
    desk.gets("pi-1", "hello", hello("pi-1"))
    assert desk.gets("pi-1", "profile", newer) == []
    assert [h.profile for h in desk.cohort.present()] == [newer]
    ((kind, error),) = desk.gets("pi-1", "profile", DeviceProfile(device="pi-2"))
    assert (kind, error.code) == ("error", "bad-message")
    assert [h.profile for h in desk.cohort.present()] == [newer]


def test_heartbeat_of_a_stranger_is_answered_with_a_call_for_its_hello(desk: Desk) -> None:
    assert desk.gets("pi-1", "heartbeat", Heartbeat(state="training")) == [("hello", None)]
    desk.gets("pi-1", "hello", hello("pi-1"))
    assert desk.gets("pi-1", "heartbeat", Heartbeat(state="training", loss=float("nan"))) == []
    member = desk.cohort.member("pi-1")
    assert member is not None
    assert member.heartbeat is not None
    assert member.heartbeat.state == "training"


def test_bye_takes_a_device_away(desk: Desk) -> None:
    desk.gets("pi-1", "hello", hello("pi-1"))
    assert desk.gets("pi-1", "bye", Bye("connection lost")) == []
    assert desk.cohort.present() == []


def test_accept_moves_the_assignment_once_and_wakes_the_round(desk: Desk) -> None:
    assert desk.gets("pi-1", "accept", Accept(desk.id())) == []
    assert desk.state() == "accepted"
    desk.inbox.wait(5.0)  # returns at once: there was news before it was asked
    assert desk.gets("pi-1", "accept", Accept(desk.id())) == []
    assert desk.state() == "accepted"


def test_refuse_is_recorded_and_acknowledged(desk: Desk) -> None:
    refusal = Refuse(assignment_id=desk.id(), code="device-refused", reason="needs 200 bytes, the budget is 100")
    ((kind, ack),) = desk.gets("pi-1", "refuse", refusal)
    assert (kind, ack.accepted, ack.code) == ("ack", False, "refused")
    entry = desk.ledger.assignment(desk.id())
    assert entry is not None
    assert (entry.state, entry.code, entry.reason) == ("refused", refusal.code, refusal.reason)
    ((_, again),) = desk.gets("pi-1", "accept", Accept(desk.id()))
    assert (again.accepted, again.code) == (False, "device-refused")


def test_refuse_for_corruption_drops_a_blob_that_is_rotten_here(desk: Desk) -> None:
    path = desk.blobs.path(desk.weights)
    path.write_bytes(b"weightz")
    desk.gets("pi-1", "get", Get(desk.weights, "raw", 0, 7))
    desk.gets("pi-1", "refuse", Refuse(assignment_id=desk.id(), code="artifact-corrupt", reason="twice"))
    assert not path.exists()
    assert desk.artifact.digest in desk.blobs
    assert any(f"blob {desk.weights[:12]} holds bytes of digest" in line for line in desk.said)
    ((kind, error),) = desk.gets("pi-2", "get", Get(desk.weights, "raw", 0, 7))
    assert (kind, error.code) == ("error", "unknown-blob")


def test_refuse_for_corruption_on_the_way_drops_nothing(desk: Desk) -> None:
    desk.gets("pi-1", "refuse", Refuse(assignment_id=desk.id(), code="artifact-corrupt", reason="twice"))
    assert desk.weights in desk.blobs
    assert desk.artifact.digest in desk.blobs


def test_assignment_of_another_device_is_an_error(desk: Desk) -> None:
    ((kind, error),) = desk.gets("pi-2", "accept", Accept(desk.id("pi-1")))
    assert (kind, error.code) == ("error", "bad-message")
    assert "belongs to 'pi-1', not to 'pi-2'" in error.message
    assert desk.state("pi-1") == "open"


def test_assignment_of_another_run_is_to_be_forgotten(desk: Desk) -> None:
    ((kind, ack),) = desk.gets("pi-1", "accept", Accept("e" * 64))
    assert (kind, ack.accepted, ack.code) == ("ack", False, "unknown-assignment")


def test_error_is_told(desk: Desk) -> None:
    assert desk.gets("pi-1", "error", Error("bad-message", "Grant cannot be read")) == []
    assert desk.said == ["pi-1 reports bad-message: Grant cannot be read"]


def test_unknown_kind_is_told_and_ignored(desk: Desk) -> None:
    assert desk.gets("pi-1", "dance", {}) == []
    assert desk.said == ["pi-1: message kind 'dance' is unknown here and was ignored"]


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("apportion/v1/fed/dn/pi-1/hello", "is not apportion/v1/<federation>/up/<device>/<kind>"),
        ("apportion/v1/fed/up/../hello", "device id '..' is not usable"),
        ("apportion/v1/other/up/pi-1/hello", "topic names federation 'other', this is 'fed'"),
        ("apportion/v1/fed/up/pi-1/accept", "topic says 'accept', the envelope says 'hello'"),
    ],
)
def test_wrong_topic_is_told_and_changes_nothing(desk: Desk, topic: str, why: str) -> None:
    desk.inbox.handle(topic, seal("hello", hello("pi-1")))
    assert why in desk.said[0]
    assert desk.cohort.present() == []


def test_connected_calls_everyone_and_announces_to_those_known(desk: Desk) -> None:
    desk.gets("pi-1", "hello", hello("pi-1"))
    desk.sent.clear()
    desk.inbox.connected()
    assert [(device, kind) for device, kind, _ in desk.sent] == [("all", "hello"), ("pi-1", "order")]


def test_announce_sends_nothing_that_a_round_has_given_up(desk: Desk) -> None:
    desk.report(desk.upload())
    assert desk.ledger.expire(desk.id("pi-2"))
    desk.ledger.move_round(0, 0, "collecting")
    desk.ledger.move_round(0, 0, "aggregating", participants=["pi-1"])
    assert desk.gets("pi-2", "hello", hello("pi-2")) == []
