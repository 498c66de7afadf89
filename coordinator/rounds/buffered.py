"""Versions in place of rounds: devices get work whenever they are idle, and every few updates make a new model.

A version is a row of ``rounds``. It begins from the model of the version before; what is ordered while it is open
belongs to it and stays open beyond it, for as many versions as ``max-staleness`` says. It ends when ``buffer`` updates
are recorded, of whichever version: they are written as contributions, in one transaction, before they are summed, so a
process that is killed anywhere sums the same ones again and counts none twice. Where those who are here have all been
asked and some have refused, the version is tried again, and what is recorded goes on waiting.
Source: FedBuff, Algorithm 1; what a late update is worth is :mod:`coordinator.rounds.staleness`'s.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from coordinator.ledger.records import Assignment, Contribution, RecordedUpdate, Round
from coordinator.messaging.cohort import select
from coordinator.rounds.aggregation import renew
from coordinator.rounds.attempts import MAX_ATTEMPTS, next_attempt
from coordinator.rounds.collecting import REANNOUNCE_S, STORE_DEADLINE_S, dismiss
from coordinator.rounds.commit import commit
from coordinator.rounds.control import obey_within_round
from coordinator.rounds.federation import Federation
from coordinator.rounds.staleness import staleness_weight
from coordinator.submodels.values import State
from edge.contracts.errors import DeadlineExpired
from edge.contracts.messages import Hello


class BufferedRounds:
    """The versions of one run, one after the other; what a restart forgets is only since when an order is out."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        config = federation.config
        self._rounds = config.federation.rounds
        self._goal = config.aggregation.buffer or config.cohort.min_reports
        self._least = min(config.cohort.min_reports, self._goal)
        self._most_at_work = config.cohort.size + config.cohort.over_selection
        self._due_at: dict[str, float] = {}

    def run(self, state: State) -> State:
        """The next version's state."""
        federation, started = self._federation, time.monotonic()
        version = federation.ledger.rounds.open() or self._begin(state)
        while version.state != "aggregating":
            self._publish(version)
            if self._collect(state, version):
                self._count(version)
                break
            few = "too few updates for a version"
            federation.ledger.rounds.move(version.round, version.attempt, "abandoned", keep_updates=True, reason=few)
            version = self._begin(state)
        return commit(federation, version, renew(federation, state, version, "train"), "train", started)

    def finish(self) -> None:
        """After the last version: whoever still works on an older one is told to forget it."""
        why = "the last version is made"
        self._tell_late(dismiss(self._federation, self._federation.ledger.assignments.open(), why), why)

    def _tell_late(self, devices: Sequence[str], why: str) -> None:
        if devices:
            self._federation.progress.say(f"{why}: no report from {', '.join(devices)}")

    # plan, cut, export

    def _begin(self, state: State) -> Round:
        """A new version, or another attempt at one, with orders for those that are idle; what is too old is given up.

        Raises:
            DeadlineExpired: as often as a round is repeated.
        """
        federation, config, version = self._federation, self._federation.config, state.round
        attempt = next_attempt(federation, version, least=self._least, what="version")
        old = [a for a in federation.ledger.assignments.open() if version - a.round > config.aggregation.max_staleness]
        too_old = f"of a model more than {config.aggregation.max_staleness} versions old"
        self._tell_late(dismiss(federation, old, too_old), too_old)
        if not version and not attempt:
            federation.devices.gather(federation, version)
        assignments = self._orders(state, version, attempt, self._idle(version, attempt))
        federation.on_point("before-plan")
        federation.ledger.rounds.plan(version, attempt, deadline_s=config.cohort.deadline_s, assignments=assignments)
        planned = federation.ledger.rounds.find(version, attempt)
        assert planned is not None
        federation.on_point("planned")
        return planned

    def _idle(self, version: int, attempt: int) -> list[Hello]:
        """Devices that are here without work and have had none of this attempt: as many as may be at work beside.

        Whose update of an earlier attempt at the version waits, or is in quarantine, has done its part: it would send
        the same again. What was given up with a damaged attempt is needed once more.
        """
        federation, ledger = self._federation, self._federation.ledger
        had = {entry.device for entry in ledger.assignments.of_attempt(version, attempt)}
        if attempt:
            kept = {update.assignment.assignment_id for update in ledger.updates.waiting()}
            kept |= {entry.assignment_id for entry in ledger.quarantine.all()}
            for earlier in range(attempt):
                reported = ledger.assignments.of_attempt(version, earlier, "reported")
                had |= {entry.device for entry in reported if entry.assignment_id in kept}
        idle = [h for h in federation.devices.present() if h.device not in had]
        idle = [h for h in idle if ledger.assignments.open_of(h.device) is None]
        allowed = federation.stages.eligible(federation, [h.device for h in idle], version)
        idle = [h for h in idle if h.device in allowed]
        free = self._most_at_work - len(ledger.assignments.open()) if idle else 0
        if free <= 0:
            return []
        names = select(
            [h.device for h in idle],
            free,
            seed=federation.config.federation.seed,
            round_index=version,
            attempt=attempt * 1_000_000 + len(had),
        )
        return [hello for hello in idle if hello.device in names]

    def _orders(self, state: State, version: int, attempt: int, idle: Sequence[Hello]) -> list[Assignment]:
        devices = self._federation.devices
        return devices.assign(self._federation, state, idle, version, attempt, "train")[0] if idle else []

    # publish

    def _publish(self, version: Round) -> None:
        """Send the version's own open orders; older ones are repeated as any open order is."""
        federation, ledger = self._federation, self._federation.ledger
        federation.devices.clock.start(version.deadline_s)
        if version.state == "planned":
            ledger.rounds.move(version.round, version.attempt, "published")
        entries = ledger.assignments.of_attempt(version.round, version.attempt, "open", "accepted")
        self._send(entries)
        older = len(ledger.assignments.open()) - len(entries)
        federation.progress.round_line(
            version.round, self._rounds, f"{len(entries)} orders published, {older} of older models are out"
        )
        federation.on_point("published")

    def _send(self, entries: Sequence[Assignment]) -> None:
        self._federation.devices.order(entries, self._federation.devices.clock.for_orders_s)

    # train and report: whoever becomes idle gets work of the version that is open

    def _collect(self, state: State, version: Round) -> bool:
        """Wait for enough updates for a new model, or fewer when the deadline passes or nobody works; False when those
        who are here cannot bring them, because some have refused.

        Raises:
            DeadlineExpired: as often as a round is repeated, and still too few.
        """
        federation, ledger = self._federation, self._federation.ledger
        if version.state != "collecting":
            ledger.rounds.move(version.round, version.attempt, "collecting")
        announced_at = stored_at = time.monotonic()
        passed = 0
        while (waiting := ledger.updates.waiting_count()) < self._goal:
            obey_within_round(federation)
            self._order_more(state, version)
            if federation.devices.present() and not ledger.assignments.open():
                if waiting >= self._least:
                    break  # everybody who is here has answered
                if ledger.assignments.of_attempt(version.round, version.attempt, "refused", "rejected", "expired"):
                    return False
            now = time.monotonic()
            if federation.devices.clock.remaining_s() == 0:
                if waiting >= self._least:
                    break
                passed += 1
                self._deadline_passed(version, waiting, passed)
            if now - stored_at > STORE_DEADLINE_S:
                ledger.rounds.set_deadline(version.round, version.attempt, federation.devices.clock.remaining_s())
                stored_at = now
            if now - announced_at > REANNOUNCE_S:
                self._repeat(now)
                announced_at = now
            federation.devices.wait(min(1.0, federation.devices.clock.remaining_s()))
            federation.on_point("collecting")
        return True

    def _order_more(self, state: State, version: Round) -> None:
        idle = self._idle(version.round, version.attempt)
        if not idle:
            return
        assignments = self._orders(state, version.round, version.attempt, idle)
        self._federation.on_point("before-orders")
        self._federation.ledger.rounds.extend(version.round, version.attempt, assignments)
        self._federation.on_point("ordered")
        self._send(assignments)

    def _repeat(self, now: float) -> None:
        """Announce open orders again, and give up those that are out for longer than a device has for one."""
        federation = self._federation
        entries = federation.ledger.assignments.open()
        deadline_s = federation.config.cohort.deadline_s
        self._due_at = {a.assignment_id: self._due_at.get(a.assignment_id, now + deadline_s) for a in entries}
        overdue = [a for a in entries if self._due_at[a.assignment_id] <= now]
        late = dismiss(federation, overdue, f"no report within {deadline_s:g} s")
        if late:
            federation.progress.say(f"no report within {deadline_s:g} s from {', '.join(late)}")
        for entry in entries:
            if entry.state == "open" and entry not in overdue:
                federation.devices.announce(entry.device)

    def _deadline_passed(self, version: Round, waiting: int, passed: int) -> None:
        federation = self._federation
        if passed >= MAX_ATTEMPTS:
            raise DeadlineExpired(
                f"version {version.round + 1}: {passed} deadlines of {federation.config.cohort.deadline_s:g} s passed "
                f"with {waiting} of {self._least} updates; see which devices are there, then resume the run"
            )
        federation.progress.round_line(
            version.round, self._rounds, f"deadline: {waiting} updates, {self._least} needed: the wait goes on"
        )
        federation.devices.clock.start(federation.config.cohort.deadline_s)

    # count

    def _count(self, version: Round) -> None:
        """Write which updates are summed: all that wait, of whichever version."""
        recorded = self._federation.ledger.updates.waiting()
        exponent = self._federation.config.aggregation.staleness_exponent
        self._federation.ledger.rounds.move(
            version.round,
            version.attempt,
            "aggregating",
            contributions=[_weighed(version.round, r, exponent) for r in recorded],
        )


def _weighed(version: int, recorded: RecordedUpdate, exponent: float) -> Contribution:
    assignment = recorded.assignment
    weight = recorded.report.num_examples * staleness_weight(version - assignment.round, exponent)
    return Contribution(assignment_id=assignment.assignment_id, weight=weight)
