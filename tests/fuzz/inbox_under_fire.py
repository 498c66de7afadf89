"""A coordinator's inbox over a real ledger and a real store, and what a stream of malformed messages left of them."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from coordinator.ledger.ledger import Ledger
from edge.contracts.masking import Keys, Revealed, Shares
from edge.contracts.messages import (
    Accept,
    Bye,
    Error,
    Get,
    Heartbeat,
    Offer,
    Put,
    Refuse,
)
from edge.contracts.report import TrainReport
from edge.serving.budgets import Budgets
from edge.serving.fair_queue import sender
from tests.contracts.samples import BODIES as SAMPLES
from tests.contracts.samples import PROFILE, REPORT
from tests.coordinator.messaging.inbox_bench import DEVICES, FEDERATION, UPDATE, MessageLoop, hello, ref_of
from tests.fuzz.malformed import Malformed

WARM_UP = 2_000
"""Messages before memory is looked at: imports, caches and the interpreter's own pools are filled by then."""

APART_S = 10.0
"""Between two messages by the clock of the device's budget, which is on: all of them reach a parser."""


@dataclass(frozen=True)
class Outcome:
    """What became of a coordinator under malformed messages.

    Attributes:
        ways: how many messages were spoilt in which way.
        changed: what of ledger, store or cohort is not as before, in words; empty when nothing is.
        positive_answers: answers that grant, accept or order anything; none belongs there.
        rss_growth: bytes of resident memory between the warm-up and the end.
    """

    messages: int
    seconds: float
    ways: dict[str, int]
    changed: list[str]
    positive_answers: int
    rss_growth: int
    open_files_growth: int


