"""Updates in fewer bits: ``python -m benchmarks.updates`` prints bytes, accuracy and time of each precision as JSON.

A perceptron on scikit-learn's digits, devices with equal shares, federated averaging in this process. What is sent is
what an agent would send: :class:`edge.training.coded_update.CodedUpdate` written to a file, with what is left over for
the next round beside it, and restored as the coordinator does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn

from coordinator.cli.bench_device import bench_order, write_inputs
from coordinator.cli.model_arguments import ModelArguments
from coordinator.data.datasets import Dataset
from coordinator.data.digits import load_digits_dataset
from coordinator.models.mlp import mlp
from coordinator.submodels.build import module_tensors
from edge.contracts.manifest import ArtifactManifest
from edge.contracts.plan import Precision, WorkOrder
from edge.contracts.precision import restored
from edge.contracts.tensor_file import read_tensor_file
from edge.training.coded_update import CodedUpdate, LeftOver
from edge.training.update_file import write_update
from export.bundle import export_artifact

DEVICES, BATCH, LR, MOMENTUM = 4, 16, 0.05, 0.9
KINDS: dict[str, tuple[Precision, bool]] = {
    "fp32": ("fp32", False),
    "fp16": ("fp16", True),
    "int8": ("int8", True),
    "int8, nothing kept": ("int8", False),
}


def perceptron(*, input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """64-128-10, with 9,610 parameters."""
    return mlp(input_shape=input_shape, classes=classes, hidden=(128,))


@dataclass
class Figures:
    """Of one run."""

    accuracy: float = 0.0
    raw_bytes: list[int] = field(default_factory=list)
    zstd_bytes: list[int] = field(default_factory=list)
    encode_ms: list[float] = field(default_factory=list)
    decode_ms: list[float] = field(default_factory=list)
    models: list[dict[str, np.ndarray]] = field(default_factory=list)


def run(
    arguments: ModelArguments, manifest: ArtifactManifest, ordered: WorkOrder, seed: int, rounds: int, kind: str
) -> Figures:
    """``rounds`` of federated averaging with ``kind`` of updates."""
    precision, is_kept = KINDS[kind]
    torch.manual_seed(seed)
    module = arguments.prepare().module
    data = load_digits_dataset(None, seed, 0.2)
    order = msgspec.structs.replace(ordered, precision=precision)
    names = list(order.upload)
    state = {name: value.copy() for name, value in module_tensors(module).items() if name in names}
    left_over: list[dict[str, np.ndarray]] = [{} for _ in range(DEVICES)]
    shares = np.array_split(np.random.default_rng(seed).permutation(len(data.y_train)), DEVICES)
    figures = Figures()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for round_index in range(rounds):
            figures.models.append(state)
            received = {key: value.copy() for key, value in state.items()}
            updates = []
            for device, share in enumerate(shares):
                trained = train(module, received, data, share, 1000 * round_index + device)
                path = folder / f"{device}"
                started = time.perf_counter()
                if precision == "fp32":
                    _, size, _ = write_update(path, trained, "raw")
                else:
                    update = CodedUpdate(order, manifest, trained.__getitem__, received, left_over[device])
                    _, size, _ = write_update(path, update, "raw")
                    if is_kept:
                        kept = folder / f"kept-{device}-{round_index % 2}"  # the other one is mapped still
                        write_update(kept, LeftOver(update), "raw")
                        left_over[device] = read_tensor_file(kept, where="kept")
                figures.encode_ms.append((time.perf_counter() - started) * 1000)
                figures.raw_bytes.append(size)
                figures.zstd_bytes.append(packed_bytes(path, folder / "packed"))
                started = time.perf_counter()
                updates.append(restored(read_tensor_file(path, where="update"), received, where="update"))
                figures.decode_ms.append((time.perf_counter() - started) * 1000)
            weights = [len(share) / len(data.y_train) for share in shares]
            state = {
                key: np.asarray(sum(w * update[key] for w, update in zip(weights, updates, strict=True)), np.float32)
                for key in names
            }
    load(module, state)
    with torch.no_grad():
        guesses = module(torch.from_numpy(data.x_test / 16)).argmax(1).numpy()
    figures.accuracy = float((guesses == data.y_test).mean())
    return figures


def train(
    module: nn.Module, received: dict[str, np.ndarray], data: Dataset, share: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    """What the module's tensors are after an epoch over ``share``."""
    load(module, received)
    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
    order = np.random.default_rng(seed).permutation(share)
    for start in range(0, len(order) - BATCH + 1, BATCH):
        picked = order[start : start + BATCH]
        optimizer.zero_grad()
        output = module(torch.from_numpy(data.x_train[picked] / 16))
        nn.functional.cross_entropy(output, torch.from_numpy(data.y_train[picked])).backward()
        optimizer.step()
    return {key: value.copy() for key, value in module_tensors(module).items() if key in received}


