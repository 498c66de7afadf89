"""Agents that end: which are started again, after which waits, and what people are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coordinator.local_devices.keeper import HOUR_S, LONGEST_WAIT_S, MOST_STARTS, AgentKeeper
from coordinator.local_devices.processes import LocalDevice

FIRST, SECOND = (LocalDevice(name, Path("devices") / name, 0) for name in ("device-00", "device-01"))


class Site:
    """Two agents that end when the test says so, a clock, and a keeper's words and events."""

    def __init__(self) -> None:
        self.devices = (FIRST, SECOND)
        self.ended: dict[str, int] = {}
        self.started: list[tuple[str, float]] = []
        self.at_s = 0.0
        self.said: list[str] = []
        self.events: list[dict[str, Any]] = []
        self.cannot_start = False
        self.keeper = AgentKeeper(
            self, self.said.append, lambda event, **values: self.events.append({event: values}), lambda: self.at_s
        )

    def exited(self) -> dict[str, int]:
        return dict(self.ended)

    def start(self, device: LocalDevice) -> None:
        self.ended.pop(device.device, None)
        if self.cannot_start:
            raise OSError("no more processes")
        self.started.append((device.device, self.at_s))

    def pass_time(self, seconds: float, step_s: float = 0.5) -> None:
        for _ in range(round(seconds / step_s)):
            self.keeper.look()
            self.at_s += step_s


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.parametrize(("status", "how"), [(-9, "by signal 9"), (5, "with status 5"), (1, "with status 1")])
def test_agent_that_ends_by_a_signal_or_an_error_is_started_again(site: Site, status: int, how: str) -> None:
    site.ended["device-01"] = status
    site.pass_time(5)
    assert site.started == [("device-01", 1.0)]
    assert site.said == [f"the agent of device-01 ended {how}: it is started again in 1 s; see agent.log in its folder"]
    assert site.events == [{"agent-restart": {"device": "device-01", "starts": 1, "wait_s": 1.0, "status": status}}]
    assert site.keeper.stopped() == {}


@pytest.mark.parametrize("status", [0, 2])
def test_agent_that_was_stopped_or_has_bad_arguments_stays_away(site: Site, status: int) -> None:
    site.ended["device-00"] = status
    site.pass_time(5)
    assert (site.started, site.said) == ([], [])
    assert site.keeper.stopped() == {"device-00": status}


def test_waits_grow_and_after_so_many_starts_in_an_hour_it_stays_away(site: Site) -> None:
    for _ in range(MOST_STARTS):
        site.ended["device-00"] = -11
        site.pass_time(LONGEST_WAIT_S)
    times = [at for _, at in site.started]
    assert len(times) == MOST_STARTS
    assert [at % LONGEST_WAIT_S for at in times] == [1, 2, 4, 8, 16, 32]
    site.ended["device-00"] = -11
    site.pass_time(HOUR_S, step_s=10)
    assert len(site.started) == MOST_STARTS
    assert site.said[-1] == (
        "the agent of device-00 ended by signal 11, and was started again 6 times within the hour: it stays away; "
        "see agent.log in its folder"
    )
    assert len(site.said) == MOST_STARTS + 1


def test_starts_of_more_than_an_hour_ago_count_no_more(site: Site) -> None:
    for _ in range(3 * MOST_STARTS):
        site.ended["device-00"] = -9
        site.pass_time(HOUR_S / 3, step_s=10)
    assert len(site.started) == 3 * MOST_STARTS


def test_agent_that_cannot_be_started_is_tried_again_later(site: Site) -> None:
    site.ended["device-00"], site.cannot_start = -9, True
    site.pass_time(2)
    site.cannot_start = False
    site.pass_time(5)
    assert site.started == [("device-00", 3.0)]
    assert "does not start (no more processes): it is started again in 2 s" in site.said[1]


def test_others_are_left_alone_while_one_is_away(site: Site) -> None:
    site.ended["device-00"] = -9
    site.pass_time(60)
    assert {name for name, _ in site.started} == {"device-00"}
