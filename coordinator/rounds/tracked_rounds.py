"""Tells a run's trackers of its rounds: a stage that only looks, at the places where a round asks its stages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from coordinator.ledger.records import Assignment, Round
from coordinator.rounds.federation import Federation, RoundStage
from coordinator.rounds.final_scores import program_of
from coordinator.submodels.values import State, Update
from coordinator.tracking.events import DeviceReported, RoundCommitted, Span
from coordinator.tracking.figures import device_figures
from coordinator.tracking.timing import Timed
from coordinator.tracking.tracked_run import TrackedRun

LOOK_S = 2.0
"""Reports are read from the ledger this often at most, while devices work."""

MOST_ALIKE = 50
"""Parts of one name in a round; more of them are one span, with their number and sum."""

History = Callable[[Federation], Sequence[Mapping[str, Any]]]


def committed_rounds(federation: Federation) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` of all rounds that the ledger has as committed."""
    rounds = [r for r in federation.ledger.rounds.all() if r.state == "committed"]
    return [{**r.metrics, "round": r.round, "attempt": r.attempt, "program": program_of(federation, r)} for r in rounds]


class TrackedRounds(RoundStage):
    """Notes when the parts of a round begin and end, and who has reported.

    Args:
        history: the committed rounds.
    """

    def __init__(self, tracked: TrackedRun, history: History = committed_rounds) -> None:
        self._tracked = tracked
        self._history = history
        self._now = tracked.stopwatch.clock.now
        self._at: dict[str, float] = {}
        self._reported_at: dict[str, float] = {}
        self._told: set[str] = set()
        self._looked_at = 0.0
        self._assignments: Sequence[Assignment] = ()
        self._dropped = tracked.dropped

    def restored(self, federation: Federation, state: State) -> None:
        """The run begins."""
        self._tracked.started(self._history(federation))

    def planned(self, federation: Federation, current: Round, *, chosen: int, drawn_from: Sequence[str]) -> None:
        """The plan is over."""
        self._begin_anew()
        self._at["planned"] = self._now()

    def while_collecting(self, federation: Federation, current: Round) -> None:
        """Whose report is new; of many devices seldom, and only their names while there is nothing new."""
        now = self._now()
        self._at.setdefault("published", now)
        devices = federation.ledger.updates.devices(current.round, current.attempt)
        for device in devices:
            self._reported_at.setdefault(device, now)
        if len(devices) > len(self._told) and now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._tell_reports(federation, current)

    def participants(self, federation: Federation, current: Round, reported: list[str]) -> list[str]:
        """All that reported; nobody is waited for any longer."""
        now = self._now()
        self._at.setdefault("published", now)
        self._at["collected"] = now
        for device in federation.ledger.updates.devices(current.round, current.attempt):
            self._reported_at.setdefault(device, now)
        self._tell_reports(federation, current)
        return reported

    def updates(
        self, federation: Federation, state: State, current: Round, program: str, updates: Iterator[Update]
    ) -> Iterator[Update]:
        """The same updates; their sum begins."""
        self._at["aggregating"] = self._now()
        return updates

    def metrics(self, federation: Federation, current: Round, program: str, state: State) -> Mapping[str, Any]:
        """None of its own; the sum is over."""
        self._at["aggregated"] = self._now()
        self._tell_reports(federation, current)
        self._assignments = federation.ledger.assignments.of_attempt(current.round, current.attempt)
        return {}

    def committed(self, federation: Federation, state: State, entry: Mapping[str, Any]) -> None:
        """Tell of the round."""
        now, assignments = self._now(), self._assignments
        unanswered = Counter(a.code or a.state for a in assignments if a.state not in ("reported", "open", "accepted"))
        self._tracked.committed(
            RoundCommitted(
                entry=dict(entry),
                step=int(entry["round"]) + 1,
                unanswered=dict(unanswered),
                spans=tuple(self._spans(entry, assignments, now)),
                dropped=self._tracked.dropped,
                at_s=now,
            )
        )
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._at, self._reported_at, self._assignments = {}, {}, ()
        self._told.clear()

    def _tell_reports(self, federation: Federation, current: Round) -> None:
        if len(self._reported_at) <= len(self._told):
            return
        for update in federation.ledger.updates.of_attempt(current.round, current.attempt):
            report = update.report
            if report.device in self._told:
                continue
            self._told.add(report.device)
            self._tracked.reported(
                DeviceReported(
                    step=current.round + 1,
                    device=report.device,
                    level=update.assignment.level,
                    runtime=report.runtime,
                    figures=device_figures(report),
                    at_s=self._reported_at.get(report.device, self._now()),
                )
            )

    def _spans(self, entry: Mapping[str, Any], assignments: Sequence[Assignment], now: float) -> Iterator[Span]:
        """The round and its parts, as far as this process has seen them; outer ones first."""
        at = self._at
        # The round's own clock says how long it took up to the end of the sum.
        began = at.get("aggregated", now) - float(entry["wall_s"])
        about: dict[str, str | int | float | bool] = {
            "round": int(entry["round"]) + 1,
            "attempt": int(entry["attempt"]),
            "program": str(entry["program"]),
        }
        yield Span(name="round", inside="", began_s=began, ended_s=now, attributes=about)
        parts = [
            ("plan", began, at.get("planned")),
            ("publish", at.get("planned"), at.get("published")),
            ("collect", at.get("published"), at.get("collected")),
            ("aggregate", at.get("aggregating"), at.get("aggregated")),
            ("commit", at.get("aggregated"), now),
        ]
        seen = {name: (start, end) for name, start, end in parts if start is not None and end is not None}
        for name, (start, end) in seen.items():
            yield Span(name=name, began_s=start, ended_s=end)
        yield from _noted(self._tracked.stopwatch.take(), seen)
        if "published" in at:
            for assignment in assignments:
                ended = self._reported_at.get(assignment.device, at.get("collected", now))
                yield Span(
                    name="assignment",
                    inside="collect",
                    began_s=at["published"],
                    ended_s=ended,
                    attributes={
                        "device": assignment.device,
                        "level": assignment.level,
                        "state": assignment.state,
                        "code": assignment.code,
                    },
                )


def _noted(noted: Sequence[Timed], parts: Mapping[str, tuple[float, float]]) -> Iterator[Span]:
    """What was timed, inside the part that it began in; of many alike one span."""
    by_name: dict[str, list[Timed]] = {}
    for one in noted:
        by_name.setdefault(one.name, []).append(one)
    for name, alike in by_name.items():
        inside = next((part for part, (began, ended) in parts.items() if began <= alike[0].began_s <= ended), "round")
        if len(alike) <= MOST_ALIKE:
            for one in alike:
                yield Span(
                    name=name, inside=inside, began_s=one.began_s, ended_s=one.ended_s, attributes=one.attributes
                )
            continue
        busy_s = sum(one.ended_s - one.began_s for one in alike)
        yield Span(
            name=name,
            inside=inside,
            began_s=alike[0].began_s,
            ended_s=alike[-1].ended_s,
            attributes={"count": len(alike), "busy_s": round(busy_s, 6)},
        )
