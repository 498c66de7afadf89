"""Bytes by device: what was of use, and what it took."""

from __future__ import annotations

import pytest

from edge.serving.traffic import ByteAccount, Traffic, publication_bytes


def test_account_gives_what_was_added_since_it_was_last_taken() -> None:
    account = ByteAccount()
    account.add("pi-2", "up", "mqtt", payload=10, wire=12)
    account.add("pi-1", "down", "https", payload=5, wire=5)
    account.add("pi-2", "up", "mqtt", wire=100)
    assert account.take() == [
        Traffic(device="pi-1", direction="down", scheme="https", payload_bytes=5, wire_bytes=5),
        Traffic(device="pi-2", direction="up", scheme="mqtt", payload_bytes=10, wire_bytes=112),
    ]
    assert account.take() == []


@pytest.mark.parametrize(
    ("payload", "qos", "expected"),
    [
        # MQTT 3.1.1, 2.2.3: the remaining length takes 1 byte to 127, 2 to 16,383, 3 to 2,097,151.
        (0, 0, 1 + 1 + 2 + 3),
        (122, 0, 1 + 1 + 2 + 3 + 122),
        (123, 0, 1 + 2 + 2 + 3 + 123),
        (120, 1, 1 + 1 + 2 + 3 + 2 + 120),
        (16_378, 0, 1 + 2 + 2 + 3 + 16_378),
        (16_379, 0, 1 + 3 + 2 + 3 + 16_379),
    ],
)
def test_publication_has_its_header_counted(payload: int, qos: int, expected: int) -> None:
    assert publication_bytes("a/b", payload, qos=qos) == expected


def test_names_without_end_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.serving.traffic.MOST_SUMS", 3)
    account = ByteAccount()
    for number in range(100):
        account.add(f"name-{number}", "up", "mqtt", wire=1)
    account.add("name-0", "up", "mqtt", wire=1)
    assert [(row.device, row.wire_bytes) for row in account.take()] == [("name-0", 2), ("name-1", 1), ("name-2", 1)]
