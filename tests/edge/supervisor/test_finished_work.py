"""Finished assignments on disk: found again when whole, garbage when not."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.contracts.errors import MessageRejected
from edge.contracts.plan import BlobRef
from edge.supervisor.finished_work import FinishedRecord, FinishedWork
from tests.builders import train_report
from tests.edge.tiny_artifact import tiny_job


def record(update: bytes, round_index: int = 0) -> FinishedRecord:
    order = tiny_job(round_index=round_index).order
    sent = BlobRef("a" * 64, len(update), "raw", len(update))
    report = train_report(order.assignment_id, "dev-1", round_index, bytes_up=len(update), update=sent)
    return FinishedRecord(order, report)


def save(work: FinishedWork, made: FinishedRecord, update: bytes) -> None:
    work.new_update_path(made.order.assignment_id).write_bytes(update)
    work.save(made)


def test_finished_work_is_found_again(tmp_path: Path) -> None:
    made = record(b"update")
    save(FinishedWork(tmp_path), made, b"update")
    work = FinishedWork(tmp_path)
    assert work.load() == made
    assert work.update_path(made.order.assignment_id).read_bytes() == b"update"


def test_finished_work_without_its_record_is_garbage(tmp_path: Path) -> None:
    work = FinishedWork(tmp_path)
    work.new_update_path("a" * 64).write_bytes(b"half an update")
    assert work.load() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["record", "update"])
def test_finished_work_damaged_is_garbage(tmp_path: Path, damage: str) -> None:
    made = record(b"update")
    work = FinishedWork(tmp_path)
    save(work, made, b"update")
    path = work.update_path(made.order.assignment_id).with_name(damage)
    path.write_bytes(path.read_bytes()[:-1])
    assert work.load() is None
    assert list(tmp_path.iterdir()) == []


def test_finished_work_forgotten_leaves_nothing(tmp_path: Path) -> None:
    made = record(b"update")
    work = FinishedWork(tmp_path)
    save(work, made, b"update")
    work.forget(made.order.assignment_id)
    assert list(tmp_path.iterdir()) == []


def test_finished_work_keeps_the_newest_only(tmp_path: Path) -> None:
    work = FinishedWork(tmp_path)
    for index in range(2):
        save(work, record(b"update", index), b"update")
    loaded = work.load()
    assert loaded is not None
    assert loaded.order.round == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_finished_work_assignment_id_cannot_leave_the_folder(tmp_path: Path) -> None:
    with pytest.raises(MessageRejected, match="assignment id"):
        FinishedWork(tmp_path).update_path("../outside")