def fire(count: int, seed: int, folder: Path) -> Outcome:
    """Hand ``count`` malformed messages of one device to an inbox.

    Raises:
        Exception: whatever the inbox let through; it should never be one.
    """
    with _handler(folder) as handler:
        device, other = DEVICES
        stream = Malformed(
            FEDERATION, device, _sound_bodies(handler, device), _strangers(handler, device, other), seed=seed
        )
        budgets, clock = _budgets()
        before, process, ways = _state(handler), psutil.Process(), Counter[str]()
        rss = files = positive = 0
        started = time.monotonic()
        for index, (way, topic, payload) in enumerate(itertools.islice(stream, count)):
            if index == min(WARM_UP, count // 2):
                rss, files = process.memory_info().rss, process.num_fds()
            handler.sent.clear()
            handler.said.clear()
            clock[0] += APART_S
            assert budgets.admits(*sender(topic), len(payload)), "a message over its budget would reach no parser"
            handler.inbox.handle(topic, payload)
            ways[way] += 1
            positive += sum(_is_positive(kind, body) for _, kind, body in handler.sent)
        seconds = time.monotonic() - started
        after = _state(handler)
        changed = [name for name, value in after.items() if before[name] != value]
        growth = process.memory_info().rss - rss, process.num_fds() - files
        return Outcome(count, round(seconds, 1), dict(sorted(ways.items())), changed, positive, *growth)


def _budgets() -> tuple[Budgets, list[float]]:
    """Budgets as a coordinator has them, and their clock."""
    clock = [0.0]
    return Budgets(now=lambda: clock[0]), clock


@contextlib.contextmanager
def _handler(folder: Path) -> Iterator[MessageLoop]:
    with Ledger.create(folder / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        handler = MessageLoop(folder, ledger)
        try:
            yield handler
        finally:
            handler.publisher.close()


def _sound_bodies(handler: MessageLoop, device: str) -> dict[str, dict[str, Any]]:
    """A body of each kind that a device sends and that would be used, in a masked round for some, as plain values."""
    own = handler.id(device)
    update = ref_of(UPDATE)
    report = msgspec.structs.replace(REPORT, assignment_id=own, device=device, round=0, update=update)
    bodies: dict[str, Any] = {
        "hello": hello(device),
        "heartbeat": Heartbeat(state="idle"),
        "bye": Bye("gone"),
        "profile": msgspec.structs.replace(PROFILE, device=device),
        "accept": Accept(own),
        "refuse": Refuse(assignment_id=own, code="over-budget", reason="too large"),
        "get": Get(handler.artifact.digest, "raw", 0, 100),
        "offer": Offer(own, update),
        "put": Put(own, update.digest, 0, UPDATE[:200]),
        "report": report,
        "keys": Keys(own, b"\x01" * 32, b"\x02" * 32),
        "shares": Shares(own, {device: b"\x05" * 148}),
        "revealed": Revealed(own, {device: b"\x07" * 66}, {}),
        "error": Error("x", "y"),
    }
    assert set(bodies) <= set(SAMPLES)
    return {kind: msgspec.to_builtins(body, builtin_types=(bytes,)) for kind, body in bodies.items()}


def _strangers(handler: MessageLoop, device: str, other: str) -> dict[str, list[dict[str, Any]]]:
    """Bodies of the right form that ``device`` may not use: of another's work, of nobody's, of another name."""
    ids = [handler.id(other), "f" * 64, "", "../../x", "0" * 63]
    update = ref_of(UPDATE)
    bodies: dict[str, list[Any]] = {
        "accept": [Accept(i) for i in ids],
        "refuse": [Refuse(assignment_id=i, code="x", reason="y") for i in ids],
        "offer": [Offer(i, update) for i in ids],
        "put": [Put(i, update.digest, 0, b"xyz") for i in ids] + [Put(handler.id(device), "e" * 64, 0, b"xyz")],
        "report": [_report(i, device) for i in ids],
        "keys": [Keys(i, b"\x01" * 32, b"\x02" * 32) for i in ids],
        "shares": [Shares(i, {other: b"\x05" * 148}) for i in ids],
        "revealed": [Revealed(i, {other: b"\x07" * 66}, {}) for i in ids],
        "hello": [hello(other)],
        "profile": [msgspec.structs.replace(PROFILE, device=other)],
        "get": [Get("e" * 64, "raw", 0, 10), Get(handler.artifact.digest, "gzip", 0, 10)],
    }
    return {kind: [msgspec.to_builtins(b, builtin_types=(bytes,)) for b in many] for kind, many in bodies.items()}


def _report(assignment_id: str, device: str) -> TrainReport:
    return msgspec.structs.replace(REPORT, assignment_id=assignment_id, device=device, round=0, update=ref_of(UPDATE))


def _state(handler: MessageLoop) -> dict[str, Any]:
    """What no malformed message may change."""
    ledger, blobs = handler.ledger, handler.blobs
    files = sorted(path for path in blobs.root.rglob("*") if path.is_file())
    return {
        "assignments": [(a.assignment_id, a.state, a.code) for a in ledger.assignments.of_attempt(0, 0)],
        "updates": ledger.updates.of_attempt(0, 0),
        "rounds": ledger.rounds.all(),
        "known blobs": ledger.blobs.sizes(),
        "profiles": ledger.profiles.all(),
        "masking": [ledger.masking.of_attempt(0, 0, kind) for kind in ("keys", "shares", "revealed")],
        "files of the store": [(str(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files],
        "devices that are here": sorted(h.device for h in handler.cohort.present(usable_only=False)),
    }


def _is_positive(kind: str, body: Any) -> bool:
    return kind in ("order", "grant", "block") or (kind == "ack" and body.accepted)


def main() -> None:
    """``python -m tests.fuzz.inbox_under_fire --count 1000000``: one line of JSON; exit 1 when anything was used."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = fire(chosen.count, chosen.seed, Path(folder))
    print(json.dumps(asdict(outcome)))
    raise SystemExit(bool(outcome.changed or outcome.positive_answers))


if __name__ == "__main__":
    main()
