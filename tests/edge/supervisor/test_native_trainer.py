"""What a device learns without a Python trainer: from an environment's files and a program that only says hello."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np
import pytest

from edge.runtimes.base import InstalledTrainer
from edge.runtimes.executorch.installed import (
    installed_trainer,
    library_folder,
    library_name,
    portable_name,
    trainer_of,
)
from edge.supervisor.native_trainer import NativeTrainer, Told
from edge.supervisor.presence import USUAL, Presence
from edge.supervisor.settings import AgentSettings
from edge.supervisor.trainer_messages import Ready
from edge.system.pipe_frames import write_frame
from tests.edge.agent_bench import Bench

RELEASE = "1.5.1"
IDLE_BYTES = 6 << 20
USUAL_BYTES = 41 << 20
HELLO = Ready("executorch", "", IDLE_BYTES, sparse_below={"linear": 0.3})


class Environment:
    """An environment's files; its interpreter cannot be started."""

    def __init__(self, folder: Path) -> None:
        self.python = folder / "bin" / "python"
        self.packages = folder / "lib" / "python3.11" / "site-packages"
        self.wheel = self.packages / "executorch"
        self.compiled = library_folder(folder)
        self.wheel.mkdir(parents=True)
        self.compiled.mkdir(parents=True)
        (self.packages / f"executorch-{RELEASE}.dist-info").mkdir()

    def with_trainer(self, said: bytes, *, name: str = "") -> Path:
        """A program that says ``said``, beside a library called ``name``; its path."""
        library = self.compiled / (name or library_name(self.wheel))
        library.touch()
        program = trainer_of(library)
        program.with_suffix(".said").write_bytes(said)
        program.write_text(f'#!/bin/sh\ntest "$1" = hello && exec cat {program.with_suffix(".said")}\n')
        program.chmod(0o755)
        return program


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment")


@pytest.fixture
def data(tmp_path: Path) -> str:
    folder = tmp_path / "examples"
    folder.mkdir()
    for name, count in (("a", 3), ("b", 4)):
        np.savez(folder / f"{name}.npz", x=np.zeros((count, 5), np.float32), y=np.zeros(count, np.int64))
    return str(folder)


def frame(message: Ready) -> bytes:
    out = io.BytesIO()
    write_frame(out, message)
    return out.getvalue()


def described(environment: Environment, data: str) -> tuple[Told | None, NativeTrainer]:
    native = NativeTrainer("executorch", str(environment.python))
    return native.describe(data), native


@pytest.mark.parametrize("is_brought", [False, True], ids=["compiled here", "brought"])
def test_installed_trainer_is_found_by_the_names_of_library_and_release(
    environment: Environment, is_brought: bool
) -> None:
    assert installed_trainer(str(environment.python)) is None
    program = environment.with_trainer(b"", name=portable_name(RELEASE) if is_brought else "")
    assert installed_trainer(str(environment.python)) == InstalledTrainer(str(program), RELEASE)


def test_library_of_a_wheel_is_not_taken_for_another_in_its_place(environment: Environment) -> None:
    """As ``pip install --upgrade`` leaves it: the same folder, other headers."""
    described = environment.packages / f"executorch-{RELEASE}.dist-info"
    (described / "RECORD").write_text("executorch/lib/libexecutorch.so,sha256=AAAA,1\n")
    program = environment.with_trainer(b"")
    assert installed_trainer(str(environment.python)) == InstalledTrainer(str(program), RELEASE)
    before = library_name(environment.wheel)
    assert before == library_name(environment.wheel)
    (described / "RECORD").write_text("executorch/lib/libexecutorch.so,sha256=BBBB,1\n")  # built again, same release
    assert library_name(environment.wheel) != before
    assert installed_trainer(str(environment.python)) is None
    described.rename(environment.packages / "executorch-1.6.0.dist-info")
    (environment.packages / "executorch-1.6.0.dist-info" / "RECORD").unlink()  # as some system packages
    upgraded = library_name(environment.wheel)
    assert upgraded != before
    program = environment.with_trainer(b"")
    assert installed_trainer(str(environment.python)) == InstalledTrainer(str(program), "1.6.0")
    described = environment.packages / "executorch-1.6.0.dist-info"
    described.rename(environment.packages / "executorch-1.6.1.dist-info")
    assert library_name(environment.wheel) != upgraded
    assert installed_trainer(str(environment.python)) is None


