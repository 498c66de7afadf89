"""A disk that is full at each single write of a round: the agent lives, and the update counts once."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from edge import agent as agent_module
from edge import trainer as trainer_module
from edge.policy.order_check import PolicyGuard
from edge.policy.policy_file import SitePolicy
from edge.supervisor import finished_work
from edge.supervisor.finished_work import FinishedRecord, FinishedWork
from edge.transfer.artifact_store import ArtifactStore
from tests.edge.agent_bench import Bench
from tests.edge.inline_trainer import InlineTrainer
from tests.edge.supervisor.test_finished_work import record
from tests.edge.tiny_artifact import TinyJob, sha
from tests.failing_disk import FailingDisk, failing
from tests.waiting import wait_until

FULL_FOR = 3
"""Failures in a row: the first try and two that follow."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers in this process, and no pauses between tries."""
    monkeypatch.setattr(agent_module, "TrainerLink", InlineTrainer)
    monkeypatch.setattr(agent_module, "POLL_S", 0.02)
    monkeypatch.setattr(finished_work, "SAVE_AGAIN_S", 0.05)
    monkeypatch.setattr(trainer_module, "WRITE_AGAIN_S", 0.05)


def one_round(folder: Path, disk: FailingDisk) -> list[str]:
    """A round with ``disk`` under the agent's store; the codes of what was refused on the way.

    As a coordinator would, it orders anew what was refused.
    """
    bench = Bench(folder)
    refused: list[str] = []
    try:
        agent = bench.agent()
        with failing(disk):
            for attempt in range(FULL_FOR + 2):
                job = bench.publish(round_index=attempt)
                bench.coordinator.order(job.order)
                wait_until(lambda job=job: is_over(bench, job) or bool(bench.failures), "an answer")
                assert bench.failures == []
                if job.order.assignment_id in bench.coordinator.reports:
                    break
                refused.append(bench.coordinator.wait_for("refuse", count=attempt + 1).code)
            wait_until(lambda: agent.state == "idle", "the end of the round")
        assert list(bench.coordinator.reports) == [job.order.assignment_id]
        report = bench.coordinator.reports[job.order.assignment_id]
        assert sha(bench.coordinator.updates[job.order.assignment_id]) == report.update.digest
        wait_until(lambda: list((bench.folder / "store" / "work").iterdir()) == [], "its work to be forgotten")
        assert agent.state == "idle"
    finally:
        bench.close()
    assert bench.failures == []
    return refused


def is_over(bench: Bench, job: TinyJob) -> bool:
    identity = job.order.assignment_id
    seen = [body for kind, body in bench.coordinator.seen if kind in ("refuse", "report")]
    return any(body.assignment_id == identity for body in seen)


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_disk_that_fails_at_each_single_write_costs_no_update(tmp_path: Path, number: int) -> None:
    calm = FailingDisk(tmp_path / "calm" / "store", 0, times=0)
    (tmp_path / "calm").mkdir()
    assert one_round(tmp_path / "calm", calm) == []
    assert len(calm.done) > 20, calm.done
    kinds = {what.split()[0] for what in calm.done}
    assert kinds == {"open", "write", "sync", "rename"}
    for at in range(1, len(calm.done) + 1):
        folder = tmp_path / str(at)
        folder.mkdir()
        disk = FailingDisk(folder / "store", at, number, times=FULL_FOR if number == errno.ENOSPC else 1)
        refused = one_round(folder, disk)
        assert disk.failed, at
        # What cannot be fetched is refused; once it is trained nothing is.
        assert set(refused) <= {"store-full", "trainer-failed"}, (at, disk.failed, refused)
        if number == errno.ENOSPC:
            assert "trainer-failed" not in refused, (at, disk.failed)
        if not any("blobs" in what or "partial" in what for what in disk.failed) and "update" in disk.failed[0]:
            assert number != errno.ENOSPC or refused == [], (at, disk.failed, refused)


