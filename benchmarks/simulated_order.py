"""A device's whole order and a scoring pass, in the simulator and as a peer's app does them, in one process.

``python -m benchmarks.simulated_order mlp_digits conv2_writers resnet8_cifar10``: processor time, both sides in turn,
so that other work on the cores changes the ratios little. What lies between the devices (processes, messages, sums) is
:mod:`benchmarks.simulation_rounds`'.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.simulation_rounds import FORMS, WORKLOADS
from coordinator.cli.simulate import begin
from coordinator.config.run_config import RunConfig
from coordinator.exporting.cut_exporter import dense_module, run_input_spec
from coordinator.exporting.run_data import load_run_data
from coordinator.run_file.loading import load_config
from coordinator.simulation.assembly import SimulationOptions, open_simulation
from coordinator.simulation.local_training import Trained
from coordinator.simulation.orders import work_of
from edge.training.normalisation import normalised


class PlainDevice:
    """A device as a quickstart writes it: a model for each order, torch's own optimizer, scores layer by layer."""

    def __init__(self, config: RunConfig, share: np.ndarray) -> None:
        data, spec = load_run_data(config), run_input_spec(config)
        self._config = config
        self._x = torch.from_numpy(normalised(data.x_train[share].astype(np.float32), spec))
        self._y = torch.from_numpy(data.y_train[share].astype(np.int64))
        self._x_test = torch.from_numpy(normalised(data.x_test.astype(np.float32), spec))
        self._weights = dense_module(config).state_dict()

    def order(self) -> None:
        """Load the weights, all steps, give the weights back."""
        training, module = self._config.training, self._module().train()
        optimizer = torch.optim.SGD(
            module.parameters(), lr=training.lr, momentum=training.momentum, weight_decay=training.weight_decay
        )
        for _ in range(training.epochs):
            for rows in torch.randperm(len(self._x)).split(training.batch):
                if training.last_batch == "drop" and len(rows) < training.batch:
                    continue
                optimizer.zero_grad()
                loss = F.cross_entropy(module(self._x[rows]), self._y[rows])
                loss.backward()
                optimizer.step()
                float(loss.detach())
        for value in module.state_dict().values():
            value.numpy().tobytes()

    def score(self) -> None:
        """All held-out examples."""
        module = self._module().eval()
        with torch.no_grad():
            for x in self._x_test.split(self._config.evaluation.batch):
                module(x).argmax(1)

    def _module(self) -> nn.Module:
        module = dense_module(self._config)
        module.load_state_dict(self._weights)
        return module


def compare(path: Path, blocks: int) -> None:
    """Print a line for each form of the simulator."""
    config = load_config(path)
    sides: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {}
    with contextlib.ExitStack() as stack:
        for name, form in FORMS.items():
            chosen = form.of(config)
            run_dir = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="apportion-benchmark-")))
            options = SimulationOptions(quiet=True)
            opened = open_simulation(chosen, run_dir, begin(chosen, run_dir), options)
            simulation = stack.enter_context(opened)
            state, device = simulation.method.init(), min(simulation.shares)
            work = work_of(simulation, state, device, 0, "train")

            def order(simulation=simulation, work=work) -> None:  # type: ignore[no-untyped-def]
                (trained,) = simulation.workers.train([work])
                assert isinstance(trained, Trained)

            sides[name] = order, functools.partial(simulation.evaluate, state)
            share = simulation.shares[device]
        plain = PlainDevice(config, share)
        sides["plain"] = plain.order, plain.score
        for each in sides.values():
            each[0]()
        taken = [{name: [_seconds(part) for part in side] for name, side in sides.items()} for _ in range(blocks)]
    medians = {n: [statistics.median(block[n][part] for block in taken) for part in (0, 1)] for n in sides}
    devices, (order_s, score_s) = config.cohort.size or config.cohort.local_devices, medians.pop("plain")
    for name, (ours_order_s, ours_score_s) in medians.items():
        whole = (devices * order_s + score_s) / (devices * ours_order_s + ours_score_s)
        print(
            f"{path.stem} {name}: an order {1000 * ours_order_s:.0f} ms of CPU, plain {1000 * order_s:.0f}; scores "
            f"{ours_score_s:.2f} s, plain {score_s:.2f}; {whole:.2f} times the plain rounds per second of CPU",
            flush=True,
        )


def _seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    """Print a line per workload and form."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="+", choices=sorted(path.stem for path in WORKLOADS.glob("*.toml")))
    parser.add_argument("--blocks", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.workloads:
        compare(WORKLOADS / f"{name}.toml", arguments.blocks)


if __name__ == "__main__":
    main()
