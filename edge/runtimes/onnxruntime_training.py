"""ONNX Runtime Training 1.19.2: its training model gives loss and gradients, and our rule moves the values in place.

Parameters are the runtime's own tensors, seen through NumPy where they lie: its ``data`` and ``grad`` would copy each.
Everything is asked for by name: the runtime lists parameters in alphabetical order and keeps buffers in another one.
Evaluation and statistics are plain graphs over the same tensors, opened when they first run.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Mapping
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
from edge.host_update import HostUpdate
from edge.native.update_rule import FILE_NAME, UpdateRule
from edge.runtimes.state_values import load_value
from edge.startup_pages import release_startup_pages

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


class OrtTrainingSession:
    """Implements :class:`edge.runtimes.base.Session`; a plain graph is loaded when it first runs."""

    def __init__(
        self, programs: Iterable[Program], tensors: Iterable[TensorSpec], files: Mapping[str, Path], *, threads: int
    ) -> None:
        self._programs = {program.name: program for program in programs}
        self._specs = {spec.name: spec for spec in tensors}
        self._files = files
        self._options = _options(threads)
        self._plain: dict[str, Any] = {}
        self._update = HostUpdate(UpdateRule.from_bytes(files[FILE_NAME].read_bytes()))
        self._module = self._load_module()
        self._user_inputs = self._module.input_names()
        self._user_outputs = self._module.output_names()
        self._state: dict[str, np.ndarray] = {}
        self._gradients: dict[str, np.ndarray] = {}
        self._masks: dict[str, np.ndarray] = {}
        trained = {o.tensor for o in self._programs["train"].outputs if o.name.startswith(GRADIENT)}
        for name, spec in self._specs.items():
            if spec.role == "grad_mask":
                self._masks[name.removesuffix(MASK)] = np.ones(concrete_shape(spec), np.bool_)
            elif is_carried(spec):
                held = name in self._checkpoint.parameters
                self._state[name] = self._parameter(name) if held else np.zeros(concrete_shape(spec), spec.dtype)
            if name in trained:
                self._gradients[name] = self._gradient(name)
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
        if program == "train":
            hyper = {n: float(feeds[n]) for n in self._programs[program].inputs if self._specs[n].role == "hyper"}
            self._update.apply(self._gradients, self._state, hyper, self._masks)
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
            if program != "train":
                return self._run_plain(described, given)
            self._module.lazy_reset_grad()
            found = self._module(*(given[name].reshape(self._shape(name, given)) for name in self._user_inputs))
        except (DeviceRefused, KeyError):
            raise
        except Exception as error:  # the runtime raises pybind classes without a common base of its own
            raise DeviceRefused(
                f"program '{program}' failed in onnxruntime-training: {error}; lower the batch size"
            ) from error
        values = dict(zip(self._user_outputs, found if isinstance(found, tuple) else (found,), strict=True))
        named = {f"{GRADIENT}{name}": gradient for name, gradient in self._gradients.items()}
        return {o.name: (values | named)[o.name] for o in described.outputs}

    def holds_kept(self, name: str) -> bool:
        """As :meth:`edge.runtimes.base.Session.holds_kept`: masks are values here."""
        return False

    def read(self, name: str) -> np.ndarray:
        """As :meth:`edge.runtimes.base.Session.read`."""
        if name.endswith(MASK) and name.removesuffix(MASK) in self._masks:
            return self._masks[name.removesuffix(MASK)]
        mask = self._masks.get(name.removesuffix(MASK)) if name.endswith(MASK) else None
        if mask is not None:
            return mask
        if name not in self._state:
            known = ", ".join(list(self._state)[:5])
            raise DeviceRefused(f"no program carries a tensor '{name}', they carry {known}, ...; order others")
        return self._state[name]

    def stepped_by_model(self, lr: float) -> dict[str, np.ndarray]:
        """Parameters after a step of the artifact's optimizer model from the gradients at hand: the exporter's check.

        Training itself does not use it: no API of the runtime reads or sets an optimizer's slots.
        """
        optimizer = api.Optimizer(str(self._files[OPTIMIZER_MODEL]), self._module)
        optimizer.set_learning_rate(lr)
        optimizer.step()
        return {f"next:{name}": np.array(self._state[name]) for name in self._gradients}

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
        try:
            return ort.InferenceSession(str(path), self._options, providers=["CPUExecutionProvider"])
        except Exception as error:  # as in outputs()
            raise DeviceRefused(f"onnxruntime-training {version()} cannot load {program.file}: {error}") from error

    def _load_module(self) -> Any:
        try:
            self._checkpoint = api.CheckpointState.load_checkpoint(str(self._files[CHECKPOINT]))
            module = api.Module(
                str(self._files[TRAINING_MODEL]), self._checkpoint, device="cpu", session_options=self._options
            )
            # The checkpoint only names its parameters; they exist once a buffer of their size has been copied in.
            zeros = np.zeros(module.get_parameters_size(trainable_only=False), np.float32)
            module.copy_buffer_to_parameters(ort.OrtValue.ortvalue_from_numpy(zeros)._ortvalue, trainable_only=False)
        except Exception as error:  # as in outputs()
            raise DeviceRefused(f"onnxruntime-training {version()} cannot load {TRAINING_MODEL}: {error}") from error
        return module

    def _parameter(self, name: str) -> np.ndarray:
        return _view(self._checkpoint.parameters[name]._parameter.data, self._specs[name])

    def _gradient(self, name: str) -> np.ndarray:
        if name not in self._checkpoint.parameters or not self._checkpoint.parameters[name].requires_grad:
            return np.zeros(concrete_shape(self._specs[name]), np.float32)  # no influence on the loss
        return _view(self._checkpoint.parameters[name]._parameter.grad, self._specs[name])


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
