"""An artifact directory: graphs, manifest, digests; written whole or not at all, and verified before it exists."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from edge.contracts.errors import ArtifactCorrupt, ExportRefused
from edge.contracts.manifest import ArtifactFile, ArtifactManifest, Cost, Parity
from edge.contracts.tensors import by_role
from edge.runtimes import DEFAULT
from edge.runtimes.micro_batches import ACCUMULATE, TRAIN
from edge.training.artifact_folder import MANIFEST_NAME, read_artifact_folder
from export.agreement import CLEAN
from export.export_key import export_key
from export.form_refusal import check_feature, check_form
from export.formats import FEATURES, OwnSelfTest, format_named
from export.formats.of_module import format_of
from export.forward_check import check_forward
from export.language.base_weights import SCALE
from export.refused_layer import with_layer_type
from export.self_test import self_test_of
from export.training_step import StepSpec, step_values, symbols_of
from export.written_programs import WrittenPrograms

if TYPE_CHECKING:
    from torch import nn


def export_artifact(
    module: nn.Module,
    spec: StepSpec,
    out_dir: Path | str,
    *,
    classes: Sequence[str] = (),
    build: Mapping[str, Any] | None = None,
    runtime: str = DEFAULT,
) -> ArtifactManifest:
    """Export, verify and write an artifact to ``out_dir``, which appears only when everything has passed.

    The weights of ``module`` are not used: the gate runs on formula values, and graphs carry none.

    Args:
        classes: ordered class names; "0", "1", ... when empty.
        build: how the caller rebuilds the module, kept in the manifest beside the step's specification.

    Raises:
        ExportRefused: naming a layer without a training step, or one that cannot run.
        ParityError: the exported graph disagrees with torch.
        ConfigError: unknown runtime.
        FileExistsError: ``out_dir`` exists and is not empty.
    """
    exporter = format_of(module, runtime)
    out_dir = Path(out_dir)
    if out_dir.exists() and any(out_dir.iterdir()):
        raise FileExistsError(f"{out_dir} is not empty; give a new folder for the artifact")
    names = tuple(classes) or tuple(str(i) for i in range(spec.classes))
    if len(names) != spec.classes:
        raise ValueError(f"{len(names)} class names for {spec.classes} classes; name each one")
    for feature in FEATURES:
        check_feature(spec, feature, runtime, exporter)
    check_form(module, spec, runtime)
    has_values = not isinstance(exporter, OwnSelfTest)
    try:
        if has_values:
            check_forward(module, spec)
        written = exporter.write(module, spec)
        if has_values:
            check_forward(module, spec, "float64")
    except ExportRefused as error:
        raise with_layer_type(error, module) from error
    parity = exporter.check(module, spec, written.files, written.programs, written.tensors)
    manifest = ArtifactManifest(
        format=exporter.name,
        runtime=runtime,
        minimum_runtime_version=exporter.minimum_runtime_version,
        programs=written.programs,
        tensors=written.tensors,
        files=tuple(_file(name, data) for name, data in sorted(written.files.items())),
        batch=spec.batch,
        loss=spec.loss,
        optimizer=spec.optimizer.kind,
        norm=spec.norm,
        input=spec.input,
        classes=names,
        cost=_cost(written, spec, exporter.predicted_peak_bytes(written.memory)),
        self_test=exporter.self_test(module, spec, written)
        if isinstance(exporter, OwnSelfTest)
        else self_test_of(module, spec, exporter, written, calm=parity.torch_fp32_rel_err <= CLEAN),
        parity=parity,
        build={**(build or {}), "step": step_values(spec)},
        export_key=artifact_key(module, spec, runtime=runtime, build=build),
        micro_batches=spec.micro_batches,
        task=spec.task,
        symbols=symbols_of(spec),
        features_kept_as=_kept_as(written, spec),
    )
    _write(out_dir, {**written.files, MANIFEST_NAME: manifest.to_bytes()})
    return manifest


def written_cost(module: nn.Module, spec: StepSpec, *, runtime: str = DEFAULT) -> Cost:
    """The cost that the manifest of :func:`export_artifact` would state, of a step that is written and not checked.

    Worth its time where a step is written without being traced, as a language model's.

    Raises:
        ExportRefused: as :func:`export_artifact`.
    """
    exporter = format_of(module, runtime)
    written = exporter.write(module, spec)
    return _cost(written, spec, exporter.predicted_peak_bytes(written.memory))


def artifact_key(
    module: nn.Module, spec: StepSpec, *, runtime: str = DEFAULT, build: Mapping[str, Any] | None = None
) -> str:
    """The export cache's key for what :func:`export_artifact` would write with the same arguments."""
    exporter = format_of(module, runtime)
    version = f"{exporter.name}/{exporter.minimum_runtime_version}"
    return export_key(module, spec, runtime=runtime, runtime_version=version, build=dict(build or {}))


