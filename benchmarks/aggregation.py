"""Aggregation of many updates from disk, against reading and summing the same files with numpy.

``python -m benchmarks.aggregation`` writes the updates as devices send them (safetensors of a ResNet's tensors), then
lets both sides take all of them in turn: ours from the ledger's records to the new global model, numpy's
``np.fromfile`` of each file and ``+=`` into one array. Needs as much free disk as there are bytes of updates.

Prints one JSON line. Page cache: files are read in the same order by both sides; with more bytes than memory every read
comes from disk for both, with fewer every read but the first is of the cache. ``--cold`` asks the kernel to drop each
file's pages before every pass.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from torch import nn

from coordinator.blobs.blob_store import BlobStore
from coordinator.config.aggregation import DefencesConfig
from coordinator.ledger.records import Assignment, RecordedUpdate
from coordinator.methods.fedavg import FedAvg
from coordinator.methods.method import Method
from coordinator.rounds.federation import Federation
from coordinator.rounds.participants import stored_update, updates_of
from coordinator.submodels.values import State
from edge.contracts.codec import encode_msgpack
from edge.contracts.plan import BlobRef, Schedule, WorkOrder
from edge.contracts.report import TrainReport
from edge.contracts.tensor_file import encode_tensors

CHANNELS = (3, *[32] * 5, *[64] * 4, *[128] * 4, *[256] * 4)
"""Of 3x3 convolutions with batch norm, as in a ResNet: 108 tensors, 10.5 MB."""

PASSES = 3


def module() -> nn.Module:
    """The model whose updates are summed."""
    layers: list[nn.Module] = []
    for into, out in itertools.pairwise(CHANNELS):
        layers += [nn.Conv2d(into, out, 3, bias=False), nn.BatchNorm2d(out)]
    return nn.Sequential(*layers)


def write_updates(blobs: BlobStore, tensors: dict[str, np.ndarray], count: int) -> list[RecordedUpdate]:
    """``count`` updates, each with bytes of its own, and their records in device-id order."""
    recorded = []
    for number in range(count):
        varied = {name: value + np.asarray(number * 1e-3, value.dtype) for name, value in tensors.items()}
        digest = blobs.put(encode_tensors(varied))
        recorded.append(record(f"device-{number:05d}", digest, tuple(sorted(tensors)), 10 + number % 7))
    return recorded


def record(device: str, digest: str, upload: tuple[str, ...], examples: int) -> RecordedUpdate:
    """What the ledger holds of an update."""
    blob = BlobRef(digest, 1, "raw", 1)
    order = WorkOrder(
        assignment_id=device,
        federation="f",
        device=device,
        round=0,
        attempt=0,
        artifact=blob,
        weights=blob,
        schedule=Schedule(epochs=1),
        batch=1,
        last_batch="drop",
        data_seed=0,
        hyper={},
        upload=upload,
    )
    entry = Assignment(
        assignment_id=device,
        round=0,
        attempt=0,
        device=device,
        level="full",
        cut={},
        artifact_digest=digest,
        weights_digest=digest,
        order=encode_msgpack(order),
        state="reported",
    )
    report = TrainReport(
        assignment_id=device,
        device=device,
        round=0,
        num_examples=examples,
        steps=1,
        loss=1.0,
        metrics={},
        step_ms_p50=1.0,
        step_ms_p95=1.0,
        trainer_peak_bytes=1,
        supervisor_peak_bytes=1,
        trainer_idle_bytes=1,
        budget_bytes=0,
        over_budget=False,
        torch_loaded=False,
        runtime="onnxruntime",
        bytes_down=0,
        bytes_up=0,
        update=blob,
        wall_s=1.0,
    )
    return RecordedUpdate(assignment=entry, update_digest=digest, report=report)


def scene_of(method: Method, blobs: BlobStore, on_point: Callable[[str], None] = lambda point: None) -> Federation:
    """What of a federation an aggregation reads."""
    config = SimpleNamespace(defences=DefencesConfig())
    devices = SimpleNamespace(update=stored_update)
    found = SimpleNamespace(method=method, blobs=blobs, config=config, devices=devices, on_point=on_point)
    return cast(Federation, found)


def with_numpy(paths: list[Path], dtype: type[np.floating[Any]]) -> np.ndarray:
    """The sum of all files' values: read a file, add it, as one would by hand."""
    total: np.ndarray | None = None
    for path in paths:
        raw = np.fromfile(path, np.uint8)
        start = 8 + int(raw[:8].view("<u8")[0])
        # Integers are at the file's start, in place of as many floats: 17 of 2.6 million.
        values = raw[start:].view(np.float32)
        if total is None:
            total = np.zeros(values.shape, dtype)
        total += values
    assert total is not None
    return total


def drop_pages(paths: list[Path]) -> None:
    """Ask the kernel to forget what it keeps of the files."""
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.fdatasync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one unless given")
    parser.add_argument("--cold", action="store_true", help="drop the files' pages before every pass")
    arguments = parser.parse_args()
    method = FedAvg(module(), {})
    state = method.init()
    with tempfile.TemporaryDirectory(prefix="apportion-aggregation-", dir=arguments.folder) as folder:
        blobs = BlobStore(Path(folder) / "blobs")
        recorded = write_updates(blobs, dict(state.tensors), arguments.updates)
        paths = [blobs.path(entry.update_digest) for entry in recorded]
        scene = scene_of(method, blobs)

        def ours() -> State:
            return method.aggregate(state, updates_of(scene, recorded))

        sides: dict[str, Callable[[], object]] = {
            "ours": ours,
            "numpy_float32": lambda: with_numpy(paths, np.float32),
            "numpy_float64": lambda: with_numpy(paths, np.float64),
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(PASSES):
            for name, side in sides.items():
                if arguments.cold:
                    drop_pages(paths)
                started = time.perf_counter()
                side()
                seconds[name].append(time.perf_counter() - started)
        size = sum(path.stat().st_size for path in paths)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    figures = {
        "updates": arguments.updates,
        "bytes": size,
        "cache": "cold" if arguments.cold else "as found",
        "seconds": {name: round(value, 2) for name, value in medians.items()},
        "megabytes_per_s": {name: round(size / 1e6 / value) for name, value in medians.items()},
        "of_numpy_float32": round(medians["numpy_float32"] / medians["ours"], 3),
        "of_numpy_float64": round(medians["numpy_float64"] / medians["ours"], 3),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
