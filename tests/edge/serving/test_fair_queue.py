"""A queue where keys take turns."""

from __future__ import annotations

import queue
import time

import pytest

from edge.serving.fair_queue import TURNS, FairQueue, sender


def test_keys_take_turns_and_each_keeps_its_order() -> None:
    waiting: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        waiting.put(item[0], item)
    assert [waiting.get() for _ in range(6)] == ["a1", "b1", "c1", "a2", "b2", "a3"]
    with pytest.raises(queue.Empty):
        waiting.get_nowait()


def test_later_lane_waits_for_the_first() -> None:
    waiting: FairQueue[int] = FairQueue(lanes=2)
    waiting.put("a", 3, 1)
    waiting.put("a", 1)
    waiting.put("b", 2)
    assert waiting.has("a", 1)
    assert not waiting.has("b", 1)
    assert [waiting.get() for _ in range(3)] == [1, 2, 3]
    assert not waiting.has("a", 1)


def test_wait_ends() -> None:
    waiting: FairQueue[int] = FairQueue()
    began = time.monotonic()
    with pytest.raises(queue.Empty):
        waiting.get(0.05)
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("apportion/v1/fed/up/pi-1/hello", ("pi-1", "hello")),
        ("apportion/v1/fed/up/pi-1/put/more", ("pi-1", "put/more")),
        ("apportion/v1/fed/up/" + "x" * 5000 + "/put", ("x" * 64, "put")),
        ("nonsense", ("nonsense", "")),
    ],
)
def test_sender_is_found_in_any_topic(topic: str, expected: tuple[str, str]) -> None:
    assert sender(topic) == expected


def test_later_lane_is_not_starved_by_an_earlier_one_that_never_empties() -> None:
    waiting: FairQueue[str] = FairQueue(lanes=2)
    for number in range(3):
        waiting.put("b", f"late {number}", 1)
    taken = []
    for number in range(30):
        waiting.put(f"a{number}", "early", 0)
        waiting.put(f"c{number}", "early", 0)
        taken.append(waiting.get())
    assert [index for index, item in enumerate(taken) if item != "early"] == [TURNS, 2 * TURNS + 1, 3 * TURNS + 2]