def read_artifact(folder: Path | str) -> tuple[ArtifactManifest, dict[str, bytes]]:
    """The manifest of an artifact directory and the bytes of its files, digests checked.

    Raises:
        ConfigError: no artifact is there.
        ArtifactCorrupt: a file is missing or has another digest.
        MessageRejected: the manifest cannot be read.
    """
    manifest, paths = read_artifact_folder(Path(folder))
    return manifest, {name: path.read_bytes() for name, path in paths.items()}


def verify_artifact(folder: Path | str, module: nn.Module) -> Parity:
    """Repeat the parity gate on the files of an artifact directory against ``module``.

    Raises:
        ArtifactCorrupt: a file is not what the manifest says.
        ParityError: the files disagree with torch, or ``module`` is not the one that was exported.
    """
    manifest, files = read_artifact(folder)
    try:
        spec = msgspec.convert(manifest.build["step"], StepSpec)
    except (KeyError, msgspec.ValidationError) as error:
        raise ArtifactCorrupt(
            f"artifact {folder}: the manifest holds no readable step ({error}); export it again"
        ) from error
    exporter = format_named(manifest.format)
    return exporter.check(module, spec, files, manifest.programs, manifest.tensors)


def _file(name: str, data: bytes) -> ArtifactFile:
    return ArtifactFile(name=name, sha256=hashlib.sha256(data).hexdigest(), size=len(data))


def _cost(written: WrittenPrograms, spec: StepSpec, predicted_peak_bytes: int) -> Cost:
    trained = sum(t.element_count() for t in by_role(written.tensors, "parameter"))
    return Cost(
        parameters=trained + sum(t.element_count() for t in by_role(written.tensors, "frozen")) + _mapped(written),
        trained_parameters=trained,
        macs=written.macs,
        state_bytes=written.memory.state,
        live_bytes=written.memory.live,
        predicted_peak_bytes=predicted_peak_bytes,
        batch=spec.batch,
        step_work=written.work,
        graph_bytes=sum(len(written.files[name]) for name in _step_files(written)),
    )


def _kept_as(written: WrittenPrograms, spec: StepSpec) -> Literal["float16", "int8"] | msgspec.UnsetType:
    """What devices round features to; nothing where steps read what is to be kept, or there are none."""
    kept, read = spec.cached_features, {tensor.dtype for tensor in by_role(written.tensors, "features")}
    if not read or kept in read or kept == "" or kept == "float32":
        return msgspec.UNSET
    return kept


def _mapped(written: WrittenPrograms) -> int:
    """Parameters of a mapped base: of int4 a byte holds two, and scales are none."""
    mapped = [t for t in by_role(written.tensors, "mapped") if not t.name.endswith(SCALE)]
    return sum(t.element_count() * (2 if t.dtype == "uint8" else 1) for t in mapped)


def _step_files(written: WrittenPrograms) -> set[str]:
    """Files of the programs that a plain training step runs."""
    return {program.file for program in written.programs if program.name in (ACCUMULATE, TRAIN)}


def _write(out_dir: Path, files: Mapping[str, bytes]) -> None:
    """All files in a folder beside ``out_dir``, then one rename."""
    out_dir.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out_dir.name}-", dir=out_dir.parent))
    try:
        for name, data in files.items():
            with (staging / name).open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        staging.chmod(0o755)
        os.replace(staging, out_dir)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
