"""The table of needs and runtimes in ``docs/methods.md`` is what the formats declare, for every method."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.exporting.cut_exporter import CutExporter, dense_module
from coordinator.methods import build_method
from edge.contracts.errors import ConfigError
from edge.runtimes import RUNTIMES
from tests.conformance.method_runs import CASES, REFUSED, TRAINED, expected, needs, run_config, table


def test_table_has_every_need_and_no_row_or_runtime_too_many() -> None:
    rows = table()
    assert all(set(cells) <= set(RUNTIMES) for cells in rows.values())
    assert rows.keys() == set().union(*map(needs, CASES.values()))


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("name", CASES)
def test_pair_is_trained_or_refused_as_its_format_declares(name: str, runtime: str, tmp_path: Path) -> None:
    config = run_config(CASES[name], tmp_path)
    method = build_method(config.method.name, dense_module(config), config.method.options)
    try:
        exporter = CutExporter(config)
        lacking = {
            words
            for level in method.levels()
            for words in exporter.unable(
                method.program(method.cut_shape(level, round_index=0, device="", seed=0)), runtime
            )
        }
    except (ConfigError, ImportError) as error:
        pytest.skip(f"the exporter for {runtime} is not installed here: {error}")
    declared = f"{REFUSED}{' and '.join(sorted(lacking))}" if lacking else TRAINED
    assert expected(CASES[name], runtime) == declared


def test_onnxruntime_carries_every_method() -> None:
    assert {cells["onnxruntime"] for cells in table().values()} == {TRAINED}
