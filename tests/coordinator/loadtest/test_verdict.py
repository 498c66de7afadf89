"""Figures of a load test: percentiles, slopes, and limits that hold or do not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.loadtest.figures import Figures, percentile, slope, together
from coordinator.loadtest.machine_limits import check_room
from coordinator.loadtest.run_file import hidden_width, model_bytes
from coordinator.loadtest.site import Outcome, Plan
from coordinator.loadtest.verdict import MIB, Limits, rss_slope_mb, table, values_of
from coordinator.loadtest.watched_process import Sample
from edge.contracts.errors import ConfigError


def outcome(**changes: object) -> Outcome:
    figures = Figures(
        counts={"acks": 4, "cuts": 3}, trips_ms={"probe": [float(ms) for ms in range(1, 101)]},
        payload_up=4000, payload_down=4000, wire_up=4040, wire_down=4100, connect_s=2.0,
    )  # fmt: skip
    samples = {
        "coordinator": [Sample(float(n), (400 + n) * MIB, (410 + n) * MIB, n, 20, 10.0 * n) for n in range(0, 41)],
        "broker": [Sample(0.0, 8 * MIB, 9 * MIB, 1.0, 30)],
    }
    rounds = [{"round": n, "at_s": n, "wall_s": 1.0} for n in range(2)]
    values = {"figures": figures, "rounds": rounds, "samples": samples, "wall_s": 3.0, "status": 0, "log_end": ""}
    return Outcome(**(values | changes))  # type: ignore[arg-type]


PLAN = Plan(devices=10, participants=2, rounds=2, update_mb=1.0, runtimes={})


def test_a_percentile_is_a_value_that_was_measured() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(map(float, range(1, 101))), 0.99) == 99.0
    assert percentile([], 0.5) is None


def test_slope_is_that_of_the_line_and_none_without_one() -> None:
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == 2.0
    assert slope([(1.0, 1.0), (1.0, 3.0)]) is None


def test_growth_is_counted_by_the_thousand_rounds() -> None:
    # One MB a sample, ten rounds a sample: 100 MB in 1,000 rounds.
    assert rss_slope_mb(outcome().samples["coordinator"]) == pytest.approx(100.0)
    assert rss_slope_mb(outcome().samples["coordinator"][:9]) is None


def test_figures_stand_beside_their_limits_and_the_worse_direction_counts() -> None:
    values = values_of(PLAN, outcome(), Limits(rss_mb=450, broker_rss_mb=64, trip_ms=99, wire=1.03, cut_extra=0.05))
    assert values["ok"]
    shown = {entry["name"]: (entry["value"], entry["holds"]) for entry in values["limits"]}
    assert shown["coordinator_rss_mb"] == (450.0, True)
    assert shown["wire_over_payload"] == (1.025, True)
    assert shown["cut_extra"] == (0.025, True)
    assert shown["rss_mb_per_1000_rounds"][1] is None
    assert values["processes"]["coordinator"]["open_files"] == [20, 20]
    assert values["processes"]["coordinator"]["open_files_growth"] == 0
    assert values["connects_per_s"] == 5.0
    assert "load device" in table(values)


@pytest.mark.parametrize(
    ("open_files", "growth"),
    [(lambda n: 20 + 9 * (n % 3 == 0), 0), (lambda n: 20 + n // 10, 2), (lambda n: 20 + n, 21)],
    ids=["open for a moment", "one in a hundred rounds", "one in each ten rounds"],
)
def test_files_that_stay_open_are_growth_and_those_of_a_moment_are_not(
    open_files: Callable[[int], int], growth: int
) -> None:
    samples = [Sample(float(n), MIB, MIB, n, open_files(n), 10.0 * n) for n in range(0, 41)]
    values = values_of(PLAN, outcome(samples={"coordinator": samples}), Limits())
    assert values["processes"]["coordinator"]["open_files_growth"] == growth


def test_a_limit_that_does_not_hold_fails_the_test_and_is_named() -> None:
    values = values_of(PLAN, outcome(), Limits(trip_ms=98.0))
    assert not values["ok"]
    assert values["error"]["code"] == "limit"
    assert values["error"]["message"] == "control_trip_p99_ms 99.0 is over 98.0"
    assert "not held" in table(values)


def test_a_limit_without_a_figure_does_not_hold() -> None:
    assert not values_of(PLAN, outcome(figures=Figures()), Limits(trip_ms=1000.0))["ok"]


def test_missing_rounds_fail_the_test() -> None:
    values = values_of(PLAN, outcome(rounds=[], status=None), Limits())
    assert (values["ok"], values["error"]["code"]) == (False, "unfinished")


def test_figures_of_processes_add_up() -> None:
    some = Figures(counts={"acks": 1}, trips_ms={"probe": [1.0]}, wire_up=5, lag_ms=3.0)
    others = Figures(counts={"acks": 2, "cuts": 1}, trips_ms={"probe": [2.0]}, wire_up=6, lag_ms=2.0)
    whole = together([some, others])
    assert (whole.counts, whole.trips_ms, whole.wire_up, whole.lag_ms) == (
        {"acks": 3, "cuts": 1}, {"probe": [1.0, 2.0]}, 11, 3.0,
    )  # fmt: skip


@pytest.mark.parametrize("megabytes", [0.001, 0.1, 1.0, 20.0])
def test_the_model_has_about_the_size_asked_for(megabytes: float) -> None:
    assert hidden_width(megabytes) >= 1
    assert model_bytes(megabytes) == pytest.approx(megabytes * 1e6, rel=0.25 if megabytes < 0.01 else 0.03)


def test_too_few_open_files_are_named_with_what_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"10256 open files.*hard limit is 4096.*ulimit -Hn 10256"):
        check_room(10_000, 2, 4096)
    check_room(10, 1, 4096)
    check_room(10, 1, -1)
