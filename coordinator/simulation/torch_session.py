"""An artifact that is not exported: its programs as torch functions, and the session that runs them eagerly.

The functions are the ones that are traced for devices (:func:`export.programs.program_functions`), so a simulated step
is the exported step; which batch and which scalars go into it is :mod:`edge.training.steps`'s, as on a device. The end
of an SGD step is taken in place (:mod:`coordinator.simulation.in_place_step`), and convolutions see their tensors with
channels last where the module lets them: both are faster and move the last bits.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from coordinator.simulation.in_place_step import in_place_step
from coordinator.simulation.large_weights import MOMENTUM, LargeWeights
from coordinator.submodels.memory_layout import lets_channels_last
from coordinator.submodels.precision import multiplying_in, with_float32_outputs
from edge.contracts.errors import ArtifactCorrupt, DeviceRefused, PlanError
from edge.contracts.manifest import ArtifactManifest, Cost, GraphOutput, Parity, Program, SelfTest
from edge.contracts.tensors import TEACHER, TensorSpec, concrete_shape, is_carried
from export.programs import ProgramFunction, program_functions
from export.step_objective import objective_of
from export.task_steps import SUM
from export.training_step import StepSpec, symbols_of

RUNTIME = "torch"
_NEXT, TRAIN = "next:", "train"
_PROGRAMS = ("train", "stats", "eval")
"""Programs a device runs, apart from variants of ``train`` and of ``eval``."""


class TorchArtifact:
    """The programs of a module and step, with the manifest that an export of them would have, without files.

    Raises:
        ExportRefused: a layer that has no training step, as at an export.
    """

    def __init__(self, module: nn.Module, spec: StepSpec, *, classes: Sequence[str]) -> None:
        # No loops of ours: torch's own recurrent layers are the faster ones here, and what exports are held against.
        functions = program_functions(module, spec, loops=frozenset())
        self.functions = {name: f for name, f in functions.items() if name.startswith(_PROGRAMS)}
        self.is_channels_last = not spec.task and lets_channels_last(functions["eval"].module, spec.input.shape)
        steps = {name: in_place_step(f, spec) for name, f in self.functions.items()}
        self.steps = {name: step for name, step in steps.items() if step is not None}
        self.manifest = _manifest(self.functions, spec, tuple(classes))

    def session(self, device: str, precision: torch.dtype = torch.float32) -> TorchSession:
        """A session on ``device`` (``cpu``, ``cuda``) that multiplies in ``precision`` when it trains."""
        return TorchSession(self, device, precision)


class TorchSession:
    """Implements :class:`edge.runtimes.base.Session` with torch."""

    def __init__(self, artifact: TorchArtifact, device: str, precision: torch.dtype = torch.float32) -> None:
        manifest = artifact.manifest
        self._functions, self._steps = artifact.functions, artifact.steps
        self._layout = torch.channels_last if artifact.is_channels_last else torch.contiguous_format
        self._device, self._precision = torch.device(device), precision
        self._carried = {s.name: s for s in manifest.tensors if is_carried(s)}
        self._inputs = {p.name: [(n, n in self._carried) for n in p.inputs] for p in manifest.programs}
        self._state: dict[str, Tensor] = {}
        self._weights = LargeWeights(self._state, precision)
        self._loaded: dict[str, tuple[weakref.ref[np.ndarray], Tensor]] = {}  # large weights, and what they were given
        for name, function in self._functions.items():
            function.module.to(self._device)
            if precision != torch.float32 and name.startswith(TRAIN):
                function.module.register_forward_hook(with_float32_outputs)

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """As :meth:`edge.runtimes.base.Session.load_state`."""
        self._weights = self._weights.renewed([name for name, given in tensors.items() if self._has(name, given)])
        kept = self._kept(tensors)
        for name, spec in self._carried.items():
            if name.removesuffix(MOMENTUM) in kept and name.endswith(MOMENTUM):
                self._state.pop(name, None)  # zero until its weight is settled
                continue
            given = tensors.get(name.removesuffix(TEACHER) if spec.role == "teacher" else name)
            shape = tuple(int(size) for size in spec.shape)
            if given is None and spec.role in ("slot", "accumulator"):
                given = np.broadcast_to(np.zeros((), spec.dtype), shape)
            elif given is None:
                raise ArtifactCorrupt(f"the weights hold no {spec.role} '{name}' that the step needs; cut again")
            elif given.shape != shape or given.dtype.name != spec.dtype:
                raise ArtifactCorrupt(
                    f"weights: '{name}' is {given.dtype}{list(given.shape)}, the step says {spec.dtype}{list(shape)}"
                )
            if self._has(name, given):
                continue
            # Tensors are written in place, and the global model is not ours to write.
            if name in self._state and self._device.type == "cpu":
                np.copyto(self._state[name].numpy(), given)
            else:
                self._state[name] = self._laid_out(_own(given))
        self._loaded = {name: (weakref.ref(tensors[name]), self._state[name]) for name in kept}
        for name in kept:
            self._weights.keep(name, has_momentum=name + MOMENTUM in self._carried)

    def _has(self, name: str, given: np.ndarray) -> bool:
        """Whether the state holds ``given``, an array that nobody writes to, as ``name`` already.

        While factors of a weight are kept, its tensor is only read; afterwards another one is in its place.
        """
        array, tensor = self._loaded.get(name, (None, None))
        return array is not None and array() is given and self._state[name] is tensor

    def _kept(self, tensors: Mapping[str, np.ndarray]) -> frozenset[str]:
        """The large weights of the training step whose factors can be kept: their momentum begins with zero."""
        step = self._steps.get(TRAIN)
        if step is None or self._device.type != "cpu":
            return frozenset()
        return frozenset(name for name in step.keeps() if name + MOMENTUM not in tensors)

    def run(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, float]:
        """As :meth:`edge.runtimes.base.Session.run`."""
        if program not in self._functions:
            raise PlanError(f"no program '{program}', there are {', '.join(self._functions)}; order one of them")
        step = self._steps.get(program)
        if step is None or program != TRAIN:
            self._weights.settle_kept()
        values = {
            name: self._state[name] if carried else self._laid_out(_own(feeds[name]))
            for name, carried in self._inputs[program]
            if not carried or name in self._state
        }
        if step is not None:
            outputs = step(values, self._weights)
        else:
            precision = self._precision if program.startswith(TRAIN) else torch.float32
            with multiplying_in(precision, self._device.type):
                outputs, _ = self._functions[program].function(values)
        scalars: dict[str, float] = {}
        for name, value in outputs.items():
            if name.startswith(_NEXT):
                self._state[name[len(_NEXT) :]] = value
            elif value.dim() == 0:
                scalars[name] = float(value)
        return scalars

    def forget(self, program: str) -> None:
        """As :meth:`edge.runtimes.base.Session.forget`: nothing is loaded here."""

    def holds_kept(self, name: str) -> bool:
        """As :meth:`edge.runtimes.base.Session.holds_kept`: masks are values here."""
        return False

    def read(self, name: str) -> np.ndarray:
        """As :meth:`edge.runtimes.base.Session.read`."""
        if name not in self._carried:
            raise DeviceRefused(f"no program carries a tensor '{name}'; order others")
        if name.endswith(MOMENTUM):
            self._weights.settle(name.removesuffix(MOMENTUM))
        value: np.ndarray = self._weights.weight(name).detach().cpu().contiguous().numpy()
        return value

    def read_into(self, name: str, out: np.ndarray) -> None:
        """As :meth:`read`, into an array in row order of the tensor's shape and dtype."""
        if name in self._weights.kept and self._device.type == "cpu":
            self._weights.weight(name, torch.from_numpy(out))
        else:
            np.copyto(out, self.read(name))

    def _laid_out(self, value: Tensor) -> Tensor:
        layout = self._layout if value.dim() == 4 else torch.contiguous_format
        return value.to(self._device, memory_format=layout)


