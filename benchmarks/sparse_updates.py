"""Sparse updates beside full training and training of the head alone: accuracy, time of a step, what it keeps.

    python -m benchmarks.sparse_updates runs/sparse --rates        # the learning rate of every variant
    python -m benchmarks.sparse_updates runs/sparse --accuracy     # three seeds; goes on where it was stopped
    python -m benchmarks.sparse_updates runs/sparse --steps        # times and memory of the schemes of the first seed
    python -m benchmarks.sparse_updates runs/sparse --table        # what is there

Tasks are those of ``benchmarks.sparse_update_data``. All variants of a seed begin with the same weights, trained in
plain torch on other data, and are simulated with the same devices, rounds and draws; head and sparse updates with the
statistics of norms on 512 of the devices' examples. Every variant has the best of the same rates, found on a seed of
its own. An accuracy is the final model's, behind the statistics round that variants with trained norms have. A scheme
is chosen by first-order contributions on the same examples. Steps of batch 32 run in trainers of one thread, blocks of
ten alternate, and ratios are those of medians of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks import sparse_update_data
from benchmarks.orderings import measure
from benchmarks.sparse_update_variants import BEFORE, OTHERS, RATES, TASKS, VARIANTS, run_text
from coordinator.cli.bench_device import EXAMPLE_BATCHES, exported_inputs, measure_agent
from coordinator.cli.bench_sides import DeviceSide
from coordinator.cli.model_arguments import ModelArguments
from coordinator.contributions.measure import Tuning, measured
from coordinator.contributions.operations import forward_operations, step_work
from coordinator.contributions.scheme import Layer, Scheme, ordered_layers, trained_names
from coordinator.contributions.statistics import gathered
from coordinator.data.inputs import prepare_inputs
from coordinator.exporting.cut_exporter import dense_module, run_input_spec
from coordinator.methods.sparse_update import SparseUpdate
from coordinator.planning.planner import MB
from coordinator.reporting.environment import environment
from coordinator.run_file.loading import load_config_text
from coordinator.submodels.build import module_tensors
from edge.contracts.errors import PlanError
from edge.contracts.streams import permutation, stream_seed
from edge.contracts.tensor_file import encode_tensors

SEEDS = (1, 2, 3)
RUNTIMES = ("executorch", "onnxruntime")
EXAMPLES = 512
RATES_SEED = 11
"""On which every variant's rate is found; none of those that are shown."""
RATES_FILE = "rates.json"


def train_before(name: str, seed: int, folder: Path) -> None:
    """Write the weights that all variants of a seed begin with, and how well they do on the data before."""
    task, config = TASKS[name], load_config_text(run_text(name, seed, "full", folder))
    data, spec = task.before(), run_input_spec(config)
    module = dense_module(config).train()
    x, y = torch.from_numpy(prepare_inputs(data.x_train, spec)), torch.from_numpy(data.y_train)
    steps = task.passes * (len(y) // 64)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for number in range(task.passes):
        order = torch.from_numpy(permutation(stream_seed(seed, "before", number), len(y)).astype(np.int64))
        for begin in range(0, len(y) - 63, 64):
            chosen = order[begin : begin + 64]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(x[chosen]), y[chosen]).backward()
            optimizer.step()
            schedule.step()
    module.eval()
    with torch.no_grad():
        guessed = module(torch.from_numpy(prepare_inputs(data.x_test, spec))).argmax(1).numpy()
    (folder / "before.json").write_text(json.dumps({"accuracy": float((guessed == data.y_test).mean())}))
    (folder / "before.safetensors").write_bytes(encode_tensors(module_tensors(module)))


def write_gains(name: str, seed: int, folder: Path) -> None:
    """Measure the contributions of a seed's weights on some of the devices' examples, with their statistics too."""
    config = load_config_text(run_text(name, seed, "full", folder))
    before, spec = dense_module(config), run_input_spec(config)
    data = getattr(sparse_update_data, name)()
    drawn = permutation(stream_seed(seed, "contributions"), len(data.x_train))[:EXAMPLES]
    x, y = prepare_inputs(data.x_train[drawn], spec), data.y_train[drawn]
    after = gathered(before, x)
    (folder / "gathered.safetensors").write_bytes(encode_tensors(module_tensors(after)))
    for begin, module in (("before", before), ("gathered", after)):
        module.input_spec = before.input_spec
        begun = time.process_time()
        found = measured(module, layers_of(module), x, y, "gradient", Tuning(lr=0.02, seed=seed))
        print(f"{name}, seed {seed}, {begin}: contributions in {time.process_time() - begun:.1f} s", flush=True)
        (folder / f"{begin}-gains.json").write_bytes(msgspec.json.encode(found))


