"""Stock ONNX Runtime: a training step is an ordinary graph whose outputs are the next step's inputs.

A state tensor that a program writes has two buffers: a step reads one and writes the other, then they swap. Binding an
output onto its own input buffer silently corrupts training where the update is written before the backward pass has
read the old weight (measured), so only what every program says may be written in place has one buffer. Memory patterns
stay off: 50 MB less on ResNet-20 for at most 3% of time (measured). So does the runtime's own plan of which value takes
whose memory: its arena gives freed memory out again anyway, in pieces that fit better (measured, batch 32: 35 MB less
on ResNet-18, 9 on a depthwise net, 8 on Conv-2, 0 on the MLP, at the same speed). Equal operations are not merged: what
a graph has twice is computed twice on purpose, so that it need not be kept.

Tensors of role ``mapped`` are views of the order's own file: the runtime reads them there, and nothing is copied.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnxruntime as ort

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest, Program
from edge.contracts.tensors import GRADIENT_SUM, TensorSpec, concrete_shape, is_carried
from edge.runtimes.graph_file import check_is_whole
from edge.runtimes.mapped_base import PageRelease, mapped_values
from edge.runtimes.mapped_rows import row_values
from edge.runtimes.onnxruntime.file_order import ask_for_file_order
from edge.runtimes.state_values import load_value
from edge.runtimes.weights_file import WeightsFile
from edge.system.startup_pages import release_startup_pages

NAME = "onnxruntime"
_ALIGNMENT_BYTES = 64


def version() -> str:
    """Release of ONNX Runtime installed here."""
    return str(ort.__version__)


def load(manifest: ArtifactManifest, files: Mapping[str, Path], *, threads: int) -> OnnxSession:
    """As :meth:`edge.runtimes.base.Runtime.load`."""
    require_release(manifest.minimum_runtime_version)
    return OnnxSession(manifest, files, threads=threads)


def require_release(minimum: str) -> None:
    """Check that ONNX Runtime is of release ``minimum`` or newer.

    Raises:
        DeviceRefused: it is older.
    """
    if _release(version()) < _release(minimum):
        raise DeviceRefused(
            f"artifact needs onnxruntime {minimum} or newer, {version()} is installed; upgrade it on the device"
        )


class OnnxSession:
    """Implements :class:`edge.runtimes.base.Session`; a program's graph is loaded when it first runs."""

    def __init__(self, manifest: ArtifactManifest, files: Mapping[str, Path], *, threads: int) -> None:
        self._manifest = manifest
        self._files = files
        self._threads = threads
        self._programs: dict[str, _LoadedProgram] = {}
        self._carried: dict[str, TensorSpec] = {}
        twice: set[str] = set()
        specs = {spec.name: spec for spec in manifest.tensors}
        for program in manifest.programs:
            outputs = {o.tensor for o in program.outputs if is_carried(specs[o.tensor])}
            self._carried |= {n: specs[n] for n in (*program.inputs, *sorted(outputs)) if is_carried(specs[n])}
            twice |= outputs.difference(program.in_place or ())
        self._buffers = {name: _buffers(spec, is_twice=name in twice) for name, spec in self._carried.items()}
        self._present = dict.fromkeys(self._carried, 0)
        self._mapped = {spec.name: spec for spec in manifest.tensors if spec.role == "mapped"}
        self._base: dict[str, ort.OrtValue] = {}
        self._tables: Mapping[str, np.ndarray] = {}
        self._pages: PageRelease | None = None

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """As :meth:`edge.runtimes.base.Session.load_state`."""
        for name, spec in self._carried.items():
            load_value(spec, self._buffers[name][self._present[name]].array, tensors)
        if self._mapped:
            self._map(tensors)

    def run(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, float]:
        """As :meth:`edge.runtimes.base.Session.run`."""
        loaded = self._loaded(program)
        parity = tuple([self._present[name] for name in loaded.carried])
        binding = loaded.bindings.get(parity)
        if binding is None:
            binding = loaded.bindings[parity] = self._bind(loaded, parity)
        self._execute(loaded, binding, feeds)
        for name in loaded.written:
            self._present[name] ^= 1
        for name in loaded.consumed:
            self.read(name).fill(0)
        return {name: float(value.array.item()) for name, value in loaded.scalars.items()}

    def compute(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """As :meth:`edge.runtimes.base.ComputesFeatures.compute`."""
        loaded = self._loaded(program)
        binding = self._bind(loaded, tuple([self._present[name] for name in loaded.carried]))
        for output in loaded.program.outputs:
            binding.bind_output(output.name)
        self._execute(loaded, binding, feeds)
        values = binding.copy_outputs_to_cpu()
        return {output.tensor: value for output, value in zip(loaded.program.outputs, values, strict=True)}

    def forget(self, program: str) -> None:
        """As :meth:`edge.runtimes.base.Session.forget`."""
        self._programs.pop(program, None)

    def holds_kept(self, name: str) -> bool:
        """As :meth:`edge.runtimes.base.Session.holds_kept`: masks are values here."""
        return False

    def read(self, name: str) -> np.ndarray:
        """As :meth:`edge.runtimes.base.Session.read`."""
        if name not in self._buffers:
            known = ", ".join(list(self._buffers)[:5])
            raise DeviceRefused(f"no program carries a tensor '{name}', they carry {known}, ...; order others")
        return self._buffers[name][self._present[name]].array

    def _loaded(self, program: str) -> _LoadedProgram:
        if program not in self._programs:
            self._programs[program] = self._load(self._manifest.program(program))
        return self._programs[program]

    def _execute(self, loaded: _LoadedProgram, binding: ort.IOBinding, feeds: Mapping[str, np.ndarray]) -> None:
        for name in loaded.fed:
            binding.bind_cpu_input(name, feeds[name])
        for name, rows in row_values(loaded.rows, self._tables, feeds).items():
            binding.bind_cpu_input(name, rows)
        try:
            with self._pages.running() if self._pages else nullcontext():
                loaded.session.run_with_iobinding(binding)
        except Exception as error:  # the runtime raises pybind classes without a common base of its own
            raise DeviceRefused(
                f"program '{loaded.program.name}' failed in onnxruntime: {error}; lower the batch size"
            ) from error

    def _load(self, program: Program) -> _LoadedProgram:
        options = ort.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False
        options.enable_mem_reuse = False
        options.log_severity_level = 3
        if program.in_file_order is True:
            ask_for_file_order(options)
        path = self._files[program.file]
        check_is_whole(path, program.file)
        release_startup_pages()  # what importing needed, before what a session's start needs comes on top
        try:
            session = ort.InferenceSession(
                str(path),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["CommonSubexpressionElimination"],
            )
        except Exception as error:  # as in run()
            raise DeviceRefused(f"onnxruntime {version()} cannot load {program.file}: {error}") from error
        release_startup_pages()
        return _LoadedProgram(program, self._manifest, session)

    def _map(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Take the base's tensors as views of ``tensors``."""
        values = mapped_values(self._mapped, tensors)
        self._base = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in values.items()}
        self._tables = tensors
        for loaded in self._programs.values():  # what they are bound to is another file, perhaps a deleted one
            loaded.bindings.clear()
        if self._pages:
            self._pages.close()
        self._pages = PageRelease(tensors.release) if isinstance(tensors, WeightsFile) else None

    def _bind(self, loaded: _LoadedProgram, parity: tuple[int, ...]) -> ort.IOBinding:
        binding = loaded.session.io_binding()
        for name, present in zip(loaded.carried, parity, strict=True):
            if name in loaded.read:
                binding.bind_ortvalue_input(name, self._buffers[name][present].value)
            if name in loaded.written:
                written = loaded.written[name]
                binding.bind_ortvalue_output(written, self._buffers[name][present ^ 1].shaped(loaded.shapes[written]))
        for name in loaded.mapped:
            binding.bind_ortvalue_input(name, self._base[name])
        for output in loaded.program.outputs:
            if output.tensor in loaded.scalars:
                binding.bind_ortvalue_output(output.name, loaded.scalars[output.tensor].value)
        return binding


class _LoadedProgram:
    """A graph with its bindings, one for every combination of present buffers (two in the ordinary case)."""

    def __init__(self, program: Program, manifest: ArtifactManifest, session: ort.InferenceSession) -> None:
        specs = {spec.name: spec for spec in manifest.tensors}
        # The exporter may drop inputs a program does not use; binding those would raise.
        accepted = {value.name for value in session.get_inputs()}
        self.shapes = {value.name: tuple(value.shape) for value in session.get_outputs()}
        self.program = program
        self.session = session
        self.bindings: dict[tuple[int, ...], ort.IOBinding] = {}
        self.read = frozenset(n for n in program.inputs if is_carried(specs[n]) and n in accepted)
        self.mapped = tuple(n for n in program.inputs if specs[n].role == "mapped" and n in accepted)
        self.rows = tuple(specs[n] for n in program.inputs if specs[n].role == "rows" and n in accepted)
        given = {n for n in program.inputs if is_carried(specs[n]) or specs[n].role in ("mapped", "rows")}
        self.fed = tuple(n for n in program.inputs if n in accepted and n not in given)
        self.written = {o.tensor: o.name for o in program.outputs if is_carried(specs[o.tensor])}
        self.consumed = tuple(n for n in self.read if n.endswith(GRADIENT_SUM) and n not in self.written)
        self.carried = tuple(sorted(self.read | self.written.keys()))
        self.scalars = {
            o.tensor: _OwnedValue(specs[o.tensor])
            for o in program.outputs
            if not is_carried(specs[o.tensor]) and specs[o.tensor].shape in ((), (1,))
        }


def _buffers(spec: TensorSpec, *, is_twice: bool) -> tuple[_OwnedValue, ...]:
    """Two buffers of what a program does not write in place; the same one twice of all else.

    A sum of gradients is written in place, too: nothing but its own addition reads it.
    """
    first = _OwnedValue(spec)
    return (first, _OwnedValue(spec) if is_twice and not spec.name.endswith(GRADIENT_SUM) else first)


class _OwnedValue:
    """A buffer of ours that the runtime reads and writes in place: no copy between NumPy and the runtime."""

    def __init__(self, spec: TensorSpec) -> None:
        count = spec.element_count()
        raw = np.empty(spec.byte_count() + _ALIGNMENT_BYTES, np.uint8)
        start = -raw.ctypes.data % _ALIGNMENT_BYTES
        self.array = raw[start : start + spec.byte_count()].view(spec.dtype)[:count].reshape(concrete_shape(spec))
        self.value = ort.OrtValue.ortvalue_from_numpy(self.array)
        self._views: dict[tuple[int, ...], ort.OrtValue] = {}

    def shaped(self, shape: tuple[int, ...]) -> ort.OrtValue:
        """The buffer as a graph gives it, which may be in blocks."""
        if shape == self.array.shape:
            return self.value
        if shape not in self._views:
            self._views[shape] = ort.OrtValue.ortvalue_from_numpy(self.array.reshape(shape))
        return self._views[shape]


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdigit())
