"""What a tracker hears of a run, in the order in which it happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class RunStarted:
    """A run begins, or goes on in another process.

    Attributes:
        settings: the run file, ``table.key`` -> value as it is written there.
        rounds: of training, as planned.
        done: rounds that are committed already.
        at_s: seconds since 1970.
    """

    federation: str
    run_dir: Path
    method: str
    model: str
    settings: Mapping[str, str]
    rounds: int
    done: int
    at_s: float


@dataclass(frozen=True, kw_only=True)
class DeviceReported:
    """A device has reported its part of a round.

    Attributes:
        step: the round, from 1.
        level: capacity level that it trained.
        figures: by the names of :func:`coordinator.tracking.figures.device_figures`.
    """

    step: int
    device: str
    level: str
    runtime: str
    figures: Mapping[str, float]
    at_s: float


@dataclass(frozen=True, kw_only=True)
class Span:
    """A part of a round, with when it began and ended, in seconds since 1970.

    Attributes:
        name: ``round``, ``plan``, ``cut``, ``export``, ``publish``, ``collect``, ``assignment``, ``aggregate`` or
            ``commit``.
        inside: name of the span that holds it; empty: the run's.
        attributes: what it was about.
    """

    name: str
    began_s: float
    ended_s: float
    inside: str = "round"
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RoundCommitted:
    """A round is on disk.

    Attributes:
        entry: its line of ``metrics.jsonl``.
        step: the round, from 1.
        unanswered: assignments without an update that counts, by what became of them: a refusal's code, ``expired``.
        spans: ``round`` first; empty of a round that an earlier process committed.
        dropped: events that did not reach a tracker so far, by its name.
    """

    entry: Mapping[str, Any]
    step: int
    unanswered: Mapping[str, int] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    dropped: Mapping[str, int] = field(default_factory=dict)
    at_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RunEnded:
    """The process that ran it ends.

    Attributes:
        outcome: ``stopped`` can be resumed; ``failed`` too, once the reason is mended.
        summary: of ``summary.json``; empty unless finished.
        files: what a finished run leaves for people: report, summary, final models.
    """

    outcome: Outcome
    reason: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[Path, ...] = ()
    at_s: float = 0.0


Event = RunStarted | DeviceReported | RoundCommitted | RunEnded
