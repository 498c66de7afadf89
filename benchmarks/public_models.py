"""Public networks by name, from timm with random weights: which an exporter carries, and how its gate judges them.

The list was fixed before the first export, one network of each family, all of at most 30 million parameters. A network
runs at 64 x 64 where it takes that, else at the size it is made for. Needs ``pip install timm``::

    python -m benchmarks.public_models export [NAME ...] [--runtime executorch] --out FILE
    python -m benchmarks.public_models table FILE [FILE ...]
    python -m benchmarks.public_models mutate NAME [NAME ...]
    APPORTION_DATA=... python -m benchmarks.public_models train NAME [NAME ...]

``export`` exports each in a process of its own, gate and self-test included. ``mutate`` puts faults into a graph and
counts those that the gate refuses. ``train`` takes 30 steps on CIFAR-10 in ONNX Runtime's device session and in torch.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

NAMES = (
    "resnet10t", "resnetv2_50x1_bit", "mobilenetv2_050", "mobilenetv3_small_050", "efficientnet_b0", "regnetx_002",
    "dla46_c", "selecsls42", "ghostnet_050", "edgenext_xx_small", "densenet121", "convnext_atto", "convmixer_768_32",
    "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mixer_s32_224", "levit_128s", "mobilevit_xxs",
    "coatnet_nano_rw_224", "crossvit_tiny_240", "cait_xxs24_224", "convit_tiny", "pit_ti_224", "twins_svt_small",
    "pvt_v2_b0", "poolformer_s12", "xcit_nano_12_p16_224", "volo_d1_224", "hrnet_w18_small", "res2net50_14w_8s",
    "resnest14d", "skresnet18", "rexnet_100", "nf_regnet_b0", "repvgg_a0", "cspresnet50", "dpn68", "fastvit_t8",
    "inception_v3", "sequencer2d_s",
)  # fmt: skip
"""timm's names."""

CLASSES, BATCH = 10, 32
SIZE = 64
LIMIT_S = 900
STEPS, LR = 30, 0.01
ORDERS = 8
"""Of the examples in each batch: runs of torch that differ in rounding alone."""


def network(name: str) -> tuple[Any, Any]:
    """(The network with random weights of seed 0, the step of its export)."""
    import torch

    from edge.contracts.manifest import InputSpec
    from export.training_step import StepSpec

    # A torchvision from the default index does not find its own operators beside a CPU build of torch, and stops there.
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import timm

    torch.manual_seed(0)
    module = timm.create_model(name, num_classes=CLASSES)
    own = module.default_cfg["input_size"][1]
    least = (module.default_cfg.get("min_input_size") or (0, 0, 0))[1]
    size = own if module.default_cfg.get("fixed_input_size") or least > SIZE else SIZE
    try:
        module(torch.zeros(2, 3, size, size))
    except RuntimeError:
        size = own
    spec = StepSpec(input=InputSpec(layout="chw", shape=(3, size, size)), classes=CLASSES, batch=BATCH)
    return module, spec


def exported(name: str, runtime: str) -> dict[str, Any]:
    """What an export of the network gave, in this process."""
    import torch

    from edge.contracts.errors import ApportionError
    from export.bundle import export_artifact

    torch.set_num_threads(1)
    module, spec = network(name)
    row: dict[str, Any] = {"model": name, "runtime": runtime, "size": spec.input.shape[1]}
    row["parameters"] = sum(p.numel() for p in module.parameters())
    started, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        try:
            manifest = export_artifact(module, spec, Path(folder) / "artifact", runtime=runtime)
        except ApportionError as error:
            row["refused"] = str(error)
        else:
            test = manifest.self_test
            row |= {"error": manifest.parity.max_grad_rel_err, "own": manifest.parity.torch_fp32_rel_err}
            row |= {"formula": test.formula, "bias": test.bias, "losses": test.losses, "test": test.rel_tolerance}
    return row | {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}


def export_all(names: list[str], runtime: str, out: Path) -> None:
    """Append a line of JSON for each network to ``out``; those that are there already are not done again."""
    known = {json.loads(line)["model"] for line in out.read_text().splitlines()} if out.exists() else set()
    for name in [n for n in names if n not in known]:
        command = [sys.executable, "-m", "benchmarks.public_models", "one", name, "--runtime", runtime]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
            lines = done.stdout.splitlines()
            row = json.loads(lines[-1]) if done.returncode == 0 and lines else {"refused": f"status {done.returncode}"}
        except subprocess.TimeoutExpired:
            row = {"refused": f"not done after {LIMIT_S} s"}
        row = {"model": name, "runtime": runtime, **row}
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            name,
            row.get("refused") or f"{row['error']:.1e} beside {row['own']:.1e}, {row['seconds']:.0f} s",
            flush=True,
        )


