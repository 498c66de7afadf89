"""A fleet's forecast: who is there, who is asked and lost, and sums that agree with what was measured."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from coordinator.cli.forecast import lines
from coordinator.forecast.availability import HourlyShares, SessionTrace
from coordinator.forecast.fleet_file import DeviceGroup, Fleet, Prices, RoundShape, read_fleet
from coordinator.forecast.simulate import coordinators_for, simulate_fleet, work_s
from coordinator.forecast.totals import totals
from edge.contracts.errors import ConfigError

EXAMPLE = Path(__file__).parents[3] / "examples" / "fleets" / "million.toml"

BOARD = DeviceGroup(name="board", share=1.0, step_ms=100.0, download_mb_s=2.0, upload_mb_s=1.0)
FLEET = Fleet(
    devices=1000,
    groups=(BOARD,),
    rounds=RoundShape(count=5, participants=100, steps=20, down_mb=2.0, up_mb=3.0, artifact_mb=1.0),
)


def test_round_of_devices_that_stay_lasts_as_long_as_one_of_them() -> None:
    course = simulate_fleet(FLEET)
    assert np.allclose(course.lasted_R, 1.0 + 2.0 + 3.0)  # down, train, up
    assert (course.reported_RG == 100).all()


def test_participants_that_leave_or_come_after_the_quorum_do_not_count() -> None:
    groups = (
        msgspec.structs.replace(BOARD, name="stays", share=0.5),
        msgspec.structs.replace(BOARD, name="leaves", share=0.5, session_minutes=1e-6),
    )
    fleet = msgspec.structs.replace(
        FLEET, groups=groups, rounds=msgspec.structs.replace(FLEET.rounds, quorum=0.9, deadline_s=60.0)
    )
    course = simulate_fleet(fleet)
    assert (course.lasted_R == 60.0).all()  # the quorum never comes
    assert course.reported_RG[:, 1].sum() == 0
    assert (course.reported_RG[:, 0] == course.asked_RG[:, 0]).all()
    slow = msgspec.structs.replace(groups[1], session_minutes=1e6, step_ms=400.0)
    split = msgspec.structs.replace(
        fleet, groups=(groups[0], slow), rounds=msgspec.structs.replace(fleet.rounds, quorum=0.3)
    )
    assert simulate_fleet(split).reported_RG[:, 1].sum() == 0  # what is late for the quorum is lost


def test_coordinators_work_bounds_a_round_from_below() -> None:
    fast = msgspec.structs.replace(BOARD, step_ms=0.001, download_mb_s=1e4, upload_mb_s=1e4)
    course = simulate_fleet(msgspec.structs.replace(FLEET, groups=(fast,)))
    assert np.allclose(course.lasted_R, work_s(FLEET, 100.0))


def test_shares_follow_the_groups_own_clock() -> None:
    shares = tuple(1.0 if hour == 3 else 0.0 for hour in range(24))
    group = msgspec.structs.replace(BOARD, online=shares, utc_offset=2)
    kind = HourlyShares(group)
    assert kind.share(1.5 * 3600) == 1.0  # half past three where they are
    assert kind.share(1.0 * 3600) == 0.5
    assert kind.share(12 * 3600) == 0.0
    assert kind.share(25.5 * 3600) == 1.0


def test_trace_says_who_is_there_and_how_long_they_stay(tmp_path: Path) -> None:
    path = tmp_path / "sessions.csv"
    path.write_text("device,begin_s,end_s\na,0,100\nb,50,86000\na,200,300\n")
    kind = SessionTrace(path)
    assert [kind.share(at) for at in (10.0, 60.0, 150.0, 86_399.0, 86_410.0)] == [0.5, 1.0, 0.5, 0.0, 0.5]
    assert set(kind.stays(60.0, 50, np.random.default_rng(0))) == {40.0, 85_940.0}


@pytest.mark.parametrize("text", ["device,begin_s\na,1\n", "device,begin_s,end_s\na,9,3\n", "device,begin_s,end_s\n"])
def test_trace_without_sessions_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sessions.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match="device,begin_s,end_s"):
        SessionTrace(path)


@pytest.mark.parametrize(
    ("devices", "participants", "rounds", "megabytes", "coordinator_s", "coordinator_mb", "broker_s", "broker_mb"),
    [(10_000, 1000, 2, 1.0, 42.0, 500, 7.0, 36), (2_000, 300, 4, 2.0, 45.6, 506, 8.0, 16.2)],
    ids=["where the figures are from", "another setting, another processor"],
)
def test_figures_of_the_load_test_come_out(
    devices: int,
    participants: int,
    rounds: int,
    megabytes: float,
    coordinator_s: float,
    coordinator_mb: float,
    broker_s: float,
    broker_mb: float,
) -> None:
    """Docs/scale.md and docs/forecast.md."""
    near = DeviceGroup(name="light", share=1.0, step_ms=0.01, download_mb_s=1e3, upload_mb_s=1e3)
    shape = RoundShape(count=rounds, participants=participants, steps=0, down_mb=megabytes, up_mb=megabytes)
    fleet = Fleet(devices=devices, groups=(near,), rounds=shape, heartbeat_s=25.0, tls=False)
    values = totals(fleet, simulate_fleet(fleet))
    assert values["coordinators"] == 1
    assert values["coordinator_cpu_hours"] * 3600 == pytest.approx(coordinator_s, rel=0.15)
    assert values["coordinator_mb"] == pytest.approx(coordinator_mb, rel=0.1)
    assert values["broker_cpu_hours"] * 3600 == pytest.approx(broker_s, rel=0.15)
    assert values["broker_mb"] == pytest.approx(broker_mb, rel=0.15)


def test_bytes_and_money_are_what_was_asked_for() -> None:
    fleet = msgspec.structs.replace(FLEET, prices=Prices(egress_gb=1000.0))
    values = totals(fleet, simulate_fleet(fleet))
    once = 1000 * (1 - np.exp(-0.5))
    assert values["gb_down_wire"] == pytest.approx((500 * 2 + once) * 1e6 * 1.007 / 1e9, abs=1e-3)
    assert values["gb_up_wire"] == pytest.approx(500 * 3e6 * 1.007 / 1e9, abs=1e-3)
    assert values["money"]["all"] == pytest.approx(1000 * values["gb_down_wire"], abs=1.0)


def test_machines_follow_the_connections_that_were_measured() -> None:
    fleet = msgspec.structs.replace(FLEET, heartbeat_s=30.0)
    assert [coordinators_for(fleet, online) for online in (1, 10_000, 10_001, 1_000_000)] == [1, 1, 2, 100]


def test_ten_million_devices_are_reckoned_in_a_moment_and_alike_every_time() -> None:
    fleet = msgspec.structs.replace(read_fleet(EXAMPLE), devices=10_000_000)
    first, second = (totals(fleet, simulate_fleet(fleet)) for _ in range(2))
    assert first == second
    assert first["coordinators"] > 500
    assert "coordinators of" in "\n".join(lines(first))


def test_everything_that_is_wrong_in_a_file_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    text = EXAMPLE.read_text().replace("share = 0.2", "share = 1.2").replace("step-ms = 150.0", "stepms = 150.0")
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_fleet(path)
    told = str(caught.value)
    assert "$.group[0].share: 1.2 is outside 0 to 1" in told
    assert "$.group[1].step-ms: is missing" in told
    assert "stepms: unknown key" in told


def test_shares_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(EXAMPLE.read_text().replace("share = 0.2", "share = 0.3"))
    with pytest.raises(ConfigError, match=r"shares add up to 1\.1, 1 expected"):
        read_fleet(path)
