"""Versions over the in-memory broker: who gets work when, what counts, and what a late update finds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from coordinator.rounds.remote_devices import STALE_ROUND
from coordinator.rounds.staleness import staleness_weight
from edge.contracts.errors import DeadlineExpired
from edge.contracts.plan import WorkOrder
from edge.contracts.tensor_file import decode_tensors
from tests.federation.hostile_device import WAIT_S, HostileDevice
from tests.federation.in_process import InProcessFederation
from tests.federation.small_run import config_text

pytestmark = [pytest.mark.runtime, pytest.mark.slow]


def buffered_text(*lines: str, rounds: int = 3, size: int = 3, min_reports: int = 1, **more: float) -> str:
    """The small federation under FedAvg and in versions; ``lines`` of ``[aggregation]``."""
    text = config_text(local=0, size=size, rounds=rounds, min_reports=min_reports, **more)  # type: ignore[arg-type]
    text = text.replace('name = "fedhm"\nlevels = [4]', 'name = "fedavg"').replace("frobenius-lambda = 0.0001\n", "")
    return text + "\n".join(["[aggregation]", 'mode = "buffered"', *lines, ""])


class Quick(HostileDevice):
    """Answers every order at once, unless it :attr:`gives_up`; :attr:`orders` are those it had."""

    gives_up = False

    def __init__(self, stage: InProcessFederation, name: str) -> None:
        super().__init__(stage.broker, stage.name, name, self._do)
        self.orders: list[WorkOrder] = []
        self.has_finished = threading.Event()

    def _do(self, order: WorkOrder) -> None:
        self.orders.append(order)
        self.before_finishing()
        if not self.gives_up:
            self.finish(order)
            self.has_finished.set()

    def before_finishing(self) -> None:
        """Nothing."""


class Slow(Quick):
    """Is busy with its first order until it :attr:`may_go_on`, and leaves others unanswered."""

    def __init__(self, stage: InProcessFederation, name: str) -> None:
        super().__init__(stage, name)
        self.has_work, self.may_go_on = threading.Event(), threading.Event()

    def before_finishing(self) -> None:
        self.has_work.set()
        assert self.may_go_on.wait(6 * WAIT_S)
        self.gives_up |= len(self.orders) > 1


class Held(Quick):
    """Answers at once but for one version, the last by default: that one after ``until``, so that what is in it does
    not depend on who is quicker."""

    def __init__(
        self, stage: InProcessFederation, name: str, until: threading.Event, *, version: int | None = None
    ) -> None:
        super().__init__(stage, name)
        self._version = stage.config.federation.rounds - 1 if version is None else version
        self._until = until

    def before_finishing(self) -> None:
        if self.orders[-1].round == self._version:
            assert self._until.wait(6 * WAIT_S)

    def give_up(self) -> None:
        """Let an order go that it still waits with."""
        self.gives_up = True
        self._until.set()


def when_committed(stage: InProcessFederation, count: int, then: Callable[[], None]) -> None:
    """Calls ``then`` once ``count`` versions are committed."""
    before = stage.on_point
    passed: list[str] = []

    def on_point(point: str) -> None:
        before(point)
        if point == "committed":
            passed.append(point)
            if len(passed) == count:
                then()

    stage.on_point = on_point


def weights_of(stage: InProcessFederation) -> list[list[tuple[str, int, float]]]:
    """(device, version it trained from, weight) of every contribution, by version."""
    found = []
    for entry in stage.ledger.rounds.all():
        recorded = stage.ledger.updates.counted(entry.round, entry.attempt)
        weights = stage.ledger.updates.weights(entry.round, entry.attempt)
        found.append(
            [(r.assignment.device, r.assignment.round, w.weight) for r, w in zip(recorded, weights, strict=True)]
        )
    return found


def test_slow_device_holds_nobody_up_and_its_late_update_weighs_less(tmp_path: Path, exports: Path) -> None:
    text = buffered_text("buffer = 2", rounds=4)
    with InProcessFederation(tmp_path, exports, text) as stage:
        slow = Slow(stage, "slow")
        # It goes on in the last version, which pi-1 fills once its update is in; pi-2 has no part in that.
        when_committed(stage, 3, slow.may_go_on.set)
        first, second = Held(stage, "pi-1", slow.has_finished), Held(stage, "pi-2", threading.Event())
        with slow, first, second:
            stage.run()
            late = slow.wait_ack(slow.orders[0])
            second.give_up()
        assert late.accepted
        counted = weights_of(stage)
        assert [[(device, of) for device, of, _ in version] for version in counted[:3]] == [
            [("pi-1", 0), ("pi-2", 0)],
            [("pi-1", 1), ("pi-2", 1)],
            [("pi-1", 2), ("pi-2", 2)],
        ]
        assert counted[3] == [("pi-1", 3, 9.0), ("slow", 0, 9 * staleness_weight(3, 0.5))]
        assert counted[3][1][2] == 4.5
        assert [order.round for order in first.orders] == [order.round for order in second.orders] == [0, 1, 2, 3]
        metrics = stage.ledger.rounds.all()[3].metrics
        assert metrics["staleness"]["3"] == 1
        assert stage.lines.having("[ROUND 4/4]", "versions old 0: 1, 3: 1")


def test_model_is_the_weighted_step_of_what_was_counted(tmp_path: Path, exports: Path) -> None:
    """Every device sends 0.99 of what it got: the step of each is -0.01 of the model it had."""
    text = buffered_text("buffer = 2", "server-lr = 0.5", rounds=3)
    with InProcessFederation(tmp_path, exports, text) as stage:
        slow = Slow(stage, "slow")
        when_committed(stage, 2, slow.may_go_on.set)
        with slow, Quick(stage, "pi-1"), Quick(stage, "pi-2"):
            start = stage.federation.method.init().tensors
            name = next(n for n in start if start[n].ndim == 2)
            final = stage.run()
        value = start[name].astype(np.float64)
        before: list[np.ndarray] = []
        for version, contributions in enumerate(weights_of(stage)):
            before.append(value)
            steps = [-0.01 * before[of] * staleness_weight(version - of, 0.5) for _, of, _ in contributions]
            value = value + 0.5 * np.mean(steps, axis=0)
        assert np.allclose(final.tensors[name], value, rtol=0, atol=1e-6)
        assert not np.allclose(start[name], value, rtol=0, atol=1e-4)


def test_factors_of_older_models_are_added_as_products(tmp_path: Path, exports: Path) -> None:
    """Every device sends 0.99 of u and of v: the step of each is 0.99^2 - 1 of the best approximation, at its rank, of
    the layer that it had; what the rank cuts away stays."""
    text = config_text(local=0, size=3, rounds=3, min_reports=1)
    text += '[aggregation]\nmode = "buffered"\nbuffer = 2\nserver-lr = 0.5\n'
    with InProcessFederation(tmp_path, exports, text) as stage:
        slow = Slow(stage, "slow")
        when_committed(stage, 2, slow.may_go_on.set)
        other = Held(stage, "pi-2", threading.Event())
        with slow, Held(stage, "pi-1", slow.has_finished), other:
            method = stage.federation.method
            start, (level,) = method.init(), method.levels()
            rank = len(method.cut(start, level, round_index=0, device="", seed=0).tensors["fc2.v"])
            final = stage.run()
            other.give_up()
        first = start.tensors["fc2.weight"].astype(np.float64)
        assert rank < min(first.shape)
        value, approximations, ages = first, list[np.ndarray](), set[int]()
        for version, contributions in enumerate(weights_of(stage)):
            left, values, right = np.linalg.svd(value)
            approximations.append(left[:, :rank] * values[:rank] @ right[:rank])
            steps = [
                (0.99**2 - 1) * approximations[of] * staleness_weight(version - of, 0.5) for _, of, _ in contributions
            ]
            value = value + 0.5 * np.mean(steps, axis=0)
            ages |= {version - of for _, of, _ in contributions}
        assert np.allclose(final.tensors["fc2.weight"], value, rtol=0, atol=2e-6)
        assert not np.allclose(first, value, rtol=0, atol=1e-4)
        assert max(ages) == 2


def test_update_of_a_model_too_old_is_given_up_and_told_so(tmp_path: Path, exports: Path) -> None:
    text = buffered_text("buffer = 2", "max-staleness = 1", rounds=4)
    with InProcessFederation(tmp_path, exports, text) as stage:
        slow = Slow(stage, "slow")
        when_committed(stage, 3, slow.may_go_on.set)
        with slow, Quick(stage, "pi-1"), Quick(stage, "pi-2"):
            stage.run()
            ack = slow.wait_ack(slow.orders[0])
        assert (ack.accepted, ack.code) == (False, STALE_ROUND)
        assert "of a model more than 1 versions old" in ack.reason
        assert stage.lines.having("of a model more than 1 versions old: no report from slow")
        assert all(version - of <= 1 for version, found in enumerate(weights_of(stage)) for _, of, _ in found)


def test_buffer_that_cannot_fill_is_taken_once_everybody_answered(tmp_path: Path, exports: Path) -> None:
    """Five updates are wanted and two devices are there: each version has two."""
    with InProcessFederation(tmp_path, exports, buffered_text("buffer = 5", rounds=2, size=2)) as stage:
        with Quick(stage, "pi-1"), Quick(stage, "pi-2"):
            stage.run()
        assert [len(version) for version in weights_of(stage)] == [2, 2]


def test_deadline_takes_what_is_there_or_waits_on_and_in_the_end_stops(tmp_path: Path, exports: Path) -> None:
    text = buffered_text("buffer = 2", rounds=1, size=2, deadline_s=1.0)
    with InProcessFederation(tmp_path, exports, text) as stage:
        with Quick(stage, "pi-1"), HostileDevice(stage.broker, stage.name, "deaf", lambda order: None):
            stage.run()
        assert [[device for device, _, _ in version] for version in weights_of(stage)] == [["pi-1"]]
    again = tmp_path / "again"
    again.mkdir()
    with InProcessFederation(again, exports, text) as stage:
        with (
            HostileDevice(stage.broker, stage.name, "deaf-1", lambda order: None),
            HostileDevice(stage.broker, stage.name, "deaf-2", lambda order: None),
            pytest.raises(DeadlineExpired, match="version 1: 5 deadlines of 1 s passed with 0 of 1 updates"),
        ):
            stage.run()
        assert len(stage.lines.having("deadline: 0 updates, 1 needed: the wait goes on")) == 4


def test_device_that_comes_later_gets_work_of_the_open_version(tmp_path: Path, exports: Path) -> None:
    text = buffered_text("buffer = 2", rounds=1, size=2, min_reports=1)
    with InProcessFederation(tmp_path, exports, text) as stage:
        slow = Slow(stage, "slow")
        with contextlib.ExitStack() as arrivals, slow, Quick(stage, "pi-1"):
            came: list[Quick] = []

            def come(point: str) -> None:
                if point == "collecting" and slow.has_work.is_set() and not came:
                    came.append(arrivals.enter_context(Quick(stage, "late")))

            stage.on_point = come
            stage.run()
            assert slow.wait_ack(slow.orders[0]).code == STALE_ROUND
            slow.gives_up = True
            slow.may_go_on.set()
        assert [device for device, _, _ in weights_of(stage)[0]] == ["late", "pi-1"]


def test_weights_of_an_unanswered_order_stay_until_it_is_counted(tmp_path: Path, exports: Path) -> None:
    with InProcessFederation(tmp_path, exports, buffered_text("buffer = 2", rounds=4)) as stage:
        slow = Slow(stage, "slow")
        held: list[bytes] = []

        def look() -> None:
            entry = stage.ledger.assignments.open_of("slow")
            assert entry is not None
            held.append(stage.federation.blobs.read(entry.weights_digest))
            slow.may_go_on.set()

        when_committed(stage, 3, look)
        with slow, Quick(stage, "pi-1"), Quick(stage, "pi-2"):
            stage.run()
        assert decode_tensors(held[0], where="weights")


def test_damaged_model_is_made_again_from_the_updates_of_several_versions(tmp_path: Path, exports: Path) -> None:
    with InProcessFederation(tmp_path, exports, buffered_text("buffer = 2", rounds=4)) as stage:
        slow = Slow(stage, "slow")
        when_committed(stage, 2, slow.may_go_on.set)
        passed: list[str] = []
        before = stage.on_point

        def die_after_the_third(point: str) -> None:
            before(point)
            passed.append(point)
            if point == "released" and passed.count(point) == 3:  # not in the thread of messages, which goes on
                raise KeyboardInterrupt

        stage.on_point = die_after_the_third
        is_dead = threading.Event()
        # Were the third version of its own updates alone, its model would have the bytes of each of them.
        first, second = (
            Held(stage, name, until, version=2) for name, until in (("pi-1", slow.has_finished), ("pi-2", is_dead))
        )
        with slow, first, second:
            with pytest.raises(KeyboardInterrupt):
                stage.run()
            is_dead.set()
            committed = stage.ledger.rounds.all()[2]
            path = stage.federation.blobs.path(committed.model_digest)
            path.write_bytes(b"rot" + path.read_bytes()[3:])
            stage.on_point = lambda point: None
            stage.run()
        assert stage.lines.having("the model after round 3", "made again from the round before, with the same digest")
        assert [entry.state for entry in stage.ledger.rounds.all()] == ["committed"] * 4
