"""The form a module is scored in against the module itself."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.fx import graph_module

from coordinator.submodels.inference_form import FusedConv, inference_form
from coordinator.submodels.precision import in_precision


class Residual(nn.Module):
    """A stem with batch norm, a branch that is added to it, and one convolution that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.branch, self.branch_norm = nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4, affine=False)
        self.twice, self.relu = nn.Conv2d(4, 4, 1), nn.ReLU(inplace=True)
        self.scaled = nn.Conv2d(4, 1, 1)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits [batch, 3]."""
        x = torch.relu(self.norm(self.stem(x)))
        x = self.relu(self.branch_norm(self.branch(x)) + x)
        x = self.twice(torch.relu(self.twice(x))) + self.scaled(x)  # of one channel: no sum of equal shapes
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class Undecided(nn.Module):
    """Looks at values, so that it cannot be followed."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Features [batch, 4]."""
        found: Tensor = self.conv(x if x.sum() > 0 else -x).mean((2, 3))
        return found


def _with_statistics(module: nn.Module) -> nn.Module:
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
    return module.eval()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_folded_convolutions_give_the_same(layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    module = _with_statistics(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 4)))
    module = module.to(memory_format=layout)
    before = copy.deepcopy(module.state_dict())
    x = torch.randn(5, 2, 6, 6).contiguous(memory_format=layout)
    kept = len(graph_module._loader.eval_cache)
    form = inference_form(module, x)
    assert sum(isinstance(part, FusedConv) for part in form.modules()) == 2
    assert [node.target for node in form.graph.nodes if node.op == "call_module"] == ["0", "3"]
    with torch.no_grad():
        torch.testing.assert_close(form(x), module(x), rtol=1e-5, atol=1e-6)
    assert len(graph_module._loader.eval_cache) == kept  # code that torch would keep at every scoring
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_branch_is_added_in_the_pass_of_its_convolution() -> None:
    torch.manual_seed(0)
    module = _with_statistics(Residual())
    module.scaled = nn.Conv2d(4, 4, 1)
    x = torch.randn(5, 2, 6, 6)
    form = inference_form(module, x)
    assert form is not module
    assert not any(node.target in ("norm", "branch_norm", "relu") for node in form.graph.nodes)
    with torch.no_grad():
        torch.testing.assert_close(form(x), module(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("module", [Residual(), Undecided(), nn.Linear(6, 3)])
def test_what_cannot_be_followed_stays_as_it_is(module: nn.Module) -> None:
    module.eval()
    assert inference_form(module, torch.randn(5, 2, 6, 6)) is module


@pytest.mark.parametrize("is_fused", [True, False])
def test_bfloat16_scores_are_near_float32_ones(is_fused: bool) -> None:
    torch.manual_seed(0)
    module = _with_statistics(nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 4)))
    x = torch.randn(5, 2, 6, 6)
    with torch.no_grad():
        expected = module(x)
        scored = in_precision(inference_form(module, x) if is_fused else module, torch.bfloat16, "cpu")
        found = scored(x)
    assert found.dtype == torch.float32
    assert 1e-5 < (found - expected).norm() / expected.norm() < 0.02  # eight bits: 1/256 a factor
