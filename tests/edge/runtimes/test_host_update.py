"""The NumPy update rule beside torch's own optimizers, over pieces and tensors of every size."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from edge.contracts.errors import ArtifactCorrupt
from edge.runtimes.host_update import HostUpdate
from edge.runtimes.update_rule import RuleGroup, UpdateRule

SHAPES = {"w": (3, 20000), "b": (7,), "s": ()}
STEPS = 3
ADAM = {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1}
SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def reference(
    kind: str, hyper: dict[str, float], *, nesterov: bool
) -> tuple[dict[str, torch.Tensor], torch.optim.Optimizer]:
    torch.manual_seed(3)
    values = {n: torch.randn(shape, requires_grad=True) for n, shape in SHAPES.items()}
    groups = [
        {"params": [values["w"], values["s"]], "weight_decay": hyper.get("weight_decay", 0.0)},
        {"params": [values["b"]], "weight_decay": 0.0},
    ]
    if kind == "sgd":
        return values, torch.optim.SGD(groups, lr=hyper["lr"], momentum=hyper.get("momentum", 0.0), nesterov=nesterov)
    made = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    return values, made(groups, lr=hyper["lr"], betas=(hyper["beta1"], hyper["beta2"]), eps=hyper["eps"])


def slots(kind: str, hyper: dict[str, float]) -> dict[str, np.ndarray]:
    names = ("exp_avg", "exp_avg_sq") if kind != "sgd" else ("momentum",) if "momentum" in hyper else ()
    state = {f"{n}#{s}": np.zeros(shape, np.float32) for n, shape in SHAPES.items() for s in names}
    return state | ({} if kind == "sgd" else {"optimizer#step": np.zeros((), np.float32)})


@pytest.mark.parametrize(
    ("kind", "hyper", "nesterov"),
    [
        ("sgd", {"lr": 0.1}, False),
        ("sgd", {"lr": 0.1, "weight_decay": 0.01}, False),
        ("sgd", SGD, False),
        ("sgd", SGD, True),
        ("sgd", {**SGD, "clip_norm": 3.0}, False),
        ("adam", ADAM, False),
        ("adamw", ADAM, False),
    ],
    ids=["sgd", "decay", "momentum", "nesterov", "clip", "adam", "adamw"],
)
def test_rule_is_torchs(kind: str, hyper: dict[str, float], nesterov: bool) -> None:
    values, optimizer = reference(kind, hyper, nesterov=nesterov)
    update = HostUpdate(UpdateRule(kind=kind, nesterov=nesterov, undecayed=("b",)))
    state = {n: v.detach().numpy().copy() for n, v in values.items()} | slots(kind, hyper)
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        gradients = {n: np.array(generator.normal(size=shape), np.float32) for n, shape in SHAPES.items()}
        for name, value in values.items():
            value.grad = torch.from_numpy(gradients[name].copy())
        if "clip_norm" in hyper:
            torch.nn.utils.clip_grad_norm_(list(values.values()), hyper["clip_norm"])
        optimizer.step()
        update.apply(gradients, state, hyper, {})
    for name, value in values.items():
        np.testing.assert_allclose(state[name], value.detach().numpy(), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("kind", "hyper"), [("sgd", SGD), ("adam", ADAM), ("adamw", ADAM)])
def test_groups_are_torchs_parameter_groups(kind: str, hyper: dict[str, float]) -> None:
    torch.manual_seed(3)
    values = {n: torch.randn(shape, requires_grad=True) for n, shape in SHAPES.items()}
    lr, decay = hyper["lr"], hyper["weight_decay"]
    groups = [
        {"params": [values["w"]], "lr": 3 * lr, "weight_decay": 0.3},
        {"params": [values["b"]], "lr": lr, "weight_decay": 0.0},
        {"params": [values["s"]], "lr": 0.5 * lr, "weight_decay": decay},
    ]
    more = {"momentum": 0.9} if kind == "sgd" else {"betas": (0.8, 0.95), "eps": 1e-6}
    made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[kind]
    optimizer = made(groups, lr=lr, **more)
    own = (RuleGroup(("w",), "factor_1", "decay_1"), RuleGroup(("s",), "factor_2"))
    update = HostUpdate(UpdateRule(kind=kind, undecayed=("b",), groups=own))
    given = {**hyper, "factor_1": 3.0, "decay_1": 0.3, "factor_2": 0.5}
    state = {n: v.detach().numpy().copy() for n, v in values.items()} | slots(kind, hyper)
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        gradients = {n: np.array(generator.normal(size=shape), np.float32) for n, shape in SHAPES.items()}
        for name, value in values.items():
            value.grad = torch.from_numpy(gradients[name].copy())
        optimizer.step()
        update.apply(gradients, state, given, {})
    for name, value in values.items():
        np.testing.assert_allclose(state[name], value.detach().numpy(), rtol=2e-5, atol=2e-6)


def test_a_rule_without_groups_has_the_bytes_it_had_and_one_with_them_is_refused_by_older_agents() -> None:
    plain = UpdateRule(kind="sgd", nesterov=True, undecayed=("b",))
    assert plain.to_bytes() == b'{"kind":"sgd","nesterov":true,"undecayed":["b"]}'
    grouped = UpdateRule(kind="adam", groups=(RuleGroup(("w",), "lr_factor_1"),))
    assert UpdateRule.from_bytes(grouped.to_bytes()) == grouped
    # What an agent that knows no groups decodes: kinds are sgd, adam and adamw.
    assert json.loads(grouped.to_bytes())["kind"] == "adam+groups"
    with pytest.raises(ArtifactCorrupt, match="adam\\+groups"):
        UpdateRule.from_bytes(b'{"kind":"adam+groups"}')


def test_masked_entries_do_not_move_and_squares_are_of_all() -> None:
    update = HostUpdate(UpdateRule(kind="sgd"))
    state = {
        "w": np.ones(4, np.float32),
        "w#momentum": np.zeros(4, np.float32),
        "w#squared_gradient": np.ones(4, np.float32),
    }
    mask = np.array([True, False, True, False])
    hyper = {"lr": 1.0, "momentum": 0.5, "weight_decay": 0.5}
    update.apply({"w": np.full(4, 2.0, np.float32)}, state, hyper, {"w": mask})
    assert state["w"].tolist() == [-1.5, 1.0, -1.5, 1.0]  # 1 - (2 + 0.5 * 1)
    assert state["w#momentum"].tolist() == [2.5, 0.0, 2.5, 0.0]
    assert state["w#squared_gradient"].tolist() == [5.0, 5.0, 5.0, 5.0]
