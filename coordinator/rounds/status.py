"""What a federation is doing at this moment, in one line: who is awaited, who trains and how far, who has reported.

Read by a thread of :class:`coordinator.reporting.progress.Progress`; it only looks, at the ledger and the cohort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from coordinator.config.run_config import RunConfig
from coordinator.ledger.connections import LedgerAway
from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment, Round
from coordinator.messaging.cohort import Cohort
from coordinator.reporting.progress import NO_BREAK
from coordinator.rounds.round_clock import RoundClock

MAX_NAMES = 12
"""Devices named in one line; the others are a number."""

FEW_NAMES = 3
"""Devices that do the same are named up to this many, otherwise counted."""


class RoundStatus:
    """The state of the open round of ``ledger`` in words.

    Args:
        expected: ids of devices that are known to be on their way, such as those started here.
        ended: device -> exit status of the agents started here that ended by themselves.
        say: told once about every one of those.
    """

    def __init__(
        self,
        config: RunConfig,
        ledger: Ledger,
        cohort: Cohort,
        clock: RoundClock,
        *,
        expected: Sequence[str] = (),
        ended: Callable[[], dict[str, int]] = dict,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._cohort = cohort
        self._clock = clock
        self._expected = tuple(expected)
        self._ended = ended
        self._say = say
        self._told: set[str] = set()

    def line(self) -> str:
        """One line; empty between rounds, when there is nothing to wait for."""
        for device, status in self._ended().items():
            if device not in self._told:
                self._told.add(device)
                self._say(f"the agent of {device} ended with status {status}; see agent.log in its folder")
        try:
            return self._of_ledger()
        except LedgerAway:
            return "the ledger's server does not answer"

    def _of_ledger(self) -> str:
        attempt = self._ledger.rounds.open()
        if attempt is None:
            return self._waiting()
        if attempt.state == "aggregating":
            count = len(attempt.participants)
            return f"{self._round(attempt)}: aggregating {count} update{'s' if count != 1 else ''}"
        return self._training(attempt)

    def _waiting(self) -> str:
        size = self._config.cohort.size
        here = [hello.device for hello in self._cohort.present()]
        unusable, without_runtime = self._cohort.data_errors(), self._cohort.runtime_errors()
        if len(here) >= size:
            return f"{len(here)} devices are here: planning and exporting"
        known = {*self._expected, *self._ledger.profiles.all()}
        out = {*unusable, *without_runtime}
        missing = sorted(known - {*here, *out})
        others = size - len(here) - len(missing) - len(out)
        parts = [f"waiting for devices: {len(here)} of {size} here"]
        if missing:
            parts.append("missing " + names(missing, others))
        elif others > 0:
            parts.append(f"{others} more wanted")
        if unusable:
            parts.append("without usable data " + names(sorted(unusable)))
        if without_runtime:
            parts.append("without a runtime of this run " + names(sorted(without_runtime)))
        if here:
            parts.append("here " + names(here))
        return "; ".join(parts)

    def _training(self, current: Round) -> str:
        if self._config.aggregation.mode == "buffered" and current.round < self._config.federation.rounds:
            return self._buffering(current)
        entries = self._ledger.assignments.of_attempt(current.round, current.attempt)
        by_state = {state: [e for e in entries if e.state == state] for state in ("reported", "refused", "rejected")}
        counts = [f"{len(by_state['reported'])}/{len(entries)} reports"]
        counts += [f"{len(by_state[state])} {state}" for state in ("refused", "rejected") if by_state[state]]
        pending = [e for e in entries if e.state in ("open", "accepted")]
        losses = [loss for loss in map(self._loss, pending) if loss is not None]
        if losses:
            counts.append(f"loss {sum(losses) / len(losses):.3f}")
        counts.append(f"{self._clock.remaining_s():.0f} s left")
        line = f"{self._round(current)}: {', '.join(counts)}"
        return f"{line}: {self._work(pending)}" if pending else line

    def _buffering(self, version: Round) -> str:
        """``version 4/20: 1/2 updates, loss 0.312, 1 at work on older models: device-02 24/30, device-03 12/30``."""
        goal = self._config.aggregation.buffer or self._config.cohort.min_reports
        pending = self._ledger.assignments.open()
        counts = [f"{self._ledger.updates.waiting_count()}/{goal} updates"]
        losses = [loss for loss in map(self._loss, pending) if loss is not None]
        if losses:
            counts.append(f"loss {sum(losses) / len(losses):.3f}")
        older = sum(entry.round < version.round for entry in pending)
        if older:
            counts.append(f"{older} at work on older models")
        line = f"version {version.round + 1}/{self._config.federation.rounds}: {', '.join(counts)}"
        return f"{line}: {self._work(pending)}" if pending else line

    def _round(self, current: Round) -> str:
        rounds = self._config.federation.rounds
        after = "for statistics or scores" if self._config.evaluation.devices else "for statistics"
        what = f"{current.round + 1}/{rounds}" if current.round < rounds else after
        return f"round {what}" + (f" attempt {current.attempt + 1}" if current.attempt else "")

    def _work(self, pending: Sequence[Assignment]) -> str:
        """``device-02 24/30, device-03 12/30; uploading device-01; 5 accepted``."""
        steps, others = [], dict[str, list[str]]()
        for entry in pending:
            doing = self._doing(entry)
            if doing[0].isdigit():
                steps.append(f"{entry.device}{NO_BREAK}{doing}")
            else:
                others.setdefault(doing, []).append(entry.device)
        parts = [names(steps)] if steps else []
        for doing, devices in sorted(others.items()):
            few = len(devices) <= FEW_NAMES
            parts.append(f"{doing} {names(devices)}" if few else f"{len(devices)} {doing}")
        return "; ".join(parts)

    def _doing(self, entry: Assignment) -> str:
        """``24/30`` steps, or what the device does instead of training."""
        member = self._cohort.member(entry.device)
        if member is None or member.away_reason:
            return "away"
        beat = member.heartbeat
        if beat is None or beat.assignment_id != entry.assignment_id:
            return "ordered" if entry.state == "open" else "accepted"
        if beat.state == "training" and beat.total_steps:
            return f"{beat.step}/{beat.total_steps}"
        return beat.state + (f" ({beat.reason})" if beat.reason else "")

    def _loss(self, entry: Assignment) -> float | None:
        member = self._cohort.member(entry.device)
        beat = None if member is None else member.heartbeat
        return beat.loss if beat is not None and beat.assignment_id == entry.assignment_id else None


def names(words: Iterable[str], more: int = 0) -> str:
    """``a, b and 3 more``: at most :data:`MAX_NAMES` of ``words``."""
    found = list(words)
    more += max(0, len(found) - MAX_NAMES)
    return ", ".join(found[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
