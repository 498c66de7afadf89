"""What a device hears, and what changes, for every message in every state of its assignment; twice changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.ledger.ledger import Ledger
from edge.contracts.messages import Accept, Offer, Put, Refuse
from tests.coordinator.messaging.inbox_bench import FEDERATION, UPDATE, MessageLoop, ref_of

TAKEN, REFUSED, REJECTED, STALE = "ack", "ack device-refused", "ack update-rejected", "ack stale-round"
TABLE = {
    # state: (what accept, refuse, offer, put and report are answered with), (the state each leaves)
    "open": (("", "ack refused", "grant", "grant", TAKEN), ("accepted", "refused", "open", "open", "reported")),
    "accepted": (("", "ack refused", "grant", "grant", TAKEN), ("accepted", "refused", *["accepted"] * 2, "reported")),
    # Its upload is complete and forgotten: a block that comes late is none any more.
    "reported": ((TAKEN, TAKEN, TAKEN, "", TAKEN), ("reported",) * 5),
    "refused": ((REFUSED,) * 5, ("refused",) * 5),
    "rejected": ((REJECTED,) * 5, ("rejected",) * 5),
    "expired": ((STALE,) * 5, ("expired",) * 5),
}
MESSAGES = ("accept", "refuse", "offer", "put", "report")
CASES = [
    (state, message, answers[number], left[number])
    for state, (answers, left) in TABLE.items()
    for number, message in enumerate(MESSAGES)
]


@pytest.fixture
def handler(tmp_path: Path) -> Iterator[MessageLoop]:
    with Ledger.create(tmp_path / "ledger.sqlite", federation=FEDERATION, config="", seed=0) as ledger:
        handler = MessageLoop(tmp_path, ledger)
        handler.upload()  # every message that follows can be used
        yield handler
        handler.publisher.close()


def bring_to(handler: MessageLoop, state: str) -> None:
    if state == "expired":
        assert handler.ledger.assignments.expire(handler.id())
    elif state == "rejected":
        handler.ledger.assignments.move(handler.id(), "rejected", code="update-rejected", reason="norm 9e9")
    elif state != "open":
        send(handler, {"accepted": "accept", "reported": "report", "refused": "refuse"}[state])
    assert handler.state() == state


def send(handler: MessageLoop, message: str) -> str:
    """What ``message`` was answered with: the kind, and of an acknowledgement the code."""
    ref = ref_of(UPDATE)
    if message == "report":
        sent = handler.report(ref)
    else:
        body: Any = {
            "accept": Accept(handler.id()),
            "refuse": Refuse(assignment_id=handler.id(), code="device-refused", reason="hot"),
            "offer": Offer(handler.id(), ref),
            "put": Put(handler.id(), ref.digest, 0, UPDATE),
        }[message]
        sent = handler.gets("pi-1", message, body)
    assert len(sent) <= 1
    return "".join(f"{kind} {getattr(answer, 'code', '')}".strip() for kind, answer in sent)


def everything(handler: MessageLoop) -> tuple[Any, ...]:
    """What the ledger holds of the round."""
    ledger = handler.ledger
    return (
        ledger.rounds.all(),
        ledger.assignments.of_attempt(0, 0),
        ledger.updates.of_attempt(0, 0),
        ledger.measurements.setbacks(),
        ledger.measurements.all(),
    )


@pytest.mark.parametrize(("state", "message", "answer", "left"), CASES, ids=[f"{s}-{m}" for s, m, _, _ in CASES])
def test_message_in_a_state_is_answered_and_repeated_changes_nothing(
    handler: MessageLoop, state: str, message: str, answer: str, left: str
) -> None:
    bring_to(handler, state)
    before = everything(handler)
    assert send(handler, message) == answer
    assert handler.state() == left
    after = everything(handler)
    assert (after == before) == (left == state)
    again = TABLE[left][0][MESSAGES.index(message)]
    # The upload of an assignment that is over is forgotten with the answer to its block.
    assert send(handler, message) == ("" if message == "put" and again.startswith("ack") else again)
    assert everything(handler) == after


@pytest.mark.parametrize("message", MESSAGES)
def test_message_about_another_devices_assignment_changes_nothing(handler: MessageLoop, message: str) -> None:
    handler.orders["pi-1"] = handler.orders["pi-2"]
    before = everything(handler)
    # A block without an offer of its own has no upload to go to.
    assert send(handler, message) == ("" if message == "put" else "error bad-message")
    assert everything(handler) == before
