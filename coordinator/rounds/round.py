"""A round, in the order it happens: plan, cut, export, publish, train and report, aggregate, refresh, commit.

Every step reads what it needs from the ledger and writes what the next one needs there first, so a coordinator that is
killed anywhere goes on from the last thing that is on disk and ends with the same bits. What else takes part is asked
at its places: :mod:`coordinator.rounds.stages`. Nothing else is in this file.
"""

from __future__ import annotations

import time

from coordinator.ledger.records import Round
from coordinator.rounds.aggregation import renew
from coordinator.rounds.attempts import next_attempt
from coordinator.rounds.collecting import Collecting
from coordinator.rounds.commit import commit
from coordinator.rounds.control import obey_within_round
from coordinator.rounds.faulty_updates import AttemptGivenUp
from coordinator.rounds.federation import Federation
from coordinator.rounds.selection import choose_devices
from coordinator.submodels.values import State
from edge.contracts.errors import PlanError


def run_round(federation: Federation, state: State, *, program: str) -> State:
    """One attempt at one round; the new state, or the same state when too few devices reported."""
    started = time.monotonic()
    attempt = federation.ledger.rounds.open() or plan(federation, state, program)
    publish(federation, attempt)
    if not collect(federation, attempt):
        return state
    try:
        renewed = renew(federation, state, attempt, program)
    except AttemptGivenUp as error:
        federation.progress.say(str(error))
        return state
    return commit(federation, attempt, renewed, program, started)


# plan


def plan(federation: Federation, state: State, program: str) -> Round:
    """Choose devices, place each on the largest level that fits it, cut, export, and write all of it to the ledger."""
    config, ledger = federation.config, federation.ledger
    round_index = state.round
    attempt = next_attempt(federation, round_index, least=config.cohort.min_reports)
    chosen, drawn_from = choose_devices(federation, state, round_index, attempt, program)
    federation.stages.check(federation, chosen=len(chosen), drawn_from=drawn_from)
    assignments, able = federation.devices.assign(federation, state, chosen, round_index, attempt, program)
    if len(assignments) < max(1, min(config.cohort.min_reports, able)):
        raise PlanError(
            f"round {round_index + 1}: {len(assignments)} of {len(chosen)} devices can take part, "
            f"cohort.min-reports is {config.cohort.min_reports}; raise budgets, add devices or lower min-reports"
        )
    federation.on_point("before-plan")
    assignments = federation.stages.assignments(federation, assignments)
    ledger.rounds.plan(round_index, attempt, deadline_s=config.cohort.deadline_s, assignments=assignments)
    planned = ledger.rounds.open()
    assert planned is not None
    federation.stages.planned(federation, planned, chosen=len(chosen), drawn_from=drawn_from)
    federation.on_point("planned")
    return planned


# publish


def publish(federation: Federation, current: Round) -> None:
    """Send every open order; devices that are away get theirs when they say hello."""
    federation.devices.clock.start(current.deadline_s)
    if current.state == "planned":
        federation.ledger.rounds.move(current.round, current.attempt, "published")
    entries = federation.ledger.assignments.of_attempt(current.round, current.attempt, "open", "accepted")
    if volume := federation.devices.order(entries, federation.devices.clock.remaining_s):
        rounds = federation.config.federation.rounds
        federation.progress.round_line(current.round, rounds, f"{len(entries)} orders published, {volume} of weights")
    federation.on_point("published")


# train and report: the devices work, the inbox writes what they report


def collect(federation: Federation, current: Round) -> bool:
    """Wait until the orders are answered, enough of them or all, or the deadline passes; whether enough reported."""
    ledger = federation.ledger
    state = _now(federation, current).state
    if state == "aggregating":
        return True
    if state == "published":
        ledger.rounds.move(current.round, current.attempt, "collecting")
    collecting = Collecting(federation, current)
    while not (over := collecting.why_over()):
        obey_within_round(federation)
        federation.stages.while_collecting(federation, current)
        collecting.wait()
        federation.on_point("collecting")
    collecting.let_go(over)
    updates = ledger.updates.of_attempt(current.round, current.attempt)
    reported = federation.stages.participants(federation, current, [entry.assignment.device for entry in updates])
    needed = min(
        federation.config.cohort.min_reports, len(ledger.assignments.of_attempt(current.round, current.attempt))
    )
    if len(reported) < needed:
        why = f"{len(reported)} reports, {needed} needed"
        ledger.rounds.move(current.round, current.attempt, "abandoned", reason=why)
        federation.progress.round_line(
            current.round, federation.config.federation.rounds, f"{why}: the round is repeated"
        )
        return False
    ledger.rounds.move(current.round, current.attempt, "aggregating", participants=reported)
    return True


def _now(federation: Federation, current: Round) -> Round:
    """The attempt as the ledger holds it at this moment."""
    now = federation.ledger.rounds.find(current.round, current.attempt)
    assert now is not None
    return now
