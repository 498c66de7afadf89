"""Public networks by name, with random weights: which an exporter carries, and how its gate judges them.

Two lists, each fixed before its first export: ``FAMILIES`` of timm, one network of each family, and
``models_by_name.toml``, of timm, torchvision and transformers. A network for images runs at 64 x 64 where it takes
that, else at the size it is made for. Needs ``pip install "apportion[models]"``::

    python -m benchmarks.public_models export [NAME ...] [--list families] [--runtime executorch] --out FILE
    python -m benchmarks.public_models doctor [NAME ...] [--list families] [--runtime executorch] --out FILE
    python -m benchmarks.public_models table FILE [FILE ...]
    python -m benchmarks.public_models mutate NAME [NAME ...]
    APPORTION_DATA=... python -m benchmarks.public_models train NAME [NAME ...]

``export`` exports each in a process of its own, gate and self-test included; what ONNX Runtime trains then takes 20
steps on one batch there. ``doctor`` asks before any export whether the runtime would train it. ``table`` puts the lines
of both together. ``mutate`` puts faults into a graph and counts those that the gate refuses. ``train`` takes 30 steps
on CIFAR-10 in ONNX Runtime's device session and in torch.
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
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FAMILIES = (
    "resnet10t", "resnetv2_50x1_bit", "mobilenetv2_050", "mobilenetv3_small_050", "efficientnet_b0", "regnetx_002",
    "dla46_c", "selecsls42", "ghostnet_050", "edgenext_xx_small", "densenet121", "convnext_atto", "convmixer_768_32",
    "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mixer_s32_224", "levit_128s", "mobilevit_xxs",
    "coatnet_nano_rw_224", "crossvit_tiny_240", "cait_xxs24_224", "convit_tiny", "pit_ti_224", "twins_svt_small",
    "pvt_v2_b0", "poolformer_s12", "xcit_nano_12_p16_224", "volo_d1_224", "hrnet_w18_small", "res2net50_14w_8s",
    "resnest14d", "skresnet18", "rexnet_100", "nf_regnet_b0", "repvgg_a0", "cspresnet50", "dpn68", "fastvit_t8",
    "inception_v3", "sequencer2d_s",
)  # fmt: skip
"""timm's names, of 2026-11-23."""
LISTED = Path(__file__).with_name("models_by_name.toml")

CLASSES, BATCH, BATCH_BY_NAME = 10, 32, 8
SIZE = 64
FEW_STEPS = 20
LIMIT_S = 900
STEPS, LR = 30, 0.01
ORDERS = 8
"""Of the examples in each batch: runs of torch that differ in rounding alone."""


