"""Tensors in memory that two processes share."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import pytest

from coordinator.simulation.shared_tensors import MappedSlots, Placed, SentTensors, SharedSlots

TENSORS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "flag": np.array([True, False]),
    "count": np.array(7, np.int64),
    "none": np.zeros((0, 4), np.float32),
}


def written(slots: MappedSlots, address: str, tensors: Mapping[str, np.ndarray]) -> Placed:
    placed, arrays = slots.room(address, tensors)
    for name, array in arrays.items():
        np.copyto(array, tensors[name])
    return placed


def test_tensors_come_back_as_they_were_and_free_their_slot() -> None:
    with SharedSlots() as slots:
        slot, other = slots.take(), MappedSlots()
        read = slots.read(slot, written(other, slot.address, TENSORS))
        for name, value in TENSORS.items():
            np.testing.assert_array_equal(read[name], value)
            assert read[name].dtype == value.dtype
            assert not read[name].flags.writeable
        part = read["w"][1:]
        del read
        gc.collect()
        assert slots.take() is not slot  # a view of it is left
        np.testing.assert_array_equal(part, [[3, 4, 5]])
        del part
        gc.collect()
        assert slots.take() is slot


def test_slot_grows_and_old_arrays_stay() -> None:
    with SharedSlots() as slots:
        slot, other = slots.take(), MappedSlots()
        before = slots.read(slot, written(other, slot.address, {"a": np.ones(3)}))
        large = np.arange(100_000.0)
        sent = slots.read(slot, written(other, slot.address, {"a": large}))
        np.testing.assert_array_equal(sent["a"], large)
        assert before["a"].shape == (3,)


def test_same_arrays_are_placed_once_and_given_back_when_read() -> None:
    with SharedSlots() as slots:
        sent = SentTensors(slots, most=1)
        first, again = sent.place(TENSORS), sent.place(dict(TENSORS))
        assert first is again
        assert first.readers == 2
        other = sent.place({"w": TENSORS["w"] + 1})
        assert other.placed.address != first.placed.address
        first.more(-2)
        other.more(-1)
        sent.drop()
        assert {slots.take().address, slots.take().address} == {first.placed.address, other.placed.address}


def test_reader_is_given_the_same_arrays_until_others_are_placed() -> None:
    with SharedSlots() as slots:
        sent, reader = SentTensors(slots, most=1), MappedSlots()
        first = sent.place(TENSORS)
        array = reader.read(first.placed)["w"]
        assert reader.read(sent.place(TENSORS).placed)["w"] is array
        first.more(-2)
        sent.drop()
        other = sent.place({"w": TENSORS["w"] + 1})
        assert other.placed.address == first.placed.address
        assert reader.read(other.placed)["w"] is not array


@pytest.mark.skipif(sys.platform != "linux", reason="other systems map files in a folder")
def test_another_process_maps_a_slot() -> None:
    with SharedSlots() as slots:
        slot = slots.take()
        slot.bytes_(4)[:] = list(b"abcd")
        code = f"import mmap,os; f=os.open({slot.address!r}, os.O_RDWR); print(mmap.mmap(f, 4)[:4])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "b'abcd'"
