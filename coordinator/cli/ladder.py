"""The ladder that devices are measured with: which models, cuts and batches, and their artifacts in a folder."""

from __future__ import annotations

import hashlib
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from coordinator.cli.model_arguments import ModelArguments
from edge.artifact_folder import MANIFEST_NAME, read_artifact_folder
from edge.contracts.errors import ApportionError, ConfigError
from edge.contracts.manifest import ArtifactManifest
from edge.profile_ladder import Ladder, Rung, ladder_path, read_ladder
from edge.runtimes import RUNTIMES
from edge.runtimes.checking import SAME_GRAPHS
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


DEFAULT_RUNTIME = "onnxruntime"
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
    if runtime in SAME_GRAPHS:
        raise ConfigError(
            [
                f"--runtime: a browser measures itself on the artifacts it is ordered, '{runtime}' has no ladder; "
                f"for this machine take {SAME_GRAPHS[runtime]}, which has the same operators"
            ]
        )
    if runtime and runtime not in RUNTIMES:
        raise ConfigError([f"--runtime: '{runtime}' is unknown, known are {', '.join(RUNTIMES)}"])
    started = time.monotonic()
    print(f"writing a ladder to {folder}, once", file=sys.stderr)
    ladder = write_ladder(
        folder,
        runtimes=(runtime or DEFAULT_RUNTIME,),
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
