"""Every method: its updates may be added to a later model, exactly, or it says why a run must not be buffered."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.conformance.methods import CHECKS
from coordinator.conformance.methods.session import check_named
from coordinator.conformance.methods.subject import Subject
from coordinator.exporting.cut_exporter import dense_module
from coordinator.methods import METHODS, build_method, method_class
from coordinator.methods.method import Method
from coordinator.rounds.staleness import require_rebasing
from edge.contracts.errors import ConfigError
from tests.conformance.method_runs import CASES, run_config

BUFFERED = [name for name in sorted(METHODS) if not method_class(name).synchronous_only]


def build(name: str, folder: Path) -> Method:
    config = run_config(CASES[name], folder)
    return build_method(config.method.name, dense_module(config), config.method.options)


@pytest.mark.parametrize("name", sorted({*METHODS} - {*BUFFERED}))
def test_method_that_is_never_buffered_says_why(name: str, tmp_path: Path) -> None:
    method = build(name, tmp_path)
    with pytest.raises(ConfigError) as caught:
        require_rebasing(method)
    message = str(caught.value)
    assert "$.aggregation.mode" in message
    assert f"method {name} cannot: {method.synchronous_only}" in message


@pytest.mark.parametrize("check", [check for check in CHECKS if check.startswith("later_models:")])
@pytest.mark.parametrize("name", BUFFERED)
def test_update_may_be_added_to_a_later_model(name: str, check: str, tmp_path: Path) -> None:
    config = run_config(CASES[name], tmp_path)
    subject = Subject(name, method_class(name), lambda: dense_module(config), config.method.options)
    assert check_named(check)(subject)
