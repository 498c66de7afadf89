"""A hand-made artifact: softmax regression or a two-layer net with momentum as one ONNX graph, and its NumPy twin."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from edge.contracts.manifest import (
    ArtifactFile,
    ArtifactManifest,
    Cost,
    GraphOutput,
    InputSpec,
    Parity,
    Program,
    SelfTest,
)
from edge.contracts.plan import BlobRef, Schedule, WorkOrder, assignment_id
from edge.contracts.tensor_file import encode_tensors
from edge.contracts.tensors import TensorSpec

FEATURES, CLASSES, BATCH = 6, 3, 4


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def ref(data: bytes) -> BlobRef:
    return BlobRef(sha(data), len(data), "raw", len(data))


def softmax_graph() -> bytes:
    """Cross-entropy of x W + b, mean over the batch; SGD with momentum; label mask multiplies the logits."""
    f, i = TensorProto.FLOAT, TensorProto.INT64
    inputs = [
        helper.make_tensor_value_info("fc.weight", f, [FEATURES, CLASSES]),
        helper.make_tensor_value_info("fc.bias", f, [CLASSES]),
        helper.make_tensor_value_info("fc.weight#momentum", f, [FEATURES, CLASSES]),
        helper.make_tensor_value_info("fc.bias#momentum", f, [CLASSES]),
        helper.make_tensor_value_info("input", f, ["batch", FEATURES]),
        helper.make_tensor_value_info("target", i, ["batch"]),
        helper.make_tensor_value_info("label_mask", f, [CLASSES]),
        helper.make_tensor_value_info("lr", f, []),
        helper.make_tensor_value_info("momentum", f, []),
    ]
    outputs = [
        helper.make_tensor_value_info("loss", f, []),
        helper.make_tensor_value_info("correct", i, []),
        helper.make_tensor_value_info("next:fc.weight", f, [FEATURES, CLASSES]),
        helper.make_tensor_value_info("next:fc.bias", f, [CLASSES]),
        helper.make_tensor_value_info("next:fc.weight#momentum", f, [FEATURES, CLASSES]),
        helper.make_tensor_value_info("next:fc.bias#momentum", f, [CLASSES]),
    ]
    n = helper.make_node
    nodes = [
        n("Gemm", ["input", "fc.weight", "fc.bias"], ["raw"]),
        n("Mul", ["raw", "label_mask"], ["logits"]),
        n("LogSoftmax", ["logits"], ["logp"], axis=1),
        n("OneHot", ["target", "depth", "onoff"], ["onehot"]),
        n("Shape", ["target"], ["count_1"]),
        n("Squeeze", ["count_1"], ["count_i"]),
        n("Cast", ["count_i"], ["count"], to=f),
        n("Mul", ["logp", "onehot"], ["picked"]),
        n("ReduceSum", ["picked"], ["total"], keepdims=0),
        n("Neg", ["total"], ["minus"]),
        n("Div", ["minus", "count"], ["loss"]),
        n("ArgMax", ["logits"], ["guess"], axis=1, keepdims=0),
        n("Equal", ["guess", "target"], ["hit"]),
        n("Cast", ["hit"], ["hit_i"], to=i),
        n("ReduceSum", ["hit_i"], ["correct"], keepdims=0),
        n("Exp", ["logp"], ["p"]),
        n("Sub", ["p", "onehot"], ["d0"]),
        n("Mul", ["d0", "label_mask"], ["d1"]),
        n("Div", ["d1", "count"], ["d"]),
        n("Gemm", ["input", "d"], ["gw"], transA=1),
        n("ReduceSum", ["d", "axis0"], ["gb"], keepdims=0),
    ]
    for name, gradient in (("fc.weight", "gw"), ("fc.bias", "gb")):
        nodes += [
            n("Mul", ["momentum", f"{name}#momentum"], [f"{name}.a"]),
            n("Add", [f"{name}.a", gradient], [f"next:{name}#momentum"]),
            n("Mul", ["lr", f"next:{name}#momentum"], [f"{name}.b"]),
            n("Sub", [name, f"{name}.b"], [f"next:{name}"]),
        ]
    constants = [
        helper.make_tensor("depth", i, [], [CLASSES]),
        helper.make_tensor("onoff", f, [2], [0.0, 1.0]),
        helper.make_tensor("axis0", i, [1], [0]),
    ]
    graph = helper.make_graph(nodes, "train", inputs, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


TENSORS = (
    TensorSpec("fc.weight", (FEATURES, CLASSES), "float32", "parameter"),
    TensorSpec("fc.bias", (CLASSES,), "float32", "parameter"),
    TensorSpec("fc.weight#momentum", (FEATURES, CLASSES), "float32", "slot"),
    TensorSpec("fc.bias#momentum", (CLASSES,), "float32", "slot"),
    TensorSpec("input", ("batch", FEATURES), "float32", "input"),
    TensorSpec("target", ("batch",), "int64", "target"),
    TensorSpec("label_mask", (CLASSES,), "float32", "label_mask"),
    TensorSpec("lr", (), "float32", "hyper"),
    TensorSpec("momentum", (), "float32", "hyper"),
    TensorSpec("loss", (), "float32", "loss"),
    TensorSpec("correct", (), "int64", "metric"),
)


def softmax_manifest(graph: bytes, *, predicted_peak_bytes: int = 1 << 20, self_test_loss: float = 1.0) -> bytes:
    train = Program(
        name="train",
        file="train.onnx",
        inputs=tuple(t.name for t in TENSORS if t.role not in ("loss", "metric")),
        outputs=(
            GraphOutput("loss", "loss"),
            GraphOutput("correct", "correct"),
            *(GraphOutput(f"next:{t.name}", t.name) for t in TENSORS if t.role in ("parameter", "slot")),
        ),
    )
    return ArtifactManifest(
        format="onnx_step",
        runtime="onnxruntime",
        minimum_runtime_version="1.20.0",
        programs=(train,),
        tensors=TENSORS,
        files=(ArtifactFile("train.onnx", sha(graph), len(graph)),),
        batch=BATCH,
        loss="label_masked_cross_entropy",
        optimizer="sgd",
        norm="batch",
        input=InputSpec("features", (FEATURES,)),
        classes=tuple(str(c) for c in range(CLASSES)),
        cost=Cost(21, 21, 18, 168, 500, predicted_peak_bytes, BATCH),
        self_test=SelfTest("splitmix64-uniform/1", 7, BATCH, {"lr": 0.1, "momentum": 0.9}, (self_test_loss,), 1e-4),
        parity=Parity(0.0, 0.0, 0.0, 1e-5, 4),
        build={},
        export_key="0" * 64,
    ).to_bytes()


@dataclass
class TinyJob:
    """Everything an order of the tiny artifact needs: blobs by digest, and the order."""

    blobs: dict[str, bytes]
    order: WorkOrder
    weights: dict[str, np.ndarray]


def tiny_job(
    *,
    federation: str = "fed",
    device: str = "dev-1",
    round_index: int = 0,
    epochs: int = 2,
    steps: int = 0,
    deadline_s: float = 0.0,
    peak_bytes: int = 0,
    weight_seed: int = 0,
    predicted_peak_bytes: int = 1 << 20,
) -> TinyJob:
    graph = softmax_graph()
    manifest = softmax_manifest(graph, predicted_peak_bytes=predicted_peak_bytes)
    rng = np.random.default_rng(weight_seed)
    weights = {
        "fc.weight": rng.normal(size=(FEATURES, CLASSES)).astype(np.float32),
        "fc.bias": np.zeros(CLASSES, np.float32),
    }
    data = encode_tensors(weights)
    order = WorkOrder(
        assignment_id=assignment_id(federation, round_index, device, 0),
        federation=federation,
        device=device,
        round=round_index,
        attempt=0,
        artifact=ref(manifest),
        weights=ref(data),
        schedule=Schedule(epochs=0 if steps else epochs, steps=steps),
        batch=BATCH,
        last_batch="drop",
        data_seed=11,
        hyper={"lr": 0.1, "momentum": 0.9},
        upload=("fc.weight", "fc.bias"),
        deadline_s=deadline_s,
        peak_bytes=peak_bytes,
    )
    return TinyJob({sha(manifest): manifest, sha(graph): graph, sha(data): data}, order, weights)


def write_data(folder: Path, *, examples: int = 18, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """An npz of ``examples`` examples of classes 0 and 1 only, so that the label mask has a zero."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, FEATURES)).astype(np.float32)
    y = rng.integers(0, 2, examples)
    np.savez(folder / "part.npz", x=x, y=y)
    return x, y


def numpy_training(
    job: TinyJob, x: np.ndarray, y: np.ndarray, batches: list[np.ndarray]
) -> tuple[dict[str, np.ndarray], list[float]]:
    """The same training in float64 NumPy: final tensors and the loss of every step."""
    w, b = job.weights["fc.weight"].astype(np.float64), job.weights["fc.bias"].astype(np.float64)
    vw, vb = np.zeros_like(w), np.zeros_like(b)
    lr, momentum = job.order.hyper["lr"], job.order.hyper["momentum"]
    mask = np.zeros(CLASSES)
    mask[np.unique(y)] = 1
    losses = []
    for indices in batches:
        xb, yb = x[indices].astype(np.float64), y[indices]
        logits = (xb @ w + b) * mask
        logp = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        losses.append(float(-logp[np.arange(len(yb)), yb].mean()))
        d = (np.exp(logp) - np.eye(CLASSES)[yb]) * mask / len(yb)
        vw, vb = momentum * vw + xb.T @ d, momentum * vb + d.sum(0)
        w, b = w - lr * vw, b - lr * vb
    return {"fc.weight": w, "fc.bias": b}, losses
