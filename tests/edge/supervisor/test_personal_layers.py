"""A device's own layers on disk: when they take effect, and what stands in for those that do not fit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge.contracts.codec import encode_msgpack
from edge.contracts.plan import WorkOrder
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes.weights_file import WeightsFile
from edge.supervisor.finished_work import FinishedRecord, FinishedWork
from edge.supervisor.trainer_messages import Train
from edge.trainer import _starting_weights
from tests.builders import train_report
from tests.edge.supervisor.test_finished_work import record, save


def personal_record(round_index: int = 0, run: str = "") -> FinishedRecord:
    made = record(b"update", round_index)
    order = msgspec.structs.replace(made.order, personal=("head.weight",), run=run)
    report = train_report(order.assignment_id, "dev-1", round_index, bytes_up=6, update=made.report.update)
    return FinishedRecord(order, report)


def trained(work: FinishedWork, made: FinishedRecord, head: bytes) -> None:
    path = work.new_personal_path(made.order)
    assert path is not None
    path.write_bytes(head)
    save(work, made, b"update")


@pytest.mark.parametrize("is_accepted", [True, False])
def test_layers_take_effect_when_the_report_is_accepted(tmp_path: Path, is_accepted: bool) -> None:
    work = FinishedWork(tmp_path / "work")
    first, second = personal_record(0), personal_record(1)
    trained(work, first, b"first")
    assert not work.personal_path(first.order).exists()
    work.settle(first.order, is_accepted=True)
    trained(work, second, b"second")
    assert work.personal_path(second.order).read_bytes() == b"first"
    again = FinishedWork(tmp_path / "work")  # killed and started again
    assert again.load() == second
    again.settle(second.order, is_accepted=is_accepted)
    assert again.personal_path(second.order).read_bytes() == (b"second" if is_accepted else b"first")


def test_another_run_has_layers_of_its_own(tmp_path: Path) -> None:
    work = FinishedWork(tmp_path / "work")
    mine, other = personal_record(run="a" * 32), personal_record(run="b" * 32)
    trained(work, mine, b"mine")
    work.settle(mine.order, is_accepted=True)
    assert not work.personal_path(other.order).exists()
    assert work.new_personal_path(record(b"update").order) is None


def test_order_without_own_layers_is_written_as_before() -> None:
    plain = record(b"update").order
    assert plain.own_layers == ()
    assert b"personal" not in encode_msgpack(plain)
    order = personal_record().order
    assert msgspec.msgpack.decode(encode_msgpack(order), type=WorkOrder).own_layers == ("head.weight",)


RECEIVED = {"body": np.zeros(2, np.float32), "head.weight": np.zeros((2, 2), np.float32)}


def starting(folder: Path, own: bytes | None) -> WeightsFile:
    """What an order begins with on a device that has ``own``."""
    (folder / "weights").write_bytes(encode_tensors(RECEIVED))
    if own is not None:
        (folder / "own").write_bytes(own)
    request = Train(
        order=personal_record().order,
        manifest="",
        files={},
        weights=str(folder / "weights"),
        data="",
        update="",
        threads=1,
        progress_s=1.0,
        personal=str(folder / "own"),
    )
    return _starting_weights(request, None)


def test_own_layers_stand_in_the_place_of_the_received_ones(tmp_path: Path) -> None:
    own = {"head.weight": np.ones((2, 2), np.float32), "body": np.ones(2, np.float32)}
    found = starting(tmp_path, encode_tensors(own))
    target = np.empty((2, 2), np.float32)
    found.copy_into("head.weight", target)
    assert np.array_equal(target, own["head.weight"])
    assert np.array_equal(found["head.weight"], own["head.weight"])
    assert np.array_equal(found["body"], RECEIVED["body"])  # the order does not name it


@pytest.mark.parametrize(
    "own",
    [
        None,
        b"",
        b"damaged",
        encode_tensors({"head.weight": np.ones((2, 2), np.float32)})[:-3],
        encode_tensors({"head.weight": np.ones((3, 2), np.float32)}),
        encode_tensors({"head.weight": np.ones((2, 2), np.float64)}),
        encode_tensors({"other": np.ones((2, 2), np.float32)}),
    ],
    ids=["none", "empty", "damaged", "cut short", "another shape", "another type", "another name"],
)
def test_layers_that_do_not_fit_give_way_to_the_received_ones(tmp_path: Path, own: bytes | None) -> None:
    found = starting(tmp_path, own)
    assert np.array_equal(found["head.weight"], RECEIVED["head.weight"])
