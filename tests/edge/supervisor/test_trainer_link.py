"""The trainer child from its supervisor's side: ready, replies, crashes, and ends that are no crashes."""

from __future__ import annotations

import os
import queue
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from edge.contracts.errors import ConfigError
from edge.contracts.plan import BlobRef, Schedule, Turn
from edge.supervisor.trainer_link import TrainerEnded, TrainerEvent, TrainerLink, TrainerSaid, exit_reason
from edge.supervisor.trainer_messages import Describe, Described, Ready, Train
from tests.contracts.samples import ORDER
from tests.edge.tiny_artifact import write_data

pytestmark = pytest.mark.runtime


class Link(TrainerLink):
    def __init__(self, runtime: str = "onnxruntime") -> None:
        self.events: queue.SimpleQueue[TrainerEvent] = queue.SimpleQueue()
        super().__init__(python=sys.executable, runtime=runtime, deliver=self.events.put)

    def reply(self) -> object:
        event = self.events.get(timeout=20)
        assert isinstance(event, TrainerSaid)
        return event.reply


@pytest.fixture
def link() -> Iterator[Link]:
    made = Link()
    yield made
    made.kill()


def test_trainer_says_ready_with_its_runtime(link: Link) -> None:
    link.start()
    ready = link.reply()
    assert isinstance(ready, Ready)
    assert ready.runtime == "onnxruntime"
    assert ready.version.count(".") == 2
    assert 20_000_000 < ready.rss_bytes < 100_000_000  # 45 to 55 MB measured


def test_trainer_describes_data(link: Link, tmp_path: Path) -> None:
    write_data(tmp_path, examples=7)
    link.send(Describe(str(tmp_path)))
    link.reply()
    assert isinstance(described := link.reply(), Described)
    assert (described.num_examples, described.code) == (7, "")
    link.send(Describe(str(tmp_path / "nowhere")))
    assert isinstance(described := link.reply(), Described)
    assert (described.num_examples, described.code) == (0, "bad-data")


def test_trainer_killed_is_told_with_the_signal(link: Link) -> None:
    link.start()
    link.reply()
    assert link.pid is not None
    os.kill(link.pid, signal.SIGKILL)
    event = link.events.get(timeout=10)
    assert isinstance(event, TrainerEnded)
    assert "SIGKILL" in event.reason
    assert not link.is_running


def test_trainer_ended_on_purpose_is_not_told(link: Link) -> None:
    link.start()
    link.reply()
    link.end()
    assert not link.is_running
    link.start()
    assert isinstance(link.reply(), Ready)  # of the second child; nothing of the first one's end


def test_trainer_unused_is_ended(link: Link) -> None:
    link.start()
    link.reply()
    link.end_if_unused(time.monotonic(), 30.0)
    assert link.is_running
    link.end_if_unused(time.monotonic() + 31, 30.0)
    assert not link.is_running


def test_trainer_for_an_unknown_runtime_ends_with_status_2() -> None:
    link = Link("nonesuch")
    link.start()
    event = link.events.get(timeout=20)
    assert isinstance(event, TrainerEnded)
    assert (event.reason, event.signal) == ("exit status 2", 0)


def test_trainer_interpreter_that_is_not_there_is_named() -> None:
    link = TrainerLink(python="/no/such/python", runtime="onnxruntime", deliver=lambda event: None)
    with pytest.raises(ConfigError, match="--trainer-python: /no/such/python"):
        link.start()


@pytest.mark.parametrize(
    ("status", "words"), [(3, "exit status 3"), (-11, "SIGSEGV"), (-9, "out of memory"), (-99, "signal 99")]
)
def test_exit_reason_names_the_signal(status: int, words: str) -> None:
    assert words in exit_reason(status)


def test_trainer_that_ends_before_the_first_request_is_reported(tmp_path: Path) -> None:
    """The reader may see its end at any moment, also between start and send."""
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexit 7\n")
    script.chmod(0o755)
    for _ in range(20):
        events: queue.SimpleQueue[TrainerEvent] = queue.SimpleQueue()
        link = TrainerLink(python=str(script), runtime="onnxruntime", deliver=events.put)
        link.start()
        time.sleep(0.01)
        link.send(Describe("data"))
        ended = events.get(timeout=5)
        assert isinstance(ended, TrainerEnded)
        assert (ended.reason, ended.signal) == ("exit status 7", 0)
        assert ended.peak_bytes > 1_000_000
        link.kill()


class Counted(Link):
    """Counts how often a child would be ended, and starts none."""

    def __init__(self) -> None:
        super().__init__()
        self.ends = 0

    def send(self, request: object) -> None:
        """Nobody is there."""

    def end(self) -> None:
        self.ends += 1
        self._programs.clear()


def test_child_is_ended_for_another_artifact_or_other_programs_alone() -> None:
    link = Counted()

    def train(*programs: str, artifact: str = "a" * 64) -> int:
        schedule = Schedule(steps=1, turns=tuple(Turn(name) for name in programs))
        order = msgspec.structs.replace(ORDER, schedule=schedule, artifact=BlobRef(artifact, 1))
        link.train(Train(order=order, manifest="", files={}, weights="", data="", update="", threads=1, progress_s=1.0))
        return link.ends

    assert train("train") == 0
    assert train("train", "train_half") == 0
    assert train("train_half") == 0
    assert train("stats") == 1  # would lie beside the training step
    assert train("train") == 2
    assert train("train", artifact="b" * 64) == 3
