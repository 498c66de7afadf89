"""The format of causal language models for stock ONNX Runtime: written programs over a mapped base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from torch import nn

from edge.contracts.manifest import GraphOutput, Parity, Program, SelfTest
from edge.contracts.tensors import FEATURES, TensorSpec, by_role
from edge.runtimes.micro_batches import ACCUMULATE, TRAIN
from export.formats.onnx_language.cut_tensors import cut_tensors, language_model
from export.formats.onnx_language.gate import check_language, losses_of, self_test_of
from export.formats.onnx_language.graph import StepGraph
from export.formats.onnx_language.memory import memory_of, product_macs
from export.formats.onnx_language.step import LOSS, StepWriter
from export.formats.survey import Captured, Survey
from export.memory_plan import MemoryPlan
from export.micro_batch_run import micro_batch
from export.training_step import StepSpec
from export.written_programs import WrittenPrograms
from profiles.step_work import StepWork

_NODE_BYTES, _PAGES = 5120, 2 << 20
"""What ONNX Runtime 1.32 takes beyond live tensors: its graph, and pages of the base that are read between two
releases. Measured, docs/measurements/2026-11-26-language-models.md."""


class OnnxLanguage:
    """Writes ``train.onnx`` (and ``accumulate.onnx``) and ``eval.onnx`` of a cut of a language model.

    Every block is computed again in the backward pass, whatever the step says of recomputation. But where features are
    cached and the lowest blocks have no factor that moves, ``features.onnx`` runs those and the step begins above them;
    the few blocks of it are then computed again only where the step says so.
    """

    name = "onnx_language"
    minimum_runtime_version = "1.23.0"
    writes_over = False
    updates_in_graph = True
    buffers_gradients = False
    features = frozenset({"accumulates", "recompute", "task", "cached_features"})

    def write(self, module: nn.Module, spec: StepSpec) -> WrittenPrograms:
        """Write every program; the files depend on the shapes, the step and the precision of the base alone.

        Raises:
            ExportRefused: naming the tensor or the part of the step that cannot be written.
        """
        model = language_model(module)
        tensors = cut_tensors(model, spec)
        writer = StepWriter(model.architecture, tensors, spec)
        steps = {ACCUMULATE: writer.accumulate(), TRAIN: writer.end()} if spec.accumulates else {TRAIN: writer.train()}
        before = {FEATURES: writer.features(tensors.features)} if tensors.features else {}
        graphs = {**steps, **before, "eval": writer.eval()}
        known: dict[str, TensorSpec] = {}
        for name in (TRAIN, ACCUMULATE, FEATURES, "eval"):
            if name in graphs:
                known |= graphs[name].inputs | graphs[name].tables
        reported = {s.name: s for s in graphs["eval"].outputs.values()} | {LOSS.name: LOSS}
        specs = (*known.values(), *(s for n, s in reported.items() if n not in known))
        programs = tuple(_program(name, graph, micro_batch(spec, name)) for name, graph in graphs.items())
        files = {
            f"{name}.onnx": graph.model(name).SerializeToString(deterministic=True) for name, graph in graphs.items()
        }
        per_part = {name: product_macs(graph) for name, graph in graphs.items()}
        work = sum(per_part[name] * (spec.micro_batches if name == ACCUMULATE else 1) for name in steps)
        return WrittenPrograms(
            files,
            programs,
            specs,
            per_part["eval"] // (spec.batch // spec.micro_batches),
            _memory({**steps, **before}, specs, spec.batch),
            StepWork(0, 0, work),
        )

    def survey(self, module: nn.Module, spec: StepSpec, captured: Captured) -> Survey:
        """Nothing is refused by layer: the step is written whole or not at all."""
        cut_tensors(language_model(module), spec)
        return Survey()

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
        return check_language(language_model(module), spec, {p.name: files[p.file] for p in programs}, tensors)

    def self_test(self, module: nn.Module, spec: StepSpec, written: WrittenPrograms) -> SelfTest:
        """Losses of the first steps on formula values, held to torch's."""
        programs = {program.name: written.files[program.file] for program in written.programs}
        return self_test_of(language_model(module), spec, programs, written.tensors)

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
        return losses_of(programs, spec, values, steps=steps)

    def predicted_peak_bytes(self, memory: MemoryPlan) -> int:
        """Peak of the trainer process above an idle one with the runtime loaded."""
        return memory.live + _NODE_BYTES * memory.nodes + _PAGES


def _memory(graphs: Mapping[str, StepGraph], tensors: Iterable[TensorSpec], batch: int) -> MemoryPlan:
    """As :func:`memory_of`, with a batch's features where there are any."""
    specs = tuple(tensors)
    plan = memory_of(graphs.values(), specs, batch)
    return replace(plan, batch=plan.batch + sum(s.byte_count(batch) for s in by_role(specs, "features")))


def _program(name: str, graph: StepGraph, batch: int | None) -> Program:
    return Program(
        name=name,
        file=f"{name}.onnx",
        inputs=tuple(graph.inputs),
        outputs=tuple(GraphOutput(output, spec.name) for output, spec in graph.outputs.items()),
        batch=batch,
        in_file_order=True,
    )
