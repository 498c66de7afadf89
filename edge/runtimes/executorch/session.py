"""ExecuTorch: a program gives the loss and the gradients, and the optimizer moves the values in place.

No torch: the wheel's C++ libraries are called through :mod:`.library`; its Python part, which imports torch, is not
touched. State tensors are NumPy arrays that programs read where they lie; a program's other values live in one arena
planned at export. The kernels of ``native/`` share their work out over as many threads as are ordered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib.metadata import version as distribution_version
from pathlib import Path

import numpy as np

from edge.contracts.errors import ArtifactCorrupt, DeviceRefused, PlanError
from edge.contracts.manifest import ArtifactManifest, GraphOutput, Program
from edge.contracts.tensors import GRADIENT_SUM, TensorSpec, concrete_shape, is_carried
from edge.runtimes.executorch.build import session_library, trainer_program
from edge.runtimes.executorch.kept_entries import KeptEntries, kept_entries
from edge.runtimes.executorch.library import NativeProgram, NativeThreads, crossovers, library
from edge.runtimes.executorch.native_update import NativeUpdate
from edge.runtimes.leading_parts import FILE_NAME as PARTS_NAME
from edge.runtimes.leading_parts import moved_parts, parts_from_bytes
from edge.runtimes.micro_batches import ACCUMULATE, gradient_sum
from edge.runtimes.state_values import load_value
from edge.runtimes.update_rule import FILE_NAME, RULE_ROLES, UpdateRule
from edge.system.startup_pages import release_startup_pages

NAME = "executorch"
GRADIENT = "grad:"
"""Prefix of the outputs that the update rule reads."""


def version() -> str:
    """Release of the executorch wheel installed here; the session library is loaded, and built if need be."""
    library()
    return distribution_version("executorch")


def native_trainer() -> str:
    """Path of the trainer without Python; empty where there is none for this environment."""
    found = trainer_program(session_library())
    return "" if found is None else str(found)


def sparse_below() -> dict[str, float]:
    """Density below which a layer's step is faster with its kept weights alone, by kind of layer, measured now."""
    return crossovers()


def load(manifest: ArtifactManifest, files: Mapping[str, Path], *, threads: int) -> ExecutorchSession:
    """As :meth:`edge.runtimes.base.Runtime.load`.

    Raises:
        ArtifactCorrupt: a file is not the one the manifest names; the runtime's own checks let a few flipped bits in a
            hundred pass, and some of those end the process.
    """
    if version() != manifest.minimum_runtime_version:
        # Programs of one release are not promised to load in another.
        raise DeviceRefused(
            f"artifact is for executorch {manifest.minimum_runtime_version}, {version()} is installed; "
            "install that release on the device"
        )
    for file in manifest.files:
        found = hashlib.sha256(files[file.name].read_bytes()).hexdigest()
        if found != file.sha256:
            raise ArtifactCorrupt(
                f"artifact file {file.name} has digest {found[:12]}, the manifest says {file.sha256[:12]}; "
                "fetch it again"
            )
    return ExecutorchSession(manifest.programs, manifest.tensors, files, batch=manifest.batch, threads=threads)


