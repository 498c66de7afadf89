"""A training step with masked weights held dense beside the same step with them held as kept entries, on executorch.

``python -m benchmarks.sparse_step --masks MASKS.npz --batch 20 32`` takes boolean arrays by weight name; without a file
masks are drawn at ``--density conv2.weight=0.4 fc1.weight=0.13``. All forms run in this process on one thread; blocks
of ten steps alternate with those of the unmasked step, and the ratios of medians count, of time on the wall and of the
processor's. Peaks of memory are those of processes of their own, which take the order's files as a device does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from edge.contracts.packing import KEPT, kept_values, pack_mask
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes import runtime
from edge.runtimes.base import Session
from edge.runtimes.executorch.library import crossovers
from edge.runtimes.weights_file import WeightsFile
from edge.system.meter import peak_rss_bytes, rss_bytes
from edge.training.artifact_folder import read_artifact_folder

RUNTIME, STEPS, BLOCKS, WARM_UP = "executorch", 10, 15, 3
FORMS = ("unmasked", "masked", "sparse")
HYPER = {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4}
MB = 1 << 20


def export_forms(model: str, batch: int, masks: dict[str, np.ndarray], dense: list[str], folder: Path) -> None:
    """An artifact per form in ``folder/form``, with the weights and masks of an order beside it."""
    import msgspec

    from coordinator.models.catalog import build_model, input_spec, model_entry
    from coordinator.submodels.build import module_tensors
    from export.bundle import export_artifact
    from export.training_step import SparseWeight, StepSpec

    entry = model_entry(model)
    if entry is None:
        raise SystemExit(f"{model} is not a model by name")
    head = [mask.shape[0] for mask in masks.values()][-1]
    classes = head if masks and head < entry.classes else entry.classes
    module = build_model(model, classes=classes, seed=1)
    plain = StepSpec(input=input_spec(model), classes=classes, batch=batch)
    masked = msgspec.structs.replace(plain, masked=tuple(masks))
    held = tuple(SparseWeight(n, int(m.sum())) for n, m in masks.items() if n not in dense)
    steps = {"unmasked": plain, "masked": masked, "sparse": msgspec.structs.replace(masked, sparse=held)}
    values = module_tensors(module)
    weights = {n: v for n, v in values.items() if n not in masks}
    kept = {n + KEPT: kept_values(values[n], mask) for n, mask in masks.items()}
    packed: dict[str, np.ndarray] = {}
    for name, mask in masks.items():
        packed |= pack_mask(name, mask)
    for form, step in steps.items():
        export_artifact(module, step, folder / form / "artifact", runtime=RUNTIME)
        given = values if form == "unmasked" else weights | kept
        (folder / form / "weights.safetensors").write_bytes(encode_tensors(given))
        if form != "unmasked":
            (folder / form / "constants.safetensors").write_bytes(encode_tensors(packed))


def opened(folder: Path) -> Callable[[], float]:
    """A step of the form in ``folder``, loaded as a trainer loads an order; it gives the loss."""
    manifest, files = read_artifact_folder(folder / "artifact")
    session: Session = runtime(RUNTIME).load(manifest, files, threads=1)
    constants = folder / "constants.safetensors"
    given = WeightsFile(
        folder / "weights.safetensors", where="bench", constants=constants if constants.exists() else None
    )
    session.load_state(given)
    generator = np.random.default_rng(0)
    feeds: dict[str, np.ndarray] = {n: np.array(v, np.float32) for n, v in HYPER.items()}
    feeds["input"] = generator.standard_normal((manifest.batch, *manifest.input.shape)).astype(np.float32)
    feeds["target"] = generator.integers(0, len(manifest.classes), manifest.batch)
    return lambda: session.run("train", feeds)["loss"]


def block(step: Callable[[], float]) -> tuple[float, float]:
    """Median milliseconds of a block's steps: on the wall, and of the processor, which others disturb less."""
    walls, processor = [], []
    for _ in range(STEPS):
        started, begun = time.perf_counter(), time.process_time()
        step()
        walls.append((time.perf_counter() - started) * 1e3)
        processor.append((time.process_time() - begun) * 1e3)
    return statistics.median(walls), statistics.median(processor)