def load(module: nn.Module, tensors: dict[str, np.ndarray]) -> None:
    """Set the module's tensors."""
    module.load_state_dict({name: torch.from_numpy(value.copy()) for name, value in tensors.items()}, strict=False)


def packed_bytes(path: Path, to: Path) -> int:
    """Size of the update in ``path`` with zstd, level 3 as devices use."""
    return write_update(to, read_tensor_file(path, where="update"), "zstd")[2]


def lossless_difference_bytes(before: dict[str, np.ndarray], model: dict[str, np.ndarray]) -> int:
    """Size of ``model`` for a device that has ``before``: bits that changed, byte plane by byte plane, with zstd."""
    import zstandard

    planes = []
    for key in sorted(model):
        changed = model[key].ravel().view(np.uint32) ^ before[key].ravel().view(np.uint32)
        planes.append(np.ascontiguousarray(changed.view(np.uint8).reshape(-1, 4).T))
    return len(zstandard.ZstdCompressor(level=3).compress(np.concatenate(planes, axis=1).tobytes()))


def print_downloads(models: list[dict[str, np.ndarray]]) -> None:
    """What a device is sent that took part 1, 3 or 10 rounds ago, to the bytes of the whole model."""
    whole = sum(value.nbytes for value in models[0].values())
    for distance in (1, 3, 10):
        pairs = list(zip(models[10:], models[10 + distance :], strict=False))
        if pairs:
            sizes = [lossless_difference_bytes(before, model) for before, model in pairs]
            print(json.dumps({"rounds_apart": distance, "difference": round(statistics.median(sizes) / whole, 3)}))
    nothing = {key: np.zeros_like(value) for key, value in models[0].items()}
    alone = [lossless_difference_bytes(nothing, model) for model in models[10:]]
    if alone:
        print(json.dumps({"rounds_apart": None, "byte_planes_alone": round(statistics.median(alone) / whole, 3)}))


def main() -> int:
    """Prints one JSON object per kind, then one per distance of rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=5)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    arguments = ModelArguments("benchmarks.updates:perceptron", (64,), 10, BATCH)
    with tempfile.TemporaryDirectory() as name:
        prepared = arguments.prepare()
        manifest = export_artifact(
            prepared.module,
            prepared.step,
            Path(name) / "artifact",
            build=prepared.build,
            classes=prepared.class_names,
            runtime="onnxruntime",
        )
        order = bench_order(write_inputs(Path(name), manifest, prepared.module), 0, 1, 1)
    for kind in KINDS:
        runs = [run(arguments, manifest, order, seed, chosen.rounds, kind) for seed in range(chosen.seeds)]
        print(
            json.dumps(
                {
                    "kind": kind,
                    "bytes": int(statistics.median(n for r in runs for n in r.raw_bytes)),
                    "zstd_bytes": int(statistics.median(n for r in runs for n in r.zstd_bytes)),
                    "accuracy": [round(r.accuracy, 4) for r in runs],
                    "median_accuracy": round(statistics.median(r.accuracy for r in runs), 4),
                    "mean_accuracy": round(statistics.mean(r.accuracy for r in runs), 4),
                    "encode_ms": round(statistics.median(n for r in runs for n in r.encode_ms), 2),
                    "decode_ms": round(statistics.median(n for r in runs for n in r.decode_ms), 2),
                }
            ),
            flush=True,
        )
        if kind == "fp32":
            downloads = runs[0].models
    print_downloads(downloads)
    return 0


if __name__ == "__main__":
    sys.exit(main())