def _own(value: np.ndarray) -> Tensor:
    """A copy in row order and in memory that torch allocated: both decide the last bits of a product (seen)."""
    return torch.tensor(np.asarray(value, order="C"))


def _sums(functions: Mapping[str, ProgramFunction], spec: StepSpec) -> list[TensorSpec]:
    """The sums that ``eval`` gives of a task, found by running it once on two examples of zeros."""
    if not spec.task or "eval" not in functions:
        return []
    zeros = {
        i.spec.name: torch.from_numpy(np.zeros(concrete_shape(i.spec, 2), i.spec.dtype))
        for i in functions["eval"].inputs
    }
    outputs, _ = functions["eval"].function(zeros)
    return [TensorSpec(name, (), "float32", "metric") for name in outputs if name.startswith(SUM)]


def _manifest(functions: Mapping[str, ProgramFunction], spec: StepSpec, classes: tuple[str, ...]) -> ArtifactManifest:
    """Programs and tensors as an export writes them; what only a file could tell (cost, self-test, parity) is zero."""
    known = {item.spec.name: item.spec for function in functions.values() for item in function.inputs}
    reported = (*objective_of(spec).reported(spec, None), *_sums(functions, spec))
    programs = tuple(
        Program(
            name=name,
            file="",
            inputs=tuple(item.spec.name for item in function.inputs),
            outputs=(
                *(GraphOutput(report.name, report.name) for report in reported),
                *(GraphOutput(f"{_NEXT}{moved}", moved) for moved in function.moved),
            ),
        )
        for name, function in functions.items()
    )
    return ArtifactManifest(
        format="none",
        runtime=RUNTIME,
        minimum_runtime_version=str(torch.__version__),
        programs=programs,
        tensors=(*known.values(), *reported),
        files=(),
        batch=spec.batch,
        loss=spec.loss,
        optimizer=spec.optimizer.kind,
        norm=spec.norm,
        input=spec.input,
        classes=classes,
        cost=Cost(0, 0, 0, 0, 0, 0, spec.batch),
        self_test=SelfTest("splitmix64-uniform/1", 0, spec.batch, {}, (), 0.0),
        parity=Parity(0.0, 0.0, 0.0, 0.0, 0),
        build={},
        export_key="",
        task=spec.task,
        symbols=symbols_of(spec),
    )
