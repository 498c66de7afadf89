"""Artifact formats; a runtime names the one that writes for it. A new one is a file (or folder) and a line below."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    import numpy as np
    from torch import nn

    from edge.contracts.manifest import Parity, Program, SelfTest
    from edge.contracts.tensors import TensorSpec
    from export.formats.survey import Captured, Survey
    from export.memory_plan import MemoryPlan
    from export.training_step import StepSpec
    from export.written_programs import WrittenPrograms


class Format(Protocol):
    """A way to write and to check the programs of a step."""

    name: str
    minimum_runtime_version: str
    features: frozenset[str]
    """Parts of a step beyond the ordinary that it can write, of :data:`FEATURES`."""
    writes_over: bool
    """Whether a step's new state takes the memory of the old one; else both are held."""
    updates_in_graph: bool
    """Whether the rule that moves parameters is part of the graph, with values of its own; else it works in place."""
    buffers_gradients: bool
    """Whether gradients are kept in buffers beside the memory that they are computed in."""

    def write(self, module: nn.Module, spec: StepSpec) -> WrittenPrograms:
        """Trace and translate; raises ExportRefused."""

    def survey(self, module: nn.Module, spec: StepSpec, captured: Captured) -> Survey:
        """What :meth:`write` would refuse and rewrite; raises ExportRefused for what cannot be traced."""

    def check(
        self,
        module: nn.Module,
        spec: StepSpec,
        files: Mapping[str, bytes],
        programs: Iterable[Program],
        tensors: Iterable[TensorSpec],
    ) -> Parity:
        """The parity gate on the files' bytes; raises ParityError."""

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

    def predicted_peak_bytes(self, memory: MemoryPlan) -> int:
        """Peak of the trainer process above an idle one with the runtime loaded."""


@runtime_checkable
class OwnSelfTest(Protocol):
    """A format whose gate runs modules without values, and makes the self-test itself."""

    def self_test(self, module: nn.Module, spec: StepSpec, written: WrittenPrograms) -> SelfTest:
        """Formula, seed and losses; raises ParityError."""


@runtime_checkable
class WritesInference(Protocol):
    """A format with files of its own for models that are deployed."""

    minimum_runtime_version: str

    def write_inference(
        self, module: nn.Module, spec: StepSpec, tensors: Mapping[str, np.ndarray], out: Path
    ) -> tuple[int, ...]:
        """Write ``out``, the eval program with ``tensors`` inside; the shape of one example's logits.

        Raises:
            PlanError: a tensor is missing or has another shape; ExportRefused: a layer has no kernel.
        """


FEATURES = {
    "masked": "gradient masks",
    "distillation": "a teacher model",
    "sparse": "weights held as kept values alone",
    "variants": "several training programs in one artifact",
    "probe": "a comparison of losses before the first step",
    "accumulates": "gradients added up over micro-batches",
    "recompute": "values computed again in the backward pass",
    "kept_activations": "activations kept in float16",
    "task": "a task of one's own batch and loss",
    "cached_features": "features of frozen layers, computed once per example",
}
"""What a step may need of a format beyond the ordinary: attribute of the step -> what it is, in words."""

FORMATS = {
    "onnx_language": "export.formats.onnx_language.format:OnnxLanguage",
    "onnx_step": "export.formats.onnx_step.format:OnnxStep",
    "onnx_web": "export.formats.onnx_web:OnnxWeb",
    "ort_training": "export.formats.ort_training.format:OrtTraining",
    "executorch_program": "export.formats.executorch_program.format:ExecutorchProgram",
}
"""Name, as in manifests and in the traits of runtimes -> class."""


def format_for(runtime: str) -> Format:
    """The format that writes for ``runtime``.

    Raises:
        ConfigError: unknown name; lists the known ones.
    """
    from edge.contracts.errors import ConfigError
    from edge.runtimes import KNOWN, traits_of

    if (written := traits_of(runtime).format) not in FORMATS:
        raise ConfigError([f"$.runtime.name: no exporter for '{runtime}'; there is one for {', '.join(sorted(KNOWN))}"])
    return format_named(written)


def format_named(name: str) -> Format:
    """The format registered as ``name``.

    Raises:
        ArtifactCorrupt: none is; lists those there are.
    """
    from edge.contracts.errors import ArtifactCorrupt

    if name not in FORMATS:
        raise ArtifactCorrupt(f"format '{name}' is unknown here, known are {', '.join(FORMATS)}; update this release")
    module, _, kind = FORMATS[name].partition(":")
    result: Format = getattr(import_module(module), kind)()
    return result