def memory_of(folder: Path) -> dict[str, float]:
    """MB of a process that loads and trains one form: idle, and its peak."""
    runtime(RUNTIME).version()
    idle = rss_bytes()
    step = opened(folder)
    for _ in range(STEPS):
        step()
    return {"idle_mb": round(idle / MB, 1), "peak_mb": round(peak_rss_bytes() / MB, 1)}


def measure(model: str, batch: int, masks: dict[str, np.ndarray], dense: list[str], blocks: int) -> dict[str, object]:
    """Milliseconds per step and peak memory of each form at one batch size."""
    with tempfile.TemporaryDirectory(prefix="sparse-step-") as name:
        folder = Path(name)
        export_forms(model, batch, masks, dense, folder)
        steps = {form: opened(folder / form) for form in FORMS}
        for step in steps.values():
            for _ in range(WARM_UP):
                step()
        times: dict[str, list[tuple[float, float]]] = {form: [] for form in FORMS}
        for _ in range(blocks):
            for form, step in steps.items():
                times[form].append(block(step))
        memory = {}
        for form in FORMS:
            command = [sys.executable, "-m", "benchmarks.sparse_step", "--memory-of", str(folder / form)]
            memory[form] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    wall, processor = ({f: statistics.median(t[i] for t in ts) for f, ts in times.items()} for i in (0, 1))
    pairs = [s[0] / u[0] for s, u in zip(times["sparse"], times["unmasked"], strict=True)]
    return {
        "batch": batch,
        "step_ms": {form: round(value, 2) for form, value in wall.items()},
        "processor_ms": {form: round(value, 2) for form, value in processor.items()},
        "sparse_to_unmasked": round(wall["sparse"] / wall["unmasked"], 3),
        "sparse_to_unmasked_by_block": [round(q, 3) for q in (min(pairs), statistics.median(pairs), max(pairs))],
        "sparse_to_unmasked_processor": round(processor["sparse"] / processor["unmasked"], 3),
        "sparse_to_masked": round(wall["sparse"] / wall["masked"], 3),
        "memory": memory,
    }


def dense_layers(masks: dict[str, np.ndarray], below: dict[str, float]) -> list[str]:
    """The weights that a federation would hold dense on a device that measured ``below``."""
    from coordinator.submodels.sparse_layers import KINDS, SMALLEST

    return [n for n, m in masks.items() if m.size < SMALLEST or m.mean() > below[KINDS[m.ndim]]]


def drawn_masks(model: str, densities: list[str]) -> dict[str, np.ndarray]:
    """A random mask for every ``weight=density``."""
    from coordinator.models.catalog import build_model

    shapes = {n: tuple(p.shape) for n, p in build_model(model).named_parameters()}
    generator = np.random.default_rng(0)
    wanted = dict(item.split("=") for item in densities)
    return {n: generator.random(shapes[n]) < float(d) for n, d in wanted.items()}


def main() -> None:
    """Prints one JSON line per batch size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="conv2")
    parser.add_argument("--batch", type=int, nargs="+", default=[20, 32])
    parser.add_argument("--masks", type=Path, help="npz of boolean arrays by weight name")
    parser.add_argument("--density", nargs="+", default=["conv2.weight=0.4", "fc1.weight=0.13", "fc2.weight=0.3"])
    parser.add_argument("--dense", nargs="*", help="masked weights that stay dense; else as a federation would choose")
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(json.dumps(memory_of(options.memory_of)))
        return
    if options.masks:
        with np.load(options.masks) as file:
            masks = {n: file[n] for n in file.files if file[n].dtype == np.bool_}
    else:
        masks = drawn_masks(options.model, options.density)
    densities = {n: round(float(m.mean()), 4) for n, m in masks.items()}
    kept = sum(int(m.sum()) for m in masks.values()) / sum(m.size for m in masks.values())
    below = crossovers()
    dense = dense_layers(masks, below) if options.dense is None else options.dense
    load = round(os.getloadavg()[0], 2)
    told = {"density": round(kept, 4), "densities": densities, "sparse_below": below, "dense": dense, "load": load}
    print(json.dumps(told), flush=True)
    for batch in options.batch:
        print(json.dumps(measure(options.model, batch, masks, dense, options.blocks)), flush=True)


if __name__ == "__main__":
    main()
