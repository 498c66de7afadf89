"""What one simulated device does with an order, and what the coordinator scores, in this process.

Steps are torch's, or a device runtime's (:mod:`coordinator.simulation.runtime_artifacts`); scores are torch's.

Batches, their order, augmentation, schedule and scalars are :mod:`edge.training.steps`'s and
:mod:`edge.training.batches`', as on a device; the step is the exported one. Nothing is carried from one assignment to
the next.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch
from torch import nn

from coordinator.rounds.evaluators import AnyEvaluator
from coordinator.simulation.torch_session import TorchArtifact, TorchSession
from coordinator.submodels.build import apply_cut
from coordinator.submodels.record import Cut, cut_digest
from coordinator.submodels.values import DeviceProgram, Level, Submodel, Tensors
from coordinator.submodels.width import shape_of_cut
from edge.contracts.errors import ConfigError
from edge.contracts.evaluation import Evaluation
from edge.contracts.packing import KEPT
from edge.contracts.plan import WorkOrder
from edge.contracts.tensors import concrete_shape
from edge.training.assignment_run import carry_out
from edge.training.batches import Examples
from edge.training.local_data import LocalData
from edge.training.steps import Outcome
from export.training_step import StepSpec

if TYPE_CHECKING:
    from coordinator.simulation.runtime_artifacts import RuntimeArtifacts
    from edge.contracts.manifest import ArtifactManifest
    from edge.runtimes.base import Session

KEPT_SESSIONS = 8
"""Submodels kept ready: the levels of a ladder; a method that cuts every device differently builds each anew."""


@dataclass(frozen=True)
class Trained:
    """What came of an order: the tensors it asked for, figures of its steps, and classes and scores where it asked."""

    tensors: Tensors
    num_examples: int
    outcome: Outcome
    labels: tuple[int, ...] | None = None
    evaluation: Evaluation | None = None


@dataclass(frozen=True)
class SimulatedData:
    """All examples of a run in memory (or mapped): training ones for the devices, held-out ones for scoring."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class LocalTraining:
    """Trains submodels of one dense module on parts of one dataset, and scores them.

    Args:
        dense: gives a fresh dense module; its weights are replaced.
        step: the step of a device program in this run.
        evaluator: of held-out examples ``x``, ``y``, and whether they are the first ones, with which questions go.
        device: where torch computes, ``cpu`` or ``cuda``.
        precision: of the factors of a step's products.
        artifacts: sessions of a device runtime, which train in place of torch; it scores all the same.
    """

    def __init__(
        self,
        dense: Callable[[], nn.Module],
        step: Callable[[DeviceProgram], StepSpec],
        data: SimulatedData,
        *,
        classes: Sequence[str],
        evaluator: Callable[[np.ndarray, np.ndarray, bool], AnyEvaluator],
        device: str = "cpu",
        precision: torch.dtype = torch.float32,
        artifacts: RuntimeArtifacts | None = None,
    ) -> None:
        self._module = dense()
        self._step = step
        self._data = data
        self._classes = tuple(classes)
        self._evaluator, self._device, self._precision = evaluator, device, precision
        self._artifacts = artifacts
        self._evaluators: dict[tuple[int, int], AnyEvaluator] = {}
        self._sessions: OrderedDict[tuple[str, str], tuple[ArtifactManifest, Session]] = OrderedDict()

    def manifest(self, cut: Cut, program: DeviceProgram) -> ArtifactManifest:
        """What an export of the submodel would say of its programs and tensors."""
        return self._ready(cut, program)[0]

    def train(
        self,
        order: WorkOrder,
        cut: Cut,
        program: DeviceProgram,
        weights: Tensors,
        indices: np.ndarray,
        *,
        is_copied: bool = True,
        out: Tensors | None = None,
    ) -> Trained:
        """Carry out ``order`` on the training examples at ``indices``.

        Args:
            is_copied: whether the tensors stay as they are when the next order is carried out.
            out: arrays as of :meth:`layout` that take the tensors.

        Raises:
            DataError: examples that do not fit the model.
            DeviceRefused: an order the step cannot carry out.
        """
        manifest, session = self._ready(cut, program)
        local = LocalData(f"data of {order.device}", self._data.x_train[indices], self._data.y_train[indices])
        examples = Examples(local, manifest)
        session.load_state(weights)
        run = carry_out(session, manifest, order, examples)
        tensors: Tensors
        if out is None:
            tensors = {name: session.read(name) for name in _asked_of(order)}
            if is_copied:
                tensors = {name: np.array(value, order="C") for name, value in tensors.items()}
        else:
            tensors = out
            for name, array in out.items():
                if isinstance(session, TorchSession):
                    session.read_into(name, array)
                else:
                    np.copyto(array, session.read(name))
        return Trained(tensors, run.num_examples, run.outcome, run.labels, run.evaluation)

    def layout(self, order: WorkOrder, cut: Cut, program: DeviceProgram) -> Tensors:
        """Arrays in the shapes and dtypes of what ``order`` asks for, which cannot be written to."""
        specs = {name: self.manifest(cut, program).tensor(name) for name in _asked_of(order)}
        return {n: np.broadcast_to(np.zeros((), s.dtype), concrete_shape(s)) for n, s in specs.items()}

    def outputs(self, cut: Cut, weights: Tensors, first: int, last: int) -> np.ndarray:
        """What an evaluator reads of a submodel on the held-out examples [first, last), logits or sums of batches;
        ``first`` is a multiple of the batch."""
        if (first, last) not in self._evaluators:
            self._evaluators[first, last] = self._evaluator(
                self._data.x_test[first:last], self._data.y_test[first:last], not first
            )
        return self._evaluators[first, last].outputs(Submodel(cut, Level("", 1.0, 1.0), weights, DeviceProgram()))

    def _ready(self, cut: Cut, program: DeviceProgram) -> tuple[ArtifactManifest, Session]:
        # Shapes alone: a window that moves every round has one session.
        key = (cut_digest(shape_of_cut(self._module, cut)), repr(program))
        if key not in self._sessions:
            open_session = self._torch_session if self._artifacts is None else self._artifacts.open
            self._sessions[key] = open_session(cut, program)
        self._sessions.move_to_end(key)
        while len(self._sessions) > KEPT_SESSIONS:
            self._sessions.popitem(last=False)
        return self._sessions[key]

    def _torch_session(self, cut: Cut, program: DeviceProgram) -> tuple[ArtifactManifest, Session]:
        module, step = apply_cut(self._module, cut), self._step(program)
        if program.has_base:  # its values are constants of the module here, and no parameters
            own = {name for name, _ in module.named_parameters()}
            step = msgspec.structs.replace(step, frozen=tuple(name for name in step.frozen if name in own))
        artifact = TorchArtifact(module, step, classes=self._classes)
        return artifact.manifest, artifact.session(self._device, self._precision)


def _asked_of(order: WorkOrder) -> list[str]:
    """Names of the tensors that an order asks for, whole."""
    return [name.removesuffix(KEPT) for name in (*order.upload, *order.own_layers)]


def repeatable_torch(threads: int, device: str) -> None:
    """Make torch compute the same bits again: so many threads, full float32, deterministic kernels on a GPU."""
    torch.set_num_threads(threads)
    if device != "cpu":
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        torch.use_deterministic_algorithms(True, warn_only=True)


def checked_device(name: str) -> str:
    """``name`` when torch can compute there.

    Raises:
        ConfigError: it cannot.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError(["--device: torch finds no CUDA device here; use --device cpu"])
    if name not in ("cpu", "cuda"):
        raise ConfigError([f"--device: '{name}' is not known; use cpu or cuda"])
    return name
