"""A device's control variates on disk: one for each update that may count, named by the next order."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edge.contracts.codec import encode_msgpack
from edge.contracts.errors import MessageRejected
from edge.contracts.plan import Schedule, Turn, WorkOrder
from edge.supervisor.finished_work import FinishedRecord, FinishedWork
from tests.builders import train_report
from tests.edge.supervisor.test_finished_work import record, save


def made(round_index: int, variates_of: str = "") -> FinishedRecord:
    plain = record(b"update", round_index)
    order = msgspec.structs.replace(plain.order, variates=variates_of)
    report = train_report(order.assignment_id, "dev-1", round_index, bytes_up=6, update=plain.report.update)
    return FinishedRecord(order, report)


def trained(work: FinishedWork, done: FinishedRecord, variates: bytes) -> None:
    path = work.new_variates_path(done.order)
    assert path is not None
    path.write_bytes(variates)
    save(work, done, b"update")


def kept(work: FinishedWork, order: WorkOrder) -> bytes | None:
    path = work.variates_path(order)
    return path.read_bytes() if path is not None and path.exists() else None


@pytest.mark.parametrize("is_accepted", [True, False])
def test_order_goes_on_from_the_update_that_it_names(is_accepted: bool, tmp_path: Path) -> None:
    """Whether it was accepted says nothing: an accepted one may be set aside, a lost acknowledgement may be of one
    that counts."""
    work = FinishedWork(tmp_path / "work")
    first = made(0)
    assert kept(work, first.order) is None
    trained(work, first, b"first")
    work.settle(first.order, is_accepted=is_accepted)
    second = made(1, first.order.assignment_id)
    assert kept(work, second.order) == b"first"
    trained(work, second, b"second")
    work.settle(second.order, is_accepted=is_accepted)
    again = FinishedWork(tmp_path / "work")  # killed and started again
    assert kept(again, made(2, first.order.assignment_id).order) == b"first"
    assert kept(again, made(2, second.order.assignment_id).order) == b"second"


def test_what_no_order_can_name_any_more_is_removed(tmp_path: Path) -> None:
    work = FinishedWork(tmp_path / "work")
    rounds = [made(0), made(1), made(2)]
    for done, variates in zip(rounds, (b"0", b"1", b"2"), strict=True):
        trained(work, done, variates)  # each goes on from zeros: none of them counted
    assert [p.read_bytes() for p in tmp_path.rglob("control/*/*")] == [b"2"]


def test_saving_again_after_a_full_disk_keeps_them(tmp_path: Path) -> None:
    work, done = FinishedWork(tmp_path / "work"), made(0)
    trained(work, done, b"first")
    work.save(done)
    assert kept(work, made(1, done.order.assignment_id).order) == b"first"


def test_round_of_statistics_leaves_none(tmp_path: Path) -> None:
    order = msgspec.structs.replace(made(0).order, schedule=Schedule(epochs=1, turns=(Turn("stats"),)))
    assert FinishedWork(tmp_path / "work").new_variates_path(order) is None


def test_order_without_them_is_written_as_before(tmp_path: Path) -> None:
    plain = record(b"update").order
    assert not plain.keeps_variates
    assert b"variates" not in encode_msgpack(plain)
    assert FinishedWork(tmp_path / "work").new_variates_path(plain) is None
    order = made(0).order
    assert order.keeps_variates
    assert msgspec.msgpack.decode(encode_msgpack(order), type=WorkOrder).variates_of == ""


def test_order_that_names_no_assignment_is_refused(tmp_path: Path) -> None:
    order = msgspec.structs.replace(made(0).order, variates="../../elsewhere")
    with pytest.raises(MessageRejected):
        FinishedWork(tmp_path / "work").variates_path(order)