def layers_of(module: torch.nn.Module) -> tuple[Layer, ...]:
    """Layers of a module that has its input."""
    return ordered_layers(module, forward_operations(module, module.input_spec))  # type: ignore[arg-type]


def seed_folder(folder: Path, name: str, seed: int) -> Path:
    """Where a seed's files lie, made where they are not there."""
    path = folder / name / str(seed)
    path.mkdir(parents=True, exist_ok=True)
    if not (path / "before.safetensors").exists():
        train_before(name, seed, path)
    if not (path / "gathered-gains.json").exists():
        write_gains(name, seed, path)
    return path


def accuracies(folder: Path, name: str, seed: int, variant: str, rate: float) -> list[float]:
    """The server's accuracy after each round, statistics rounds included; 0 where the run diverges.

    It is simulated where it is not there.
    """
    path = seed_folder(folder, name, seed)
    run = path / f"{variant}, {rate}"
    if not (result := run.with_name(f"{run.name}.json")).exists():
        begun = time.process_time()
        try:
            found = measure(load_config_text(run_text(name, seed, variant, path, rate)), run, workers=1)
            curve = [entry["evaluation"]["server"]["accuracy"] for entry in found["rounds"]]
        except PlanError as error:  # every device's update is refused once it is not finite
            if "not finite" not in str(error):
                raise
            curve = [0.0]
        result.write_text(json.dumps(curve))
        cpu_s = time.process_time() - begun
        print(f"{name}, seed {seed}, {variant}, rate {rate}: {curve[-1]:.4f}, {cpu_s:.0f} s", flush=True)
    curve = json.loads(result.read_text())
    return [float(value) for value in curve]


def end_of(curve: list[float]) -> float:
    """Of the model that the run ends with, behind its statistics round where there is one."""
    return curve[-1]


def find_rates(folder: Path, tasks: list[str], variants: list[str]) -> None:
    """Write every variant's best rate, with what all of them give."""
    file = folder / RATES_FILE
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    for name in tasks:
        for variant in variants:
            ends = {r: end_of(accuracies(folder, name, RATES_SEED, variant, r)) for r in RATES}
            best = max(ends, key=lambda rate: ends[rate])
            shown = {str(rate): round(end, 4) for rate, end in ends.items()}
            found.setdefault(name, {})[variant] = {"rate": best, "accuracies": shown}
            print(f"{name:12}{variant:28}{best:6} {shown}", flush=True)
    file.write_text(json.dumps(found, indent=1))


def rate_of(folder: Path, name: str, variant: str) -> float:
    """The rate that was found for a variant; for one of ``OTHERS`` that of the variant that it is beside."""
    if not (file := folder / RATES_FILE).exists():
        raise SystemExit(f"no {file}: run --rates first")
    return float(json.loads(file.read_text())[name][variant.removesuffix(BEFORE)]["rate"])


def run_accuracy(folder: Path, seeds: list[int], tasks: list[str], wanted: list[str]) -> None:
    """Simulate every variant of every seed that is not there."""
    for variants in (VARIANTS, OTHERS):
        for seed in seeds:
            for name in tasks:
                for variant in variants:
                    if variant in wanted:
                        accuracies(folder, name, seed, variant, rate_of(folder, name, variant))


def arguments_of(name: str, variant: str, folder: Path) -> ModelArguments:
    """The bench of a variant, with the scheme of the first seed."""
    options = VARIANTS[variant]
    gains = folder / name / "1" / ("gathered-gains.json" if "compute" in options else "no-gains.json")
    if not gains.exists():
        empty = {"measure": "gradient", "model": "", "examples": 0, "layers": {}}
        gains.write_text(json.dumps(empty))
    cut = f"sparse_update:{options['levels']},contributions={gains}" if options else ""
    cut += "".join(f",{key}={options[key]}" for key in ("compute", "norms", "features") if key in options)
    model, shape = ("resnet20", (3, 16, 16)) if name == "images" else (signal_model(), (6, 100))
    return ModelArguments(model, shape, 5, 32, cut=cut, cached_features="float32" if "features" in options else "")


def signal_model() -> str:
    """The network of the activities, by where it is."""
    return "benchmarks.sparse_update_data:signal_network"


