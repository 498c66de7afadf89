"""A round, in the order it happens: plan, cut, export, publish, train and report, aggregate, refresh, commit.

Every step reads what it needs from the ledger and writes what the next one needs there first, so a coordinator that is
killed anywhere goes on from the last thing that is on disk and ends with the same bits. Nothing else is in this file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from coordinator.artifacts import Artifact
from coordinator.assigning import (
    assignment_of,
    export_certain,
    export_on_arrival,
    history_of,
    place_device,
    store_weights,
)
from coordinator.cohort import select
from coordinator.federation import Federation
from coordinator.global_model import decode_state, encode_state
from coordinator.ledger_records import RecordedUpdate, Round
from coordinator.methods.method import ObservesScores, SelectsDevices, State, Submodel, Update
from coordinator.packed_tensors import order_masks
from coordinator.planner import Placement
from coordinator.progress import megabytes
from coordinator.publisher import read_order
from coordinator.round_metrics import describe_metrics, effective_ranks, forms_of_layers, missing_reports, round_metrics
from coordinator.statistics import state_with_statistics
from coordinator.submodels.record import cut_from_json
from coordinator.submodels.sparse_layers import with_sparse_layers
from coordinator.work_orders import build_order
from edge.contracts.errors import DeadlineExpired, PlanError
from edge.contracts.packing import unpacked
from edge.contracts.tensor_file import read_tensor_file
from export.step_form import PLAIN
from profiles.device import DeviceProfile

STORE_DEADLINE_S = 5.0
MAX_ATTEMPTS = 5
"""Attempts at one round before the run stops and says why; the ledger keeps it resumable."""

REANNOUNCE_S = 15.0


def run_rounds(federation: Federation) -> State:
    """Run every round that the ledger does not hold yet, then the statistics round; the final state."""
    state = restore(federation)
    rounds = federation.config.federation.rounds
    while state.round < rounds:
        state = run_round(federation, state, program="train")
    while not _is_finished(federation) and _has_statistics(federation):
        state = run_round(federation, state, program="stats")
    return state


def restore(federation: Federation) -> State:
    """The state after the last committed round, or the method's own initial state."""
    last = federation.ledger.last_committed()
    if last is None:
        return federation.method.init()
    done = min(last.round + 1, federation.config.federation.rounds)
    return decode_state(federation.blobs.path(last.model_digest).read_bytes(), round_index=done)


def run_round(federation: Federation, state: State, *, program: str) -> State:
    """One attempt at one round; the new state, or the same state when too few devices reported."""
    started = time.monotonic()
    attempt = federation.ledger.open_round() or plan(federation, state, program)
    publish(federation, attempt)
    if not collect(federation, attempt):
        return state
    new_state = aggregate(federation, state, attempt, program)
    if program == "train":
        new_state = refresh(federation, new_state)
    return commit(federation, attempt, new_state, program, started)


# plan


def plan(federation: Federation, state: State, program: str) -> Round:
    """Choose devices, place each on the largest level that fits it, cut, export, and write all of it to the ledger."""
    config, ledger = federation.config, federation.ledger
    round_index, attempt = _next_attempt(federation, state)
    export_certain(federation)
    profiles = _participants(federation, state, round_index, attempt)
    assignments = []
    able, history = len(profiles), history_of(federation)
    for profile in profiles:
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
        weights, constants = store_weights(federation, submodel)
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
        assignments.append(assignment_of(order, submodel, placement))
    if len(assignments) < max(1, min(config.cohort.min_reports, able)):
        raise PlanError(
            f"round {round_index + 1}: {len(assignments)} of {len(profiles)} devices can take part, "
            f"cohort.min-reports is {config.cohort.min_reports}; raise budgets, add devices or lower min-reports"
        )
    federation.on_point("before-plan")
    ledger.plan_round(round_index, attempt, deadline_s=config.cohort.deadline_s, assignments=assignments)
    planned = ledger.open_round()
    assert planned is not None
    federation.on_point("planned")
    return planned


def _next_attempt(federation: Federation, state: State) -> tuple[int, int]:
    finished = federation.ledger.last_committed()
    round_index = state.round if finished is None else finished.round + 1
    attempt = sum(1 for r in federation.ledger.rounds() if r.round == round_index)
    if attempt >= MAX_ATTEMPTS:
        why = missing_reports(federation.ledger.assignments(round_index, attempt - 1))
        raise DeadlineExpired(
            f"round {round_index + 1}: {attempt} attempts ended with fewer than "
            f"{federation.config.cohort.min_reports} reports, the last one so: {why}; mend that, then resume the run"
        )
    return round_index, attempt


def _participants(federation: Federation, state: State, round_index: int, attempt: int) -> list[DeviceProfile]:
    """Profiles, from the snapshot, of the devices selected among those that are here; new devices join the snapshot."""
    config = federation.config
    size = config.cohort.size
    hellos = federation.cohort.wait_for(
        size, config.cohort.join_timeout_s, least=config.cohort.min_reports, meanwhile=export_on_arrival(federation)
    )
    for hello in hellos:
        federation.ledger.freeze_profile(hello.profile)
    chosen = select(
        _allowed(federation, state, [h.device for h in hellos]),
        size + config.cohort.over_selection,
        seed=config.federation.seed,
        round_index=round_index,
        attempt=attempt,
    )
    snapshot = federation.ledger.profiles()
    return [snapshot[device] for device in chosen]


def _allowed(federation: Federation, state: State, devices: list[str]) -> list[str]:
    """The devices a method wants in this round: all of them, unless it chooses among them."""
    method = federation.method
    return list(method.select(state, devices)) if isinstance(method, SelectsDevices) else devices


