"""The training loop over a session that only writes down what it is fed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest, Program
from edge.contracts.plan import Schedule, Turn, WorkOrder
from edge.contracts.tensors import TensorSpec
from edge.training.batches import Examples
from edge.training.local_data import LocalData
from edge.training.steps import Outcome, train
from tests.edge.tiny_artifact import FEATURES, softmax_graph, softmax_manifest, tiny_job


class WritingSession:
    """Gives loss 1, 2, 3, ... and two correct targets per step."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, Mapping[str, np.ndarray]]] = []

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        pass

    def run(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, float]:
        self.runs.append((program, feeds))
        return {"loss": float(len(self.runs)), "correct": 2.0}

    def read(self, name: str) -> np.ndarray:
        raise AssertionError(name)


def manifest(*programs: str, batch: int | None = None, hyper: tuple[str, ...] = ()) -> ArtifactManifest:
    made = ArtifactManifest.from_bytes(softmax_manifest(softmax_graph()))
    first = made.programs[0]
    return msgspec.structs.replace(
        made,
        programs=tuple(
            Program(name, first.file, (*first.inputs, *hyper), first.outputs, batch) for name in programs or ("train",)
        ),
        tensors=(*made.tensors, *(TensorSpec(name, (), "float32", "hyper") for name in hyper)),
    )


def run(made: ArtifactManifest, **changes: object) -> tuple[WritingSession, Outcome]:
    data = LocalData("here", np.arange(10.0 * FEATURES).reshape(10, FEATURES), np.arange(10) % 2)
    order: WorkOrder = msgspec.structs.replace(tiny_job().order, **changes)
    session = WritingSession()
    return session, train(session, made, order, Examples(data, made))


def test_training_feeds_every_role() -> None:
    session, outcome = run(manifest(), schedule=Schedule(epochs=1))
    _, feeds = session.runs[0]
    assert feeds.keys() == {"input", "target", "label_mask", "lr", "momentum"}
    assert feeds["input"].shape == (4, FEATURES)
    assert feeds["label_mask"].tolist() == [1.0, 1.0, 0.0]
    assert (feeds["lr"].shape, float(feeds["lr"])) == ((), pytest.approx(0.1))
    assert (outcome.steps, outcome.loss) == (2, 1.5)
    assert outcome.metrics == {"accuracy": 0.5}


def test_training_stats_momentum_is_a_running_mean_over_steps() -> None:
    session, _ = run(manifest(hyper=("stats_momentum",)), schedule=Schedule(steps=3))
    assert [float(feeds["stats_momentum"]) for _, feeds in session.runs] == pytest.approx([1, 1 / 2, 1 / 3])


def test_training_turns_cycle_and_share_a_batch_until_one_advances() -> None:
    turns = (Turn("train_a", advance_batch=False), Turn("train_b"))
    session, outcome = run(manifest("train_a", "train_b"), schedule=Schedule(steps=2, turns=turns))
    assert [name for name, _ in session.runs] == ["train_a", "train_b", "train_a", "train_b"]
    inputs = [feeds["input"] for _, feeds in session.runs]
    assert np.array_equal(inputs[0], inputs[1])
    assert not np.array_equal(inputs[1], inputs[2])
    assert outcome.steps == 4


@pytest.mark.parametrize(
    ("advances", "steps"),
    [((True,), 3), ((True, False), 5), ((False, True), 6), ((True, True, False), 4), ((False, True, True), 5)],
)
def test_training_announces_as_many_steps_as_it_takes(advances: tuple[bool, ...], steps: int) -> None:
    made = manifest()
    data = LocalData("here", np.zeros((12, FEATURES)), np.arange(12) % 2)
    order = msgspec.structs.replace(
        tiny_job().order, schedule=Schedule(steps=3, turns=tuple(Turn("train", a) for a in advances))
    )
    told: list[tuple[int, int]] = []
    train(
        WritingSession(),
        made,
        order,
        Examples(data, made),
        progress=lambda step, total, loss: told.append((step, total)),
    )
    assert told == [(i + 1, steps) for i in range(steps)]


def test_training_missing_hyper_is_refused_before_the_first_step() -> None:
    with pytest.raises(DeviceRefused, match=r"'lr'.*momentum"):
        run(manifest(), hyper={"momentum": 0.9})


def test_training_static_batch_refuses_another_size() -> None:
    session, _ = run(manifest(batch=4), schedule=Schedule(epochs=1))
    assert len(session.runs) == 2
    with pytest.raises(DeviceRefused, match="batches of 4, this one has 2"):
        run(manifest(batch=4), schedule=Schedule(epochs=1), last_batch="keep")
