"""Blobs at the page's address: a ticket opens them, for its device and its time, whole or in part."""

from __future__ import annotations

import pytest

from coordinator.web.tickets import GRACE_S, Tickets
from edge.serving.budgets import BYTES, Budgets
from tests.coordinator.web.served_page import ServedPage

BLOB = bytes(range(256)) * 4096


def test_ticket_opens_a_blob_as_a_whole(served: ServedPage) -> None:
    digest = served.store.put(BLOB)
    reply = served.ask(served.tickets.path_for("phone", 60) + digest)
    assert (reply.status, reply.body) == (200, BLOB)
    assert reply.headers["Content-Type"] == "application/octet-stream"
    assert reply.headers["Cache-Control"] == "no-store"
    (sent,) = served.blobs.account.take()
    assert (sent.device, sent.payload_bytes) == ("phone", len(BLOB))


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("bytes=0-9", 0, 9), ("bytes=1000-", 1000, len(BLOB) - 1), (f"bytes=300000-{10**12}", 300_000, len(BLOB) - 1)],
)
def test_range_of_a_blob_comes_with_its_place(served: ServedPage, asked: str, first: int, last: int) -> None:
    digest = served.store.put(BLOB)
    reply = served.ask(served.tickets.path_for(f"phone-{first}", 60) + digest, Range=asked)
    assert (reply.status, reply.body) == (206, BLOB[first : last + 1])
    assert reply.headers["Content-Range"] == f"bytes {first}-{last}/{len(BLOB)}"
    (sent,) = served.blobs.account.take()
    assert (sent.device, sent.payload_bytes) == (f"phone-{first}", last + 1 - first)


@pytest.mark.parametrize("asked", [f"bytes={len(BLOB)}-", "bytes=9-1", "bytes=-5", "bytes=0-1,4-5", "lines=0-1", "x"])
def test_range_that_cannot_be_satisfied_sends_nothing(served: ServedPage, asked: str) -> None:
    digest = served.store.put(BLOB)
    reply = served.ask(served.tickets.path_for("phone", 60) + digest, Range=asked)
    assert (reply.status, reply.body) == (416, b"")
    assert reply.headers["Content-Range"] == f"bytes */{len(BLOB)}"


def test_forged_ticket_opens_nothing_and_no_path_leaves_the_store(served: ServedPage) -> None:
    digest = served.store.put(BLOB)
    path = served.tickets.path_for("thief", 60)
    device, expires, seal = path.split("/")[2].rsplit(".", 2)
    for forged in (f"other.{expires}.{seal}", f"{device}.{int(expires) + 1}.{seal}", f"{device}.{expires}.", "x"):
        assert served.ask(f"/v1/{forged}/{digest}").status == 403
    assert served.ask(path + "a" * 64).status == 404
    for escaping in ("../../ca.key", "%2e%2e%2fca.key", "A" * 64, "a" * 63):
        assert served.ask(path + escaping).status in (403, 404)
    assert served.blobs.account.take() == []


def test_ticket_ends_with_its_order() -> None:
    now = [1_800_000_000.0]
    tickets = Tickets(lambda: now[0])
    path = tickets.path_for("phone", 60) + "a" * 64
    assert tickets.opened(path) == ("phone", "a" * 64)
    now[0] += 60 + GRACE_S
    assert tickets.opened(path) is None


def test_device_has_blobs_as_often_as_its_budget_allows_and_another_beside_it(served: ServedPage) -> None:
    digest, budgets = served.store.put(BLOB), Budgets()
    served.blobs.budgets = budgets
    path = served.tickets.path_for("phone", 60) + digest
    statuses = [served.ask(path).status for _ in range(20)]
    given = statuses.count(200)
    assert BYTES.at_once // len(BLOB) <= given <= BYTES.at_once // len(BLOB) + 2
    assert set(statuses[given:]) == {429}
    assert served.ask(served.tickets.path_for("other", 60) + digest).status == 200
    budgets.ordered("phone", "a", len(BLOB))
    assert served.ask(path).status == 200