# cut


def cut(federation: Federation, state: State, placement: Placement, round_index: int) -> Submodel:
    """The submodel of a placed device: which part of every layer it holds, in the faster form, and the values."""
    seed, device = federation.config.federation.seed, placement.device
    submodel = federation.method.cut(state, placement.level, round_index=round_index, device=device, seed=seed)
    densities = federation.ledger.profiles()[device].sparse_below.get(placement.runtime, {})
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
    """Wait until every order is answered or the deadline passes; whether enough devices reported."""
    ledger, inbox = federation.ledger, federation.inbox
    state = _now(federation, attempt).state
    if state == "aggregating":
        return True
    if state == "published":
        ledger.move_round(attempt.round, attempt.attempt, "collecting")
    announced_at = stored_at = time.monotonic()
    while pending := ledger.assignments(attempt.round, attempt.attempt, "open", "accepted"):
        now = time.monotonic()
        if federation.clock.remaining_s() == 0:
            late = [entry.device for entry in pending if ledger.expire(entry.assignment_id)]
            names = ", ".join(late) or "nobody"
            federation.progress.round_line(
                attempt.round, federation.config.federation.rounds, f"deadline: no report from {names}"
            )
            break
        if now - stored_at > STORE_DEADLINE_S:
            ledger.set_deadline(attempt.round, attempt.attempt, federation.clock.remaining_s())
            stored_at = now
        if now - announced_at > REANNOUNCE_S:
            for entry in pending:
                if entry.state == "open":
                    inbox.announce(entry.device)
            announced_at = now
        inbox.wait(min(1.0, federation.clock.remaining_s()))
        federation.on_point("collecting")
    reported = [update.assignment.device for update in ledger.updates(attempt.round, attempt.attempt)]
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
    participants = set(_now(federation, attempt).participants)
    recorded = [
        u for u in federation.ledger.updates(attempt.round, attempt.attempt) if u.assignment.device in participants
    ]
    if program == "stats":
        return state_with_statistics(federation.method, state, _updates(federation, recorded))
    return replace(federation.method.aggregate(state, _updates(federation, recorded)), round=state.round + 1)


def _updates(federation: Federation, recorded: list[RecordedUpdate]) -> Iterator[Update]:
    levels = {level.name: level for level in federation.method.levels()}
    for index, entry in enumerate(recorded):
        assignment = entry.assignment
        order = read_order(assignment.order)
        masks = order_masks(federation.blobs, order)
        where = f"device {assignment.device}, round {assignment.round}"
        yield Update(
            device=assignment.device,
            level=levels[assignment.level],
            cut=cut_from_json(assignment.cut),
            tensors=unpacked(
                read_tensor_file(federation.blobs.path(entry.update_digest), where=where), masks, where=where
            ),
            num_examples=entry.report.num_examples,
            labels=entry.report.labels if order.report_labels else None,
        )
        federation.on_point(f"aggregated-{index}")


# refresh


def refresh(federation: Federation, state: State) -> State:
    """The method's own work after aggregation: a decomposition, a new mask, the next step, or nothing."""
    return federation.method.refresh(state)


# commit


def commit(federation: Federation, attempt: Round, state: State, program: str, started: float) -> State:
    """Evaluate, store the new state, mark the round committed, and let go of what only earlier rounds used."""
    ledger, rounds = federation.ledger, federation.config.federation.rounds
    updates = ledger.updates(attempt.round, attempt.attempt)
    metrics = round_metrics(updates, wall_s=time.monotonic() - started)
    if forms := forms_of_layers(federation, updates):
        metrics["layer_forms"] = forms
    if program == "train":
        metrics |= effective_ranks(federation.method, state)
    every = federation.config.evaluation.every
    is_last = attempt.round + 1 >= rounds
    if is_last or (every and (attempt.round + 1) % every == 0):
        scores = federation.evaluate(state)
        metrics["evaluation"] = {label: {"accuracy": s.accuracy, "loss": s.loss} for label, s in scores.items()}
        if program == "train" and isinstance(federation.method, ObservesScores):
            state = federation.method.observe(state, {label: s.accuracy for label, s in scores.items()})
    data = encode_state(state)
    digest = federation.blobs.put(data)
    ledger.add_blob(digest, len(data))
    federation.on_point("before-commit")
    ledger.move_round(attempt.round, attempt.attempt, "committed", model_digest=digest, metrics=metrics)
    federation.progress.record("round", round=attempt.round, attempt=attempt.attempt, program=program, **metrics)
    federation.progress.round_line(attempt.round, rounds, describe_metrics(metrics, program))
    federation.on_point("committed")
    for released in ledger.release_blobs(attempt.round):
        federation.blobs.delete(released)
    federation.blobs.drop_partials()
    return state


def _now(federation: Federation, attempt: Round) -> Round:
    """The attempt as the ledger holds it at this moment."""
    return next(r for r in federation.ledger.rounds() if (r.round, r.attempt) == (attempt.round, attempt.attempt))


def _is_finished(federation: Federation) -> bool:
    last = federation.ledger.last_committed()
    return last is not None and last.round >= federation.config.federation.rounds


def _has_statistics(federation: Federation) -> bool:
    """Whether the model has static statistics to collect once training is over."""
    last = federation.ledger.last_committed()
    if last is None or federation.config.evaluation.norm != "static":
        return False
    used = {entry.artifact_digest for entry in federation.ledger.assignments(last.round, last.attempt)}
    return any(federation.artifacts.load(digest).has_program("stats") for digest in sorted(used))
