"""Budgets of devices: what an honest one needs always passes, the surplus of another does not."""

from __future__ import annotations

import random

import pytest

from edge.serving.budgets import BYTES, CONTROL, ERRORS, NAMES, STRETCH_S, TIMES, Budgets

MB = 1 << 20


class Clock:
    """Seconds, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """Budgets, their clock, and who was named."""

    def __init__(self, **options: int) -> None:
        self.clock, self.named = Clock(), list[tuple[str, str]]()
        self.budgets = Budgets(lambda device, why: self.named.append((device, why)), now=self.clock, **options)

    def admitted(self, device: str, kind: str, size: int, count: int) -> int:
        """How many of ``count`` messages pass, said at once."""
        return sum(self.budgets.admits(device, kind, size) for _ in range(count))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_flood_passes_as_far_as_the_allowance_and_is_named_once_a_stretch(bench: Bench) -> None:
    assert bench.admitted("pi-1", "heartbeat", 100, 10_000) == CONTROL.at_once
    bench.clock.now += 1
    assert bench.admitted("pi-1", "heartbeat", 100, 10_000) == CONTROL.per_s
    assert bench.named == [("pi-1", "sends more than 20 messages a second")]
    bench.clock.now += STRETCH_S + 1
    bench.admitted("pi-1", "heartbeat", 100, 10_000)
    assert len(bench.named) == 2


def test_device_beside_a_flood_has_its_whole_allowance(bench: Bench) -> None:
    bench.admitted("pi-1", "hello", 100_000, 1000)
    assert bench.admitted("pi-2", "heartbeat", 100, int(CONTROL.at_once)) == CONTROL.at_once
    assert [device for device, _ in bench.named] == ["pi-1"]


def test_bytes_up_are_bounded_whatever_they_are_called(bench: Bench) -> None:
    assert bench.admitted("pi-1", "hello", 300_000, 1000) == BYTES.at_once // 300_000
    assert bench.admitted("pi-2", "nonsense", 300_000, 1000) == BYTES.at_once // 300_000
    assert bench.admitted("pi-3", "put", 0, 100_000) == BYTES.at_once // 16_384


def test_update_that_was_offered_fits_four_times_and_not_for_ever(bench: Bench) -> None:
    block, blocks = 131_072, 800  # 100 MB
    bench.budgets.offered("pi-1", "a", block * blocks)
    assert bench.admitted("pi-1", "put", block, TIMES * blocks) == TIMES * blocks
    bench.budgets.offered("pi-1", "a", block * blocks)  # the same again
    assert bench.admitted("pi-1", "put", block, TIMES * blocks) <= BYTES.at_once // block
    bench.budgets.offered("pi-1", "b", block * blocks)
    assert bench.admitted("pi-1", "put", block, blocks) == blocks


def test_who_was_answered_too_much_is_not_heard_until_that_is_paid_off(bench: Bench) -> None:
    bench.budgets.ordered("pi-1", "a", 10 * MB)
    given = 0
    while bench.budgets.admits("pi-1", "get", 200):
        bench.budgets.answered("pi-1", 131_072)
        given += 131_072
    assert TIMES * 10 * MB < given < TIMES * 10 * MB + BYTES.at_once
    assert not bench.budgets.admits("pi-1", "heartbeat", 100)
    assert bench.named == [("pi-1", "asks for more than its orders can need")]
    bench.clock.now += 60
    assert bench.budgets.admits("pi-1", "heartbeat", 100)


def test_errors_are_told_as_often_as_anybody_could_read_them(bench: Bench) -> None:
    told = sum(bench.budgets.may_hear_of_error("pi-1") for _ in range(1000))
    assert told == ERRORS.at_once
    assert bench.budgets.may_hear_of_error("pi-2")


def test_device_that_was_never_answered_has_its_whole_allowance_when_it_is(bench: Bench) -> None:
    assert bench.budgets.admits("pi-1", "heartbeat", 100)
    bench.clock.now += 3600
    bench.budgets.answered("pi-1", BYTES.at_once)
    assert bench.budgets.admits("pi-1", "heartbeat", 100)
    bench.budgets.answered("pi-1", 1)
    assert not bench.budgets.admits("pi-1", "heartbeat", 100)
    assert sum(bench.budgets.may_hear_of_error("pi-1") for _ in range(1000)) == ERRORS.at_once


def test_names_without_end_are_forgotten_and_named_no_more_than_so_many() -> None:
    bench = Bench(most_devices=100)
    for number in range(1000):
        bench.admitted(f"name-{number}", "put", 300_000, 40)
    assert len(bench.budgets._devices) == 100
    assert len(bench.named) == NAMES.at_once


@pytest.mark.parametrize("seed", range(5))
def test_honest_devices_are_never_dropped(seed: int) -> None:
    """An hour of rounds, one a minute, on a link that loses every third block and breaks every ten seconds."""
    bench, draw = Bench(), random.Random(seed)
    artifact, weights, block = draw.randrange(1, 40 * MB), draw.randrange(1, 60 * MB), 131_072

    def says(kind: str, size: int) -> None:
        assert bench.budgets.admits("pi-1", kind, size), (kind, bench.named)

    for number in range(60):
        bench.budgets.ordered("pi-1", str(number), artifact + weights)
        says("hello", 20_000)
        says("accept", 200)
        for _ in range((artifact + weights) * 3 // 2 // block + 3):
            says("get", 250)
            bench.budgets.answered("pi-1", block + 300)
        for second in range(0, 60, 5):
            bench.clock.now += 5
            says("heartbeat", 300)
            says("shares", 160_000)
            bench.budgets.answered("pi-1", 160_000)
            if second % 10 == 0:
                says("hello", 20_000)
                bench.budgets.answered("pi-1", 20_000)
        says("offer", 400)
        bench.budgets.offered("pi-1", str(number), weights)
        for _ in range(weights * 3 // 2 // block + 3):
            says("put", block + 300)
            bench.budgets.answered("pi-1", 200)
        says("report", 2_000)
    assert bench.named == []
