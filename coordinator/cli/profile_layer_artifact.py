"""The artifact that layer times are measured with: a model whose prunable layers are held by their kept entries."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from edge.artifact_folder import MANIFEST_NAME
from edge.contracts.errors import ConfigError
from edge.contracts.manifest import ArtifactManifest

RUNTIME = "executorch"
"""The only one with kernels whose time falls with what a mask keeps."""

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
        print(f"exporting {what} for {RUNTIME}", file=sys.stderr)
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
    from coordinator.methods import build_method
    from coordinator.models import build_model, input_spec, model_entry
    from coordinator.submodels.sparse_layers import SMALLEST, has_sparse_kernels
    from export.bundle import export_artifact
    from export.training_step import SparseWeight, StepSpec

    entry = model_entry(model)
    if entry is None:
        raise ConfigError([f"--layer-times: {model} has no number of classes of its own"], hint="give a model by name")
    module = build_model(model)
    method = build_method("prunefl", module, {})
    masked = method.program(method.cut_shape(method.levels()[0], round_index=0, device="", seed=0)).masked
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    sparse = tuple(
        SparseWeight(name, int(ROOM * sizes[name]))
        for name in masked
        if sizes[name] >= SMALLEST and has_sparse_kernels(module, name)
    )
    if not sparse:
        raise ConfigError([f"--layer-times: {model} has no layer with sparse kernels of {SMALLEST} weights or more"])
    step = StepSpec(input=input_spec(model), classes=entry.classes, batch=BATCH, masked=masked, sparse=sparse)
    return export_artifact(module, step, folder, build={"model": model}, runtime=RUNTIME)
