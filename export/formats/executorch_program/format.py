"""The ExecuTorch format: one ``.pte`` per program, and the update rule that ends a training step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn

from edge.contracts.manifest import GraphOutput, Parity, Program
from edge.contracts.tensors import FEATURES, TensorSpec, is_carried
from edge.runtimes.executorch.library import has_kernel
from edge.runtimes.executorch.session import GRADIENT
from edge.runtimes.leading_parts import FILE_NAME as PARTS_NAME
from edge.runtimes.leading_parts import parts_to_bytes
from edge.runtimes.micro_batches import ACCUMULATE
from edge.runtimes.update_rule import FILE_NAME, RULE_ROLES
from export.capture import Capture
from export.cost import forward_macs, step_work
from export.decompositions import WITH_KERNELS
from export.features.programs import with_features
from export.features.run import begun_at_features
from export.formats.executorch_program.gate_run import GateRun
from export.formats.executorch_program.inference_program import write_inference_program
from export.formats.executorch_program.lowering import (
    Lowered,
    free_batch,
    lower,
    no_kernel,
    with_capacities,
    with_outputs,
)
from export.formats.executorch_program.survey import survey_programs
from export.formats.executorch_program.tiles import in_tiles
from export.formats.survey import Captured, Survey
from export.forms.recomputation import recomputed
from export.memory_plan import MemoryPlan
from export.micro_batch_run import micro_batch
from export.parameter_groups import update_rule
from export.parity import check_parity, self_test_losses
from export.passes.kept_activations import with_whole_maxima
from export.program_inputs import BATCH_ROLES
from export.programs import capture_programs
from export.step_objective import objective_of
from export.traceable_module import LOOPS
from export.training_step import StepSpec
from export.value_lifetimes import peak_bytes
from export.written_programs import WrittenPrograms

SESSION_BYTES = 2 << 20
"""What a trainer grows by beside tensors: the loaded program, the first batch, Python's own. Source: measured, 1.6 to
2.1 MB over eight models (docs/measurements/2026-11-20-executorch-x86-64.md)."""


class ExecutorchProgram:
    """Writes ``train.pte``, ``eval.pte``, with batch norm ``stats.pte`` (``eval_static.pte``), and ``update.json``;
    where features are cached ``features.pte``, too."""

    name = "executorch_program"
    minimum_runtime_version = "1.5.1"
    writes_over = True
    updates_in_graph = False
    buffers_gradients = False
    features: frozenset[str] = frozenset(
        {
            "masked",
            "sparse",
            "distillation",
            "variants",
            "accumulates",
            "recompute",
            "kept_activations",
            "task",
            "cached_features",
        }
    )

    def __init__(self) -> None:
        self._programs: tuple[Program, ...] = ()

    def write(self, module: nn.Module, spec: StepSpec) -> WrittenPrograms:
        """Trace, rewrite and lower every program; the files depend on nothing but module, step and versions.

        Raises:
            ExportRefused: naming the layer that has no training step on this runtime.
        """
        traced = capture_programs(module, spec, whole=WITH_KERNELS)
        captures = with_features({n: with_capacities(c, spec.capacities) for n, c in traced.items()}, spec)
        tensors = _tensors(captures, spec)
        roles = {t.name: t.role for t in tensors}
        trained = [tensor.name for tensor in tensors if tensor.role == "parameter"]
        files: dict[str, bytes] = {FILE_NAME: update_rule(spec, trained).to_bytes()}
        training = {"train", ACCUMULATE, *(variant.program for variant in spec.variants)}
        if spec.variants:
            files[PARTS_NAME] = parts_to_bytes({variant.program: dict(variant.sizes) for variant in spec.variants})
        programs, arena, made = [], 0, dict(captures)
        for name, capture in captures.items():
            batch = micro_batch(spec, name)
            inputs = tuple(i.name for i in capture.inputs)
            if spec.accumulates and name == "train":  # the end of a step is the update rule
                programs.append(Program(name=name, file=FILE_NAME, inputs=inputs, outputs=(), batch=batch))
                continue
            # A device computes features of those examples of a part of a batch that it has not kept.
            most = free_batch(capture, spec.batch // spec.micro_batches) if name == FEATURES else spec.batch
            batch_planned, outputs = batch or most, _outputs(capture, roles)
            if spec.kept_activations:
                with_whole_maxima(capture.graph.graph)
            if spec.recompute and name in training:
                capture = _recomputed(capture, outputs, batch_planned)
                made[name] = capture
            lowered = lower(capture, outputs, batch_planned)
            _require_kernels(lowered)
            # One program is loaded at a time.
            arena = max(arena, lowered.planned_bytes) if name in {*training, FEATURES} else arena
            files[f"{name}.pte"] = lowered.data
            programs.append(
                Program(
                    name=name,
                    file=f"{name}.pte",
                    inputs=inputs,
                    batch=batch,
                    outputs=tuple(
                        GraphOutput(o, o.removeprefix("next:").removeprefix(GRADIENT)) for o in lowered.outputs
                    ),
                )
            )
        state = sum(_held_bytes(t) for t in tensors if is_carried(t))
        fed = max(sum(t.byte_count(spec.batch) for t in c.inputs if t.role in BATCH_ROLES) for c in captures.values())
        if FEATURES in captures:  # a batch is there as it is, and as its features
            fed += sum(t.byte_count(spec.batch) for t in tensors if t.role == "features")
        memory = MemoryPlan(state, 0, fed, arena, "train")
        self._programs = tuple(programs)
        macs, work = forward_macs(captures["eval"]), step_work(made, spec, in_tiles)
        return WrittenPrograms(files, self._programs, tensors, macs, memory, work)

    def survey(self, module: nn.Module, spec: StepSpec, captured: Captured) -> Survey:
        """Every layer that :meth:`write` refuses or rewrites."""
        programs = captured(LOOPS).programs
        roles = {t.name: t.role for t in _tensors(programs, spec)}
        survey = Survey()
        survey_programs({n: with_outputs(p, _outputs(p, roles)) for n, p in programs.items()}, survey)
        return survey

    def check(
        self,
        module: nn.Module,
        spec: StepSpec,
        files: Mapping[str, bytes],
        programs: Iterable[Program],
        tensors: Iterable[TensorSpec],
    ) -> Parity:
        """The parity gate on the very bytes that are shipped, run by the device's own session.

        Raises:
            ParityError: naming program and tensor.
        """
        programs, tensors = list(programs), list(tensors)
        with tempfile.TemporaryDirectory(prefix="apportion-executorch-") as folder:
            paths = _written(files, Path(folder))

            def opener(name: str) -> Callable[[], GateRun]:
                return lambda: GateRun(name, programs, tensors, paths, batch=spec.batch, parts=spec.micro_batches)

            opened = begun_at_features({p.name: opener(p.name) for p in programs}, spec)
            return check_parity(module, spec, opened, tensors)

    def self_test_losses(
        self,
        spec: StepSpec,
        files: Mapping[str, bytes],
        tensors: Iterable[TensorSpec],
        values: Mapping[str, np.ndarray],
        *,
        steps: int,
    ) -> tuple[float, ...]:
        """Losses of the first steps from ``values``, as in the self-test; of files that this object wrote."""
        tensors = list(tensors)
        with tempfile.TemporaryDirectory(prefix="apportion-executorch-") as folder:
            paths = _written(files, Path(folder))

            def opener(name: str) -> Callable[[], GateRun]:
                return lambda: GateRun(name, self._programs, tensors, paths, batch=spec.batch, parts=spec.micro_batches)

            opened = begun_at_features({p.name: opener(p.name) for p in self._programs}, spec)
            return self_test_losses(opened["train"], values, steps=steps)

    def write_inference(
        self, module: nn.Module, spec: StepSpec, tensors: Mapping[str, np.ndarray], out: Path
    ) -> tuple[int, ...]:
        """As :meth:`export.formats.WritesInference.write_inference`."""
        write_inference_program(module, spec, tensors, out)
        return (spec.classes, *spec.target_shape)

    def predicted_peak_bytes(self, memory: MemoryPlan) -> int:
        """Peak of the trainer process above an idle one with the runtime loaded."""
        return memory.live + SESSION_BYTES


def _recomputed(capture: Capture, outputs: Sequence[str], batch: int) -> Capture:
    """``capture`` with what it lowers to alone, and of that the form with the smallest peak."""
    inputs = tuple(spec for spec in capture.inputs if spec.role not in RULE_ROLES)
    needed = replace(capture, graph=with_outputs(capture, outputs), inputs=inputs, outputs=tuple(outputs), hidden=())
    return recomputed(needed, batch, lambda program: peak_bytes(program.graph.graph, batch))


def _outputs(capture: Capture, roles: Mapping[str, str]) -> list[str]:
    """What the program gives: all outputs, but gradients in place of the parameters and slots they move."""
    if not capture.hidden:
        return list(capture.outputs)
    kept = [o for o in capture.outputs if not o.startswith("next:") or roles[o.removeprefix("next:")] == "buffer"]
    return kept + [name for name in capture.hidden if name.startswith(GRADIENT)]


def _held_bytes(spec: TensorSpec) -> int:
    """What a session holds of a state tensor: of one with a capacity its entries, of its mask their places."""
    if not spec.capacity:
        return spec.byte_count()
    rows = int(spec.shape[0]) + 1 if spec.role == "grad_mask" else 0
    return 4 * (spec.capacity + rows)


def _require_kernels(lowered: Lowered) -> None:
    for kernel, layer in lowered.kernels.items():
        if not has_kernel(kernel):
            raise no_kernel(kernel, layer)


def _written(files: Mapping[str, bytes], folder: Path) -> dict[str, Path]:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return {name: folder / name for name in files}


def _tensors(captures: Mapping[str, Capture], spec: StepSpec) -> tuple[TensorSpec, ...]:
    """Every tensor of every program once, those of ``train`` first; then what the programs report."""
    known = {item.name: item for program in captures.values() for item in program.inputs}
    return (*known.values(), *objective_of(spec).reported(spec, captures["eval"]))
