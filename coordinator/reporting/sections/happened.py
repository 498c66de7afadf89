"""What happened: rounds that were done or repeated, devices that refused, were late or were set aside, in sentences."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from coordinator.reporting.markup import counted, duration, listed, sentences
from coordinator.reporting.subject import GLOBAL, DeviceFacts, RoundFacts, Subject

EVEN = 1.1
"""Of the median: where the longest round took less, all took about the same."""

MOST_LISTED = 12
"""Devices and attempts named one by one."""


def happened(subject: Subject) -> str:
    """The course of the run, the result first."""
    return sentences((*_result(subject), *_rounds(subject), *_attempts(subject), *_devices(subject), *_memory(subject)))


def _result(subject: Subject) -> Iterator[str]:
    curve = subject.curve(GLOBAL, subject.metric)
    if not subject.is_finished:
        yield f"The run is not finished: this page shows {counted(len(subject.rounds), 'round')} so far."
    if subject.score is not None and subject.is_finished:
        yield f"The final model reached {subject.metric} {subject.score:.4f} on the held-out data."
    elif curve:
        yield f"The newest evaluated model, of round {curve[-1][0]:.0f}, has {subject.metric} {curve[-1][1]:.4f}."
    if len(curve) > 1:
        best = (min if subject.is_lower_better else max)(curve, key=lambda point: point[1])
        if best[1] != curve[-1][1]:
            yield f"The best evaluated model was that of round {best[0]:.0f}, with {best[1]:.4f}."
    if subject.summary.get("stopped_early"):
        yield "Training ended early: no better model came for as many evaluations as the run file allows."


def _rounds(subject: Subject) -> Iterator[str]:
    done = len(subject.rounds)
    if not done:
        yield "No round is committed yet."
        return
    took = f" in {duration(subject.wall_s)}" if subject.is_finished else ""
    yield f"{done} of {counted(subject.rounds_asked, 'round')} of training {'were' if done != 1 else 'was'} done{took}."
    timed = [r for r in subject.rounds if r.wall_s is not None]
    if len(timed) > 1:
        median = statistics.median(r.wall_s or 0.0 for r in timed)
        longest = max(timed, key=lambda r: r.wall_s or 0.0)
        is_even = (longest.wall_s or 0.0) < EVEN * median
        took = duration(longest.wall_s or 0.0)
        more = f"; the longest was round {longest.number} with {took}{_longest_because(longest)}"
        yield f"A round took {duration(median)} in the median{'' if is_even else more}."


def _longest_because(longest: RoundFacts) -> str:
    parts = {
        "placing devices and exporting their artifacts": longest.planning_s,
        "training and sending": longest.training_s,
        "aggregating and evaluating": longest.aggregating_s,
    }
    known = {name: seconds for name, seconds in parts.items() if seconds is not None}
    if not known or not longest.wall_s:
        return ""
    name = max(known, key=lambda key: known[key])
    return f", of which {duration(known[name])} for {name}"


def _attempts(subject: Subject) -> Iterator[str]:
    if subject.failed:
        for entry in subject.failed[:MOST_LISTED]:
            why = entry.why or "no reason is known"
            yield f"Round {entry.number} was tried again after attempt {entry.attempt}: {why}."
        if len(subject.failed) > MOST_LISTED:
            yield f"{len(subject.failed) - MOST_LISTED} further attempts were given up."
    elif subject.rounds and not subject.is_simulated:
        yield "Every round succeeded at its first attempt."


def _devices(subject: Subject) -> Iterator[str]:
    trained = [d for d in subject.devices if d.reports]
    idle = [d.device for d in subject.devices if not d.reports]
    if subject.devices:
        yield f"{len(trained):,} of {counted(len(subject.devices), 'device')} trained in at least one round."
    if idle and subject.rounds:
        yield (
            f"{listed(idle, MOST_LISTED)} never did: no level fitted the memory budget, or no round chose "
            f"{'it' if len(idle) == 1 else 'them'}. apportion plan shows which level fits which budget."
        )
    yield _answers(subject)
    troubled = [(d, problem) for d in subject.devices for problem in d.problems]
    yield from (_trouble(device, problem) for device, problem in troubled[:MOST_LISTED])
    if len(troubled) > MOST_LISTED:
        yield f"{len(troubled) - MOST_LISTED} further problems are in the table of devices."
    for number, device, code in subject.quarantined[:MOST_LISTED]:
        yield f"The update of {device} in round {number} was set aside and counts in no sum: {code}."
    refused = sum(r.assigned.get("refused", 0) for r in subject.rounds)
    if subject.is_simulated and refused:
        yield f"Simulated devices that fitted no level took no part: {refused} times in all."


def _answers(subject: Subject) -> str:
    """What did not come back, over all rounds that were done."""
    words = {"refused": "refused by the device", "expired": "not answered in time", "rejected": "answered wrongly"}
    sums = {state: sum(r.assigned.get(state, 0) for r in subject.rounds) for state in words}
    told = [f"{sums[state]:,} {how}" for state, how in words.items() if sums[state]]
    total = sum(sum(r.assigned.values()) for r in subject.rounds)
    return f"Of {counted(total, 'order')} in these rounds, {listed(told)}." if told and not subject.is_simulated else ""


def _trouble(device: DeviceFacts, problem: str) -> str:
    return f"{device.device}: {problem}."


def _memory(subject: Subject) -> Iterator[str]:
    measured = [d for d in subject.devices if d.measured_peak_bytes and d.budget_bytes]
    if not measured:
        return
    over = [d.device for d in measured if d.measured_peak_bytes > d.budget_bytes]
    if over:
        yield f"{listed(over, MOST_LISTED)} took more memory than the budget allows."
    else:
        yield f"No device took more memory than its budget ({counted(len(measured), 'device')} with one)."
