"""Which level a simulated device holds."""

from __future__ import annotations

import collections

import pytest

from coordinator.config.cohort import CohortConfig, LocalGroup
from coordinator.config.run_config import RunConfig
from coordinator.planning.capacity_levels import Capacities, configured_level, device_names, find_level, group_level
from coordinator.submodels.values import Level
from edge.contracts.errors import ConfigError, PlanError
from tests.coordinator.simulation.small_simulation import small

LEVELS = (Level("full", 1.0, 1.0), Level("rank 1/2", 2.0, 0.5), Level("rank 1/8", 8.0, 0.125))


def capacities(cohort: CohortConfig) -> Capacities:
    config: RunConfig = small(
        cohort={name: getattr(cohort, name) for name in cohort.__struct_fields__},
        simulation={"idle_mb": 50.0},
        planner={"headroom": 0.0},
    )
    return Capacities(config, LEVELS, lambda level, runtime: level.capacity * 80 * 2**20)


def test_fixed_level_is_the_groups_by_name_or_value_or_the_largest() -> None:
    groups = (LocalGroup(count=1, level="rank 1/2"), LocalGroup(count=2, level="8"), LocalGroup(count=1))
    found = capacities(CohortConfig(size=4, local=groups))
    assert [found.level(name, 3).name for name in device_names(CohortConfig(size=4, local=groups))] == [
        "rank 1/2",
        "rank 1/8",
        "rank 1/8",
        "full",
    ]


def test_budget_takes_the_largest_level_that_is_predicted_to_fit() -> None:
    # 50 MB idle; the levels' steps take 80, 40 and 10 MB.
    for budget, expected in ((131, "full"), (129, "rank 1/2"), (89, "rank 1/8"), (61, "rank 1/8")):
        group = LocalGroup(count=1, budget_mb=budget)
        assert capacities(CohortConfig(size=1, local=(group,))).level("device-00", 0).name == expected
    with pytest.raises(PlanError, match=r"local\[0\]: budget 59 MB fits no level; .*'rank 1/8' 60 MB"):
        capacities(CohortConfig(size=1, local=(LocalGroup(count=1, budget_mb=59.0),)))


def test_level_with_a_budget_is_given_only_where_it_fits() -> None:
    for budget, level in ((91, "rank 1/2"), (131, "8")):
        group = LocalGroup(count=1, level=level, budget_mb=budget)
        assert capacities(CohortConfig(size=1, local=(group,))).level("device-00", 0).name.startswith("rank")
    with pytest.raises(PlanError, match=r"budget 89 MB fits no level; they need about 'rank 1/2' 90 MB; raise it"):
        capacities(CohortConfig(size=1, local=(LocalGroup(count=1, level="rank 1/2", budget_mb=89.0),)))


def test_dynamic_level_is_drawn_each_round_with_the_groups_shares() -> None:
    groups = (LocalGroup(count=2, level="full"), LocalGroup(count=6, level="rank 1/8"))
    found = capacities(CohortConfig(size=8, local=groups, capacity="dynamic"))
    drawn = [found.level(f"device-{d:02d}", number).name for d in range(8) for number in range(250)]
    counts = collections.Counter(drawn)
    # 2,000 draws with probability 1/4: 500, and a standard deviation of 19.
    assert abs(counts["full"] - 500) < 80
    assert counts["full"] + counts["rank 1/8"] == 2000
    assert found.level("device-03", 17) == found.level("device-03", 17)


def test_real_runs_take_a_level_from_the_file_only_where_it_gives_one() -> None:
    groups = (LocalGroup(count=1, level="8"), LocalGroup(count=1, budget_mb=100.0))
    config = small(cohort={"local": groups, "size": 2})
    assert configured_level(config, LEVELS, "device-00", 0) == group_level(config, 0, LEVELS) == LEVELS[2]
    assert configured_level(config, LEVELS, "device-01", 0) is group_level(config, 1, LEVELS) is None
    assert configured_level(config, LEVELS, "pi-07", 0) is None  # a device that is not of this machine
    dynamic = small(cohort={"local": groups, "size": 2, "capacity": "dynamic"})
    assert {configured_level(dynamic, LEVELS, "device-00", r) for r in range(20)} == {LEVELS[2], None}


def test_unknown_level_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"\$\.x: the method has no level 'rank 1/3'; its levels are 'full' \(1\), "):
        find_level("rank 1/3", LEVELS, path="$.x")


def test_no_local_devices_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\$\.cohort\.local: no simulated devices"):
        capacities(CohortConfig(size=1))
