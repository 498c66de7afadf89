"""The registry itself: names, lazy targets, unknown names, nothing heavy on import."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch import nn

from coordinator.aggregation import AGGREGATIONS
from coordinator.methods import METHODS, build_method
from edge.contracts.errors import ConfigError


@pytest.mark.parametrize("registry", [METHODS, AGGREGATIONS], ids=["methods", "aggregation"])
def test_key_is_the_file_name(registry: dict[str, str]) -> None:
    for key, target in registry.items():
        assert target.partition(":")[0].rpartition(".")[2] == key


def test_unknown_method_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        build_method("fedprox", nn.Linear(2, 2), {})
    assert "$.method.name" in str(caught.value)
    assert "'fedprox'" in str(caught.value)
    assert all(name in str(caught.value) for name in METHODS)


def test_importing_the_registries_loads_no_torch() -> None:
    code = (
        "import sys, coordinator.methods, coordinator.models, coordinator.aggregation, coordinator.submodels;"
        "sys.exit(int('torch' in sys.modules or 'scipy' in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
