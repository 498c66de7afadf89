"""What is settled is not done again, and a new run of the same federation is not mistaken for a replay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edge.contracts.messages import Ack
from edge.contracts.plan import WorkOrder
from edge.supervisor.settled_work import REMEMBERED, SettledWork
from tests.edge.agent_bench import Bench
from tests.edge.tiny_artifact import tiny_job
from tests.waiting import wait_until


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    yield found
    found.close()


def order(round_index: int = 0, deadline_s: float = 60.0) -> WorkOrder:
    return tiny_job(round_index=round_index, deadline_s=deadline_s).order


def test_settled_order_is_a_replay_and_its_file_outlives_the_process(tmp_path: Path) -> None:
    settled = SettledWork(tmp_path / "settled")
    assert not settled.is_replay(order())
    assert not settled.is_replay(order())
    settled.settle(order().assignment_id)
    assert settled.is_replay(order())
    assert SettledWork(tmp_path / "settled").is_replay(order())
    assert not settled.is_replay(order(1))


def test_every_repetition_of_an_order_is_settled_with_it(tmp_path: Path) -> None:
    settled = SettledWork(tmp_path / "settled")
    for left_s in (60.0, 41.5):
        settled.is_replay(order(deadline_s=left_s))
    settled.settle(order().assignment_id)
    assert settled.is_replay(order(deadline_s=60.0))
    assert settled.is_replay(order(deadline_s=41.5))


def test_another_ticket_does_not_make_a_replay_another_order(tmp_path: Path) -> None:
    settled = SettledWork(tmp_path / "settled")
    settled.is_replay(order())
    settled.settle(order().assignment_id)
    assert settled.is_replay(msgspec.structs.replace(order(), bulk="https://host/v1/ticket/"))


def test_order_of_a_new_run_with_the_same_assignment_is_no_replay(tmp_path: Path) -> None:
    settled = SettledWork(tmp_path / "settled")
    settled.is_replay(order(deadline_s=59.99991))
    settled.settle(order().assignment_id)
    assert not settled.is_replay(order(deadline_s=59.99987))


def test_acknowledgement_of_what_was_never_ordered_settles_nothing(tmp_path: Path) -> None:
    settled = SettledWork(tmp_path / "settled")
    settled.settle(order().assignment_id)
    assert not settled.is_replay(order())


def test_the_newest_thousand_are_remembered_and_a_damaged_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "settled"
    path.write_text("".join(f"{number:064x}\n" for number in range(REMEMBERED)))
    settled = SettledWork(path)
    settled.is_replay(order())
    settled.settle(order().assignment_id)
    lines = path.read_text().split()
    assert (len(lines), lines[0]) == (REMEMBERED, f"{1:064x}")
    assert settled.is_replay(order())
    path.write_bytes(b"\xff\xfe")
    assert not settled.is_replay(order())


def test_folder_that_cannot_be_written_does_not_end_the_agent(tmp_path: Path) -> None:
    settled = SettledWork(tmp_path / "nowhere" / "settled")
    settled.is_replay(order())
    settled.settle(order().assignment_id)
    assert not settled.is_replay(order())


def test_agent_refuses_an_order_again_after_its_acknowledgement_and_after_a_restart(bench: Bench) -> None:
    agent = bench.agent()
    job = bench.publish(deadline_s=60.0)
    bench.coordinator.order(job.order)
    bench.coordinator.wait_for("report")
    wait_until(lambda: agent.state == "idle")
    bench.coordinator.order(job.order)
    assert bench.coordinator.wait_for("refuse").code == "replayed-order"
    bench.stop()
    bench.agent(hello=2)
    bench.coordinator.order(job.order)
    assert bench.coordinator.wait_for("refuse", count=2).code == "replayed-order"
    bench.coordinator.order(msgspec.structs.replace(job.order, deadline_s=59.5))
    bench.coordinator.wait_for("report", count=2)


def test_agent_restarted_before_the_acknowledgement_settles_the_order_all_the_same(bench: Bench) -> None:
    bench.agent()
    bench.coordinator.is_acking = False
    job = bench.publish()
    bench.coordinator.order(job.order)
    bench.coordinator.wait_for("report")
    bench.stop()
    bench.coordinator.is_acking = True
    agent = bench.agent(hello=2)
    wait_until(lambda: agent.state == "idle")
    bench.coordinator.order(job.order)
    assert bench.coordinator.wait_for("refuse").code == "replayed-order"


def test_agent_refused_order_may_come_again_until_its_refusal_is_acknowledged(bench: Bench) -> None:
    bench.agent(budget_bytes=100_000_000)
    job = bench.publish(peak_bytes=100_000_001)
    for count in (1, 2):
        bench.coordinator.order(job.order)
        assert bench.coordinator.wait_for("refuse", count=count).code == "device-refused"
    bench.coordinator.send("ack", Ack(job.order.assignment_id, False, "device-refused"))
    bench.coordinator.order(job.order)
    assert bench.coordinator.wait_for("refuse", count=3).code == "replayed-order"
