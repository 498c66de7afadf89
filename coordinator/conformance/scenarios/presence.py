"""Who is there: hello, heartbeat, goodbye."""

from __future__ import annotations

import time

from coordinator.conformance.findings import expect
from coordinator.conformance.kit import Kit
from coordinator.conformance.registry import scenario
from coordinator.conformance.scenarios.endless_work import running
from edge.contracts.envelope import seal

CLAUSE = "A round, seen from a device, 1"
HEARTBEAT_LIMIT_S = 30.0
RECONNECT_LIMIT_S = 40.0


@scenario(CLAUSE)
def hello_says_who_and_what(kit: Kit) -> str:
    """The first hello names device, runtime, examples, block size and window."""
    hello, wanted = kit.agent(), kit.site.connection
    expect(hello.device == wanted.device, f"device {hello.device!r}, told to be {wanted.device!r}")
    expect(hello.profile.device == wanted.device, f"profile of {hello.profile.device!r}")
    expect(wanted.runtime in hello.runtimes, f"runtimes {sorted(hello.runtimes)} without {wanted.runtime}")
    expect(hello.data_error == "", f"data_error {hello.data_error!r}")
    expect(hello.num_examples == wanted.examples(), f"{hello.num_examples} examples, {wanted.examples()} there")
    expect((hello.state, hello.assignment_id) == ("idle", ""), f"{hello.state} with {hello.assignment_id!r}")
    expect(0 < hello.block_bytes <= 262_144, f"block_bytes {hello.block_bytes}")
    expect(0 < hello.window <= 64, f"window {hello.window}")
    version = hello.runtimes[wanted.runtime]
    return f"{wanted.runtime} {version}, {hello.num_examples} examples, {hello.window} blocks of {hello.block_bytes}"


@scenario(CLAUSE)
def hello_answers_an_empty_hello(kit: Kit) -> str:
    """A coordinator that has just started asks, on the device's topic or everyone's, and is told."""
    kit.agent()
    for to_all in (False, True):
        mark = kit.script.mark()
        kit.script.send_bytes("hello", seal("hello", {}), to_all=to_all)
        kit.wait("hello", since=mark)
    return "said again on both topics"


@scenario(CLAUSE)
def hello_after_every_reconnect(kit: Kit) -> str:
    """A connection that is cut is made again, and hello said again; meanwhile the broker says the last will."""
    kit.agent()
    mark, began = kit.script.mark(), time.monotonic()
    expect(kit.site.cut() > 0, "the agent had no connection")
    will = kit.wait("bye", since=mark, timeout_s=RECONNECT_LIMIT_S).body
    expect(will.reason == "connection lost", f"last will {will.reason!r}, not 'connection lost'")
    kit.wait("hello", since=mark, timeout_s=RECONNECT_LIMIT_S)
    return f"last will, and hello again after {time.monotonic() - began:.1f} s"


@scenario(CLAUSE)
def heartbeat_comes_now_and_then(kit: Kit) -> str:
    """A device is heard of at least every 30 seconds, and says how far its training is."""
    kit.agent()
    job, _ = running(kit)
    mark = kit.script.mark()
    first = kit.wait("heartbeat", since=mark, timeout_s=HEARTBEAT_LIMIT_S)
    second = kit.wait("heartbeat", since=mark, timeout_s=HEARTBEAT_LIMIT_S, count=2)
    body = second.body
    expect((body.state, body.assignment_id) == ("training", job.id), f"{body.state} with {body.assignment_id!r}")
    expect(0 < body.step < body.total_steps == job.order.schedule.steps, f"step {body.step} of {body.total_steps}")
    expect(body.loss is not None, "no loss in training")
    return f"{second.at - first.at:.1f} s apart, step {body.step}, loss {body.loss:.4f}"


@scenario(CLAUSE)
def goodbye_when_it_is_stopped(kit: Kit) -> str:
    """An agent that is stopped says why it goes; one that is killed leaves its last will."""
    kit.agent()
    mark = kit.script.mark()
    kit.stop()
    reason = kit.wait("bye", since=mark).body.reason
    expect(reason not in ("", "connection lost"), f"stopped in good order, it said {reason!r}")
    kit.start()
    mark = kit.script.mark()
    kit.kill()
    will = kit.wait("bye", since=mark, timeout_s=60).body.reason
    expect(will == "connection lost", f"last will {will!r}")
    return f"'{reason}', and the last will when killed"
