"""A round, in the order it happens: plan, cut, export, publish, train and report, aggregate, refresh, commit.

Every step reads what it needs from the ledger and writes what the next one needs there first, so a coordinator that is
killed anywhere goes on from the last thing that is on disk and ends with the same bits. Nothing else is in this file.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from coordinator.artifacts import Artifact
from coordinator.assigning import (
    StoredWeights,
    assignment_of,
    export_certain,
    export_on_arrival,
    history_of,
    place_device,
)
from coordinator.attempts import next_attempt
from coordinator.byte_account import write_account
from coordinator.cohort import select
from coordinator.collecting import Collecting
from coordinator.control import obey_between_rounds, obey_within_round
from coordinator.counting import choose_participants, counted, not_barred, rule_of, updates_of
from coordinator.federation import Federation
from coordinator.global_model import encode_state
from coordinator.ledger_records import Assignment, Round
from coordinator.methods.method import ObservesScores, SelectsDevices, State, Submodel
from coordinator.model_repair import committed_state
from coordinator.planner import Placement
from coordinator.privacy.masked_round import advance_masking, masked_sum, unmask, with_masking
from coordinator.privacy.noisy_sum import (
    check_budget,
    forget_noise,
    note_mechanism,
    privacy_metrics,
    protected,
    selection_seed,
)
from coordinator.progress import megabytes
from coordinator.publisher import read_order
from coordinator.rebasing import rebased_updates, staleness_counts
from coordinator.round_metrics import describe_metrics, effective_ranks, forms_of_layers, round_metrics
from coordinator.snapshot import profile_of
from coordinator.statistics import needs_statistics, state_with_statistics
from coordinator.store_room import room_for_round
from coordinator.submodels.sparse_layers import with_sparse_layers
from coordinator.work_orders import build_order
from edge.contracts.errors import PlanError
from edge.contracts.messages import Hello
from export.step_form import PLAIN


def run_rounds(federation: Federation) -> State:
    """Run every round that the ledger does not hold yet, then the statistics round; the final state."""
    # Another order of the steps below, and built on them.
    from coordinator.buffered_rounds import BufferedRounds

    state = restore(federation)
    buffered = BufferedRounds(federation) if federation.config.aggregation.mode == "buffered" else None
    while state.round < federation.config.federation.rounds:
        obey_between_rounds(federation)
        state = buffered.run(state) if buffered else run_round(federation, state, program="train")
    if buffered:
        buffered.finish()
    while needs_statistics(federation):
        obey_between_rounds(federation)
        state = run_round(federation, state, program="stats")
    return state


def restore(federation: Federation) -> State:
    """The state after the last committed round, or the method's own initial state."""
    last = federation.ledger.last_committed()
    if last is None:
        return federation.method.init()
    return committed_state(federation, last, lambda *before: renew(federation, *before))


def run_round(federation: Federation, state: State, *, program: str) -> State:
    """One attempt at one round; the new state, or the same state when too few devices reported."""
    started = time.monotonic()
    attempt = federation.ledger.open_round() or plan(federation, state, program)
    publish(federation, attempt)
    if not collect(federation, attempt):
        return state
    return commit(federation, attempt, renew(federation, state, attempt, program), program, started)


def renew(federation: Federation, state: State, attempt: Round, program: str) -> State:
    """The state that the updates of ``attempt`` make of ``state``; the same bits however often."""
    new_state = aggregate(federation, state, attempt, program)
    return refresh(federation, new_state) if program == "train" else new_state


# plan


def plan(federation: Federation, state: State, program: str) -> Round:
    """Choose devices, place each on the largest level that fits it, cut, export, and write all of it to the ledger."""
    config, ledger = federation.config, federation.ledger
    finished = ledger.last_committed()
    round_index = state.round if finished is None else finished.round + 1
    attempt = next_attempt(federation, round_index, least=config.cohort.min_reports)
    export_certain(federation)
    chosen, population = _participants(federation, state, round_index, attempt)
    check_budget(federation, cohort=len(chosen), population=population)
    assignments, able = orders_for(federation, state, chosen, round_index, attempt, program)
    if len(assignments) < max(1, min(config.cohort.min_reports, able)):
        raise PlanError(
            f"round {round_index + 1}: {len(assignments)} of {len(chosen)} devices can take part, "
            f"cohort.min-reports is {config.cohort.min_reports}; raise budgets, add devices or lower min-reports"
        )
    federation.on_point("before-plan")
    assignments = with_masking(federation, assignments)
    ledger.plan_round(round_index, attempt, deadline_s=config.cohort.deadline_s, assignments=assignments)
    note_mechanism(federation, round_index, attempt, cohort=len(chosen), population=population)
    planned = ledger.open_round()
    assert planned is not None
    federation.on_point("planned")
    return planned


