"""Bytes of orders and updates: those of the files that would travel."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from coordinator.simulation.traffic import Traffic
from coordinator.submodels.packed_tensors import split_tensors
from coordinator.submodels.values import DeviceProgram, Level, Submodel
from edge.contracts.plan import Precision
from edge.contracts.tensor_file import encode_tensors
from edge.contracts.tensors import concrete_shape
from edge.training.coded_update import CodedUpdate
from edge.training.update_file import write_update
from tests.contracts.samples import MANIFEST, ORDER

LEVEL = Level("full", 1.0, 1.0)
MASK = np.arange(64).reshape(8, 8) % 4 == 0


def traffic(submodel: Submodel, upload: tuple[str, ...], **options: Any) -> Traffic:
    order: Any = SimpleNamespace(upload=upload)
    return Traffic.of(submodel, order, submodel.tensors, **options)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_update_in_fewer_bits_is_the_size_of_what_a_device_sends(precision: Precision, tmp_path: Path) -> None:
    names = [spec.name for spec in MANIFEST.specs("parameter", "buffer")]
    shapes = {name: concrete_shape(MANIFEST.tensor(name)) for name in names}
    tensors = {name: np.ones(shape, MANIFEST.tensor(name).dtype) for name, shape in shapes.items()}
    order = msgspec.structs.replace(ORDER, upload=tuple(names), precision=precision)
    found = Traffic.of(Submodel({}, LEVEL, tensors, DeviceProgram()), order, tensors, manifest=MANIFEST)
    zeros = {name: np.zeros_like(value) for name, value in tensors.items()}
    update = tensors if precision == "fp32" else CodedUpdate(order, MANIFEST, tensors.__getitem__, zeros, {})
    _, written, _ = write_update(tmp_path / "update", update, "raw")
    assert found.up == written


def size(tensors: dict[str, np.ndarray]) -> int:
    return len(encode_tensors(tensors))


def test_whole_model_is_the_size_of_its_file() -> None:
    tensors = {"a.weight": np.ones((3, 5), np.float32), "a.n": np.array(7, np.int64)}
    found = traffic(Submodel({}, LEVEL, tensors, DeviceProgram()), ("a.weight",))
    assert found == Traffic(size(tensors), size({"a.weight": tensors["a.weight"]}))


def test_masked_values_travel_alone_and_the_mask_once() -> None:
    tensors = {"a.weight": MASK.astype(np.float32), "a.weight#mask": MASK, "b": np.ones(3, np.float32)}
    submodel = Submodel({}, LEVEL, tensors, DeviceProgram(masked=("a.weight",)))
    changing, constant = split_tensors(submodel)
    upload = ("a.weight#kept", "b")
    first = traffic(submodel, upload)
    assert first.down == size(changing) + size(constant)
    assert first.up == size({"a.weight#kept": np.ones(16, np.float32), "b": tensors["b"]})
    again = traffic(submodel, upload, held=first.constants)
    assert (again.down, again.constants) == (size(changing), first.constants)
    moved = Submodel({}, LEVEL, {**tensors, "a.weight#mask": ~MASK}, submodel.program)
    assert traffic(moved, upload, held=first.constants).constants != first.constants


def test_frozen_tensors_are_sent_once_and_never_back() -> None:
    tensors = {"a": np.ones(100, np.float32), "b": np.ones(3, np.float32)}
    submodel = Submodel({}, LEVEL, tensors, DeviceProgram(frozen=("a",)))
    first = traffic(submodel, ("b",))
    again = traffic(submodel, ("b",), held=first.constants)
    assert first.down - again.down == size({"a": tensors["a"]})
    assert again.down == again.up == size({"b": tensors["b"]})
