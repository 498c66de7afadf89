"""A local epoch of an image model whose lowest layers are frozen: with features kept on the device and without.

``python -m benchmarks.cached_prefix --model resnet20 --freeze 3 5 7`` exports for each number of frozen blocks the step
that begins at kept features and the one that runs the frozen layers; and once the step that trains every layer. All
are trainers of their own with one thread; blocks of ten steps, which are an epoch or more of what each has seen once,
alternate. The ratios are those of the medians of processor time, which other processes on the machine move least.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from coordinator.cli.bench_device import EXAMPLE_BATCHES, BenchInputs, exported, exported_inputs, measure_agent
from coordinator.cli.bench_sides import DeviceSide
from coordinator.cli.model_arguments import ModelArguments
from coordinator.planning.planner import MB
from coordinator.reporting.environment import environment
from edge.contracts.manifest import ArtifactManifest
from edge.training.feature_cache.artifact import kept_bytes
from export.training_step import CachedFeatures

WHOLE, KEPT, RUN = "whole", "kept", "run"


def measured(arguments: ModelArguments, runtime: str, freeze: list[int], blocks: int, folder: Path) -> dict[str, Any]:
    """Medians of milliseconds of processor time per step, and ratios, by number of frozen blocks."""
    inputs = exported_inputs(replace(arguments, freeze=0, cached_features=""), runtime, folder)
    forms: dict[tuple[str, int], BenchInputs] = {(WHOLE, 0): inputs}
    for count in freeze:
        for name, kind in ((KEPT, arguments.cached_features), (RUN, "")):
            path = folder / f"{name}-{count}"
            _, manifest = exported(replace(arguments, freeze=count, cached_features=kind), runtime, path)
            forms[name, count] = replace(inputs, manifest=manifest, artifact=path)
    times: dict[tuple[str, int], list[float]] = {key: [] for key in forms}
    digests: dict[tuple[str, int], list[str]] = {key: [] for key in forms}
    with ExitStack() as stack:
        sides = {key: stack.enter_context(DeviceSide(form, 1)) for key, form in forms.items()}
        for side in sides.values():
            side.block(EXAMPLE_BATCHES), side.block()
        for _ in range(blocks):
            for key, side in sides.items():
                side.block()
                times[key].append(side.cpu_ms)
                digests[key].append(side.update)
    medians = {key: statistics.median(values) for key, values in times.items()}
    rows = []
    for count in freeze:
        kept, plain = forms[KEPT, count].manifest, forms[RUN, count].manifest
        agent = measure_agent(forms[KEPT, count], folder / f"agent-{count}", 1).report
        rows.append(
            {
                "frozen_blocks": count,
                **_shares(plain, inputs.manifest),
                "kept_cpu_ms": round(medians[KEPT, count], 2),
                "run_cpu_ms": round(medians[RUN, count], 2),
                "ratio_to_run": round(medians[KEPT, count] / medians[RUN, count], 3),
                "ratio_to_whole": round(medians[KEPT, count] / medians[WHOLE, 0], 3),
                "same_updates": digests[KEPT, count] == digests[RUN, count],
                "example_kb": round(kept_bytes(kept) / 1024, 1),
                "trainer_peak_mb": round(agent.trainer_peak_bytes / MB, 1),
                "predicted_peak_mb": round((agent.trainer_idle_bytes + kept.cost.predicted_peak_bytes) / MB, 1),
            }
        )
    return {"whole_cpu_ms": round(medians[WHOLE, 0], 2), "rows": rows}


def _shares(plain: ArtifactManifest, whole: ArtifactManifest) -> dict[str, float]:
    """What of the network is frozen, of its parameters and of the multiply-adds of its forward pass.

    A step has the forward pass once, and its trained part twice more, but for the gradient of the first layer's input.
    """
    work, full = plain.cost.step_work, whole.cost.step_work
    assert work is not None
    assert full is not None
    step, most = (w.convolution_macs + w.matrix_macs for w in (work, full))
    forward = whole.cost.macs * whole.batch
    return {
        "of_parameters": round(1 - plain.cost.trained_parameters / whole.cost.trained_parameters, 3),
        "of_macs": round(min(1.0, (most - step) / (2 * forward)), 3),
    }


def main() -> None:
    """Print a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--freeze", type=int, nargs="+", default=[3, 5, 7])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--kind", choices=[k for k in get_args(CachedFeatures) if k], default="float32")
    parser.add_argument("--blocks", type=int, default=7)
    given = parser.parse_args()
    arguments = ModelArguments(given.model, (), 0, given.batch, cached_features=given.kind, frozen_norm="static")
    with tempfile.TemporaryDirectory(prefix="apportion-prefix-") as name:
        values = measured(arguments, given.runtime, given.freeze, given.blocks, Path(name))
    named = {key: getattr(given, key) for key in ("model", "runtime", "batch", "kind", "blocks")}
    print(json.dumps({**named, "environment": environment(), **values}))


if __name__ == "__main__":
    main()