def orders_for(
    federation: Federation, state: State, chosen: Sequence[Hello], round_index: int, attempt: int, program: str
) -> tuple[list[Assignment], int]:
    """The assignments of those of the chosen devices that can take part, and how many could but for their budgets."""
    config, assignments = federation.config, list[Assignment]()
    able, history, stored = len(chosen), history_of(federation), StoredWeights(federation)
    federation.ledger.freeze_profiles(hello.profile for hello in chosen)
    for hello in chosen:
        profile = profile_of(federation, hello)
        try:
            placement = place_device(federation, profile, state, round_index, history)
        except PlanError as error:
            federation.progress.say(f"{error}")
            continue
        submodel = cut(federation, state, placement, round_index)
        artifact = export(federation, submodel, placement)
        if not artifact.has_program(program):
            # Not every runtime's artifact need have it: a mean over the devices that do is still one.
            federation.progress.say(f"device {profile.device}: no '{program}' program on {placement.runtime}; left out")
            able -= 1
            continue
        weights, constants = stored.store(submodel)
        order = build_order(
            config,
            federation.name,
            profile,
            artifact,
            weights,
            submodel.program,
            constants=constants,
            round_index=round_index,
            attempt=attempt,
            program=program,
            peak_bytes=placement.chosen.peak_bytes,
            threads=placement.chosen.threads,
        )
        assignments.append(assignment_of(federation.method, order, submodel, placement))
    room_for_round(federation, state, assignments)
    return assignments, able


def _participants(federation: Federation, state: State, round_index: int, attempt: int) -> tuple[list[Hello], int]:
    """The devices selected among those that are here, by id, and how many those are."""
    config = federation.config
    size = config.cohort.size
    hellos = federation.cohort.wait_for(
        size, config.cohort.join_timeout_s, least=config.cohort.min_reports, meanwhile=export_on_arrival(federation)
    )
    allowed = _allowed(federation, state, not_barred(federation, [h.device for h in hellos], round_index))
    chosen = select(
        allowed,
        size + config.cohort.over_selection,
        seed=selection_seed(federation),
        round_index=round_index,
        attempt=attempt,
    )
    by_device = {hello.device: hello for hello in hellos}
    return [by_device[device] for device in chosen if device in by_device], len(allowed)


def _allowed(federation: Federation, state: State, devices: list[str]) -> list[str]:
    """The devices a method wants in this round: all of them, unless it chooses among them."""
    method = federation.method
    return list(method.select(state, devices)) if isinstance(method, SelectsDevices) else devices


# cut


def cut(federation: Federation, state: State, placement: Placement, round_index: int) -> Submodel:
    """The submodel of a placed device: which part of every layer it holds, in the faster form, and the values."""
    seed, device = federation.config.federation.seed, placement.device
    submodel = federation.method.cut(state, placement.level, round_index=round_index, device=device, seed=seed)
    densities = federation.ledger.profile(device).sparse_below.get(placement.runtime, {})
    return with_sparse_layers(submodel, densities) if densities and placement.form == PLAIN else submodel


# export


def export(federation: Federation, submodel: Submodel, placement: Placement) -> Artifact:
    """The artifact for a submodel's shapes as placed; made, and held against torch, the first time they occur."""
    return federation.artifacts.get(submodel.cut, submodel.program, placement.runtime, placement.form)


# publish


def publish(federation: Federation, attempt: Round) -> None:
    """Send every open order; devices that are away get theirs when they say hello."""
    federation.clock.start(attempt.deadline_s)
    if attempt.state == "planned":
        federation.ledger.move_round(attempt.round, attempt.attempt, "published")
    entries = federation.ledger.assignments(attempt.round, attempt.attempt, "open", "accepted")
    for entry in entries:
        federation.publisher.order(read_order(entry.order), deadline_s=federation.clock.remaining_s())
    volume = sum(read_order(entry.order).weights.size for entry in entries)
    federation.progress.round_line(
        attempt.round,
        federation.config.federation.rounds,
        f"{len(entries)} orders published, {megabytes(volume)} of weights",
    )
    federation.on_point("published")


# train and report: the devices work, the inbox writes what they report


