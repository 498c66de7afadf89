"""Seconds per kept weight of every layer, as PruneFL's time model wants them, measured on this device.

One artifact whose layers hold kept entries alone, for sparse kernels, takes every mask that it has room for. Its steps
are timed under masks that keep different shares of each layer, and T = c + sum of t_l kept_l is fitted to the times
(PruneFL, section IV-B). What the optimizer does to entries it does to all that there is room for: that is in c.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.contracts.errors import ConfigError
from edge.measuring.step_measurement import StepMeasurement, measure_steps
from edge.training.artifact_folder import read_artifact_folder

if TYPE_CHECKING:
    from edge.contracts.tensors import TensorSpec
    from profiles.latency import LayerTimes

SHARES = (0.1, 0.3, 0.5, 0.75, 1.0)
"""Of what a layer has room for; the masks draw from them."""

STEPS, SECONDS = 20, 4.0
SENT_BYTES = 8
"""Of a kept weight in a round: 4 down and 4 up, in fp32."""

USUAL_BYTES_PER_S = 1_440_000.0
"""Of the published prototype's link; taken where this device has not measured its own."""


@dataclass(frozen=True)
class LayerArguments:
    """What a command line says of it.

    Attributes:
        artifact: a folder.
        iterations: local iterations of a round.
    """

    artifact: Path
    iterations: int = 5


def layer_values(arguments: LayerArguments, bytes_per_s: float | None, tell: Callable[[str], None]) -> dict[str, Any]:
    """``layer_times`` of ``--json``; ``tell`` gets a line per mask, and what goes into a run file.

    Raises:
        ConfigError: the artifact holds no layer by its kept entries, or its steps cannot be measured; also
            ArtifactCorrupt, FitImpossible as ConfigError.
    """
    from edge.contracts.packing import MASK  # with it comes NumPy
    from profiles.fit import FitImpossible
    from profiles.latency import fit_layer_times

    manifest, _ = read_artifact_folder(arguments.artifact)
    masks = manifest.specs("grad_mask")
    room = {spec.name.removesuffix(MASK): spec.capacity for spec in masks if spec.capacity}
    if not room:
        raise ConfigError(
            [f"{arguments.artifact}: no layer of it is held by its kept entries; a step takes as long under any mask"],
            hint="apportion profile --layer-times MODEL exports one that is",
        )
    samples, rows = [], []
    for kept in drawn_masks(room):
        found = measure_steps(arguments.artifact, steps=STEPS, seconds=SECONDS, kept=kept)
        if found.ended:
            raise ConfigError([f"{arguments.artifact}: {found.ended}"], hint="apportion profile --measure tells more")
        samples.append((kept, found.cpu_ms_p50 / 1000))
        rows.append({"kept": kept, "cpu_ms_p50": found.cpu_ms_p50, "step_ms_p50": found.step_ms_p50})
        tell(_row_line(kept, room, found))
    try:
        fit = fit_layer_times(samples)
    except FitImpossible as error:
        raise ConfigError([f"{arguments.artifact}: {error}"], hint="measure it again on a quieter machine") from error
    layers = [_layer(spec.name.removesuffix(MASK), spec, fit) for spec in masks]
    rate = bytes_per_s or USUAL_BYTES_PER_S
    options = round_options(fit.constant_s, [layer["step_s"] for layer in layers], arguments.iterations, rate)
    quality = fit.quality
    tell(f"{quality.points} masks, {quality.left_out} left out, median error {quality.median_error:.1%}, worst "
         f"{quality.worst_error:.1%}; {'measured' if bytes_per_s else 'usual'} link {rate / 1e6:.2f} MB/s")  # fmt: skip
    tell(f"[method]                    # {arguments.iterations} iterations a round")
    tell(f"constant-s = {options['constant-s']:.6g}")
    tell(f"layer-s = [{', '.join(f'{value:.6g}' for value in options['layer-s'])}]")
    return {
        "artifact": str(arguments.artifact),
        "runtime": manifest.runtime,
        "iterations": arguments.iterations,
        "bytes_per_s": rate,
        "constant_s": fit.constant_s,
        "layers": layers,
        "options": options,
        "rows": rows,
        "points": quality.points,
        "left_out": quality.left_out,
        "median_error": quality.median_error,
        "worst_error": quality.worst_error,
    }


def drawn_masks(room: Mapping[str, int]) -> list[dict[str, int]]:
    """Kept entries by layer, for twice as many masks as there are coefficients; the same for the same layers."""
    draw = random.Random(0)
    full = dict(room)
    alone = [{**full, name: max(1, round(SHARES[0] * size))} for name, size in room.items()]
    mixed = [
        {name: max(1, round(draw.choice(SHARES) * size)) for name, size in room.items()} for _ in range(len(room) + 1)
    ]
    return [full, *alone, *mixed]


def round_options(constant_s: float, step_s: Sequence[float], iterations: int, bytes_per_s: float) -> dict[str, Any]:
    """``constant-s`` and ``layer-s`` of a run file from seconds of a step: t_l = I tau_l + q, c = I c_step."""
    sent_s = SENT_BYTES / bytes_per_s
    return {"constant-s": iterations * constant_s, "layer-s": [iterations * value + sent_s for value in step_s]}


def _layer(name: str, spec: TensorSpec, fit: LayerTimes) -> dict[str, Any]:
    """A layer held dense takes the same under any mask: its weights cost nothing but their way."""
    return {
        "name": name,
        "size": spec.element_count(),
        "room": spec.capacity or None,
        "step_s": fit.weight_s.get(name, 0.0),
        "error_s": fit.weight_error_s.get(name),
    }


def _row_line(kept: Mapping[str, int], room: Mapping[str, int], found: StepMeasurement) -> str:
    shares = ", ".join(f"{name.removesuffix('.weight')} {kept[name] / size:.0%}" for name, size in room.items())
    return f"  {found.cpu_ms_p50:8.2f} ms of the processor ({found.step_ms_p50:.2f} on the clock): {shares} of the room"
