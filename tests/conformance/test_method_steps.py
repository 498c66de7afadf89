"""Three steps on every runtime beside the same three steps simulated: same submodel, same order, same data.

Held against each other are all tensors the step moves: parameters, running statistics, optimizer slots, accumulators.
Without batch norm each is within a relative L2 distance of 1e-4; with it within ten times what torch float32 itself is
off float64 in the same steps.
"""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from coordinator.config.run_config import RunConfig
from coordinator.data.datasets import load_dataset
from coordinator.exporting.cut_exporter import CutExporter, class_names, dense_module
from coordinator.local_devices.data_folders import device_shares
from coordinator.methods import build_method
from coordinator.planning.artifacts import Artifact
from coordinator.rounds.work_order import build_order
from coordinator.simulation.torch_session import TorchArtifact
from coordinator.submodels.build import apply_cut
from coordinator.submodels.packed_tensors import split_tensors
from coordinator.submodels.values import State, Submodel
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import BlobRef, WorkOrder
from edge.contracts.tensor_file import encode_tensors, read_tensor_file
from edge.contracts.tensors import CORRECTION
from edge.runtimes.environments import runtime_python
from edge.supervisor.trainer_link import TrainerEvent, TrainerLink, TrainerSaid
from edge.supervisor.trainer_messages import Progress, Ready, Train, Trained
from edge.training.batches import Examples
from edge.training.local_data import read_local_data
from edge.training.steps import train
from profiles.device import DeviceProfile
from tests.conformance.float64_session import Float64Session
from tests.conformance.method_runs import (
    CASES,
    KINDS,
    LINES,
    MODELS,
    PAIRS,
    TRAINED,
    WITHOUT_NORM,
    expected,
    run_config,
)
from tests.remembered_exports import RememberingExporter

pytestmark = [pytest.mark.runtime, pytest.mark.slow]

STEPS = 3
ROUNDS_SEEN = 4
"""Rounds among which kinds of device programs are looked for: PruneFL's scored one, SLT's steps."""
DEVICE = "device-00"
PATIENCE_S = 600.0
"""A trainer may build its runtime's library first, on a machine with other work."""
MOVED = ("parameter", "buffer", "slot", "accumulator")


@dataclass(frozen=True)
class Work:
    """One submodel and its order, once for a runtime and once for torch."""

    submodel: Submodel
    order: WorkOrder
    manifest: ArtifactManifest
    folder: Path


def kind_of(submodel: Submodel) -> tuple[str, frozenset[str]]:
    """What a device program is but for its sizes."""
    return repr(submodel.program), frozenset(submodel.tensors)


def distinct_submodels(config: RunConfig) -> Iterator[tuple[int, Submodel]]:
    """One submodel of each kind that a run's levels and rounds have, with the round it is of."""
    method = build_method(config.method.name, dense_module(config), config.method.options)
    seen = set()
    state: State = method.init()
    for round_index in range(ROUNDS_SEEN):
        state = replace(state, round=round_index)
        for level in method.levels():
            submodel = method.cut(state, level, round_index=round_index, device=DEVICE, seed=config.federation.seed)
            if (kind := kind_of(submodel)) not in seen:
                seen.add(kind)
                yield round_index, corrected(config, submodel)


def corrected(config: RunConfig, submodel: Submodel) -> Submodel:
    """``submodel`` with a correction of each gradient, where the run's step has them, as a later round's device has."""
    if not CutExporter(config).step(submodel.program).corrected:
        return submodel
    module, random = apply_cut(dense_module(config), submodel.cut), np.random.default_rng(11)
    made = {
        name + CORRECTION: random.normal(0, 0.1, tuple(value.shape)).astype(np.float32)
        for name, value in module.named_parameters()
        if name not in submodel.program.frozen
    }
    return replace(submodel, tensors={**submodel.tensors, **made})


def ordered(config: RunConfig, submodel: Submodel, round_index: int, runtime: str, exports: Path) -> Work:
    """The artifact for ``runtime``, and an order that wants every moved tensor back, whole."""
    exporter = RememberingExporter(CutExporter(config), exports)
    folder, manifest = exporter.kept(submodel.cut, submodel.program, runtime)
    # Each artifact has another digest: the trainer is to load it anew.
    reference = BlobRef(manifest.export_key, 1)
    order = build_order(
        config,
        config.federation.name,
        DeviceProfile(device=DEVICE),
        Artifact(manifest, reference),
        BlobRef("", 0),
        submodel.program,
        round_index=round_index,
        attempt=0,
        program="train",
        peak_bytes=0,
    )
    upload = tuple(spec.name for spec in manifest.specs(*MOVED))
    return Work(submodel, msgspec.structs.replace(order, upload=upload), manifest, folder)