class ExecutorchSession:
    """Implements :class:`edge.runtimes.base.Session`; the program that runs is the only one loaded.

    Each has an arena of its own, and whoever goes on to another program (``train``, then ``stats``) would hold both.
    Loading one takes milliseconds.
    """

    def __init__(
        self,
        programs: Iterable[Program],
        tensors: Iterable[TensorSpec],
        files: Mapping[str, Path],
        *,
        batch: int,
        threads: int = 1,
    ) -> None:
        """Args: batch: the largest batch the programs are planned for."""
        self._threads = NativeThreads(threads)
        self._programs = {program.name: program for program in programs}
        self._specs = {spec.name: spec for spec in tensors}
        self._files = files
        self._batch = batch
        self._loaded: tuple[str, NativeProgram] | None = None
        self._rule = NativeUpdate(UpdateRule.from_bytes(files[FILE_NAME].read_bytes()), self._threads)
        self._parts = parts_from_bytes(files[PARTS_NAME].read_bytes()) if PARTS_NAME in files else {}
        used = {n for p in self._programs.values() for n in (*p.inputs, *(o.tensor for o in p.outputs))}
        self._kept = kept_entries(self._specs)
        self._state = {
            name: np.zeros(spec.capacity or concrete_shape(spec), spec.dtype)
            for name, spec in self._specs.items()
            if is_carried(spec) and name in used and not (spec.role == "grad_mask" and spec.capacity)
        }

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """As :meth:`edge.runtimes.base.Session.load_state`."""
        for entries in self._kept.values():
            entries.take_mask(tensors)
        for name, target in self._state.items():
            if self._specs[name].capacity:
                self._entries(name).take_values(self._specs[name], target, tensors)
            else:
                load_value(self._specs[name], target, tensors)

    def run(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, float]:
        """As :meth:`edge.runtimes.base.Session.run`."""
        if program in self._programs and self._programs[program].file == FILE_NAME:
            self._move_by_sums(self._programs[program], feeds)
            return {}
        values = self.outputs(program, feeds)
        gradients = {}
        for name, value in values.items():
            if name.startswith(GRADIENT):
                gradients[name.removeprefix(GRADIENT)] = value
            elif name.startswith("next:"):
                np.copyto(self._state[name.removeprefix("next:")], value)
        scalars = {name: float(value) for name, value in values.items() if value.ndim == 0 and name in self._specs}
        if program == ACCUMULATE:
            for name, gradient in gradients.items():
                self._state[gradient_sum(name)] += gradient
        elif gradients:
            hyper = self._hyper(self._programs[program], feeds)
            with moved_parts(self._state, gradients, self._parts.get(program, {})) as state:
                self._rule.apply(gradients, state, hyper)
        return scalars

    def _move_by_sums(self, program: Program, feeds: Mapping[str, np.ndarray]) -> None:
        """The update rule alone, on the gradients of all micro-batches."""
        names = [name.removesuffix(GRADIENT_SUM) for name in program.inputs if name.endswith(GRADIENT_SUM)]
        gradients = {name: self._state[gradient_sum(name)] for name in names}
        self._rule.apply(gradients, self._state, self._hyper(program, feeds))
        for gradient in gradients.values():
            gradient.fill(0)

    def _hyper(self, program: Program, feeds: Mapping[str, np.ndarray]) -> dict[str, float]:
        return {name: float(feeds[name]) for name in program.inputs if self._specs[name].role == "hyper"}

    def outputs(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the program itself gives, by output name, before any of it moves the state; views into its arena.

        The gradient of a tensor held as kept entries is that of its entries, [capacity].
        """
        if program not in self._programs:
            raise PlanError(
                f"artifact has no program '{program}', it has {', '.join(self._programs)}; export it with one"
            )
        described = self._programs[program]
        native = self._open(program)
        inputs, batch = [], 1
        for name in described.inputs:
            spec = self._specs[name]
            if spec.role in RULE_ROLES:
                continue
            if spec.capacity:
                entries = self._entries(name)
                inputs += [self._state[name], entries.starts, entries.columns]
                continue
            value = self._state[name] if name in self._state else feeds[name]
            if spec.shape[:1] == ("batch",):
                batch = len(value)
                if not 0 < batch <= self._batch:
                    raise DeviceRefused(
                        f"program '{program}' takes batches of 1 to {self._batch}, this one has {batch}; "
                        "order a smaller batch"
                    )
            if value.shape != concrete_shape(spec, batch) or value.dtype != spec.dtype:
                raise DeviceRefused(
                    f"program '{program}': input '{name}' is {value.dtype}{list(value.shape)}, the artifact says "
                    f"{spec.dtype}{list(spec.shape)}; order again"
                )
            inputs.append(value if value.flags.c_contiguous else value.copy(order="C"))
        native.run(inputs)
        return {
            output.name: native.output(i, self._output_shape(program, output, batch))
            for i, output in enumerate(described.outputs)
        }

    def compute(self, program: str, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """As :meth:`edge.runtimes.base.ComputesFeatures.compute`; a program that is not loaded is, in place of the one
        that is."""
        values = self.outputs(program, feeds)
        return {output.tensor: np.array(values[output.name]) for output in self._programs[program].outputs}

    def whole(self, name: str, kept: np.ndarray) -> np.ndarray:
        """``kept`` entries of ``name`` (or of one of its slots, or their gradient) written out; others as they are."""
        return self._entries(name).whole(kept) if self._specs[name].capacity else kept

    def forget(self, program: str) -> None:
        """As :meth:`edge.runtimes.base.Session.forget`."""
        if self._loaded is not None and self._loaded[0] == program:
            self._loaded = None

    def holds_kept(self, name: str) -> bool:
        """As :meth:`edge.runtimes.base.Session.holds_kept`."""
        return name in self._kept

    def _entries(self, name: str) -> KeptEntries:
        return self._kept[name.partition("#")[0]]

    def _output_shape(self, program: str, output: GraphOutput, batch: int) -> tuple[int, ...]:
        spec, sizes = self._specs[output.tensor], self._parts.get(program, {})
        if output.name.startswith(GRADIENT) and output.tensor in sizes:
            return sizes[output.tensor]
        return (spec.capacity,) if spec.capacity else concrete_shape(spec, batch)

    def _open(self, program: str) -> NativeProgram:
        if self._loaded is None or self._loaded[0] != program:
            self._loaded = None  # its arena goes before the next one comes
            self._loaded = program, NativeProgram(self._files[self._programs[program].file], self._threads)
            release_startup_pages()
        return self._loaded[1]

    def read(self, name: str) -> np.ndarray:
        """As :meth:`edge.runtimes.base.Session.read`; kept entries are written out, but as ``#kept``."""
        base, _, suffix = name.partition("#")
        if base in self._kept and suffix == "kept":
            return self._state[base][: self._kept[base].count]
        if base in self._kept and suffix == "mask":
            return self._kept[base].mask()
        if name not in self._state:
            known = ", ".join(list(self._state)[:5])
            raise DeviceRefused(f"no program carries a tensor '{name}', they carry {known}, ...; order others")
        return self.whole(name, self._state[name])
