"""Sparse updates beside full training and training of the head alone: accuracy, time of a step, what it keeps.

    python -m benchmarks.sparse_updates runs/sparse --rates        # the learning rate of every variant
    python -m benchmarks.sparse_updates runs/sparse --accuracy     # three seeds; goes on where it was stopped
    python -m benchmarks.sparse_updates runs/sparse --steps        # times and memory of the schemes of the first seed
    python -m benchmarks.sparse_updates runs/sparse --table        # what is there

Tasks are those of ``benchmarks.sparse_update_data``. All variants of a seed begin with the same weights, trained in
plain torch on other data, and are simulated with the same devices, rounds and draws; head and sparse updates with the
statistics of norms on 512 of the devices' examples. Every variant has the best of the same rates, found on a seed of
its own. An accuracy is the mean after the last three rounds. A scheme is chosen by first-order contributions on the
same examples. Steps of batch 32 run in trainers of one thread, blocks of ten alternate, and ratios are those of medians
of processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from benchmarks import sparse_update_data
from benchmarks.orderings import measure
from coordinator.cli.bench_device import EXAMPLE_BATCHES, exported_inputs, measure_agent
from coordinator.cli.bench_sides import DeviceSide
from coordinator.cli.model_arguments import ModelArguments
from coordinator.contributions.measure import Tuning, measured
from coordinator.contributions.operations import forward_operations, step_work
from coordinator.contributions.scheme import Layer, Scheme, ordered_layers, trained_names
from coordinator.contributions.statistics import gathered
from coordinator.data.datasets import Dataset
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
LAST = 3
RATES = (0.02, 0.05, 0.1, 0.2, 0.4)
RATES_SEED = 11
"""On which every variant's rate is found; none of those that are shown."""
RATES_FILE = "rates.json"


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        model: lines of ``[model]``.
        data: lines of ``[data]``.
        before: the data that the model is trained on first, and for how many passes.
        head: pattern of the tensors that begin anew; empty where the classes stay.
        devices: all of them in every round.
    """

    model: str
    data: str
    before: Callable[[], Dataset]
    passes: int
    head: str
    devices: int
    rounds: int


TASKS = {
    "images": Task(
        'build = "resnet20"\ninput = [3, 16, 16]\nclasses = 5',
        'source = "benchmarks.sparse_update_data:images"\nscale = 0.00392156862745098\n'
        "mean = [0.4914, 0.4822, 0.4465]\nstd = [0.2470, 0.2435, 0.2616]",
        sparse_update_data.images_before,
        3,
        "fc.*",
        10,
        10,
    ),
    "activities": Task(
        'build = "benchmarks.sparse_update_data:signal_network"\ninput = [6, 100]\nclasses = 5',
        'source = "benchmarks.sparse_update_data:activities"\npartition = "writer"',
        sparse_update_data.activities_before,
        15,
        "",
        18,
        15,
    ),
}

VARIANTS: dict[str, Mapping[str, Any]] = {
    "full": {},
    "head": {"levels": 0.9, "contributions": {}, "begin": "gathered"},
    "sparse 0.3": {"levels": 0.3, "compute": 0.5, "norms": "static", "begin": "gathered"},
    "sparse 0.15": {"levels": 0.15, "compute": 0.4, "norms": "static", "begin": "gathered"},
    "sparse 0.3, memory alone": {"levels": 0.3, "compute": 1.0, "norms": "static", "begin": "gathered"},
    "sparse 0.3, norms": {"levels": 0.3, "compute": 0.5, "norms": "trained", "begin": "gathered"},
    "sparse 0.5, norms": {"levels": 0.5, "compute": 0.6, "norms": "trained", "begin": "gathered"},
}
"""Options of ``sparse_update`` and, as ``begin``, the file that a variant's weights are from; ``full`` is FedAvg."""
BEFORE = ", statistics as before"
OTHERS: dict[str, Mapping[str, Any]] = {
    f"{name}{BEFORE}": {**options, "begin": "before"}
    for name, options in VARIANTS.items()
    if options and "alone" not in name and options.get("norms") != "trained"
}
"""The same with the statistics of norms that the model was trained with before."""


