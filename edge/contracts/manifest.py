"""What an artifact is: programs, tensors, cost, self-test, and the digest of every file. Graphs carry no weights.

The manifest's digest (SHA-256 of its exact bytes) is the artifact's digest. A signature is detached, over those bytes.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from edge.contracts.codec import build_readers, decode_json, encode_json
from edge.contracts.errors import MessageRejected, PlanError
from edge.contracts.tensors import Role, TensorSpec
from profiles.step_work import StepWork

MANIFEST_SCHEMA = "apportion.manifest/1"
MAX_MANIFEST_BYTES = 8 * 1024 * 1024
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ArtifactFile(msgspec.Struct, frozen=True):
    """One file of an artifact: a plain name (no folder), its SHA-256 and its size in bytes."""

    name: str
    sha256: str
    size: int


class GraphOutput(msgspec.Struct, frozen=True):
    """A program output: the value's name in the graph and the manifest tensor it is the new value of.

    For loss and metrics ``tensor`` is the tensor of that role (``loss``, ``correct``, ``logits``).
    """

    name: str
    tensor: str


class Program(msgspec.Struct, frozen=True):
    """One graph file with declared inputs and outputs.

    Attributes:
        name: ``train``, ``accumulate``, ``train_<variant>``, ``eval``, ``stats``, ``prefix`` or ``features``
            (:data:`edge.contracts.tensors.FEATURES`).
        file: name of the graph file among the artifact's files.
        inputs: tensor names; the graph's input has the same name.
        outputs: what the graph gives, in graph order.
        batch: the only number of examples to run it on; None when any will do.
        in_file_order: whether its operations are to run in the order of the file, none merged and each value freed
            after its last use: what the predicted memory stands for. Left out of a manifest where it was not asked for.
        in_place: tensors whose new value may be written over the old one, whatever order the operations run in. Left
            out where there are none, and by releases that hold every tensor twice.
    """

    name: str
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[GraphOutput, ...]
    batch: int | None = None
    in_file_order: bool | msgspec.UnsetType = msgspec.UNSET
    in_place: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class Cost(msgspec.Struct, frozen=True):
    """What the cut costs, computed from the exported graph (never from masks).

    Attributes:
        parameters: trained plus frozen parameters, elements.
        trained_parameters: elements that get a gradient.
        macs: multiply-accumulates of one forward pass per sample (ptflops convention).
        state_bytes: parameters, slots, buffers, accumulators, one copy.
        live_bytes: peak of live tensors during one training step at ``batch``, state copies included.
        predicted_peak_bytes: of the trainer process above an idle process with the runtime loaded.
        predicted_step_ms: on the reference machine, 0 when unknown.
        batch: batch size the figures are for.
        graph_bytes: size of the graphs that a training step runs, which rises with their operations; 0: not known.
        step_work: multiply-accumulates of one training step at ``batch`` by kind; None: not known.
    """

    parameters: int
    trained_parameters: int
    macs: int
    state_bytes: int
    live_bytes: int
    predicted_peak_bytes: int
    batch: int
    predicted_step_ms: float = 0.0
    graph_bytes: int = 0
    step_work: StepWork | None = None


class SelfTest(msgspec.Struct, frozen=True):
    """A run a device can repeat without torch: formula weights, a fixed batch, the losses of the first steps.

    The formula is named so that it can be written down once (docs/wire-protocol.md, "Self-test weights").

    Attributes:
        bias, gain: of formula ``splitmix64-uniform/2``; 0 and 1 in the first one, which has neither.
    """

    formula: Literal["splitmix64-uniform/1", "splitmix64-uniform/2"]
    seed: int
    batch: int
    hyper: dict[str, float]
    losses: tuple[float, ...]
    rel_tolerance: float
    bias: float = 0.0
    gain: float = 1.0


class Parity(msgspec.Struct, frozen=True):
    """What the parity gate measured at export, and against what.

    Attributes:
        max_grad_rel_err: largest max|g - g64| / max(max|g64|, 1e-4 of the largest over all tensors).
        torch_fp32_rel_err: the same measure for torch float32.
        loss_rel_err: relative error of the first loss against torch float64.
        tolerance: what ``max_grad_rel_err`` was held to.
        steps: the later step that was compared beside the first one.
    """

    max_grad_rel_err: float
    torch_fp32_rel_err: float
    loss_rel_err: float
    tolerance: float
    steps: int


class InputSpec(msgspec.Struct, frozen=True):
    """How local data becomes the program's input.

    Attributes:
        layout: ``features`` [F], ``chw`` images, or ``tokens`` [T].
        shape: per-example shape, batch dimension not included.
        dtype: of the graph input.
        mean, std: per channel (or one value), applied after ``scale``: ``(x * scale - mean) / std``.
        scale: multiplies raw values (1/255 for bytes).
        augment: named, seeded augmentations applied while training, of :mod:`edge.contracts.augmentation`.
        vocabulary: number of symbols for ``tokens``; 0 otherwise.
    """

    layout: Literal["features", "chw", "tokens"]
    shape: tuple[int, ...]
    dtype: Literal["float32", "int64"] = "float32"
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1.0
    augment: tuple[str, ...] = ()
    vocabulary: int = 0


class ArtifactManifest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a device must know to train one cut, and everything ``verify`` needs to rebuild it.

    Attributes:
        format: exporter that wrote the files, as registered in ``export/formats``.
        runtime: the runtime that executes them, as registered in ``edge/runtimes``.
        minimum_runtime_version: oldest release the programs were checked with.
        build: how the coordinator rebuilds the torch module (model, input, classes, cut); opaque to devices.
        loss, optimizer, norm: names of what was compiled in, for reports; the graph is what counts.
        export_key: SHA-256 of the canonical step specification, the key of the export cache.
        batch: examples of one step.
        micro_batches: parts of a batch that a step runs one after the other: each through program ``accumulate``,
            then ``train`` moves the parameters, see :mod:`edge.runtimes.micro_batches`.
        task: what the step trains for, its name; empty: classification of ``classes``. With a task the tensors of a
            batch are those of role ``input`` and ``target``: ``input`` is ``x`` of the data, ``target`` is ``y``, and
            others are the arrays of their names.
        symbols: of a task's int64 tensors beside ``input``: their values are 0 to this number less 1, or -100.
        features_kept_as: type that devices round features to, whether they keep them or not; left out: they keep them
            in the type of the tensor that steps read.
    """

    format: str
    runtime: str
    minimum_runtime_version: str
    programs: tuple[Program, ...]
    tensors: tuple[TensorSpec, ...]
    files: tuple[ArtifactFile, ...]
    batch: int
    loss: str
    optimizer: str
    norm: Literal["running", "batch"]
    input: InputSpec
    classes: tuple[str, ...]
    cost: Cost
    self_test: SelfTest
    parity: Parity
    build: dict[str, Any]
    export_key: str
    micro_batches: int = 1
    schema: str = MANIFEST_SCHEMA
    task: str = ""
    symbols: dict[str, int] = {}
    features_kept_as: Literal["float16", "int8"] | msgspec.UnsetType = msgspec.UNSET

    def program(self, name: str) -> Program:
        """The program called ``name``.

        Raises:
            PlanError: no such program; the message lists those there are.
        """
        for program in self.programs:
            if program.name == name:
                return program
        known = ", ".join(p.name for p in self.programs)
        raise PlanError(f"artifact has no program '{name}', it has {known}; export it with that program")

    def tensor(self, name: str) -> TensorSpec:
        """The spec of tensor ``name``.

        Raises:
            PlanError: no such tensor.
        """
        for spec in self.tensors:
            if spec.name == name:
                return spec
        raise PlanError(f"artifact has no tensor '{name}' among its {len(self.tensors)}; the plan is for another cut")

    def specs(self, *roles: Role) -> tuple[TensorSpec, ...]:
        """Tensor specs with one of ``roles``, in manifest order."""
        return tuple(s for s in self.tensors if s.role in roles)

    def to_bytes(self) -> bytes:
        """Canonical JSON: fixed field order, no whitespace, so equal manifests have equal digests.

        What belongs to tasks is left out where there is none, as before there were any.
        """
        if self.task:
            return encode_json(self)
        values: dict[str, Any] = msgspec.to_builtins(self)
        return encode_json({name: value for name, value in values.items() if name not in ("task", "symbols")})

    @classmethod
    def from_bytes(cls, data: bytes) -> ArtifactManifest:
        """The manifest in ``data``, checked: known schema, safe file names, programs and tensors that exist.

        Raises:
            UnsupportedVersion: another schema version.
            MessageRejected: too large, malformed, or with an unsafe or dangling name.
        """
        manifest = decode_json(data, cls, schema=MANIFEST_SCHEMA, limit=MAX_MANIFEST_BYTES)
        _check_names(manifest)
        return manifest