def table(files: list[Path]) -> str:
    """The rows of ``files`` as a page's table, and their count."""
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    lines = [
        "| network | 10^6 parameters | input | runtime | gate: worst gradient | torch float32 | values | export (s) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        about = f"| {row['model']} | {row.get('parameters', 0) / 1e6:.1f} | {row.get('size', '')} | {row['runtime']} "
        if "refused" in row:
            lines.append(about + f"| refused: {row['refused']} | | | {row.get('seconds', 0):.0f} |")
            continue
        values = "ordinary" if row["formula"].endswith("/1") else f"bias {row['bias']:g}"
        lines.append(about + f"| {row['error']:.1e} | {row['own']:.1e} | {values} | {row['seconds']:.0f} |")
    count = sum("refused" not in row for row in rows)
    return "\n".join([*lines, "", f"{count} of {len(rows)} exported."])


def mutate(name: str) -> None:
    """Print which faults of the network's training graph the gate misses, and how many it refuses."""
    import torch

    from edge.contracts.errors import ParityError
    from export.formats.onnx_step.format import OnnxStep
    from export.parity import check_parity
    from tests.export.graph_mutations import mutations

    torch.set_num_threads(1)
    module, spec = network(name)
    written = OnnxStep().write(module, spec)
    caught = count = 0
    for fault, graph in mutations(written.files["train.onnx"]):
        count += 1
        try:
            check_parity(module, spec, {"train": graph}, written.tensors)
            print(f"{name}: not refused: {fault}", flush=True)
        except ParityError:
            caught += 1
    print(f"{name}: {caught} of {count} refused", flush=True)


def train(name: str) -> None:
    """Print losses of 30 steps on the same batches: ONNX Runtime's device session, and torch float32 13 times."""
    import torch

    from edge.runtimes import runtime
    from edge.runtimes.micro_batches import TRAIN
    from edge.training.steps import scalar
    from export.bundle import export_artifact, read_artifact

    module, spec = network(name)
    batches = list(_cifar10(spec.input.shape[1]))
    hyper = {"lr": LR, "momentum": 0.9, "weight_decay": 1e-4}
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / "artifact"
        export_artifact(module, spec, artifact)
        manifest, files = read_artifact(artifact)
        session = runtime("onnxruntime").load(manifest, {n: artifact / n for n in files}, threads=1)
        session.load_state({n: v.numpy() for n, v in module.state_dict().items()})
        fixed = {n: scalar(manifest.tensor(n), value) for n, value in hyper.items()}
        drawn = [s for s in manifest.specs("draw") if s.name in manifest.program(TRAIN).inputs]
        if drawn:
            raise SystemExit(f"{name} draws at random; take a network without dropout to compare with torch")
        losses = {"onnxruntime": [session.run(TRAIN, {**fixed, "input": x, "target": y})["loss"] for x, y in batches]}
    # Sums in other orders: two threads, another layout of memory, without oneDNN, a batch's examples in another order.
    runs = {"torch": (1, False, True, 0), "two threads": (2, False, True, 0), "channels last": (1, True, True, 0)}
    runs |= {"without oneDNN": (1, False, False, 0), "channels last, two threads": (2, True, True, 0)}
    runs |= {f"examples in order {seed}": (1, False, True, seed) for seed in range(1, ORDERS + 1)}
    for run, (threads, is_channels_last, has_onednn, seed) in runs.items():
        torch.set_num_threads(threads)
        layout = torch.channels_last if is_channels_last else torch.contiguous_format
        copied = network(name)[0].train().to(memory_format=layout)
        rule = torch.optim.SGD(copied.parameters(), **hyper)
        losses[run] = []
        order = np.random.default_rng(seed).permutation(BATCH) if seed else np.arange(BATCH)
        for x, y in ((x[order], y[order]) for x, y in batches):
            with torch.backends.mkldnn.flags(enabled=has_onednn):
                rule.zero_grad()
                logits = copied(torch.from_numpy(x).contiguous(memory_format=layout))
                loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y))
                loss.backward()
                rule.step()
            losses[run].append(float(loss.detach()))
    curves = {run: np.array(values) for run, values in losses.items()}
    ours = curves.pop("onnxruntime")
    alike = np.stack(list(curves.values()))
    print(f"{name}: losses {alike[0, 0]:.4f} to {alike[0, -1]:.4f} (torch), {ours[-1]:.4f} (onnxruntime)")
    for run, curve in {"onnxruntime": ours, **curves}.items():
        others = np.stack([values for other, values in curves.items() if other != run])
        print(f"  {run}: largest distance to the median of the other torch runs {_apart(curve, others):.1e}")
    for step in (0, 1, 4, 9, 19, 29):
        print(f"  step {step + 1}: torch {alike[:, step].round(6).tolist()}, onnxruntime {ours[step]:.6f}", flush=True)


def _apart(curve: np.ndarray, others: np.ndarray) -> float:
    return float(np.abs(curve - np.median(others, 0)).max())


def _cifar10(size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Batches of the first training images, scaled to ``size`` and normalised."""
    from PIL import Image

    with np.load(Path(os.environ["APPORTION_DATA"]) / "cifar10_jpeg.npz") as data:
        pixels, starts, labels = data["jpeg_train"], data["offset_train"], data["y_train"]
        for first in range(0, STEPS * BATCH, BATCH):
            images = [
                Image.open(io.BytesIO(pixels[starts[i] : starts[i + 1]].tobytes())).resize((size, size))
                for i in range(first, first + BATCH)
            ]
            x = np.stack([np.asarray(image, np.float32) for image in images]).transpose(0, 3, 1, 2) / 255
            yield np.ascontiguousarray((x - 0.47) / 0.25, np.float32), labels[first : first + BATCH].astype(np.int64)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("export", "one", "table", "mutate", "train"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--out", type=Path, default=Path("public_models.jsonl"))
    chosen = parser.parse_args()
    if chosen.verb == "export":
        export_all(chosen.names or list(NAMES), chosen.runtime, chosen.out)
    elif chosen.verb == "one":
        print(json.dumps(exported(chosen.names[0], chosen.runtime)))
    elif chosen.verb == "table":
        print(table([Path(name) for name in chosen.names]))
    else:
        for name in chosen.names:
            (mutate if chosen.verb == "mutate" else train)(name)


if __name__ == "__main__":
    main()