def run_text(name: str, seed: int, variant: str, folder: Path, rate: float = RATES[0]) -> str:
    """The run file of a variant; what is not trained is the same at every rate."""
    task, options = TASKS[name], {**VARIANTS, **OTHERS}[variant]
    begin = options.get("begin", "before")
    method = 'name = "fedavg"'
    if options:
        gains = "{}" if "contributions" in options else f'"{folder / begin}-gains.json"'
        compute = f"\ncompute = {options['compute']}" if "compute" in options else ""
        norms = f'\nnorms = "{options["norms"]}"' if "norms" in options else ""
        method = f'name = "sparse_update"\nlevels = [{options["levels"]}]\ncontributions = {gains}{compute}{norms}'
    weights = f'\nweights = "{folder / begin}.safetensors"' if (folder / "before.safetensors").exists() else ""
    new = f'\nweights-except = ["{task.head}"]' if weights and task.head else ""
    return f"""
[federation]
name = "sparse-updates"
seed = {seed}
rounds = {task.rounds}
[model]
{task.model}{weights}{new}
[method]
{method}
[training]
epochs = 1
batch = 32
last-batch = "keep"
lr = {rate}
momentum = 0.9
[data]
{task.data}
[evaluation]
batch = 1000
every = 1
[cohort]
size = {task.devices}
[[cohort.local]]
count = {task.devices}
"""


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


def end_of(name: str, curve: list[float]) -> float:
    """The mean after the last three rounds of training."""
    return statistics.mean(curve[: TASKS[name].rounds][-LAST:])


def find_rates(folder: Path, tasks: list[str], variants: list[str]) -> None:
    """Write every variant's best rate, with what all of them give."""
    file = folder / RATES_FILE
    found: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    for name in tasks:
        for variant in variants:
            ends = {r: end_of(name, accuracies(folder, name, RATES_SEED, variant, r)) for r in RATES}
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
    cut += "".join(f",{name}={options[name]}" for name in ("compute", "norms") if name in options)
    model, shape = ("resnet20", (3, 16, 16)) if name == "images" else (signal_model(), (6, 100))
    return ModelArguments(model, shape, 5, 32, cut=cut)


def signal_model() -> str:
    """The network of the activities, by where it is."""
    return "benchmarks.sparse_update_data:signal_network"


def run_steps(folder: Path, blocks: int, names: list[str], runtimes: list[str]) -> None:
    """Time and memory of every variant's step on every runtime; a line of ``steps.jsonl`` each."""
    for name in names:
        for runtime in runtimes:
            with tempfile.TemporaryDirectory(prefix="apportion-sparse-") as made, ExitStack() as stack:
                inputs = {}
                for variant in VARIANTS:
                    (path := Path(made) / variant.replace(" ", "-")).mkdir()
                    inputs[variant] = exported_inputs(arguments_of(name, variant, folder), runtime, path)
                sides = {v: stack.enter_context(DeviceSide(form, 1)) for v, form in inputs.items()}
                times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
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
            after: list[float] = []
            for seed in SEEDS:
                if (path := folder / name / str(seed) / f"{variant}, {rate}.json").exists():
                    curve = json.loads(path.read_text())
                    ends.append(end_of(name, curve))
                    # FedAvg's statistics round after the last one is one more.
                    after += curve[TASKS[name].rounds :] if variant == "full" else []
            scheme, kept = scheme_of(name, 1, variant, folder)
            shown = " ".join(f"{end:.4f}" for end in ends)
            mean = statistics.mean(ends) if ends else 0
            print(f"{name:12}{variant:36}{rate:5} {shown}  mean {mean:.4f}  kept {kept:,} bytes")
            if after:
                print(f"{'':12}after a statistics round {' '.join(f'{value:.4f}' for value in after)}")
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
    chosen = parser.parse_args()
    folder = chosen.folder.resolve()
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if chosen.rates:
        find_rates(folder, chosen.tasks, [variant for variant in VARIANTS if variant in chosen.variants])
    if chosen.accuracy:
        run_accuracy(folder, chosen.seeds, chosen.tasks, chosen.variants)
    if chosen.steps:
        run_steps(folder, chosen.blocks, chosen.tasks, chosen.runtimes)
    if chosen.table:
        show(folder, chosen.tasks)


if __name__ == "__main__":
    main()