def test_installed_trainer_of_two_releases_or_none_is_not_guessed(environment: Environment) -> None:
    environment.with_trainer(b"")
    (environment.packages / "executorch-1.4.0.dist-info").mkdir()
    assert installed_trainer(str(environment.python)) is None
    assert installed_trainer("python3") is None


def test_runtime_and_data_are_told_without_python(environment: Environment, data: str) -> None:
    program = environment.with_trainer(frame(HELLO))
    told, native = described(environment, data)
    ready = msgspec.structs.replace(HELLO, version=RELEASE, native=str(program))
    size = 7 * (5 * 4 + 8)
    assert told == Told(ready, 7, USUAL_BYTES + size, size)
    assert (native.path, native.version) == (str(program), RELEASE)


def test_what_it_cannot_read_is_left_to_the_python_trainer(environment: Environment, data: str) -> None:
    environment.with_trainer(frame(HELLO))
    np.savez(Path(data) / "c.npz", x=np.zeros((2, 6), np.float32), y=np.zeros(2, np.int64))  # of another shape
    assert described(environment, data)[0] is None
    assert described(environment, "package.module:function")[0] is None
    assert NativeTrainer("onnxruntime", str(environment.python)).describe(data) is None


@pytest.mark.parametrize(
    "said", [b"", b"no frame", frame(HELLO)[:-1], frame(msgspec.structs.replace(HELLO, rss_bytes=0))]
)
def test_program_that_does_not_say_hello_is_forgotten(environment: Environment, data: str, said: bytes) -> None:
    environment.with_trainer(said)
    told, native = described(environment, data)
    assert (told, native.path) == (None, "")


def test_idle_size_is_what_is_usual_until_a_python_trainer_has_run(
    environment: Environment, data: str, tmp_path: Path
) -> None:
    environment.with_trainer(frame(HELLO))
    told, _ = described(environment, data)
    assert told is not None
    settings = AgentSettings(federation="fed", device="dev-1", data=data, python="", runtime="executorch")
    presence = Presence(settings, tmp_path, tmp_path)
    presence.told(told)
    before = presence.profile()
    assert (presence.num_examples, before.runtimes) == (7, {"executorch": RELEASE})
    assert before.trainer_idle_bytes == {"executorch": told.python_idle_bytes}
    assert before.native_idle_bytes == {"executorch": IDLE_BYTES}
    assert (before.sources["trainer_idle_bytes"], before.sparse_below["executorch"]) == (USUAL, {"linear": 0.3})
    assert presence.ready(Ready("executorch", RELEASE, 50 << 20, sparse_below={"linear": 0.9}))
    after = presence.profile()
    assert after.trainer_idle_bytes == {"executorch": (50 << 20) + told.data_bytes}
    assert "trainer_idle_bytes" not in after.sources
    assert after.sparse_below == before.sparse_below  # the first measurement counts
    assert not presence.ready(Ready("executorch", RELEASE, 51 << 20))
    assert presence.trainer_idle_bytes == (50 << 20) + told.data_bytes


def test_agent_says_hello_where_no_python_trainer_can_start(bench: Bench, environment: Environment, data: str) -> None:
    environment.with_trainer(frame(HELLO))
    agent = bench.agent(runtime="executorch", data=data, python=str(environment.python))
    hello = bench.coordinator.wait_for("hello")
    assert (hello.num_examples, hello.runtimes) == (7, {"executorch": RELEASE})
    assert agent.trainer.pid is None