class TrainerHere:
    """A trainer process of a runtime, in its environment, as an agent has one; a context manager that ends it."""

    def __init__(self, runtime: str) -> None:
        self._events: queue.SimpleQueue[TrainerEvent] = queue.SimpleQueue()
        self._link = TrainerLink(python=str(runtime_python(runtime)), runtime=runtime, deliver=self._events.put)

    def __enter__(self) -> TrainerHere:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.end()

    def trained(self, work: Work, data: Path, folder: Path) -> dict[str, np.ndarray]:
        """What comes back of the work's order."""
        folder.mkdir()
        changing, constant = split_tensors(work.submodel)
        (folder / "weights").write_bytes(encode_tensors(changing))
        (folder / "constants").write_bytes(encode_tensors(constant))
        self._link.train(
            Train(
                order=work.order,
                manifest=str(work.folder / "manifest.json"),
                files={file.name: str(work.folder / file.name) for file in work.manifest.files},
                weights=str(folder / "weights"),
                constants=str(folder / "constants") if constant else "",
                data=str(data),
                update=str(folder / "update"),
                threads=1,
                progress_s=PATIENCE_S,
            )
        )
        while True:
            event = self._events.get(timeout=PATIENCE_S)
            assert isinstance(event, TrainerSaid), event
            if isinstance(event.reply, Trained):
                assert not event.reply.torch_loaded
                return read_tensor_file(folder / "update", where="update")
            assert isinstance(event.reply, Ready | Progress), event.reply


def simulated(config: RunConfig, work: Work, data: Path, *, wide: bool) -> dict[str, np.ndarray]:
    """The same order by the simulation's session, in float32 or float64."""
    module = apply_cut(dense_module(config), work.submodel.cut)
    artifact = TorchArtifact(module, CutExporter(config).step(work.submodel.program), classes=class_names(config))
    session = Float64Session(artifact, "cpu") if wide else artifact.session("cpu")
    session.load_state(work.submodel.tensors)
    train(session, artifact.manifest, work.order, Examples(read_local_data(str(data)), artifact.manifest))
    return {name: np.array(session.read(name)) for name in work.order.upload}


def distance(value: np.ndarray, reference: np.ndarray) -> float:
    """Relative L2; 0 between zeros."""
    difference = np.linalg.norm(value.astype(np.float64) - reference.astype(np.float64))
    return float(difference / max(np.linalg.norm(reference.astype(np.float64)), 1e-30)) if difference else 0.0


def check(config: RunConfig, runtime: str, folder: Path, exports: Path) -> int:
    """Compares every distinct submodel of a run; how many there were."""
    data = written_data(config, folder)
    torch.set_num_threads(1)
    count = 0
    with TrainerHere(runtime) as trainer:
        for round_index, submodel in distinct_submodels(config):
            work = ordered(config, submodel, round_index, runtime, exports)
            found = trainer.trained(work, data, folder / f"work-{count}")
            single = simulated(config, work, data, wide=False)
            assert found.keys() == single.keys()
            has_norm = any(
                isinstance(m, nn.BatchNorm2d) for m in apply_cut(dense_module(config), submodel.cut).modules()
            )
            exact = simulated(config, work, data, wide=True) if has_norm else {}
            for name, value in found.items():
                what = f"{submodel.level.name}, round {round_index}, {name}"
                if not has_norm:
                    assert distance(value, single[name]) <= 1e-4, what
                    continue
                own = distance(single[name], exact[name])
                assert distance(value, single[name]) <= max(10 * own, 1e-6), f"{what}: torch float32 is {own:.1e} off"
            _assert_moved(work, single)
            count += 1
    return count


def _assert_moved(work: Work, single: Mapping[str, np.ndarray]) -> None:
    """Three steps moved what they train: agreement is not that of the start."""
    start = work.submodel.tensors
    moved = [n for n in single if n in start and not np.array_equal(single[n], start[n])]
    assert len(moved) >= 2
    assert all(np.any(single[s.name]) for s in work.manifest.specs("accumulator"))


def written_data(config: RunConfig, folder: Path) -> Path:
    """The first device's share of the run's examples."""
    dataset = load_dataset(config.data.source, None, config.federation.seed)
    indices = device_shares(config, dataset, 2)[0]
    target = folder / "data"
    target.mkdir()
    np.savez(target / "part.npz", x=dataset.x_train[indices], y=dataset.y_train[indices])
    return target


@cache
def kinds(name: str) -> set[tuple[str, frozenset[str]]]:
    """The kinds of device programs in the rounds of a case that are looked at."""
    with tempfile.TemporaryDirectory(prefix="apportion-test-") as folder:
        return {kind_of(found) for _, found in distinct_submodels(run_config(CASES[name], Path(folder), lines=LINES))}


@pytest.mark.parametrize("name", sorted({*CASES} - {*KINDS}))
def test_method_that_is_left_out_needs_no_program_of_its_own(name: str) -> None:
    assert kinds(name) <= set[tuple[str, frozenset[str]]]().union(*map(kinds, KINDS))


@pytest.mark.usefixtures("trains_here")
@pytest.mark.parametrize(("name", "runtime"), PAIRS)
def test_three_steps_are_those_of_the_simulation(name: str, runtime: str, tmp_path: Path, exports: Path) -> None:
    case = CASES[name]
    if expected(case, runtime) != TRAINED:
        pytest.skip(f"{expected(case, runtime)}; the refusal is shown in test_method_rounds.py")
    # Without norms the bound is tight in every tensor: every kind on one runtime, and every runtime in one kind.
    both = case.method not in MODELS and (runtime == "onnxruntime" or name == "fedavg")
    for model in ["", WITHOUT_NORM] if both else [""]:
        folder = tmp_path / ("plain" if model else "own")
        folder.mkdir()
        config = run_config(case, folder, runtime=runtime, model=model, lines=LINES)
        assert check(config, runtime, folder, exports) >= 1
