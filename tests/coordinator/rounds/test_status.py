"""The status line: who is awaited, how far each device is, how many have answered."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.ledger.ledger import Ledger
from coordinator.ledger.records import Assignment, Contribution
from coordinator.messaging.cohort import Cohort
from coordinator.reporting.progress import NO_BREAK
from coordinator.rounds.round_clock import RoundClock
from coordinator.rounds.status import MAX_NAMES, RoundStatus, names
from coordinator.run_file.loading import load_config_text
from edge.contracts.messages import Heartbeat, Hello
from edge.contracts.plan import assignment_id
from profiles.device import DeviceProfile
from tests.builders import train_report
from tests.federation.small_run import config_text


class Scene:
    """A federation of three devices as the status sees it."""

    def __init__(self, folder: Path, lines: str = "") -> None:
        self.ledger = Ledger.create(folder / "ledger.sqlite", federation="small", config="", seed=0)
        self.cohort, self.clock = Cohort(["onnxruntime"]), RoundClock()
        self.ended: dict[str, int] = {}
        self.said: list[str] = []
        self._status = RoundStatus(
            load_config_text(config_text() + lines),
            self.ledger,
            self.cohort,
            self.clock,
            expected=["dev-0", "dev-1", "dev-2"],
            ended=lambda: self.ended,
            say=self.said.append,
        )

    def line(self) -> str:
        return self._status.line().replace(NO_BREAK, " ")

    def hello(self, device: str, *, data_error: str = "", runtime: str = "onnxruntime") -> None:
        self.cohort.greet(
            Hello(
                device=device,
                agent_version="0.1.0",
                profile=DeviceProfile(device=device, trainer_idle_bytes={runtime: 1}),
                runtimes={runtime: "1"},
                num_examples=1,
                data_error=data_error,
            )
        )

    def order(self, *devices: str, attempt: int = 0) -> None:
        entries = [
            Assignment(
                assignment_id=assignment_id("small", 1, device, attempt),
                round=1,
                attempt=attempt,
                device=device,
                level="full",
                cut={},
                artifact_digest="a" * 64,
                weights_digest="b" * 64,
                order=b"",
            )
            for device in devices
        ]
        self.ledger.rounds.plan(1, attempt, deadline_s=100.0, assignments=entries)
        self.ledger.rounds.move(1, attempt, "published")
        self.clock.start(100.4)

    def beat(self, device: str, step: int, total_steps: int, loss: float | None = None, *, attempt: int = 0) -> None:
        entry = assignment_id("small", 1, device, attempt)
        beat = Heartbeat(state="training", assignment_id=entry, step=step, total_steps=total_steps, loss=loss)
        assert self.cohort.beat(device, beat)

    def report(self, device: str, *, attempt: int) -> None:
        entry = assignment_id("small", 1, device, attempt)
        report = train_report(entry, device, 1)
        assert self.ledger.updates.record(entry, update_digest="d" * 64, size=8, report=report)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.ledger.close()


def test_waiting_names_who_is_missing_and_who_is_here(scene: Scene) -> None:
    assert scene.line() == "waiting for devices: 0 of 3 here; missing dev-0, dev-1, dev-2"
    scene.hello("dev-1")
    scene.hello("dev-2", data_error="x.npz is truncated")
    assert scene.line() == ("waiting for devices: 1 of 3 here; missing dev-0; without usable data dev-2; here dev-1")
    scene.hello("dev-0")
    scene.hello("dev-2")
    assert scene.line() == "3 devices are here: planning and exporting"


def test_waiting_names_who_has_no_runtime_of_this_run(scene: Scene) -> None:
    scene.hello("dev-1")
    scene.hello("dev-2", runtime="executorch")
    assert scene.line() == (
        "waiting for devices: 1 of 3 here; missing dev-0; without a runtime of this run dev-2; here dev-1"
    )


def test_waiting_counts_devices_nobody_knows_yet(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.sqlite", federation="small", config="", seed=0) as ledger:
        status = RoundStatus(load_config_text(config_text()), ledger, Cohort(), RoundClock())
        assert status.line() == "waiting for devices: 0 of 3 here; 3 more wanted"
        ledger.profiles.freeze([DeviceProfile(device="pi-7")])
        assert status.line() == "waiting for devices: 0 of 3 here; missing pi-7 and 2 more"


def test_training_shows_steps_of_this_assignment_only(scene: Scene) -> None:
    for device in ("dev-0", "dev-1", "dev-2"):
        scene.hello(device)
    scene.order("dev-0", "dev-1", "dev-2")
    scene.beat("dev-0", 7, 30, 0.5)
    scene.beat("dev-1", 8, 30, 0.7)
    scene.beat("dev-2", 29, 30, 9.0, attempt=5)  # of an older order
    assert scene.line() == ("round 2/3: 0/3 reports, loss 0.600, 100 s left: dev-0 7/30, dev-1 8/30; ordered dev-2")
    scene.cohort.leave("dev-1", "connection lost")
    assert scene.line().endswith("dev-0 7/30; away dev-1; ordered dev-2")


def test_training_counts_devices_that_do_the_same(scene: Scene) -> None:
    devices = [f"dev-{i}" for i in range(5)]
    for device in devices:
        scene.hello(device)
    scene.order(*devices)
    scene.beat("dev-3", 1, 9)
    assert scene.line().endswith("100 s left: dev-3 1/9; 4 ordered")
    entry = assignment_id("small", 1, "dev-0", 0)
    scene.cohort.beat("dev-0", Heartbeat(state="waiting", assignment_id=entry, reason="41 C/too warm"))
    assert scene.line().endswith("dev-3 1/9; ordered dev-1, dev-2, dev-4; waiting (41 C/too warm) dev-0")


def test_training_counts_refusals(scene: Scene) -> None:
    scene.hello("dev-1")
    scene.order("dev-0", "dev-1")
    scene.ledger.assignments.move(
        assignment_id("small", 1, "dev-0", 0), "refused", code="device-refused", reason="cold"
    )
    scene.ledger.assignments.move(assignment_id("small", 1, "dev-1", 0), "accepted")
    assert scene.line() == "round 2/3: 0/2 reports, 1 refused, 100 s left: accepted dev-1"


def test_repeated_round_says_its_attempt_and_aggregation_its_updates(scene: Scene) -> None:
    scene.order("dev-0")
    scene.ledger.rounds.move(1, 0, "abandoned")
    scene.order("dev-0", attempt=1)
    assert scene.line().startswith("round 2/3 attempt 2: 0/1 reports")
    scene.ledger.rounds.move(1, 1, "collecting")
    scene.report("dev-0", attempt=1)
    assert scene.line().startswith("round 2/3 attempt 2: 1/1 reports, 100 s left")
    scene.ledger.rounds.move(1, 1, "aggregating", participants=["dev-0"])
    assert scene.line() == "round 2/3 attempt 2: aggregating 1 update"


def test_agent_that_ended_by_itself_is_told_once(scene: Scene) -> None:
    scene.ended = {"dev-1": 3}
    scene.line()
    scene.line()
    assert scene.said == ["the agent of dev-1 ended with status 3; see agent.log in its folder"]


def test_version_counts_its_buffer_and_those_at_work_on_older_models(tmp_path: Path) -> None:
    scene = Scene(tmp_path, '[aggregation]\nmode = "buffered"\nbuffer = 2\n')
    with scene.ledger:
        for name in ("dev-0", "dev-1"):
            scene.hello(name)
        scene.order("dev-0", "dev-1")
        scene.beat("dev-1", 3, 30, 0.5)
        scene.report("dev-0", attempt=0)
        assert scene.line() == "version 2/3: 1/2 updates, loss 0.500: dev-1 3/30"
        scene.ledger.blobs.add("e" * 64, 1)
        counted = [Contribution(assignment_id=assignment_id("small", 1, "dev-0", 0), weight=10.0)]
        scene.ledger.rounds.move(1, 0, "collecting")
        scene.ledger.rounds.move(1, 0, "aggregating", contributions=counted)
        scene.ledger.rounds.move(1, 0, "committed", model_digest="e" * 64)
        scene.ledger.rounds.plan(2, 0, deadline_s=100.0, assignments=[])
        assert scene.line() == "version 3/3: 0/2 updates, loss 0.500, 1 at work on older models: dev-1 3/30"


def test_names_are_limited() -> None:
    many = [f"d{i}" for i in range(MAX_NAMES + 5)]
    assert names(many).endswith(f"d{MAX_NAMES - 1} and 5 more")
    assert names(many[:2]) == "d0, d1"
    assert names(many[:1], 2) == "d0 and 2 more"