def run_steps(folder: Path, blocks: int, names: list[str], runtimes: list[str], variants: list[str]) -> None:
    """Time and memory of each variant's step on every runtime, beside a full one; a line of ``steps.jsonl`` each."""
    variants = ["full", *(variant for variant in VARIANTS if variant in variants and variant != "full")]
    for name in names:
        for runtime in runtimes:
            with tempfile.TemporaryDirectory(prefix="apportion-sparse-") as made, ExitStack() as stack:
                inputs = {}
                for variant in variants:
                    (path := Path(made) / variant.replace(" ", "-")).mkdir()
                    inputs[variant] = exported_inputs(arguments_of(name, variant, folder), runtime, path)
                sides = {v: stack.enter_context(DeviceSide(form, 1)) for v, form in inputs.items()}
                times: dict[str, list[float]] = {variant: [] for variant in variants}
                for side in sides.values():
                    side.block(EXAMPLE_BATCHES), side.block()
                for _ in range(blocks):
                    for variant, side in sides.items():
                        side.block()
                        times[variant].append(side.cpu_ms)
                for variant, form in inputs.items():
                    agent = measure_agent(form, Path(made) / f"agent-{variant.replace(' ', '-')}", 1).report
                    cost = form.manifest.cost
                    line = {
                        **{"task": name, "runtime": runtime, "variant": variant},
                        "cpu_ms": round(statistics.median(times[variant]), 3),
                        "ratio_by_block": [round(f / s, 2) for f, s in zip(times["full"], times[variant], strict=True)],
                        "beside_state_bytes": cost.live_bytes - cost.state_bytes,
                        "live_bytes": cost.live_bytes,
                        "trained_parameters": cost.trained_parameters,
                        "predicted_growth_mb": round(cost.predicted_peak_bytes / MB, 2),
                        "growth_mb": round((agent.trainer_peak_bytes - agent.trainer_idle_bytes) / MB, 2),
                        "environment": environment(),
                    }
                    with (folder / "steps.jsonl").open("a") as file:
                        file.write(json.dumps(line) + "\n")
                    print(json.dumps({k: v for k, v in line.items() if k != "environment"}), flush=True)


def scheme_of(name: str, seed: int, variant: str, folder: Path) -> tuple[Scheme | None, float]:
    """A variant's scheme, and bytes that its backward pass reads at batch 32, by count."""
    config = load_config_text(run_text(name, seed, variant, folder / name / str(seed)))
    module = dense_module(config)
    operations, layers = forward_operations(module, run_input_spec(config)), layers_of(module)
    if variant == "full":
        return None, step_work(operations, {n for n, _ in module.named_parameters()}).kept_bytes
    method = SparseUpdate(module, config.method.options)
    scheme = method.scheme(method.levels()[0])
    assert scheme is not None
    return scheme, step_work(operations, trained_names(layers, scheme)).kept_bytes


def show(folder: Path, tasks: list[str]) -> None:
    """Accuracies by seed and their means, schemes, what is kept by count."""
    for name in tasks:
        for variant in (*VARIANTS, *OTHERS):
            rate = rate_of(folder, name, variant)
            ends: list[float] = []
            for seed in SEEDS:
                if (path := folder / name / str(seed) / f"{variant}, {rate}.json").exists():
                    curve = json.loads(path.read_text())
                    ends.append(end_of(curve))
            scheme, kept = scheme_of(name, 1, variant, folder)
            shown = " ".join(f"{end:.4f}" for end in ends)
            mean = statistics.mean(ends) if ends else 0
            print(f"{name:12}{variant:36}{rate:5} {shown}  mean {mean:.4f}  kept {kept:,} bytes")
            if scheme is not None:
                rows = {path: "all" if r is None else len(r) for path, r in scheme.rows.items()}
                print(f"{'':12}biases from {scheme.first}, weights {rows}")
    print(json.dumps(environment()))


def main() -> None:
    """Run a part, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--accuracy", action="store_true")
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--variants", nargs="*", default=[*VARIANTS, *OTHERS])
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--tasks", nargs="*", default=list(TASKS))
    parser.add_argument("--runtimes", nargs="*", default=list(RUNTIMES))
    parser.add_argument("--longer", type=int, default=1, help="times the rounds of every run; in a folder of their own")
    chosen = parser.parse_args()
    for name, task in TASKS.items():
        TASKS[name] = replace(task, rounds=chosen.longer * task.rounds)
    folder = chosen.folder.resolve()
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if chosen.rates:
        find_rates(folder, chosen.tasks, [variant for variant in VARIANTS if variant in chosen.variants])
    if chosen.accuracy:
        run_accuracy(folder, chosen.seeds, chosen.tasks, chosen.variants)
    if chosen.steps:
        run_steps(folder, chosen.blocks, chosen.tasks, chosen.runtimes, chosen.variants)
    if chosen.table:
        show(folder, chosen.tasks)


if __name__ == "__main__":
    main()