@dataclass(frozen=True)
class PublicModel:
    """A line of a list.

    Attributes:
        build: as ``[model] build`` of a run file.
        input: shape of one example; None for images of 64 x 64, or of the network's own size where it takes no other.
        batch: of its export.
    """

    build: str
    input: tuple[int, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    batch: int = BATCH


def listed(name: str) -> list[PublicModel]:
    """The models of the list ``name``: ``families`` or ``by-name``."""
    if name == "families":
        return [PublicModel(f"timm:{family}") for family in FAMILIES]
    models = tomllib.loads(LISTED.read_text())["model"]
    return [
        PublicModel(m["build"], tuple(m["input"]) if "input" in m else None, m.get("options", {}), BATCH_BY_NAME)
        for m in models
    ]


def model_of(name: str) -> PublicModel:
    """The listed model that ``name`` builds; any other name of timm, torchvision or transformers as it comes."""
    lists = {model.build: model for model in (*listed("families"), *listed("by-name"))}
    build = name if ":" in name else f"timm:{name}"
    return lists.get(build, PublicModel(build))


def network(model: PublicModel) -> tuple[Any, Any]:
    """(The network with random weights of seed 0, the step of its export)."""
    from coordinator.models.catalog import build_model, input_spec
    from coordinator.models.libraries.config_file import with_config_file
    from export.training_step import StepSpec

    build, options = with_config_file(model.build, model.options, Path.cwd())
    shape = model.input or _images(build, options)
    module = build_model(build, input_shape=shape, classes=CLASSES, **options)
    spec = input_spec(build, input_shape=shape, options=options)
    return module, StepSpec(input=spec, classes=CLASSES, batch=model.batch)


def _images(build: str, options: Mapping[str, Any]) -> tuple[int, ...]:
    """Images of 64 x 64 where the network takes them."""
    import torch

    from coordinator.models.catalog import build_model, input_spec
    from edge.contracts.errors import ConfigError

    own = input_spec(build, options=options).shape
    small = (3, SIZE, SIZE)
    try:
        build_model(build, input_shape=small, classes=CLASSES, **options)(torch.zeros(2, *small))
    except (ConfigError, RuntimeError):
        return own
    return small


def exported(model: PublicModel, runtime: str) -> dict[str, Any]:
    """What an export of the network and 20 steps gave, in this process."""
    import torch

    from edge.contracts.errors import ApportionError
    from export.bundle import export_artifact, read_artifact

    torch.set_num_threads(1)
    module, spec = network(model)
    row: dict[str, Any] = {"model": model.build, "runtime": runtime, "input": list(spec.input.shape)}
    row["parameters"] = sum(p.numel() for p in module.parameters())
    started, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        artifact = Path(folder) / "artifact"
        try:
            manifest = export_artifact(module, spec, artifact, runtime=runtime)
        except ApportionError as error:
            row["refused"] = str(error)
        else:
            test = manifest.self_test
            row |= {"error": manifest.parity.max_grad_rel_err, "own": manifest.parity.torch_fp32_rel_err}
            row |= {"formula": test.formula, "bias": test.bias, "losses": test.losses, "test": test.rel_tolerance}
        row |= {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
        if "refused" not in row and runtime == "onnxruntime":
            row["steps"] = _steps_on_one_batch(module, *read_artifact(artifact), artifact)
    return row


def surveyed(model: PublicModel, runtime: str) -> dict[str, Any]:
    """``trains``, or the first layer that the runtime would not train, with the reason."""
    import torch

    from edge.contracts.errors import ApportionError
    from export.layer_support import layer_support

    torch.set_num_threads(1)
    module, spec = network(model)
    began = time.perf_counter()
    try:
        support = layer_support(module, spec, [runtime])
    except ApportionError as error:
        said = str(error)
    else:
        refused = [(path, v) for path, v in support.verdicts.get(runtime, {}).items() if not v.is_trained]
        said = support.missing.get(runtime, "trains")
        for path, verdict in refused[:1]:
            said = f"{verdict.state}: {path or 'the module itself'} ({support.layers[path].kind}): {verdict.reason}"
    return {"model": model.build, "runtime": runtime, "doctor": said, "doctor_seconds": time.perf_counter() - began}


def _steps_on_one_batch(module: Any, manifest: Any, files: Mapping[str, bytes], artifact: Path) -> list[float]:
    """Losses of 20 steps on one random batch in ONNX Runtime's device session, from the network's own weights."""
    from edge.contracts.streams import drawn_value
    from edge.runtimes import runtime
    from edge.runtimes.micro_batches import TRAIN
    from edge.training.steps import scalar

    session = runtime("onnxruntime").load(manifest, {n: artifact / n for n in files}, threads=1)
    session.load_state({n: v.numpy() for n, v in module.state_dict().items()})
    program = manifest.program(TRAIN)
    given = np.random.default_rng(0)
    x = given.standard_normal((manifest.batch, *manifest.input.shape)).astype(np.float32)
    if manifest.input.dtype == "int64":
        x = given.integers(1, manifest.input.vocabulary, x.shape)
    y = given.integers(0, CLASSES, manifest.batch)
    hyper = {"lr": LR, "momentum": 0.9, "weight_decay": 1e-4}
    fixed = {n: scalar(manifest.tensor(n), value) for n, value in hyper.items()} | {"input": x, "target": y}
    drawn = [s for s in manifest.specs("draw") if s.name in program.inputs]
    losses = []
    for step in range(FEW_STEPS):
        draws = {spec.name: drawn_value(spec, 0, step, len(x)) for spec in drawn}
        losses.append(float(session.run(TRAIN, fixed | draws)["loss"]))
    return losses


def run_all(verb: str, names: list[str], runtime: str, out: Path) -> None:
    """Append a line of JSON for each network to ``out``; those that are there already are not done again."""
    known = {json.loads(line)["model"] for line in out.read_text().splitlines()} if out.exists() else set()
    for name in [n for n in names if n not in known]:
        command = [sys.executable, "-m", "benchmarks.public_models", f"{verb}-one", name, "--runtime", runtime]
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=False)
            lines = done.stdout.splitlines()
            row = json.loads(lines[-1]) if done.returncode == 0 and lines else {"refused": f"status {done.returncode}"}
        except subprocess.TimeoutExpired:
            row = {"refused": f"not done after {LIMIT_S} s"}
        row = {"model": name, "runtime": runtime, **row}
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        said = row.get("refused") or row.get("doctor")
        said = said or f"{row['error']:.1e} beside {row['own']:.1e}, {row['seconds']:.0f} s"
        print(name, said, flush=True)


def table(files: list[Path]) -> str:
    """The rows of ``files`` as a page's table, and their count."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for row in (json.loads(line) for path in files for line in path.read_text().splitlines()):
        found.setdefault((row["model"], row["runtime"]), {}).update(row)
    rows = list(found.values())
    lines = [
        "| network | 10^6 parameters | input | doctor | gate: worst gradient | torch float32 | values "
        "| export (CPU s) | loss, 20 steps on one batch |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        size = "x".join(str(n) for n in row.get("input", ()))
        about = f"| {row['model']} | {row.get('parameters', 0) / 1e6:.2f} | {size} "
        about += f"| {row.get('doctor', 'not asked')} "
        if "refused" in row:
            lines.append(about + f"| refused: {row['refused']} | | | {row.get('cpu_seconds', 0):.0f} | |")
            continue
        values = "ordinary" if row["formula"].endswith("/1") else f"bias {row['bias']:g}"
        losses = row.get("steps")
        fell = f"{losses[0]:.2f} to {losses[-1]:.2f}" if losses else ""
        about += f"| {row['error']:.1e} | {row['own']:.1e} | {values} | {row['cpu_seconds']:.0f} | {fell} |"
        lines.append(about)
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
    module, spec = network(model_of(name))
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

    module, spec = network(model_of(name))
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
        copied = network(model_of(name))[0].train().to(memory_format=layout)
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


ONE = {"export": exported, "doctor": surveyed}
"""Verbs that are carried out for one network in a process of its own."""


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=(*ONE, "table", "mutate", "train", *(f"{verb}-one" for verb in ONE)))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", choices=("families", "by-name"), default="by-name", dest="models")
    parser.add_argument("--runtime", default="onnxruntime")
    parser.add_argument("--out", type=Path, default=Path("public_models.jsonl"))
    chosen = parser.parse_args()
    verb = chosen.verb.removesuffix("-one")
    if chosen.verb in ONE:
        names = chosen.names or [model.build for model in listed(chosen.models)]
        run_all(verb, names, chosen.runtime, chosen.out)
    elif verb in ONE:
        print(json.dumps(ONE[verb](model_of(chosen.names[0]), chosen.runtime)))
    elif chosen.verb == "table":
        print(table([Path(name) for name in chosen.names]))
    else:
        for name in chosen.names:
            (mutate if chosen.verb == "mutate" else train)(name)


if __name__ == "__main__":
    main()
