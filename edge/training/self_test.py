"""An artifact's self-test: formula weights, a fixed batch, the losses of the first steps. Needs no torch, no data."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edge.contracts.errors import DeviceRefused
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.streams import self_test_value
from edge.contracts.tensors import FEATURES, TensorSpec
from edge.runtimes.base import Session
from edge.runtimes.micro_batches import TRAIN, run_step, step_programs
from edge.training.steps import scalar
from edge.training.task_tensors import INPUT


def self_test_losses(
    session: Session, manifest: ArtifactManifest, *, steps: int, folder: Path | None = None
) -> list[float]:
    """Losses of the first ``steps`` steps of program ``train``; the session's state is overwritten."""
    fed = load_self_test(session, manifest, folder=folder)
    return [run_step(session, manifest, TRAIN, fed)["loss"] for _ in range(steps)]


def load_self_test(
    session: Session, manifest: ArtifactManifest, *, batch: int = 0, folder: Path | None = None
) -> dict[str, np.ndarray]:
    """The feeds of the self-test's steps; the session's state is overwritten with its weights.

    Args:
        batch: examples in the feeds; 0: as many as the test has, whose losses are then the manifest's.
        folder: for the file of a language model's base, on a disk; None: that of temporary files.

    Raises:
        StoreFull: there is no room for that file.
    """
    test, programs = manifest.self_test, step_programs(manifest, TRAIN)
    batch = batch or test.batch
    specs = {spec.name: spec for spec in manifest.tensors}
    state, feeds = dict[str, np.ndarray](), dict[str, np.ndarray]()
    mapped = manifest.specs("mapped")
    for name in {n for p in manifest.programs for n in p.inputs}:
        spec = specs[name]
        if spec.role == "hyper":
            feeds[name] = scalar(spec, test.hyper.get(name, 0.0))
        elif spec.role == "features":
            continue
        elif spec.role in ("input", "target", "label_mask", "draw"):
            feeds[name] = _value(spec, manifest, batch)
        elif spec.role not in ("mapped", "rows"):
            state[name] = _value(spec, manifest, batch)
    if mapped:
        from edge.training.self_test_base import formula_weights  # temporary files weigh 0.6 MB in an idle trainer

        with formula_weights(mapped, test, state, folder) as weights:
            session.load_state(weights)
    else:
        session.load_state(state)
    if manifest.specs("features"):
        from edge.training.feature_cache.source import FeatureSource

        places = np.arange(len(feeds[INPUT]))
        feeds[FEATURES] = FeatureSource(session, manifest, None).batch(places, feeds[INPUT])
    return {name: feeds[name] for program in programs for name in program.inputs if name in feeds}


def check_self_test(
    session: Session, manifest: ArtifactManifest, *, steps: int = 1, folder: Path | None = None
) -> float:
    """The largest difference of the first losses from the manifest's, relative to those.

    Args:
        folder: as of :func:`load_self_test`.

    Raises:
        StoreFull: as there.
        DeviceRefused: a loss is off by more than the manifest's tolerance; the message has both values.
    """
    test = manifest.self_test
    expected = test.losses[:steps]
    found = self_test_losses(session, manifest, steps=len(expected), folder=folder)
    worst = 0.0
    for step, (loss, wanted) in enumerate(zip(found, expected, strict=True)):
        difference = abs(loss - wanted) / max(abs(wanted), 1e-6)
        worst = max(worst, difference)
        if not difference <= test.rel_tolerance:
            raise DeviceRefused(
                f"self-test of {manifest.runtime} artifact: loss {loss:.6g} in step {step}, {wanted:.6g} expected "
                f"within {test.rel_tolerance:g}; this runtime computes something else: update it"
            )
    return worst


def _value(spec: TensorSpec, manifest: ArtifactManifest, batch: int) -> np.ndarray:
    high = manifest.input.vocabulary if spec.role == "input" else len(manifest.classes)
    high = manifest.symbols.get(spec.name, high)
    test = manifest.self_test
    return self_test_value(spec, test.seed, batch, high=max(2, high), bias=test.bias, gain=test.gain)
