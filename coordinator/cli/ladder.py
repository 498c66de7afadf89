"""The ladder that devices are measured with: which models, cuts and batches, and their artifacts in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edge.contracts.errors import ApportionError, ConfigError
from edge.contracts.manifest import ArtifactManifest
from edge.measuring.ladder import Ladder, Rung, ladder_path, read_ladder
from edge.runtimes import DEFAULT, RUNTIMES, traits_of
from edge.training.artifact_folder import MANIFEST_NAME, read_artifact_folder
from profiles.stored_profile import write_whole


@dataclass(frozen=True)
class Shape:
    """One model of the ladder.

    Attributes:
        cut: as on the command line, empty for the whole model.
        batches, quick: batch sizes, and those of a quick climb.
    """

    model: str
    cut: str
    batches: tuple[int, ...]
    quick: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """``resnet20:0.5``."""
        _, _, level = self.cut.partition(":")
        return f"{self.model}:{level}" if level else self.model


_TOLD = ("shape", "runtime", "batch", "parameters", "macs", "predicted_bytes", "is_quick")

# Work and memory must not rise together, or a fit cannot tell one from the other: perceptrons and the LSTM have much
# memory for little work, transformers much work for little memory.
SHAPES = (
    Shape("mlp", "heterofl:0.125", (16, 64), (64,)),
    Shape("mlp", "heterofl:0.5", (16,)),
    Shape("conv2", "heterofl:0.125", (8, 32), (32,)),
    Shape("conv2", "heterofl:0.5", (8,)),
    Shape("resnet8", "heterofl:0.5", (8, 16, 32), (16,)),
    Shape("resnet8", "", (8, 32), (8, 32)),
    Shape("resnet20", "heterofl:0.25", (8, 32), (32,)),
    Shape("resnet20", "heterofl:0.5", (8, 16, 32), (16,)),
    Shape("resnet20", "", (8, 16, 32), (8,)),
    Shape("depthwise", "heterofl:0.5", (8, 16), (8,)),
    Shape("vit", "heterofl:0.5", (8,)),
    Shape("vit", "", (8, 16), (8,)),
    Shape("lstm", "heterofl:0.5", (8,)),
    Shape("resnet18", "heterofl:0.25", (8, 16)),
    Shape("resnet18", "heterofl:0.5", (8,)),
)


def write_ladder(
    folder: Path, *, runtimes: tuple[str, ...], quick: bool = False, tell: Callable[[str], None]
) -> Ladder:
    """The ladder in ``folder``, its missing rungs exported; a shape that a runtime cannot train is left out and told.

    Args:
        quick: only the rungs of a quick climb.

    Raises:
        ConfigError: a ladder that is there already cannot be read, or nothing could be exported.
        OSError: the folder cannot be written.
    """
    there = read_ladder(folder) if ladder_path(folder).exists() else Ladder()
    rungs = {(rung.runtime, rung.shape, rung.batch): rung for rung in there.rungs}
    for runtime in runtimes:
        for shape in SHAPES:
            for batch in shape.quick if quick else shape.batches:
                key = (runtime, shape.name, batch)
                if key in rungs and (folder / rungs[key].folder / MANIFEST_NAME).exists():
                    continue
                try:
                    rungs[key] = _export(folder, shape, batch, runtime)
                except ApportionError as error:
                    tell(f"{shape.name}, batch {batch}, {runtime}: left out, {error}")
                    continue
                tell(f"{shape.name}, batch {batch}, {runtime}: {rungs[key].predicted_bytes / 2**20:.1f} MB predicted")
                _write(folder, rungs.values())
    if not rungs:
        raise ConfigError(
            [f"--ladder-out: nothing could be exported for {', '.join(runtimes)}"], hint="apportion doctor"
        )
    return read_ladder(folder)


def written_values(folder: Path, *, runtime: str, quick: bool) -> dict[str, Any]:
    """The values of ``--ladder-out DIR --json``; what is written is told on stderr, a line each.

    Raises:
        ConfigError: an unknown runtime, or none of the shapes can be exported; also OSError.
    """
    if same := traits_of(runtime).checked_by:
        raise ConfigError(
            [
                f"--runtime: a browser measures itself on the artifacts it is ordered, '{runtime}' has no ladder; "
                f"for this machine take {same}, which has the same operators"
            ]
        )
    if runtime and runtime not in RUNTIMES:
        raise ConfigError([f"--runtime: '{runtime}' is unknown, known are {', '.join(RUNTIMES)}"])
    started = time.monotonic()
    print(f"writing a ladder to {folder}, once", file=sys.stderr)
    ladder = write_ladder(
        folder,
        runtimes=(runtime or DEFAULT,),
        quick=quick,
        tell=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
    )
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    seconds = time.monotonic() - started
    print(f"{folder}: {len(ladder.rungs)} rungs, {size / 1e6:.1f} MB, in {seconds:.0f} s", file=sys.stderr)
    rungs = [{name: getattr(rung, name) for name in _TOLD} for rung in ladder.rungs]
    return {"out": str(folder), "bytes": size, "seconds": round(seconds, 1), "rungs": rungs}


def _write(folder: Path, rungs: Iterable[Rung]) -> None:
    ordered = sorted(rungs, key=lambda r: (r.runtime, r.predicted_bytes, r.shape, r.batch))
    data = msgspec.json.encode(Ladder(rungs=tuple(ordered)), order="deterministic")
    write_whole(ladder_path(folder), msgspec.json.format(data, indent=1) + b"\n")


def _export(folder: Path, shape: Shape, batch: int, runtime: str) -> Rung:
    from coordinator.cli.model_arguments import ModelArguments
    from export.bundle import export_artifact

    name = f"{shape.name.replace(':', '-')}-b{batch}-{runtime}"
    shutil.rmtree(folder / name, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    prepared = ModelArguments(shape.model, (), 0, batch, 0, shape.cut).prepare()
    manifest = export_artifact(
        prepared.module,
        prepared.step,
        folder / name,
        build=prepared.build,
        classes=prepared.class_names,
        runtime=runtime,
    )
    read_artifact_folder(folder / name)  # as devices will
    return _rung(folder / name, shape, manifest, is_quick=batch in shape.quick)


def _rung(folder: Path, shape: Shape, manifest: ArtifactManifest, *, is_quick: bool) -> Rung:
    cost = manifest.cost
    return Rung(
        shape=shape.name,
        folder=folder.name,
        digest=hashlib.sha256((folder / MANIFEST_NAME).read_bytes()).hexdigest(),
        runtime=manifest.runtime,
        batch=manifest.batch,
        parameters=cost.parameters,
        macs=cost.macs,
        live_bytes=cost.live_bytes,
        predicted_bytes=cost.predicted_peak_bytes,
        graph_bytes=cost.graph_bytes,
        work=cost.step_work,
        is_quick=is_quick,
    )


BATCH = 20
"""Of the publication's device measurements (PruneFL, section VI)."""

