"""Blocks in a lane of their own: in order, each once, and no faster than the connection takes them."""

from __future__ import annotations

import threading
import time

from coordinator.messaging.block_lane import MOST_OF_A_DEVICE, BlockLane
from edge.contracts.messages import Get


def get(offset: int) -> Get:
    return Get("d" * 64, "raw", offset, 10)


class Link:
    """A connection that has room when it is told so."""

    def __init__(self) -> None:
        self.room = threading.Event()
        self.asked = 0

    def wait_for_room(self, most_bytes: int, timeout_s: float) -> bool:
        self.asked += 1
        return self.room.wait(0.02)


def test_requests_wait_for_room_and_a_repeated_one_is_answered_once() -> None:
    link, done = Link(), threading.Event()
    answered: list[tuple[str, int]] = []

    def serve(device: str, wanted: Get) -> None:
        answered.append((device, wanted.offset))
        if len(answered) == 3:
            done.set()

    lane = BlockLane(serve, link)
    with lane:
        for device, offset in [("a", 0), ("b", 0), ("a", 10), ("a", 0)]:
            lane.ask(device, get(offset))
        time.sleep(0.1)
        assert answered == []
        assert link.asked > 1
        link.room.set()
        assert done.wait(5.0)
        time.sleep(0.05)
    assert answered == [("a", 0), ("b", 0), ("a", 10)]


def test_a_request_that_was_answered_may_come_again_and_a_failure_ends_nothing() -> None:
    answered: list[int] = []
    done = threading.Event()

    def serve(device: str, wanted: Get) -> None:
        answered.append(wanted.offset)
        if len(answered) == 1:
            raise RuntimeError("of this block")
        done.set()

    lane = BlockLane(serve, object())
    with lane:
        lane.ask("a", get(0))
        while not answered:
            time.sleep(0.005)
        lane.ask("a", get(0))
        assert done.wait(5.0)
    assert answered == [0, 0]


def test_who_asks_for_everything_at_once_waits_for_it_alone() -> None:
    link, done = Link(), threading.Event()
    answered: list[tuple[str, int]] = []

    def serve(device: str, wanted: Get) -> None:
        answered.append((device, wanted.offset))
        if len(answered) == MOST_OF_A_DEVICE + 6:
            done.set()

    lane = BlockLane(serve, link)
    with lane:
        for offset in range(100_000):
            lane.ask("greedy", get(offset))
        for device in ("a", "b"):
            for offset in range(3):
                lane.ask(device, get(offset))
        link.room.set()
        assert done.wait(5.0)
        time.sleep(0.05)
    assert len(answered) == MOST_OF_A_DEVICE + 6
    honest = [place for place, (device, _) in enumerate(answered) if device != "greedy"]
    assert max(honest) < 10  # three turns of three devices, but for what was begun before
    assert [offset for device, offset in answered if device == "a"] == [0, 1, 2]
