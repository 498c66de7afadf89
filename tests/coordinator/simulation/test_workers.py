"""Worker processes: they end with the simulation, and one that dies is named."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import psutil
import pytest

from coordinator.cli.simulate import begin
from coordinator.simulation.assembly import SimulationOptions, open_simulation
from coordinator.simulation.orders import Tally, train
from coordinator.simulation.record import Record
from coordinator.simulation.shared_tensors import Placed, PlacedTensor
from coordinator.simulation.worker_messages import FailedReply, TrainRequest, read_reply, read_request
from coordinator.submodels.values import DeviceProgram
from edge.contracts.errors import ApportionError
from edge.contracts.plan import BlobRef, Schedule, Turn, WorkOrder
from edge.system.pipe_frames import write_frame
from tests.coordinator.simulation.small_simulation import small


def test_request_comes_back_as_it_was() -> None:
    order = WorkOrder(
        assignment_id="a",
        federation="f",
        device="device-00",
        round=1,
        attempt=0,
        artifact=BlobRef("", 0),
        weights=BlobRef("", 0),
        schedule=Schedule(steps=3, turns=(Turn("train", False), Turn("train_half"))),
        batch=4,
        last_batch="wrap",
        data_seed=2**63 + 5,
        hyper={"lr": 0.1},
        upload=("w",),
    )
    program = DeviceProgram(loss="bce_one_hot", frobenius=(("a.u", "a.v"),), extra_hyper={"x": 1.5})
    weights = Placed("/proc/1/fd/3", 128, (PlacedTensor("w", "float32", (2, 3), 64),))
    cut, indices = {"a": {"frozen": True}}, b"2" * 70_000
    sent = TrainRequest(order=order, cut=cut, program=program, weights=weights, update="/proc/1/fd/4", indices=indices)
    pipe = io.BytesIO()
    write_frame(pipe, sent)
    write_frame(pipe, sent)
    pipe.seek(0)
    assert [read_request(pipe), read_request(pipe), read_request(pipe)] == [sent, sent, None]


def test_frame_that_was_cut_off_is_the_end() -> None:
    pipe = io.BytesIO()
    write_frame(pipe, FailedReply("bad-data", "no examples"))
    assert read_reply(io.BytesIO(pipe.getvalue()[:-1])) is None
    assert read_reply(io.BytesIO(pipe.getvalue()[:5])) is None


@pytest.mark.slow
def test_worker_that_dies_is_named_and_none_is_left_behind(tmp_path: Path) -> None:
    config = small()
    begin(config, tmp_path)
    before = set(psutil.Process().children())
    with open_simulation(config, tmp_path, Record(), SimulationOptions(workers=2, quiet=True)) as simulation:
        children = set(psutil.Process().children()) - before
        assert len(children) == 2
        state = simulation.method.init()
        devices = list(simulation.shares)
        logits = simulation.workers.outputs(simulation.method.eval_models(state).values())
        assert [np.shape(values) for values in logits] == [(599, 10)] * 4
        for child in children:
            child.kill()
        with pytest.raises(ApportionError, match=r"worker process \d+ ended with status -9"):
            list(train(simulation, state, devices, 0, "train", Tally()))
    assert not any(child.is_running() for child in children)
