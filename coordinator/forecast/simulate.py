"""Rounds of a fleet, drawn one after the other: who is asked, who stays, how long it lasts. No model is trained.

A participant's time is ``down / link + steps x step + up / link``; it is lost where it leaves before that. A round ends
when the quorum has reported, or at its deadline, and never before the coordinators have done its work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from coordinator.forecast import measured
from coordinator.forecast.availability import Availability, availability_of
from coordinator.forecast.fleet_file import Fleet

_P95 = 1.6449
"""Standard deviations of a normal value that one of twenty exceeds."""


@dataclass(frozen=True)
class Course:
    """What was drawn.

    Attributes:
        begun_R, lasted_R: seconds at which each round began, and its length [R].
        asked_RG, reported_RG: participants by group, and those whose reports counted [R, G].
        online_R: devices that were there when it began [R].
        end_s: of the last round.
    """

    begun_R: np.ndarray
    lasted_R: np.ndarray
    asked_RG: np.ndarray
    reported_RG: np.ndarray
    online_R: np.ndarray
    end_s: float


def work_s(fleet: Fleet, participants: float) -> float:
    """The coordinators' processor time for a round of so many participants."""
    megabytes = (fleet.rounds.down_mb + fleet.rounds.up_mb) / 2
    return participants * (measured.PARTICIPANT_CPU_S + megabytes * measured.MEGABYTE_CPU_S)


def coordinators_for(fleet: Fleet, online: float) -> int:
    """Coordinators that the connections need by what was measured, and their heartbeats by the processor."""
    by_connections = np.ceil(online / measured.LARGEST_FLEET)
    by_heartbeats = np.ceil(online * measured.HEARTBEAT_CPU_S / fleet.heartbeat_s / measured.BUSY)
    return max(1, int(by_connections), int(by_heartbeats))


def simulate_fleet(fleet: Fleet) -> Course:
    """Draw every round of ``fleet``; equal files give equal courses.

    Raises:
        ConfigError: a trace that cannot be read.
    """
    draw = np.random.default_rng(fleet.seed)
    kinds = [availability_of(group) for group in fleet.groups]
    sizes_G = np.asarray([group.share * fleet.devices for group in fleet.groups])
    coordinators = coordinators_for(fleet, _most_online(kinds, sizes_G))
    rows: list[tuple[float, float, np.ndarray, np.ndarray, float]] = []
    now = 0.0
    for _ in range(fleet.rounds.count):
        online_G = np.asarray([kind.share(now) for kind in kinds]) * sizes_G
        asked_G = _asked(online_G, fleet.rounds.participants, draw)
        times_P, groups_P = _times(fleet, kinds, asked_G, now, draw)
        lasted, is_counted_P = _ended(fleet, times_P, int(asked_G.sum()))
        served = work_s(fleet, float(asked_G.sum())) / coordinators
        lasted = max(lasted, served)
        reported_G = np.bincount(groups_P[is_counted_P], minlength=len(kinds))
        rows.append((now, lasted, asked_G, reported_G, float(online_G.sum())))
        now += lasted + fleet.rounds.rest_s
    begun, lasted_all, asked, reported, online = zip(*rows, strict=True)
    return Course(
        np.asarray(begun),
        np.asarray(lasted_all),
        np.stack(asked),
        np.stack(reported),
        np.asarray(online),
        now - fleet.rounds.rest_s,
    )


def _most_online(kinds: list[Availability], sizes_G: np.ndarray) -> float:
    """Most devices there at a full quarter of an hour of the first week."""
    return max(
        float(sum(kind.share(at) * size for kind, size in zip(kinds, sizes_G, strict=True)))
        for at in np.arange(0.0, 7 * 86_400.0, 900.0)
    )


def _asked(online_G: np.ndarray, participants: int, draw: np.random.Generator) -> np.ndarray:
    """Participants by group, drawn from those that are there; all of them where they are fewer."""
    there_G = np.floor(online_G).astype(np.int64)
    return draw.multivariate_hypergeometric(there_G, min(participants, int(there_G.sum())), method="marginals")


def _times(
    fleet: Fleet, kinds: list[Availability], asked_G: np.ndarray, now: float, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds to each participant's report, infinite for one that leaves before it, and its group, [P] each."""
    shape, times = fleet.rounds, []
    for group, kind, count in zip(fleet.groups, kinds, asked_G, strict=True):
        spread = math.log(group.step_ms_p95 / group.step_ms) / _P95 if group.step_ms_p95 else 0.0
        steps_s = shape.steps * group.step_ms / 1e3 * draw.lognormal(0.0, spread, int(count))
        needed = shape.down_mb / group.download_mb_s + steps_s + shape.up_mb / group.upload_mb_s
        stays = kind.stays(now, int(count), draw)
        times.append(np.where(stays >= needed, needed, np.inf))
    return np.concatenate(times), np.repeat(np.arange(len(kinds)), asked_G)


def _ended(fleet: Fleet, times_P: np.ndarray, asked: int) -> tuple[float, np.ndarray]:
    """Seconds until the round ended, and which participants counted."""
    needed, deadline = max(1, int(np.ceil(fleet.rounds.quorum * asked))), fleet.rounds.deadline_s
    ordered = np.sort(times_P[times_P <= deadline])
    ends = float(ordered[needed - 1]) if len(ordered) >= needed else deadline
    return ends, times_P <= ends
