"""Each server optimizer against its paper's formulas, by hand and beside torch's own optimizers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coordinator.config.server_optimizer import ServerOptimizerConfig
from coordinator.server_optimizers import SERVER_OPTIMIZERS, server_optimizer

DELTAS = (1.0, -0.5, 0.25)


def path(config: ServerOptimizerConfig, deltas: tuple[float, ...] = DELTAS) -> list[float]:
    """Where x is after each step, from 0; what is kept goes through float32 as it does in a checkpoint."""
    optimizer, x, found = server_optimizer(config), 0.0, []
    kept = optimizer.first((1,))
    for delta in deltas:
        memory = {name: value.astype(np.float64) for name, value in kept.items()}
        x += float(optimizer.step(np.array([delta]), memory)[0])
        kept = {name: value.astype(np.float32) for name, value in memory.items()}
        found.append(x)
    return found


def test_registry_key_is_the_file_name() -> None:
    assert [target.partition(":")[0].rpartition(".")[2] for target in SERVER_OPTIMIZERS.values()] == [
        *SERVER_OPTIMIZERS
    ]


def test_fedavgm_by_hand() -> None:
    # m: 1, 0.9 - 0.5 = 0.4, 0.36 + 0.25 = 0.61; x: 0.5 m summed.
    found = path(ServerOptimizerConfig(name="fedavgm", lr=0.5, beta1=0.9))
    assert found == pytest.approx([0.5, 0.7, 1.005], rel=1e-6)


def test_fedavgm_is_torch_sgd_on_the_negative_step() -> None:
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    sgd = torch.optim.SGD([x], lr=0.3, momentum=0.8)
    expected = []
    for delta in DELTAS:
        x.grad = torch.tensor([-delta], dtype=torch.float64)
        sgd.step()
        expected.append(float(x.detach()))
    assert path(ServerOptimizerConfig(name="fedavgm", lr=0.3, beta1=0.8)) == pytest.approx(expected, rel=1e-6)


def test_fedavgm_without_momentum_at_rate_one_is_the_mean() -> None:
    assert path(ServerOptimizerConfig(name="fedavgm", lr=1.0, beta1=0.0)) == pytest.approx([1.0, 0.5, 0.75])


def by_the_paper(name: str, *, lr: float, beta1: float, beta2: float, tau: float) -> list[float]:
    """Algorithm 2, line by line."""
    x, m, v, found = 0.0, 0.0, tau**2, []
    for delta in DELTAS:
        m = beta1 * m + (1 - beta1) * delta
        if name == "fedadagrad":
            v = v + delta**2
        elif name == "fedyogi":
            v = v - (1 - beta2) * delta**2 * float(np.sign(v - delta**2))
        else:
            v = beta2 * v + (1 - beta2) * delta**2
        x = x + lr * m / (math.sqrt(v) + tau)
        found.append(x)
    return found


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
@pytest.mark.parametrize("tau", [1e-3, 0.1, 1.0])
def test_adaptive_is_algorithm_2(name: str, tau: float) -> None:
    values = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": tau}
    assert path(ServerOptimizerConfig(name=name, **values)) == pytest.approx(by_the_paper(name, **values), rel=1e-5)


def test_first_step_of_fedadagrad_by_hand() -> None:
    # v = 0.01 + 1, x = 0.1 / (sqrt(1.01) + 0.1)
    (first,) = path(ServerOptimizerConfig(name="fedadagrad", lr=0.1, beta1=0.0, tau=0.1), (1.0,))
    assert first == pytest.approx(0.1 / (math.sqrt(1.01) + 0.1), rel=1e-6)


def test_fedyogi_forgets_a_large_step_slower_than_fedadam() -> None:
    """After one large step v falls by Delta^2 of the small ones alone: FedYogi stays with smaller steps for longer."""
    deltas = (10.0, *(0.1,) * 50)
    late = {
        name: path(ServerOptimizerConfig(name=name, lr=0.1, beta1=0.0), deltas)[-1] for name in ("fedadam", "fedyogi")
    }
    assert late["fedyogi"] < late["fedadam"]