def collect(federation: Federation, attempt: Round) -> bool:
    """Wait until the orders are answered, enough of them or all, or the deadline passes; whether enough reported."""
    ledger = federation.ledger
    state = _now(federation, attempt).state
    if state == "aggregating":
        return True
    if state == "published":
        ledger.move_round(attempt.round, attempt.attempt, "collecting")
    collecting = Collecting(federation, attempt)
    while not (over := collecting.why_over()):
        obey_within_round(federation)
        advance_masking(federation, attempt)
        collecting.wait()
        federation.on_point("collecting")
    collecting.let_go(over)
    reported = unmask(federation, attempt, choose_participants(federation, attempt))
    needed = min(federation.config.cohort.min_reports, len(ledger.assignments(attempt.round, attempt.attempt)))
    if len(reported) < needed:
        ledger.move_round(attempt.round, attempt.attempt, "abandoned")
        federation.progress.round_line(
            attempt.round,
            federation.config.federation.rounds,
            f"{len(reported)} reports, {needed} needed: the round is repeated",
        )
        return False
    ledger.move_round(attempt.round, attempt.attempt, "aggregating", participants=reported)
    return True


# aggregate


def aggregate(federation: Federation, state: State, attempt: Round, program: str) -> State:
    """Sum the participants' updates, one at a time from disk, in device-id order."""
    federation.on_point("aggregating")
    if federation.config.aggregation.mode == "buffered" and program == "train":
        recorded = federation.ledger.contributions(attempt.round, attempt.attempt)
        moved = rebased_updates(federation, state, attempt.round, recorded)
        return replace(federation.method.aggregate(state, moved, rule_of(federation)), round=state.round + 1)
    updates = masked_sum(federation, attempt)
    if updates is None:
        updates = updates_of(federation, counted(federation, attempt, _now(federation, attempt).participants))
    if program == "stats":
        return state_with_statistics(federation.method, state, updates)
    updates = protected(federation, attempt, updates)
    return replace(federation.method.aggregate(state, updates, rule_of(federation)), round=state.round + 1)


# refresh


def refresh(federation: Federation, state: State) -> State:
    """The method's own work after aggregation: a decomposition, a new mask, the next step, or nothing."""
    return federation.method.refresh(state)


# commit


def commit(federation: Federation, attempt: Round, state: State, program: str, started: float) -> State:
    """Evaluate, store the new state, mark the round committed, and let go of what only earlier rounds used."""
    ledger, rounds = federation.ledger, federation.config.federation.rounds
    updates = ledger.contributions(attempt.round, attempt.attempt)
    metrics = round_metrics(updates, wall_s=time.monotonic() - started) | privacy_metrics(federation, attempt)
    if forms := forms_of_layers(federation, updates):
        metrics["layer_forms"] = forms
    if federation.config.aggregation.mode == "buffered" and program == "train":
        metrics["staleness"] = staleness_counts(attempt.round, updates)
    if program == "train":
        metrics |= effective_ranks(federation.method, state)
    every = federation.config.evaluation.every
    is_last = attempt.round + 1 >= rounds
    if is_last or (every and (attempt.round + 1) % every == 0):
        scores = federation.evaluate(state)
        metrics["evaluation"] = {label: {"accuracy": s.accuracy, "loss": s.loss} for label, s in scores.items()}
        if program == "train" and isinstance(federation.method, ObservesScores):
            state = federation.method.observe(state, {label: s.accuracy for label, s in scores.items()})
    write_account(federation)
    data = encode_state(state)
    digest = federation.blobs.put(data)
    ledger.add_blob(digest, len(data))
    federation.on_point("before-commit")
    ledger.move_round(attempt.round, attempt.attempt, "committed", model_digest=digest, metrics=metrics)
    federation.progress.record("round", round=attempt.round, attempt=attempt.attempt, program=program, **metrics)
    federation.progress.round_line(attempt.round, rounds, describe_metrics(metrics, program))
    federation.on_point("committed")
    forget_noise(federation)
    with federation.inbox.at_rest():  # an update with the bytes of a blob that is released now is sent again
        released = ledger.release_blobs(attempt.round)
        federation.on_point("releasing")
        for digest in released:
            federation.blobs.delete(digest)
    federation.blobs.drop_partials(keep={entry.assignment_id for entry in ledger.open_assignments()})
    federation.on_point("released")
    return state


def _now(federation: Federation, attempt: Round) -> Round:
    """The attempt as the ledger holds it at this moment."""
    now = federation.ledger.round(attempt.round, attempt.attempt)
    assert now is not None
    return now
