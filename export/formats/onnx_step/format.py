"""The stock ONNX Runtime format: one ONNX file per program, checked in an ONNX Runtime session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec
import numpy as np
import onnx
from torch import nn

from edge.contracts.manifest import GraphOutput, Parity, Program
from edge.contracts.tensors import FEATURES, TensorSpec, is_carried
from edge.runtimes.micro_batches import ACCUMULATE
from export.capture import Capture
from export.cost import forward_macs, step_work
from export.features.programs import with_features
from export.formats.onnx_step.blocks import in_blocks
from export.formats.onnx_step.broadcasts import with_full_ranks
from export.formats.onnx_step.execution_order import in_execution_order
from export.formats.onnx_step.in_place import updated_last, written_in_place
from export.formats.onnx_step.operator_table import translate
from export.formats.onnx_step.operators.activations import WHOLE
from export.formats.onnx_step.survey import survey_translation
from export.formats.onnx_step.translation import LARGE_BYTES, Translation
from export.formats.survey import Captured, Survey
from export.forms.recomputation import recomputed
from export.memory_plan import MemoryPlan, intermediate_peak, memory_plan
from export.micro_batch_run import in_parts, micro_batch
from export.parity import check_parity, self_test_losses
from export.program_inputs import BATCH_ROLES
from export.programs import capture_programs
from export.step_objective import objective_of
from export.training_step import StepSpec
from export.written_programs import WrittenPrograms

_ARENA_SHARE, _NODE_BYTES = 1.04, 3072
"""What ONNX Runtime 1.32 takes beyond live tensors: fragmentation of its arena, and its graph. Measured on x86-64,
whole trainer process at batch 32: see docs/measurements/2026-11-26-onnxruntime-memory.md."""

_BATCH_PARTS = 4

_LOOPS = frozenset({"lstm", "lstm_factors", "gru"})


class OnnxStep:
    """Writes ``train.onnx``, ``eval.onnx``; with batch norm also ``stats.onnx`` (and ``eval_static.onnx``), and where
    features are cached ``features.onnx``.

    Attributes:
        writes_over: whether the runtime may give a new value the old one's memory, in blocks where it is large.
        updates_in_graph, buffers_gradients: as of :class:`export.formats.Format`.
        reusing: operators that the runtime lets write over an operand.
    """

    name = "onnx_step"
    writes_over = True
    updates_in_graph = True
    buffers_gradients = False
    reusing: frozenset[str] = frozenset()
    minimum_runtime_version = "1.20.0"
    features = frozenset(
        {
            "masked",
            "distillation",
            "variants",
            "probe",
            "accumulates",
            "recompute",
            "kept_activations",
            "task",
            "cached_features",
        }
    )

    def write(self, module: nn.Module, spec: StepSpec) -> WrittenPrograms:
        """Trace and translate every program; the files depend on nothing but module, step and versions.

        Raises:
            ExportRefused: naming the layer that has no training step.
        """
        captures = with_features(capture_programs(module, spec, loops=_LOOPS, whole=WHOLE), spec)
        if spec.recompute:
            captures |= {
                n: self._recomputed(p, spec) for n, p in captures.items() if n.startswith((ACCUMULATE, "train"))
            }
        parts = _parts(spec)
        models = {name: translate(program, batch_parts=parts) for name, program in captures.items()}
        over: dict[str, tuple[str, ...]] = dict.fromkeys(models, ())
        if self.writes_over:
            large = {name: _large(program) for name, program in captures.items()}
            models = {name: updated_last(model, large[name]) for name, model in models.items()}
            over = {name: written_in_place(model) for name, model in models.items()}
            models = {name: in_blocks(m, large[name], captures[name].hidden) for name, m in models.items()}
        models = {name: with_full_ranks(model) for name, model in models.items()}
        tensors = _tensors(captures, spec)
        programs = tuple(
            Program(
                name=name,
                file=f"{name}.onnx",
                inputs=tuple(i.name for i in program.inputs),
                outputs=tuple(GraphOutput(o, o.removeprefix("next:")) for o in program.outputs),
                batch=micro_batch(spec, name),
                in_place=over[name] or msgspec.UNSET,
            )
            for name, program in captures.items()
        )
        files = {f"{name}.onnx": _bytes(model) for name, model in models.items()}
        macs = forward_macs(captures["eval"])
        ordered = {n: in_execution_order(model) for n, model in models.items() if n in (FEATURES, ACCUMULATE, "train")}
        examples = spec.batch // spec.micro_batches
        plans = {
            n: memory_plan(model, tensors, examples, in_place=over[n], reusing=self.reusing)
            for n, model in ordered.items()
        }
        return WrittenPrograms(
            files, programs, tensors, macs, _memory(plans, captures, spec), step_work(captures, spec)
        )

    def _recomputed(self, program: Capture, spec: StepSpec) -> Capture:
        if not program.hidden:  # nothing but the end of a step, or a probe
            return program
        batch, parts = spec.batch // spec.micro_batches, _parts(spec)

        def peak(made: Capture) -> int:
            model = in_execution_order(translate(made, batch_parts=parts))
            return intermediate_peak(model, batch, reusing=self.reusing)[0]

        return recomputed(program, batch, peak)

    def survey(self, module: nn.Module, spec: StepSpec, captured: Captured) -> Survey:
        """Every layer that :meth:`write` refuses."""
        survey = Survey()
        for program in captured(_LOOPS).programs.values():
            survey_translation(Translation(program), survey)
        return survey

    def check(
        self,
        module: nn.Module,
        spec: StepSpec,
        files: Mapping[str, bytes],
        programs: Iterable[Program],
        tensors: Iterable[TensorSpec],
    ) -> Parity:
        """The parity gate on the very bytes that are shipped.

        Raises:
            ParityError: naming program and tensor.
        """
        return check_parity(module, spec, in_parts({p.name: files[p.file] for p in programs}, spec), tensors)

    def self_test_losses(
        self,
        spec: StepSpec,
        files: Mapping[str, bytes],
        tensors: Iterable[TensorSpec],
        values: Mapping[str, np.ndarray],
        *,
        steps: int,
    ) -> tuple[float, ...]:
        """Losses of the first steps from ``values``, as in the self-test."""
        programs = {name.removesuffix(".onnx"): data for name, data in files.items()}
        return self_test_losses(in_parts(programs, spec)["train"], values, steps=steps)

    def predicted_peak_bytes(self, memory: MemoryPlan) -> int:
        """Peak of the trainer process above an idle one with the runtime loaded."""
        return int(_ARENA_SHARE * memory.live) + _NODE_BYTES * memory.nodes


def _bytes(model: onnx.ModelProto) -> bytes:
    return bytes(model.SerializeToString(deterministic=True))


def _large(program: Capture) -> frozenset[str]:
    return frozenset(spec.name for spec in program.inputs if spec.byte_count() >= LARGE_BYTES)


def _parts(spec: StepSpec) -> int:
    """Into how many parts a batch is split where whole ones take much memory: a step in less memory has the time."""
    return min(_BATCH_PARTS, spec.batch // spec.micro_batches) if spec.recompute else 1


def _memory(plans: Mapping[str, MemoryPlan], captures: Mapping[str, Capture], spec: StepSpec) -> MemoryPlan:
    """The plan of a step: everything a session carries (``train`` may not read it all), and one program's values.

    The memory that features were computed in stays with their program while steps run.
    """
    carried = {t.name: t for c in captures.values() for t in c.inputs if is_carried(t)}
    before, plans = plans.get(FEATURES), {name: plan for name, plan in plans.items() if name != FEATURES}
    largest = max(plans.values(), key=lambda plan: plan.intermediate)
    fed = captures[ACCUMULATE] if spec.accumulates else captures["eval"]
    whole = {t.name: t for t in fed.inputs if t.role in BATCH_ROLES}
    plan = replace(
        largest,
        state=sum(t.byte_count() for t in carried.values()),
        written=plans["train"].written,
        batch=max(plan.batch for plan in plans.values()) if not spec.accumulates else _bytes_of(whole, spec.batch),
        nodes=sum(plan.nodes for plan in plans.values()),
    )
    if before is None:
        return plan
    return replace(
        plan,
        intermediate=plan.intermediate + before.intermediate,
        batch=plan.batch + before.batch * spec.micro_batches,
        nodes=plan.nodes + before.nodes,
    )


def _bytes_of(tensors: Mapping[str, TensorSpec], batch: int) -> int:
    return sum(tensor.byte_count(batch) for tensor in tensors.values())


def _tensors(captures: Mapping[str, Capture], spec: StepSpec) -> tuple[TensorSpec, ...]:
    """Every tensor of every program once, those of ``train`` first; then what the programs report."""
    known = {item.name: item for program in captures.values() for item in program.inputs}
    return (*known.values(), *objective_of(spec).reported(spec, captures["eval"]))
