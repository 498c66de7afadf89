"""What no method can do is refused when it is built, before any device is asked: by value, and with what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from coordinator.conformance.methods.subject import Net
from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import METHODS, build_method
from coordinator.models.catalog import build_model
from coordinator.run_file.loading import load_config_text
from edge.contracts.errors import ApportionError, ConfigError, PlanError


class OneLayer(nn.Module):
    """A classifier alone: nothing to narrow, factorize or freeze."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x)


def refusal(name: str, module: nn.Module, options: dict[str, Any]) -> str:
    with pytest.raises((ConfigError, PlanError)) as caught:
        build_method(name, module, options).levels()
    return str(caught.value)


def test_unknown_name_lists_the_known_ones() -> None:
    message = refusal("fedhmm", Net(), {})
    assert "unknown method 'fedhmm'" in message
    assert all(name in message for name in METHODS)


@pytest.mark.parametrize("name", ["heterofl", "fjord", "fedrolex", "federated_dropout", "small_model", "origdrop"])
@pytest.mark.parametrize("level", [0, -0.5, 0.001, 1.5, "half"])
def test_level_that_leaves_no_channel_is_refused_with_its_value(name: str, level: object) -> None:
    message = refusal(name, Net(), {"levels": [level]})
    assert str(level) in message
    if level == 0.001:
        assert "leaves no channel of Net's widest layer, 64; raise it" in message


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fedlora", {"levels": [4096]}, ["fedlora rank 4096", "has only 64", "lower the level"]),
        ("fedhm", {"levels": [0.5]}, ["[0.5]", "from 1"]),
        ("prism", {"levels": [1.2]}, ["1.2", "at most 1"]),
        ("orthdrop", {"levels": [0]}, ["[0]"]),
        ("split_mix", {"levels": [2.5]}, ["2.5", "whole numbers of atoms"]),
        ("slt", {"levels": [0.0001]}, ["0.0001"]),
    ],
)
def test_rank_above_the_matrix_and_other_impossible_levels(
    name: str, options: dict[str, Any], words: list[str]
) -> None:
    message = refusal(name, Net(), options)
    assert all(word in message for word in words), message


# All methods that must change a layer other than the classifier.
CUTTING = sorted({*METHODS} - {"fedavg", "fedhm", "prunefl", "iterative_magnitude", "snip", "online_sparsity"})


@pytest.mark.parametrize("name", CUTTING)
def test_model_that_cannot_be_cut_is_refused_or_needs_what_is_named(name: str) -> None:
    with pytest.raises(ApportionError) as caught:
        build_method(name, OneLayer(), {})
    assert any(word in str(caught.value) for word in ("OneLayer", "$.method.")), caught.value


def test_flow_of_ones_through_indices_is_refused() -> None:
    assert "takes indices; use snip" in refusal("synflow", build_model("lstm"), {})


def test_level_of_a_run_file_is_held_against_its_model() -> None:
    text = """
    [federation]
    name = "f"
    rounds = 1
    [model]
    build = "mlp"
    [data]
    source = "digits"
    [method]
    name = "heterofl"
    levels = [0.0001]
    [cohort]
    size = 2
    """
    config = load_config_text(text)
    with pytest.raises(PlanError, match=r"level 0\.0001 leaves no channel of .*; raise it"):
        build_method(config.method.name, dense_module(config), config.method.options)
