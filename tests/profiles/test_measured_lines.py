"""What was measured on a device survives in its agent's store and reaches the profile of its hello."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from edge.contracts.envelope import seal, unseal
from edge.contracts.errors import MessageRejected
from edge.contracts.messages import Hello
from edge.supervisor.presence import Presence
from edge.supervisor.settings import AgentSettings
from profiles.device import DeviceProfile, MemoryLine, StepLine
from profiles.measured_lines import NOTHING, MeasuredLines, WatchedLines, read_measured_lines, write_measured_lines
from profiles.stored_profile import ProfileUnusable

MEMORY = MemoryLine(0.9, 1_000_000, 2_000_000, 12, 1_760_000_000.5)
STEPS = (StepLine(1, 0.5, 40.0, 0.1, 0.07, 12, 1_760_000_000.5), StepLine(2, 0.6, 25.0, 0.1))


def test_lines_of_two_runtimes_are_kept_beside_each_other(tmp_path: Path) -> None:
    write_measured_lines(tmp_path, MeasuredLines(memory_lines={"onnxruntime": MemoryLine(2.0, 0)}))
    write_measured_lines(tmp_path, MeasuredLines(memory_lines={"executorch": MEMORY}))
    path = write_measured_lines(
        tmp_path, MeasuredLines(memory_lines={"onnxruntime": MEMORY}, step_lines={"onnxruntime": STEPS})
    )
    found = read_measured_lines(tmp_path)
    assert found.memory_lines == {"onnxruntime": MEMORY, "executorch": MEMORY}
    assert found.step_lines == {"onnxruntime": STEPS}
    assert path.name == "measured.json"


def test_an_agents_hello_carries_what_was_measured(tmp_path: Path) -> None:
    settings = AgentSettings(federation="f", device="pi-07", data="d", python="python3")
    presence = Presence(settings, tmp_path, Path("/"))
    assert presence.profile().memory_lines == {}
    write_measured_lines(
        tmp_path, MeasuredLines(memory_lines={"onnxruntime": MEMORY}, step_lines={"onnxruntime": STEPS})
    )
    hello = unseal(seal("hello", presence.hello("idle", None))).read(Hello)
    assert hello.profile.memory_lines == {"onnxruntime": MEMORY}
    assert hello.profile.step_lines == {"onnxruntime": STEPS}
    assert hello.profile.sources["step_lines"] == "measured.json"


def test_a_broken_file_counts_as_none_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = WatchedLines(tmp_path)
    (tmp_path / "measured.json").write_text('{"memory_lines": 3}')
    with caplog.at_level(logging.WARNING):
        assert watched.now() == watched.now() == NOTHING
    assert len(caplog.records) == 1
    assert "measured.json" in caplog.text
    with pytest.raises(ProfileUnusable, match="measure the device again"):
        read_measured_lines(tmp_path)
    write_measured_lines(tmp_path, MeasuredLines(memory_lines={"executorch": MEMORY}))
    assert watched.now().memory_lines == {"executorch": MEMORY}


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "measured.json").write_text('{"schema": "apportion.measured-lines/9"}')
    with pytest.raises(ProfileUnusable, match="measured-lines/1"):
        read_measured_lines(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        {"memory_lines": {"onnxruntime": MemoryLine(float("nan"), 0)}},
        {"memory_lines": {"onnxruntime": MemoryLine(1.0, 1 << 60)}},
        {"step_lines": {"onnxruntime": (StepLine(1, 0.0, float("inf"), 0.0),)}},
        {"step_lines": {"onnxruntime": (StepLine(0, 0.0, 1.0, 0.0),)}},
    ],
)
def test_lines_that_cannot_be_reckoned_with_are_refused(line: dict[str, Any]) -> None:
    hello = Hello(
        device="pi-07",
        agent_version="1",
        profile=DeviceProfile(device="pi-07", **line),
        runtimes={},
        num_examples=1,
        data_error="",
        state="idle",
        assignment_id="",
    )
    with pytest.raises(MessageRejected, match="Expected"):
        unseal(seal("hello", hello)).read(Hello)


def test_lines_that_are_not_measured_stay_the_profiles_own() -> None:
    profile = DeviceProfile(device="pi-07", memory_lines={"onnxruntime": MEMORY})
    assert NOTHING.put_into(profile) == profile