ROOM = 0.3
"""Share of a layer that there is room for: beyond a quarter or so the dense kernels are faster."""


@contextlib.contextmanager
def layer_artifact(what: str) -> Iterator[Path]:
    """The folder ``what``, if it is an artifact's, or one exported for the model of that name, gone with the context.

    Raises:
        ConfigError: an unknown model, or one without such layers; also ExportRefused.
    """
    if (Path(what) / MANIFEST_NAME).exists():
        yield Path(what)
        return
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "artifact"
        print(f"exporting {what} for {_sparse_runtime()}", file=sys.stderr)
        export_layers(what, folder)
        yield folder


def layer_artifact_values(folder: Path, model: str) -> dict[str, Any]:
    """The values of ``--ladder-out DIR --layer-times MODEL --json``: the artifact is in ``folder``."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            [f"--ladder-out: {folder} is there already and is not an empty folder"], hint="name a new one"
        )
    started = time.monotonic()
    manifest = export_layers(model, folder)
    layers = [spec.name for spec in manifest.specs("grad_mask") if spec.capacity]
    print(f"{folder}: {model} with {len(layers)} layers by their kept entries; on the device: "
          f"apportion profile --layer-times {folder.name}", file=sys.stderr)  # fmt: skip
    return {"out": str(folder), "layers": layers, "seconds": round(time.monotonic() - started, 1)}


def export_layers(model: str, folder: Path) -> ArtifactManifest:
    """The artifact of ``model`` in ``folder``, masked as PruneFL masks it.

    Raises:
        ConfigError: an unknown model, or one none of whose prunable layers has such kernels; also ExportRefused.
    """
    from coordinator.exporting.step import step_of
    from coordinator.methods import build_method
    from coordinator.models.catalog import build_model, input_spec, model_entry
    from coordinator.submodels.sparse_layers import SMALLEST
    from coordinator.submodels.values import DeviceProgram
    from export.bundle import export_artifact
    from export.training_step import Optimizer

    entry = model_entry(model)
    if entry is None:
        raise ConfigError([f"--layer-times: {model} has no number of classes of its own"], hint="give a model by name")
    module = build_model(model)
    method = build_method("prunefl", module, {})
    program = method.program(method.cut_shape(method.levels()[0], round_index=0, device="", seed=0))
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    room = tuple((name, int(ROOM * sizes[name])) for name in program.masked if sizes[name] >= SMALLEST)
    program = DeviceProgram(masked=program.masked, sparse=room)
    step = step_of(
        program, module, input_spec=input_spec(model), classes=entry.classes, batch=BATCH, optimizer=Optimizer()
    )
    if not step.sparse:
        raise ConfigError([f"--layer-times: {model} has no layer with sparse kernels of {SMALLEST} weights or more"])
    return export_artifact(module, step, folder, build={"model": model}, runtime=_sparse_runtime())


def _sparse_runtime() -> str:
    """The one with kernels whose time falls with what a mask keeps."""
    from export.formats import format_for

    return next(name for name in RUNTIMES if "sparse" in format_for(name).features)
