"""Payloads that were handed to a connection and have not left."""

from __future__ import annotations

from edge.transport.unsent import SMALL_BYTES, Unsent


class Handed:
    """What paho gives back for a publish."""

    def __init__(self, rc: int = 0) -> None:
        self.rc = rc
        self.is_gone = False

    def is_published(self) -> bool:
        return self.is_gone


def test_only_blocks_that_were_taken_and_have_not_left_are_counted() -> None:
    unsent, first, second = Unsent(), Handed(), Handed()
    unsent.add(first, SMALL_BYTES + 1)
    unsent.add(second, 10_000)
    unsent.add(Handed(), SMALL_BYTES)
    unsent.add(Handed(rc=4), 10_000)  # no connection: paho keeps nothing
    assert unsent.size() == SMALL_BYTES + 1 + 10_000
    first.is_gone = True
    assert unsent.size() == 10_000


def test_there_is_room_for_so_many_bytes_and_always_for_small_messages() -> None:
    unsent, block = Unsent(25_000), Handed()
    for expected in (True, True, False):
        assert unsent.has_room(10_000) is expected
        unsent.add(block, 10_000)
    assert unsent.has_room(SMALL_BYTES)
    block.is_gone = True
    assert unsent.has_room(10_000)


def test_waiting_ends_when_there_is_room_or_the_time_is_over_or_the_link_gone() -> None:
    unsent, block = Unsent(), Handed()
    unsent.add(block, 10_000)
    assert unsent.wait(10_000, 0.0)
    assert not unsent.wait(9_999, 0.02)
    unsent.clear()
    assert unsent.wait(0, 0.0)


class Lost(Handed):
    """A publish of paho's that was on its way when the connection was lost: asked, it raises."""

    def is_published(self) -> bool:
        raise RuntimeError("Message publish failed: The connection was lost.")


def test_a_block_that_was_lost_with_its_connection_is_on_its_way_no_more_and_ends_nobody() -> None:
    unsent, lost, after = Unsent(), Lost(), Handed()
    unsent.add(lost, 10_000)
    unsent.add(after, 5000)
    assert unsent.size() == 5000
