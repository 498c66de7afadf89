"""An order for the browser's trainer as files: its blobs, the examples, and what a native session makes of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np

from edge.contracts.packing import MASK, pack_mask
from edge.contracts.plan import BlobRef, Schedule, WorkOrder
from edge.contracts.streams import self_test_value
from edge.contracts.tensor_file import encode_tensors
from edge.runtimes.onnxruntime.session import load
from edge.runtimes.weights_file import WeightsFile
from edge.training.artifact_folder import read_artifact_folder
from edge.training.batches import Examples
from edge.training.local_data import LocalData
from edge.training.steps import train, uploaded

SEED = 7


def write_case(folder: Path, artifact: Path, order: WorkOrder, x: np.ndarray, y: np.ndarray) -> None:
    """``order`` on examples x [N, ...] and y [N], with blobs and result of its own, written to ``folder``.

    ``case.json`` holds the order (64-bit seed as text), the examples, and losses and metrics of the native session on
    one thread; ``blob-<digest>`` are the blobs, ``expected.safetensors`` is the update.
    """
    manifest, files = read_artifact_folder(artifact)
    weights: dict[str, np.ndarray] = {}
    constants: dict[str, np.ndarray] = {}
    for spec in manifest.tensors:
        if spec.role == "grad_mask":
            mask = self_test_value(spec, SEED, 1)
            mask.reshape(-1)[::3] = False
            constants |= pack_mask(spec.name.removesuffix(MASK), mask)
        elif spec.role in ("parameter", "frozen", "buffer"):
            weights[spec.name] = self_test_value(spec, SEED, 1)
    blobs = {"manifest": (artifact / "manifest.json").read_bytes(), "weights": encode_tensors(weights)}
    if constants:
        blobs["constants"] = encode_tensors(constants)
    folder.mkdir(parents=True)
    for data in (*blobs.values(), *(path.read_bytes() for path in files.values())):
        (folder / f"blob-{_sha(data)}").write_bytes(data)
    refs = {name: BlobRef(_sha(data), len(data), "raw", len(data)) for name, data in blobs.items()}
    order = msgspec.structs.replace(
        order, artifact=refs["manifest"], weights=refs["weights"], constants=refs.get("constants")
    )
    session = load(manifest, files, threads=1)
    paths = {name: folder / f"blob-{ref.digest}" for name, ref in refs.items()}
    session.load_state(WeightsFile(paths["weights"], where="case", constants=paths.get("constants")))
    outcome = train(session, manifest, order, Examples(LocalData("case", x, y), manifest))
    update = {name: np.array(uploaded(session, name)) for name in order.upload}
    (folder / "expected.safetensors").write_bytes(encode_tensors(update))
    described = msgspec.to_builtins(order) | {"data_seed": str(order.data_seed), "artifact_signature": ""}
    case = {
        "order": described,
        "x": {"values": x.reshape(-1).tolist(), "shape": list(x.shape)},
        "y": y.tolist(),
        "expected": {"steps": outcome.steps, "loss": outcome.loss, "metrics": outcome.metrics},
    }
    (folder / "case.json").write_text(json.dumps(case) + "\n")


def web_order(upload: tuple[str, ...], hyper: dict[str, float], *, batch: int, steps: int = 3) -> WorkOrder:
    """An order of a few steps; its blobs are the case's."""
    none = BlobRef("0" * 64, 0)
    return WorkOrder(
        assignment_id="a" * 64,
        federation="web",
        device="phone",
        round=1,
        attempt=0,
        artifact=none,
        weights=none,
        schedule=Schedule(steps=steps),
        batch=batch,
        last_batch="wrap",
        data_seed=2**63 + 11,
        hyper=hyper,
        upload=upload,
        report_labels=True,
    )


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
