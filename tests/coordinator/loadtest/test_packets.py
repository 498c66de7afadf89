"""Packets of the load test's MQTT client, byte by byte. Source: MQTT 3.1.1, the figures of sections 3.1 to 3.14."""

from __future__ import annotations

import pytest

from coordinator.loadtest import packets
from coordinator.loadtest.packets import Answer, Published, Reader
from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.errors import MessageRejected


def test_connect_with_user_password_and_will_is_as_the_standard_lays_it_out() -> None:
    made = packets.connect("d", keepalive_s=60, user="u", password="p", will=("t", b"w"))
    assert made == bytes.fromhex(
        "10 19 0004 4d515454 04 ce 003c 0001 64 0001 74 0001 77 0001 75 0001 70".replace(" ", "")
    )


def test_connect_without_credentials_has_a_clean_session_and_nothing_else() -> None:
    assert packets.connect("d", keepalive_s=20)[8:12] == bytes([4, 0x02, 0, 20])


def test_subscribe_asks_for_qos_1_of_each_filter() -> None:
    assert packets.subscribe(("a/#", "b"), 7) == bytes.fromhex("820c0007" + "0003612f2301" + "00016201")


@pytest.mark.parametrize(("size", "header"), [(0, 4), (123, 127), (124, 128), (16_380, 16_384), (100_000, 100_004)])
def test_a_published_message_comes_back_whole_whatever_the_length_of_its_header(size: int, header: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    made = packets.publish("ab", payload)
    assert len(made) == 1 + (1 if header < 128 else 2 if header < 16_384 else 3) + header
    assert Reader().feed(made) == [Published("ab", payload, 0)]


def test_a_stream_cut_anywhere_gives_the_same_packets() -> None:
    first = packets.publish("up/x", b"payload", packet_id=300)
    stream = b"\x20\x02\x00\x00" + first + b"\x90\x04\x00\x01\x01\x80" + b"\x40\x02\x00\x05\xd0\x00"
    expected = [
        Answer(packets.CONNACK, 0),
        Published("up/x", b"payload", 300),
        Answer(packets.SUBACK, 0x80),
        Answer(packets.PUBACK, 5),
        Answer(packets.PINGRESP, 0),
    ]
    for step in (1, 3, 7, len(stream)):
        reader = Reader()
        found = [packet for i in range(0, len(stream), step) for packet in reader.feed(stream[i : i + step])]
        assert found == expected


def test_a_packet_over_the_limit_is_refused_before_it_is_kept() -> None:
    reader = Reader()
    with pytest.raises(MessageRejected, match=str(packets.MAX_PACKET_BYTES)):
        reader.feed(bytes([0x30, 0xFF, 0xFF, 0xFF, 0x7F]))


def test_a_length_of_five_bytes_is_refused() -> None:
    with pytest.raises(MessageRejected, match="four bytes"):
        Reader().feed(bytes([0x30, 0x80, 0x80, 0x80, 0x80, 0x01]))


@pytest.mark.parametrize(
    "data", ["3001", "340500016100ff", "100000", "20021000ff"], ids=["topic", "qos2", "connect", "x"]
)
def test_what_no_broker_sends_is_refused(data: str) -> None:
    with pytest.raises(MessageRejected):
        Reader().feed(bytes.fromhex(data) + b"\x00" * 4)


def test_a_message_that_a_broker_would_drop_is_not_made() -> None:
    with pytest.raises(MessageRejected, match="send them as blocks"):
        packets.publish("t", bytes(MAX_MESSAGE_BYTES + 1))
