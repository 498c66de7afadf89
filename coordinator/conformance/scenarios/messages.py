"""Messages that are strange, and the rules that hold for every message."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from coordinator.conformance.findings import expect
from coordinator.conformance.kit import Kit
from coordinator.conformance.registry import scenario
from edge.contracts import topics
from edge.contracts.codec import decode_msgpack, encode_msgpack
from edge.contracts.envelope import MAX_MESSAGE_BYTES, VERSION, seal
from edge.contracts.messages import BODIES

ENVELOPE = "Envelope"


@scenario(ENVELOPE)
def unknown_kinds_are_ignored(kit: Kit) -> str:
    """A kind of a later release."""
    kit.agent()
    mark = kit.script.mark()
    kit.script.send("dance", {"steps": 3})
    seen = kit.train("masked")
    expect(not kit.script.since(mark, "refuse"), "refused something")
    return seen


@scenario(ENVELOPE)
def unknown_fields_are_ignored(kit: Kit) -> str:
    """An order and an envelope with fields of a later release."""
    kit.agent()
    job = kit.job("masked", seed=60)
    fields = decode_msgpack(encode_msgpack(job.order), dict, limit=MAX_MESSAGE_BYTES)
    payload = seal("order", {**fields, "mood": "sunny", "extras": [1, {"a": None}]}, sign=kit.key.order)
    envelope = decode_msgpack(payload, dict, limit=MAX_MESSAGE_BYTES)
    # The body's bytes stay what was signed: only the map around them grows by a pair.
    assert payload[:1] == bytes([0x80 | len(envelope)])
    grown = bytes([0x80 | (len(envelope) + 1)]) + payload[1:] + encode_msgpack("hop") + encode_msgpack(3)
    mark = kit.order_bytes(job, grown)
    return kit.finish(job, since=mark)


@scenario(ENVELOPE)
def missing_fields_take_their_defaults(kit: Kit) -> str:
    """An order without those fields that have a default."""
    kit.agent()
    job = kit.job("micro-batches", seed=61, deadline_s=0.0)
    fields = decode_msgpack(encode_msgpack(job.order), dict, limit=MAX_MESSAGE_BYTES)
    for name in ("deadline_s", "peak_bytes", "threads", "encoding", "constants", "report_labels", "bulk"):
        del fields[name]
    mark = kit.order_bytes(job, seal("order", fields, sign=kit.key.order))
    return kit.finish(job, since=mark)


@scenario(ENVELOPE)
def unknown_version_is_refused_by_name(kit: Kit) -> str:
    """An envelope of version 9 is answered with an error of code unsupported-version."""
    kit.agent()
    mark = kit.script.mark()
    message = {"v": 9, "id": "later", "kind": "order", "sent_at": 0.0, "body": {}}
    kit.script.send_bytes("order", encode_msgpack(message))
    error = kit.wait("error", since=mark).body
    expect(error.code == "unsupported-version", f"error {error.code!r}")
    return f"{error.code}: {error.message[:80]}"


@scenario(ENVELOPE)
def garbage_does_no_harm(kit: Kit) -> str:
    """Bytes that are no message, deep nesting and wrong types: the agent lives on and works."""
    kit.agent()
    mark = kit.script.mark()
    wrong = encode_msgpack({"v": 1, "id": "a", "kind": "order", "sent_at": 0.0, "body": {"round": "three"}})
    for payload in (b"", b"\xc1garbage", os.urandom(500), b"\x91" * 5000, encode_msgpack([1, 2]), wrong):
        for kind in ("order", "block", "grant", "ack"):
            kit.script.send_bytes(kind, payload)
    seen = kit.train("masked")
    expect(not kit.script.since(mark, "hello", "bye"), "it connected anew")
    return f"{len(kit.script.since(mark, 'error'))} errors told; {seen}"


@scenario(ENVELOPE)
def message_over_the_limit_is_not_read(kit: Kit) -> str:
    """A payload of 300,001 bytes that would be a sound order is not taken as one."""
    kit.agent()
    job = kit.job("masked")
    fields = decode_msgpack(encode_msgpack(job.order), dict, limit=MAX_MESSAGE_BYTES)
    body = encode_msgpack({**fields, "ballast": ""})
    short = encode_msgpack({"v": 1, "id": "big", "kind": "order", "sent_at": 0.0, "body": None})
    ballast = MAX_MESSAGE_BYTES + 64 - len(body) - len(short)
    body = encode_msgpack({**fields, "ballast": "x" * ballast})
    message = encode_msgpack(
        {
            "v": 1,
            "id": "big",
            "kind": "order",
            "sent_at": 0.0,
            "body": msgspec.Raw(body),
            "signature": kit.key.order(body),
        }
    )
    expect(len(message) > MAX_MESSAGE_BYTES, "the kit's message is too small")
    mark = kit.order_bytes(job, message)
    seen = kit.train("masked", seed=62)
    taken = [s for s in kit.script.since(mark, "accept") if s.body.assignment_id == job.id]
    expect(not taken, f"an order of {len(message)} bytes was accepted")
    return seen


@scenario(ENVELOPE)
def order_for_another_device_is_not_taken(kit: Kit) -> str:
    """An order that names another device, or another federation, is answered with an error."""
    kit.agent()
    told = []
    changes: tuple[dict[str, Any], ...] = ({"device": "device-2"}, {"federation": "elsewhere"})
    for change in changes:
        job = kit.job("masked", **change)
        mark = kit.order(job)
        answer = kit.wait("error", "refuse", "accept", since=mark)
        expect(answer.kind != "accept", f"accepted with {change}")
        told.append(answer.body.code)
    return f"told {' and '.join(told)}"


@scenario(ENVELOPE)
def every_message_keeps_the_rules(kit: Kit) -> str:
    """Of all messages of this session: own topics, known kinds, at most 300,000 bytes, version 1, ids of their own."""
    kit.agent()
    if not kit.script.since(0, "report"):
        kit.train("masked")
    there = kit.site.connection
    ids: dict[str, tuple[str, bytes]] = {}
    for seen in kit.script.seen:
        expect(seen.topic == topics.up(there.federation, there.device, seen.kind), f"published on {seen.topic}")
        expect(seen.kind in BODIES, f"unknown kind {seen.kind!r}")
        expect(seen.size <= MAX_MESSAGE_BYTES, f"a {seen.kind} of {seen.size} bytes")
        expect(seen.envelope is not None and not isinstance(seen.body, str), f"{seen.kind} cannot be read: {seen.body}")
        assert seen.envelope is not None
        expect(seen.envelope.v == VERSION, f"version {seen.envelope.v}")
        expect(seen.envelope.kind == seen.kind, f"a {seen.envelope.kind} on the topic of {seen.kind}")
        expect(0 < len(seen.envelope.id) <= 128, f"message id {seen.envelope.id[:80]!r}")
        # What was not acknowledged may come twice, and a report is repeated: under one id there is one message.
        said = (seen.kind, bytes(seen.envelope.body))
        first = ids.setdefault(seen.envelope.id, said)
        expect(first == said, f"a {first[0]} and another {seen.kind} have one message id")
    largest = max(seen.size for seen in kit.script.seen)
    return f"{len(kit.script.seen)} messages, the largest of {largest} bytes"
