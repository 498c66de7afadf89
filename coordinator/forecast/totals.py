"""What a course of rounds amounts to: machines, bytes, processor time, money. Formulas: docs/forecast.md."""

from __future__ import annotations

from typing import Any

import numpy as np

from coordinator.forecast import measured
from coordinator.forecast.fleet_file import Fleet
from coordinator.forecast.simulate import Course, coordinators_for, work_s

_MB, _GB = 10**6, 10**9


def totals(fleet: Fleet, course: Course) -> dict[str, Any]:
    """The figures, by name, with units at the end of names."""
    hours, online = course.end_s / 3600.0, float(course.online_R.max())
    machines = coordinators_for(fleet, online)
    asked, reported = int(course.asked_RG.sum()), int(course.reported_RG.sum())
    devices = asked_once(fleet, asked)
    down = asked * fleet.rounds.down_mb * _MB + devices * fleet.rounds.artifact_mb * _MB
    up = reported * fleet.rounds.up_mb * _MB
    coordinator_s = _coordinator_s(fleet, course)
    broker_s = _broker_s(fleet, course, down + up)
    coordinator_mb = measured.COORDINATOR_MB + online / machines * measured.DEVICE_KB / 1024 + _sums_mb(fleet)
    broker_mb = measured.BROKER_MB + online / machines * measured.IDLE_CONNECTION_KB[fleet.tls] / 1024
    memory_gb = machines * (coordinator_mb + broker_mb) / 1024
    money = {
        "egress": down * measured.WIRE / _GB * fleet.prices.egress_gb,
        # A machine has two cores whether they are busy or not: its coordinator's and its broker's.
        "cores": 2 * machines * hours * fleet.prices.core_hour,
        "memory": memory_gb * hours * fleet.prices.memory_gb_hour,
    }
    return {
        "hours": round(hours, 2),
        "round_s_median": round(float(np.median(course.lasted_R)), 1),
        "round_s_p90": round(float(np.quantile(course.lasted_R, 0.9)), 1),
        "online_least": int(course.online_R.min()),
        "online_most": int(online),
        "asked": asked,
        "reported": reported,
        "lost_share": round(1 - reported / asked, 4) if asked else 0.0,
        "gb_down_wire": round(down * measured.WIRE / _GB, 3),
        "gb_up_wire": round(up * measured.WIRE / _GB, 3),
        "coordinators": machines,
        "brokers": machines,
        "coordinator_mb": round(coordinator_mb),
        "broker_mb": round(broker_mb),
        "coordinator_cpu_hours": round(coordinator_s / 3600, 3),
        "broker_cpu_hours": round(broker_s / 3600, 3),
        "coordinator_busy_share": round(coordinator_s / (machines * course.end_s), 4) if course.end_s else 0.0,
        "money": {**{name: round(value, 2) for name, value in money.items()}, "all": round(sum(money.values()), 2)},
        "groups": _groups(fleet, course),
    }


def asked_once(fleet: Fleet, asked: int) -> float:
    """Devices expected to be asked at least once, of so many draws from the whole fleet."""
    return float(fleet.devices * -np.expm1(-asked / fleet.devices))


def _coordinator_s(fleet: Fleet, course: Course) -> float:
    """Processor time: starts, arrivals, heartbeats of whoever is there, and the rounds' own work."""
    online = float(course.online_R.mean())
    beats = online * course.end_s / fleet.heartbeat_s * measured.HEARTBEAT_CPU_S
    rounds = sum(work_s(fleet, float(count)) for count in course.asked_RG.sum(axis=1))
    start = coordinators_for(fleet, float(course.online_R.max())) * measured.START_CPU_S
    return start + _arrivals(fleet, course) * measured.HELLO_CPU_S + beats + rounds


def _broker_s(fleet: Fleet, course: Course, passed: float) -> float:
    connects = _arrivals(fleet, course) * measured.BROKER_HELLO_CPU_S[fleet.tls]
    return connects + passed / _MB * measured.BROKER_MEGABYTE_CPU_S


def _arrivals(fleet: Fleet, course: Course) -> float:
    """Connections made: those at the start, and one for each session that ends while the run goes on."""
    mean_s = sum(group.share * group.session_minutes * 60 for group in fleet.groups)
    return float(course.online_R[0] + course.online_R.mean() * course.end_s / mean_s)


def _sums_mb(fleet: Fleet) -> float:
    """The sum of a round in float64, and the model twice in float32."""
    return fleet.rounds.up_mb * (2 + 2) * _MB / 2**20


def _groups(fleet: Fleet, course: Course) -> list[dict[str, Any]]:
    """Of each group: its share of the fleet, of what was asked and of what counted, and what a device of it took."""
    asked_G, reported_G = course.asked_RG.sum(axis=0), course.reported_RG.sum(axis=0)
    rows = []
    for group, asked, reported in zip(fleet.groups, asked_G, reported_G, strict=True):
        members = group.share * fleet.devices
        rows.append(
            {
                "name": group.name,
                "share": group.share,
                "share_of_reports": round(float(reported / max(1, reported_G.sum())), 4),
                "lost_share": round(float(1 - reported / asked), 4) if asked else 0.0,
                "rounds_per_device": round(float(asked / members), 4),
                "mb_down_per_device": round(float(asked / members) * fleet.rounds.down_mb, 3),
                "training_s_per_device": round(float(asked / members) * fleet.rounds.steps * group.step_ms / 1e3, 2),
            }
        )
    return rows
