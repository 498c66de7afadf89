"""Who is here, who takes part: presence, waiting, and selection that depends on nothing but its key."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest

from coordinator.messaging.cohort import PRESENCE_S, Cohort, Member, select
from edge.contracts.errors import DeadlineExpired, MessageRejected
from edge.contracts.messages import Heartbeat, Hello
from profiles.device import DeviceProfile


def hello(device: str, *, data_error: str = "", runtime: str = "onnxruntime") -> Hello:
    return Hello(
        device=device,
        agent_version="0.1.0",
        profile=DeviceProfile(device=device, trainer_idle_bytes={runtime: 1}),
        runtimes={runtime: "1"},
        num_examples=0 if data_error else 10,
        data_error=data_error,
    )


def test_present_lists_devices_by_id_whatever_order_they_came_in() -> None:
    cohort = Cohort()
    for device in ("pi-2", "pi-10", "pi-1"):
        cohort.greet(hello(device))
    assert [h.device for h in cohort.present()] == ["pi-1", "pi-10", "pi-2"]


def test_device_that_is_unfit_is_here_and_not_selected_until_it_says_hello_as_a_fit_one() -> None:
    reasons = {"b": "b has no certificate"}
    cohort = Cohort(unfit=lambda device: reasons.get(device, ""))
    for name in ("a", "b"):
        cohort.greet(hello(name))
    assert [h.device for h in cohort.present()] == ["a"]
    assert cohort.runtime_errors() == reasons
    assert cohort.arrival(hello("b")).endswith("; b has no certificate")
    reasons.clear()  # it was enrolled
    cohort.greet(hello("b"))
    assert [h.device for h in cohort.present()] == ["a", "b"]


def test_present_leaves_out_devices_that_left_or_cannot_read_their_data() -> None:
    cohort = Cohort()
    for name in ("a", "b"):
        cohort.greet(hello(name))
    cohort.greet(hello("c", data_error="x.npz is truncated"))
    cohort.leave("b", "connection lost")
    assert [h.device for h in cohort.present()] == ["a"]
    assert cohort.data_errors() == {"c": "x.npz is truncated"}


def test_present_leaves_out_devices_without_a_runtime_of_the_run() -> None:
    cohort = Cohort(["onnxruntime", "executorch"])
    for name, runtime in (("a", "executorch"), ("b", "other"), ("c", "onnxruntime")):
        cohort.greet(hello(name, runtime=runtime))
    assert [h.device for h in cohort.present()] == ["a", "c"]
    assert [h.device for h in cohort.present(usable_only=False)] == ["a", "b", "c"]
    (reason,) = cohort.runtime_errors().items()
    assert reason[0] == "b"
    assert "has other, the run allows onnxruntime, executorch" in reason[1]


def test_wait_for_does_not_wait_for_a_device_without_a_runtime_of_the_run() -> None:
    cohort = Cohort(["onnxruntime"])
    cohort.greet(hello("a"))
    cohort.greet(hello("b", runtime="executorch"))
    started = time.monotonic()
    assert [h.device for h in cohort.wait_for(2, 30.0, least=1)] == ["a"]
    assert time.monotonic() - started < 5.0
    with pytest.raises(
        DeadlineExpired, match=r"1 of 2 devices .* \(a\); device b: has executorch, the run allows onnx"
    ):
        cohort.wait_for(2, 0.0)


def test_heartbeat_brings_a_device_back_that_its_will_declared_gone() -> None:
    cohort = Cohort()
    cohort.greet(hello("a"))
    cohort.leave("a", "connection lost")
    cohort.beat("a", Heartbeat(state="idle"))
    assert [h.device for h in cohort.present()] == ["a"]


def test_heartbeat_of_a_stranger_is_ignored() -> None:
    cohort = Cohort()
    cohort.beat("stranger", Heartbeat(state="idle"))
    assert cohort.member("stranger") is None


def test_member_unheard_of_for_a_minute_is_away() -> None:
    member = Member(hello("a"), heard_at=100.0)
    assert member.is_present(100.0 + PRESENCE_S)
    assert not member.is_present(100.1 + PRESENCE_S)


def test_wait_for_returns_as_soon_as_enough_are_here() -> None:
    cohort = Cohort()
    threading.Timer(0.05, lambda: cohort.greet(hello("late"))).start()
    started = time.monotonic()
    assert [h.device for h in cohort.wait_for(1, timeout_s=10)] == ["late"]
    assert time.monotonic() - started < 5


def test_wait_for_names_who_is_here_and_who_cannot_read_data_when_time_is_up() -> None:
    cohort = Cohort()
    cohort.greet(hello("a"))
    cohort.greet(hello("b", data_error="b.npz: not a zip file"))
    with pytest.raises(
        DeadlineExpired, match=r"1 of 2 devices .* \(a\); b cannot read its data: b\.npz: not a zip file"
    ):
        cohort.wait_for(2, timeout_s=0.05)


def test_select_is_a_function_of_seed_round_and_attempt_only() -> None:
    devices = [f"d{i}" for i in range(20)]
    chosen = select(devices, 5, seed=1, round_index=3, attempt=0)
    assert len(set(chosen)) == 5
    assert chosen == sorted(chosen)
    assert chosen == select(devices[::-1], 5, seed=1, round_index=3, attempt=0)
    others = [select(devices, 5, seed=s, round_index=r, attempt=a) for s, r, a in ((2, 3, 0), (1, 4, 0), (1, 3, 1))]
    assert all(other != chosen for other in others)


def test_select_takes_everybody_when_there_are_not_more() -> None:
    assert select(["b", "a"], 5, seed=1, round_index=0, attempt=0) == ["a", "b"]


def test_wait_for_goes_on_with_the_least_after_the_timeout() -> None:
    cohort = Cohort()
    cohort.greet(hello("a"))
    started = time.monotonic()
    assert [h.device for h in cohort.wait_for(3, 0.2, least=1)] == ["a"]
    assert time.monotonic() - started >= 0.2
    with pytest.raises(DeadlineExpired, match=r"1 of 3 devices said hello within 0 s \(a\)"):
        cohort.wait_for(3, 0.2, least=2)


def test_wait_for_does_not_wait_for_devices_that_cannot_read_their_data() -> None:
    cohort = Cohort()
    cohort.greet(hello("a"))
    cohort.greet(hello("b", data_error="b.npz is truncated"))
    started = time.monotonic()
    assert [h.device for h in cohort.wait_for(2, 30.0, least=1)] == ["a"]
    assert time.monotonic() - started < 5.0
    with pytest.raises(DeadlineExpired, match=r"b cannot read its data: b\.npz is truncated"):
        cohort.wait_for(2, 0.1, least=2)


def test_work_meanwhile_is_asked_for_at_each_arrival_and_its_time_is_not_counted() -> None:
    cohort, seen = Cohort(), []
    cohort.greet(hello("a"))

    def meanwhile(here: Sequence[Hello]) -> bool:
        names = [h.device for h in here]
        if names in seen:
            return False
        seen.append(names)
        time.sleep(0.3)
        if names == ["a"]:
            threading.Timer(0.02, cohort.greet, [hello("b")]).start()
        return True

    with pytest.raises(DeadlineExpired):
        cohort.wait_for(3, timeout_s=0.1, least=3, meanwhile=meanwhile)
    assert seen == [["a"], ["a", "b"]]


def test_wait_for_does_not_take_a_barred_device_for_one_of_those_it_needs() -> None:
    """A barred liar and all devices but one were enough for a round, which was then made without the last one."""
    cohort = Cohort()
    for name in ("a", "b", "liar"):
        cohort.greet(hello(name))
    asked: list[list[str]] = []

    def without_liar(devices: Sequence[str]) -> list[str]:
        asked.append(list(devices))
        return [device for device in devices if device != "liar"]

    last = threading.Timer(0.3, lambda: cohort.greet(hello("c")))
    last.start()
    assert [h.device for h in cohort.wait_for(3, 30.0, eligible=without_liar)] == ["a", "b", "c", "liar"]
    last.join()
    assert asked == [["a", "b", "liar"], ["a", "b", "c", "liar"]]  # once for those who are here, however often it looks


def test_wait_for_waits_for_nobody_in_a_barred_device_s_place_once_the_least_are_here() -> None:
    cohort = Cohort()
    for name in ("a", "b", "liar"):
        cohort.greet(hello(name))
    started = time.monotonic()
    assert len(cohort.wait_for(3, 30.0, least=2, eligible=lambda devices: devices[:2])) == 3
    assert time.monotonic() - started < 5.0
    # Where nobody else comes, a run goes on with those it has, as before.
    assert len(cohort.wait_for(3, 0.2, eligible=lambda devices: devices[:2])) == 3


def test_names_without_end_are_not_kept_and_nobody_who_is_here_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.messaging.cohort.MOST_DEVICES", 3)
    cohort = Cohort()
    for number in range(3):
        cohort.greet(hello(f"pi-{number}"))
    with pytest.raises(MessageRejected, match="3 devices are here already; pi-9 cannot take part"):
        cohort.greet(hello("pi-9"))
    cohort.greet(hello("pi-1"))  # again
    cohort.leave("pi-1", "bye")
    cohort.greet(hello("pi-9"))
    assert [each.device for each in cohort.present()] == ["pi-0", "pi-2", "pi-9"]
    assert cohort.member("pi-1") is None
