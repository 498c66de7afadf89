"""ONNX Runtime Training 1.19.2: its training model gives loss and gradients, and our rule moves the values in place.

Parameters are the runtime's own tensors, seen through NumPy where they lie: its ``data`` and ``grad`` would copy each.
Everything is asked for by name: the runtime lists parameters in alphabetical order and keeps buffers in another one.
Evaluation and statistics are plain graphs over the same tensors, opened when they first run.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime as ort

from edge.contracts.errors import ArtifactCorrupt, DeviceRefused, PlanError
from edge.contracts.manifest import ArtifactManifest, Program
from edge.contracts.tensors import TensorSpec, concrete_shape, is_carried
from edge.runtimes.graph_file import check_is_whole
from edge.runtimes.host_update import HostUpdate
from edge.runtimes.leading_parts import FILE_NAME as PARTS_NAME
from edge.runtimes.leading_parts import leading, moved_parts, parts_from_bytes
from edge.runtimes.state_values import load_value
from edge.runtimes.update_rule import FILE_NAME, UpdateRule
from edge.system.startup_pages import release_startup_pages

NAME = "onnxruntime_training"
TRAINING_MODEL, CHECKPOINT, OPTIMIZER_MODEL = "training_model.onnx", "checkpoint", "optimizer_model.onnx"
GRADIENT = "grad:"
"""Prefix of the outputs that the update rule reads."""
MASK = "#mask"


def _training_api() -> Any:
    """``onnxruntime.training.api`` without its parent package, whose import needs torch.

    Raises:
        ImportError: the onnxruntime installed here has no training.
    """
    name = "onnxruntime.training"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(Path(ort.__file__).parent / "training")]
        sys.modules[name] = package
    try:
        return import_module(f"{name}.api")
    except ImportError as error:
        del sys.modules[name]
        raise ImportError("the onnxruntime here has no training; `make runtime-onnxruntime-training`") from error


api = _training_api()


def version() -> str:
    """Release of ONNX Runtime Training installed here."""
    try:
        return distribution_version("onnxruntime-training-cpu")
    except PackageNotFoundError:
        return str(ort.__version__)


def load(manifest: ArtifactManifest, files: Mapping[str, Path], *, threads: int) -> OrtTrainingSession:
    """As :meth:`edge.runtimes.base.Runtime.load`."""
    if version() != manifest.minimum_runtime_version:
        # 1.19.2 is the last release with training; its models name operators that no other one promises.
        raise DeviceRefused(
            f"artifact is for onnxruntime-training {manifest.minimum_runtime_version}, {version()} is installed; "
            "install that release on the device"
        )
    return OrtTrainingSession(manifest.programs, manifest.tensors, files, threads=threads)


@dataclass(frozen=True)
class _TrainingProgram:
    """A training model that is loaded; all of an artifact's share one checkpoint, and so the values of parameters.

    Attributes:
        gradients: its own buffers, by parameter.
    """

    module: Any
    inputs: list[str]
    outputs: list[str]
    gradients: dict[str, np.ndarray]


class OrtTrainingSession:
    """Implements :class:`edge.runtimes.base.Session`; what is not ``train`` is loaded when it first runs."""

    def __init__(
        self, programs: Iterable[Program], tensors: Iterable[TensorSpec], files: Mapping[str, Path], *, threads: int
    ) -> None:
        self._programs = {program.name: program for program in programs}
        self._specs = {spec.name: spec for spec in tensors}
        self._files = files
        self._options = _options(threads)
        self._plain: dict[str, Any] = {}
        self._update = HostUpdate(UpdateRule.from_bytes(files[FILE_NAME].read_bytes()))
        self._parts = parts_from_bytes(files[PARTS_NAME].read_bytes()) if PARTS_NAME in files else {}
        self._trains = {
            program.name: [o.tensor for o in program.outputs if o.name.startswith(GRADIENT)]
            for program in self._programs.values()
        }
        self._checkpoint, module = self._load_checkpoint()
        self._state: dict[str, np.ndarray] = {}
        self._masks: dict[str, np.ndarray] = {}
        for name, spec in self._specs.items():
            if spec.role == "grad_mask":
                self._masks[name.removesuffix(MASK)] = np.ones(concrete_shape(spec), np.bool_)
            elif is_carried(spec):
                held = name in self._checkpoint.parameters
                self._state[name] = self._parameter(name) if held else np.zeros(concrete_shape(spec), spec.dtype)
        self._training = {"train": self._described("train", module, {})}
        release_startup_pages()

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """As :meth:`edge.runtimes.base.Session.load_state`."""
        for name, target in (self._state | {f"{n}{MASK}": m for n, m in self._masks.items()}).items():
            load_value(self._specs[name], target, tensors)

    def run(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, float]:
        """As :meth:`edge.runtimes.base.Session.run`."""
        values = self.outputs(program, feeds)
        for name, value in values.items():
            if name.startswith("next:"):
                np.copyto(self._state[name.removeprefix("next:")], value)
        if self._trains[program]:
            hyper = {n: float(feeds[n]) for n in self._programs[program].inputs if self._specs[n].role == "hyper"}
            sizes, gradients = self._parts.get(program, {}), self._training[program].gradients
            narrow = {n: np.ascontiguousarray(leading(n, g, sizes)) for n, g in gradients.items()}
            masks = {n: leading(n, m, sizes) for n, m in self._masks.items()}
            with moved_parts(self._state, narrow, sizes) as state:
                self._update.apply(narrow, state, hyper, masks)
        return {name: float(value) for name, value in values.items() if value.ndim == 0 and name in self._specs}

    def outputs(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the program itself gives, by output name, before any of it moves the state; gradients are views."""
        if program not in self._programs:
            raise PlanError(
                f"artifact has no program '{program}', it has {', '.join(self._programs)}; export it with one"
            )
        described = self._programs[program]
        given = {n: np.ascontiguousarray(feeds[n]) for n in described.inputs if n not in self._state and n in feeds}
        try:
            if not self._trains[program]:
                return self._run_plain(described, given)
            step = self._training_program(program)
            step.module.lazy_reset_grad()
            found = step.module(*(given[name].reshape(self._shape(name, given)) for name in step.inputs))
        except (DeviceRefused, KeyError):
            raise
        except Exception as error:  # the runtime raises pybind classes without a common base of its own
            raise DeviceRefused(
                f"program '{program}' failed in onnxruntime-training: {error}; lower the batch size"
            ) from error
        values = dict(zip(step.outputs, found if isinstance(found, tuple) else (found,), strict=True))
        sizes = self._parts.get(program, {})
        named = {f"{GRADIENT}{name}": leading(name, gradient, sizes) for name, gradient in step.gradients.items()}
        return {o.name: (values | named)[o.name] for o in described.outputs}

    def forget(self, program: str) -> None:
        """As :meth:`edge.runtimes.base.Session.forget`."""
        self._plain.pop(program, None)

    def holds_kept(self, name: str) -> bool:
        """As :meth:`edge.runtimes.base.Session.holds_kept`: masks are values here."""
        return False

    def read(self, name: str) -> np.ndarray:
        """As :meth:`edge.runtimes.base.Session.read`."""
        if name.endswith(MASK) and name.removesuffix(MASK) in self._masks:
            return self._masks[name.removesuffix(MASK)]
        if name not in self._state:
            known = ", ".join(list(self._state)[:5])
            raise DeviceRefused(f"no program carries a tensor '{name}', they carry {known}, ...; order others")
        return self._state[name]

    def stepped_by_model(self, lr: float) -> dict[str, np.ndarray]:
        """Parameters after a step of the artifact's optimizer model from the gradients at hand: the exporter's check.

        Training itself does not use it: no API of the runtime reads or sets an optimizer's slots.
        """
        step = self._training["train"]
        optimizer = api.Optimizer(str(self._files[OPTIMIZER_MODEL]), step.module)
        optimizer.set_learning_rate(lr)
        optimizer.step()
        return {f"next:{name}": np.array(self._state[name]) for name in step.gradients}

    def _shape(self, name: str, given: Mapping[str, np.ndarray]) -> tuple[int, ...]:
        shape = self._specs[name].shape
        return given[name].shape if shape else ()

    def _run_plain(self, program: Program, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        session = self._plain.get(program.name)
        if session is None:
            session = self._plain[program.name] = self._load_plain(program)
        wanted = {value.name for value in session.get_inputs()}
        feeds = {n: self._state[n] if n in self._state else given[n] for n in program.inputs if n in wanted}
        names = [output.name for output in program.outputs]
        return dict(zip(names, session.run(names, feeds), strict=True))

    def _load_plain(self, program: Program) -> Any:
        path = self._files[program.file]
        check_is_whole(path, program.file)
        try:
            return ort.InferenceSession(str(path), self._options, providers=["CPUExecutionProvider"])
        except Exception as error:  # as in outputs()
            raise DeviceRefused(f"onnxruntime-training {version()} cannot load {program.file}: {error}") from error

    def _load_checkpoint(self) -> tuple[Any, Any]:
        """The parameters, all zero, and the module of ``train`` that made room for them."""
        try:
            checkpoint = api.CheckpointState.load_checkpoint(str(self._files[CHECKPOINT]))
            module = self._load_module(TRAINING_MODEL, checkpoint)
            # The checkpoint only names its parameters; they exist once a buffer of their size has been copied in.
            zeros = np.zeros(module.get_parameters_size(trainable_only=False), np.float32)
            module.copy_buffer_to_parameters(ort.OrtValue.ortvalue_from_numpy(zeros)._ortvalue, trainable_only=False)
        except DeviceRefused:
            raise
        except Exception as error:  # as in outputs()
            raise DeviceRefused(f"onnxruntime-training {version()} cannot load {CHECKPOINT}: {error}") from error
        return checkpoint, module

    def _load_module(self, file: str, checkpoint: Any) -> Any:
        check_is_whole(self._files[file], file)
        try:
            return api.Module(str(self._files[file]), checkpoint, device="cpu", session_options=self._options)
        except Exception as error:  # as in outputs()
            raise DeviceRefused(f"onnxruntime-training {version()} cannot load {file}: {error}") from error

    def _training_program(self, name: str) -> _TrainingProgram:
        if name not in self._training:
            # A parameter shows the buffer of the module that was loaded last among those that move it.
            others = {n: self._gradient_address(n) for n in self._trains[name]}
            module = self._load_module(self._programs[name].file, self._checkpoint)
            self._training[name] = self._described(name, module, others)
        return self._training[name]

    def _described(self, name: str, module: Any, others: Mapping[str, int]) -> _TrainingProgram:
        gradients = {n: self._gradient(n, others.get(n, 0)) for n in self._trains[name]}
        return _TrainingProgram(module, module.input_names(), module.output_names(), gradients)

    def _parameter(self, name: str) -> np.ndarray:
        return _view(self._checkpoint.parameters[name]._parameter.data, self._specs[name])

    def _gradient(self, name: str, other: int) -> np.ndarray:
        """The buffer of the module that was loaded last, unless it is ``other``, an earlier module's."""
        if self._gradient_address(name) in (0, other):
            return np.zeros(concrete_shape(self._specs[name]), np.float32)  # no influence on the loss
        return _view(self._checkpoint.parameters[name]._parameter.grad, self._specs[name])

    def _gradient_address(self, name: str) -> int:
        if name not in self._checkpoint.parameters or not self._checkpoint.parameters[name].requires_grad:
            return 0
        return int(self._checkpoint.parameters[name]._parameter.grad.data_ptr())


def _view(value: Any, spec: TensorSpec) -> np.ndarray:
    """The runtime's tensor where it lies; ``value`` is kept as long as the view."""
    shape, count = concrete_shape(spec), spec.byte_count()
    if tuple(value.shape()) != shape:
        raise ArtifactCorrupt(f"checkpoint: '{spec.name}' is {value.shape()}, the artifact says {list(shape)}")
    memory = (ctypes.c_char * count).from_address(value.data_ptr())
    memory._owner = value  # type: ignore[attr-defined]
    return np.frombuffer(memoryview(memory), np.dtype(spec.dtype)).reshape(shape)


def _options(threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    return options
