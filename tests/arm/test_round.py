"""Agents on emulated boards, supervisor and trainer, take part in a round over MQTT with a coordinator here."""

from __future__ import annotations

import contextlib
import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.opening import BrokerAddress, BrokerProcess
from coordinator.cli.assembly import start_run
from coordinator.cli.open_run import RunOptions
from coordinator.data.datasets import load_dataset
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.data_folders import local_devices
from coordinator.local_devices.processes import LocalDevice
from coordinator.run_file.loading import load_config_text
from edge.transport.shown_password import PASSWORD_VARIABLE
from profiles.known_devices import recognise
from tests.arm.boards import BOARDS, EmulatedDevice
from tests.arm.userland import Userland
from tests.federation.small_run import config_text

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.runtime]

FAREWELL_S = 30.0
RUNTIMES = ("executorch", "onnxruntime")
"""What the boards train with, in turn."""


@contextlib.contextmanager
def agent(board: EmulatedDevice, place: LocalDevice, broker: BrokerAddress) -> Iterator[subprocess.Popen[str]]:
    """An agent on ``board`` whose data and store are in ``place``; its log is ``agent.log`` there."""
    python = board.interpreter(place.folder)
    command = board.command("-m", "edge", "agent", "--broker", broker.url, "--user", broker.user)
    command += ["--federation", "small", "--device", place.device, "--data", "data", "--store", "store"]
    command += ["--runtime", place.runtime, "--trainer-python", str(python), "--self-test"]
    with (place.folder / "agent.log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=place.folder,
            env=board.environment(**{PASSWORD_VARIABLE: broker.password}),
            stderr=log,
            text=True,
        )
        try:
            yield process
            process.terminate()
            process.wait(FAREWELL_S)
        finally:
            process.kill()
            process.wait()


def test_agents_on_boards_train_a_round(
    userland: Userland,
    session_library: Path,
    amqtt_broker: BrokerProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two boards train with executorch, one with onnxruntime; none has torch, and all end in good order."""
    with_data = load_config_text(config_text(local=len(BOARDS), size=len(BOARDS), runtimes=RUNTIMES))
    places = local_devices(with_data, load_dataset("digits", None, 3), tmp_path / "outside", None)
    address = amqtt_broker.address
    monkeypatch.setenv("APPORTION_SMALL_RUN_PASSWORD", address.password)
    broker = f'url = "{address.url}"\nuser = "{address.user}"\npassword-env = "APPORTION_SMALL_RUN_PASSWORD"'
    config = load_config_text(config_text(broker=broker, local=0, size=len(BOARDS), rounds=1, runtimes=RUNTIMES))
    boards = [EmulatedDevice(board, userland) for board in BOARDS]
    with contextlib.ExitStack() as running:
        agents = [running.enter_context(agent(*pair, address)) for pair in zip(boards, places, strict=True)]
        summary = start_run(config, tmp_path / "run", RunOptions(quiet=True))
    logs = {place.device: (place.folder / "agent.log").read_text() for place in places}
    assert [process.returncode for process in agents] == [0] * len(BOARDS), logs
    assert summary["torch_loaded_on_devices"] is False
    with Ledger.open(tmp_path / "run/ledger.sqlite") as ledger:
        profiles = ledger.profiles.all()
        reports = {update.report.device: update.report for update in ledger.updates.of_attempt(0, 0)}
    for board, place, runtime in zip(BOARDS, places, itertools.cycle(RUNTIMES), strict=False):
        profile, report = profiles[place.device], reports[place.device]
        assert (profile.machine, profile.board) == ("aarch64", board.model)
        known = recognise(profile)
        assert known is not None
        assert known.name == board.name
        assert (report.runtime, report.torch_loaded) == (runtime, False)
        assert report.steps == -(-report.num_examples // 16)
        assert 0.0 < report.loss < 2.5
        print(
            f"{board.model}, {runtime}: {report.steps} steps, loss {report.loss:.4f}, {report.step_ms_p50:.0f} ms each"
        )
