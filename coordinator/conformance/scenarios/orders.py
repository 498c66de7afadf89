"""Orders from accept to acknowledgement: once, repeated, replaced, expired."""

from __future__ import annotations

import time
from typing import Any

from coordinator.conformance.findings import expect
from coordinator.conformance.kit import Job, Kit
from coordinator.conformance.registry import scenario
from coordinator.conformance.scenarios.endless_work import ENDLESS, running
from edge.contracts.plan import Schedule

ROUND = "A round, seen from a device"
ACCEPT_LIMIT_S = 10.0


@scenario(f"{ROUND}, 2")
def order_is_accepted_soon(kit: Kit) -> str:
    """accept comes within ten seconds of the order."""
    kit.agent()
    job = kit.job("masked")
    began, mark = time.monotonic(), kit.order(job)
    kit.answer(job, "accept", since=mark, timeout_s=ACCEPT_LIMIT_S)
    took_s = time.monotonic() - began
    kit.finish(job, since=mark)
    return f"accepted after {took_s * 1000:.0f} ms"


@scenario(f"{ROUND}, repeated orders")
def repeated_order_is_accepted_and_done_once(kit: Kit) -> str:
    """An order that comes three times is accepted each time, trained once, reported once."""
    kit.agent()
    job = kit.job(schedule=Schedule(epochs=60))
    mark = kit.order(job)
    kit.order(job)
    kit.order(job)
    kit.answer(job, "accept", since=mark, count=3)
    seen = kit.finish(job, since=mark)
    digests = {body.update.digest for body in _bodies(kit, job, mark, "offer")}
    reports = _bodies(kit, job, mark, "report")
    expect(len(digests) == 1, f"{len(digests)} different updates offered")
    expect(len({repr(report) for report in reports}) == 1, f"{len(reports)} reports that differ")
    return f"3 accepts, 1 report; {seen}"


@scenario(f"{ROUND}, 4")
def report_is_repeated_until_acknowledged(kit: Kit) -> str:
    """Without an ack the report comes again, under the same message id."""
    kit.agent()
    kit.script.acks = False
    job = kit.job("masked")
    mark = kit.order(job)
    kit.answer(job, "report", since=mark, timeout_s=60)
    kit.answer(job, "report", since=mark, timeout_s=40, count=2)
    first, second = kit.script.since(mark, "report")[:2]
    assert first.envelope is not None
    assert second.envelope is not None
    expect(first.envelope.id == second.envelope.id, "the repetition has another message id")
    expect(first.body == second.body, "the repetition says something else")
    return f"again after {second.at - first.at:.1f} s, same id"


@scenario(f"{ROUND}, repeated orders")
def order_after_it_was_done_is_reported_again(kit: Kit) -> str:
    """An order that comes again before its ack is not trained again: accept, and the same report."""
    kit.agent()
    kit.script.acks = False
    job = kit.job("masked")
    mark = kit.order(job)
    first = kit.answer(job, "report", since=mark, timeout_s=60)
    again = kit.order(job)
    second = kit.answer(job, "report", since=again, timeout_s=40)
    expect(first == second, "the second report differs from the first")
    return "the same report"


@scenario(f"{ROUND}, 5")
def settled_order_is_refused_as_replayed(kit: Kit) -> str:
    """An order that comes again, byte for byte, after its ack is refused, also after a restart."""
    kit.agent()
    job = kit.job("masked")
    kit.finish(job, since=kit.order(job))
    _need_idle(kit)
    kit.refusal(job, "replayed-order", since=kit.order(job))
    kit.stop()
    kit.start()
    return kit.refusal(job, "replayed-order", since=kit.order(job))


@scenario(f"{ROUND}, 5")
def rejected_report_is_forgotten(kit: Kit) -> str:
    """An ack with accepted = false ends the assignment all the same."""
    kit.agent()
    kit.script.acks = False
    job = kit.job("masked")
    kit.answer(job, "report", since=kit.order(job), timeout_s=60)
    kit.script.acknowledge(job.id, False, "stale-round")
    _need_idle(kit)
    quiet = kit.script.mark()
    kit.asked()
    expect(not kit.script.since(quiet, "report"), "reported again after that ack")
    return "idle again"


@scenario(f"{ROUND}, 2")
def newer_order_takes_the_place_of_the_old(kit: Kit) -> str:
    """Another assignment ends the one in training, which is never reported."""
    kit.agent()
    old, mark = running(kit)
    new = kit.job("masked", seed=4)
    seen = kit.finish(new, since=kit.order(new))
    expect(not _bodies(kit, old, mark, "report"), "the old one was reported")
    return seen


@scenario(f"{ROUND}, 3")
def deadline_ends_the_work(kit: Kit) -> str:
    """Work that is not done when its seconds are over is given up with a refusal."""
    kit.agent()
    job = kit.job("masked", schedule=ENDLESS, deadline_s=2.0)
    began, mark = time.monotonic(), kit.order(job)
    kit.answer(job, "accept", since=mark)
    seen = kit.refusal(job, "deadline-expired", since=mark)
    took_s = time.monotonic() - began
    expect(took_s >= 1.5, f"given up after {took_s:.1f} s of 2")
    return f"after {took_s:.1f} s of 2: {seen}"


@scenario(f"{ROUND}, repeated orders")
def killed_in_training_it_starts_again_from_the_order(kit: Kit) -> str:
    """A crash costs the training, never the result; blobs that were complete are not fetched again."""
    kit.agent()
    job = kit.job(schedule=Schedule(epochs=800))
    mark = kit.order(job)
    kit.answer(job, "accept", since=mark)
    give_up_at = time.monotonic() + 60 * kit.patience
    while kit.asked().state == "fetching":
        expect(time.monotonic() < give_up_at, "still fetching after a minute")
        time.sleep(0.05)
    time.sleep(0.1)
    kit.kill()
    expect(not kit.script.since(mark, "report"), "it was done before it could be killed")
    kit.start()
    again = kit.order(job)
    seen = kit.finish(job, since=again, timeout_s=120)
    gets = len(kit.script.since(again, "get"))
    expect(gets == 0, f"{gets} blocks fetched again")
    return f"nothing fetched again; {seen}"


def _need_idle(kit: Kit) -> None:
    """Wait until the agent says that it has no work."""
    give_up_at = time.monotonic() + 10 * kit.patience
    while (hello := kit.asked()).state != "idle":
        expect(time.monotonic() < give_up_at, f"still {hello.state} with {hello.assignment_id[:12]} after the ack")
        time.sleep(0.1)


def _bodies(kit: Kit, job: Job, mark: int, kind: str) -> list[Any]:
    return [seen.body for seen in kit.script.since(mark, kind) if seen.body.assignment_id == job.id]
