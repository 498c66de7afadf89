"""A simulated step beside a plain torch loop: same module, batch, SGD with momentum and weight decay, one thread.

``python -m benchmarks.simulated_step resnet20 conv2``. Blocks of five steps alternate; medians over the blocks, of
processor time.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from coordinator.models.catalog import build_model, example_input, input_spec, model_entry
from coordinator.simulation.allocator import keep_freed_memory
from coordinator.simulation.local_training import repeatable_torch
from coordinator.simulation.torch_session import TorchArtifact
from export.training_step import Optimizer, StepSpec

BLOCKS, STEPS, WARM_UP = 9, 5, 3
LR, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-4


def compared_steps(name: str, batch: int, weight_decay: float) -> tuple[Callable[[], float], Callable[[], float]]:
    """(Plain step, simulated step) of the model ``name``; each gives its loss."""
    entry = model_entry(name)
    if entry is None:
        raise SystemExit(f"{name} is not a model by name")
    module = build_model(name, seed=1)
    x = example_input(name, batch=batch)
    optimizer_spec = Optimizer(weight_decay=weight_decay > 0)
    spec = StepSpec(input=input_spec(name), classes=entry.classes, batch=batch, optimizer=optimizer_spec)
    target = torch.arange(batch) % entry.classes
    session = TorchArtifact(module, spec, classes=[str(i) for i in range(entry.classes)]).session("cpu")
    session.load_state({key: value.numpy() for key, value in module.state_dict().items()})
    hyper = {"lr": LR, "momentum": MOMENTUM, "weight_decay": weight_decay}
    feeds = {"input": x.numpy(), "target": target.numpy(), **{k: np.float32(v) for k, v in hyper.items()}}
    feeds = {key: np.asarray(value) for key, value in feeds.items()}
    plain = copy.deepcopy(module).train()
    optimizer = torch.optim.SGD(plain.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=weight_decay)

    def plain_step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(plain(x), target)
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return plain_step, lambda: session.run("train", feeds)["loss"]


def milliseconds(step: Callable[[], float]) -> float:
    """Mean time of a step over one block."""
    started = time.process_time()
    for _ in range(STEPS):
        step()
    return (time.process_time() - started) * 1000 / STEPS


def main() -> None:
    """Print one line per model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--weight-decay", type=float, default=WEIGHT_DECAY)
    arguments = parser.parse_args()
    repeatable_torch(1, "cpu")
    keep_freed_memory()
    for name in arguments.models:
        steps = compared_steps(name, arguments.batch, arguments.weight_decay)
        losses = [[step() for step in steps] for _ in range(WARM_UP)]
        times = [[milliseconds(step) for step in steps] for _ in range(BLOCKS)]
        plain, simulated = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"{name}: plain {plain:.1f} ms, simulated {simulated:.1f} ms, ratio {simulated / plain:.2f}; "
            f"losses {losses[-1][0]:.5f} and {losses[-1][1]:.5f}"
        )


if __name__ == "__main__":
    main()