def check_digest(digest: str, *, where: str) -> str:
    """``digest`` itself when it is 64 lower-case hex digits; it names files, so nothing else may pass.

    Raises:
        MessageRejected: anything else.
    """
    if not _DIGEST.fullmatch(digest):
        raise MessageRejected(f"{where}: digest {digest[:80]!r} is not 64 lower-case hex digits")
    return digest


def _check_names(manifest: ArtifactManifest) -> None:
    files = set()
    for file in manifest.files:
        if not _FILE_NAME.fullmatch(file.name) or ".." in file.name:
            raise MessageRejected(f"manifest: file name {file.name[:80]!r} is not a plain name; refuse the artifact")
        check_digest(file.sha256, where=f"manifest: file {file.name}")
        if file.name in files or file.size < 0:
            raise MessageRejected(f"manifest: file {file.name} appears twice or has size {file.size}")
        files.add(file.name)
    tensors = {spec.name for spec in manifest.tensors}
    if len(tensors) != len(manifest.tensors):
        raise MessageRejected("manifest: a tensor name appears twice")
    for spec in manifest.tensors:
        if any(size != "batch" and not 0 <= size <= 2**40 for size in spec.shape):
            raise MessageRejected(f"manifest: tensor '{spec.name}' has shape {spec.shape}; sizes must be counts")
    for program in manifest.programs:
        dangling = {*program.inputs, *(o.tensor for o in program.outputs)} - tensors
        if program.file not in files or dangling:
            raise MessageRejected(
                f"manifest: program '{program.name}' names file {program.file!r} and tensors {sorted(dangling)[:3]} "
                "that are not in the manifest"
            )


build_readers(ArtifactManifest)