def test_finished_update_waits_for_room_says_so_and_is_sent_meanwhile(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    try:
        agent = bench.agent(heartbeat_s=0.05)
        bench.coordinator.is_acking = False
        job = bench.publish()
        full = FailingDisk(tmp_path / "store", 1, times=10**6, seen="/record")
        with failing(full):
            bench.coordinator.order(job.order)
            report = bench.coordinator.wait_for("report")
            said = bench.coordinator.wait_for("heartbeat", where=lambda beat: beat.reason)
            assert said.state == "uploading"
            assert "not kept on disk yet" in said.reason
            assert "No space left on device" in said.reason
            wait_until(lambda: len(full.failed) > 1, "another try")
        assert sha(bench.coordinator.updates[job.order.assignment_id]) == report.update.digest
        # There is room again: now it outlives the agent.
        record = tmp_path / "store" / "work" / job.order.assignment_id / "record"
        wait_until(record.is_file, "the record")
        bench.coordinator.seen.clear()
        bench.coordinator.wait_for("heartbeat", where=lambda beat: not beat.reason)
        assert agent.state == "uploading"
    finally:
        bench.close()
    assert bench.failures == []


def test_training_waits_in_memory_for_room(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    try:
        bench.agent(heartbeat_s=0.05)
        job = bench.publish()
        full = FailingDisk(tmp_path / "store", 1, times=10**6, only="open", seen="/update")
        with failing(full):
            bench.coordinator.order(job.order)
            said = bench.coordinator.wait_for("heartbeat", where=lambda beat: beat.reason)
            assert "waits in memory for room" in said.reason
            assert "report" not in bench.coordinator.kinds()
        report = bench.coordinator.wait_for("report")
        assert sha(bench.coordinator.updates[job.order.assignment_id]) == report.update.digest
        assert bench.coordinator.kinds().count("refuse") == 0
    finally:
        bench.close()
    assert bench.failures == []


def test_update_whose_sync_failed_is_written_anew_and_held_against_its_digest(tmp_path: Path) -> None:
    work = FinishedWork(tmp_path / "work")
    update = b"an update" * 1000
    made = record(update)
    sent = msgspec.structs.replace(made.report.update, digest=sha(update))
    made = FinishedRecord(made.order, msgspec.structs.replace(made.report, update=sent))
    path = work.new_update_path(made.order.assignment_id)
    path.write_bytes(update)
    with failing(FailingDisk(tmp_path / "work", 1, errno.EIO, only="sync")) as disk:
        work.keep(made)
        assert "Input/output error" in work.problem
        assert work.take_news()
        inode = path.stat().st_ino
        work.tick(float("inf"))
        assert work.problem == ""
        assert path.stat().st_ino != inode
    assert disk.done[1] == "sync update.tmp"
    assert FinishedWork(tmp_path / "work").load() == made
    # And what the disk has made of it in between is not taken for the update.
    with failing(FailingDisk(tmp_path / "work", 1, errno.EIO, only="sync")):
        work.keep(made)
    path.write_bytes(update[::-1])
    work.tick(float("inf"))
    assert "train again" in work.problem


def test_store_that_cannot_write_says_so_and_has_nothing(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path / "store")
    calm = FailingDisk(tmp_path / "store", 0, times=0)
    with failing(calm):
        store.put(b"first")
    for at in range(1, len(calm.done) + 1):
        data = f"blob {at}".encode()
        with failing(FailingDisk(tmp_path / "store", at)), pytest.raises(Exception, match="not written") as caught:
            store.put(data)
        assert caught.value.code == "store-full"  # type: ignore[attr-defined]
        assert not store.has(sha(data))
        assert list((tmp_path / "store" / "blobs").glob("*.tmp")) == []
        assert store.put(data) == sha(data)
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize(("at", "codes"), [(1, {"store-full"}), (2, {"store-full"}), (3, set())])
def test_policys_account_that_cannot_be_written_costs_no_update(tmp_path: Path, at: int, codes: set[str]) -> None:
    """Of an order, and of its files, nothing is fetched before it is counted; an update that is trained is sent."""
    bench = Bench(tmp_path)
    folder = tmp_path / "policy"
    folder.mkdir()
    guard = PolicyGuard(msgspec.convert({"bytes": {"upload-per-day-mb": 100}}, SitePolicy), folder)
    disk = FailingDisk(folder, at, times=1, only="rename", seen="policy-day")
    try:
        bench.agent(policy=guard)
        with failing(disk):
            for attempt in range(3):
                job = bench.publish(round_index=attempt)
                bench.coordinator.order(job.order)
                wait_until(lambda job=job: is_over(bench, job) or bool(bench.failures), "an answer")
                if bench.failures or job.order.assignment_id in bench.coordinator.reports:
                    break
        assert bench.failures == []
        assert disk.failed
        assert {body.code for kind, body in bench.coordinator.seen if kind == "refuse"} == codes
    finally:
        bench.close()
    size = len(bench.coordinator.updates[job.order.assignment_id])
    assert guard._account.of(guard._today()).up == size
