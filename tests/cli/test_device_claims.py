"""Devices that nobody logs in to, from a link on this side to a hello over the broker."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from coordinator.brokers.broker_files import write_broker_folder
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.fleet.book import FleetBook
from coordinator.identity.authority import Authority
from edge.contracts.claims import ClaimLink
from edge.identity.claim_client import EnrolmentFailed
from edge.identity.enrolment import Enrolment, enrol
from edge.supervisor.trainer_link import child_environment
from tests.cli.conftest import Command

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A broker of an identity in the current folder; its URL."""
    program = find_mosquitto()
    if program is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    monkeypatch.chdir(tmp_path)
    with Authority.create(tmp_path / "identity") as authority:
        authority.issue_server(["localhost", "127.0.0.1"])
        authority.issue_coordinator("digits")
    port = free_port()
    config = write_broker_folder(tmp_path / "identity", tmp_path / "broker", port=port, bind="127.0.0.1")
    with config.open("a") as file:
        file.write("user root\n")
    process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not answers(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield f"mqtts://localhost:{port}"
    finally:
        process.terminate()
        process.wait(10)


def enrol_when_answered(link: str, folder: Path) -> Enrolment:
    deadline = time.monotonic() + 30
    while True:
        try:
            return enrol(ClaimLink.from_text(link), folder)
        except EnrolmentFailed as error:
            if error.code != "service-unreachable" or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.broker
@pytest.mark.runtime
def test_link_on_the_screen_becomes_a_device_that_says_hello(broker: str, tmp_path: Path) -> None:
    """The verb and the agent are processes; what is typed on the device is what the screen says."""
    np.savez(tmp_path / "examples.npz", x=np.zeros((40, 8), np.float32), y=np.arange(40) % 3)
    words = ["device", "add", "--qr", "--device", "phone-1", "--listen", f"https://localhost:{free_port()}"]
    settings = ["--federation", "digits", "--broker", broker, "--identity", "identity", "--wait-s", "60", "--json"]
    command, here = [sys.executable, "-m", "edge", *words, *settings], child_environment()
    inviting = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=here)
    agent = None
    try:
        assert inviting.stderr is not None
        shown = ""
        while (found := re.search(r"https://\S+/join#\S+", shown)) is None:
            line = inviting.stderr.readline()
            assert line, shown
            shown += line
        link = found[0]
        made = enrol_when_answered(link, tmp_path / "phone")
        assert made.is_new
        typed = made.agent_command().replace("--data DATA", "--data .").removeprefix("apportion ")
        agent = subprocess.Popen(
            [sys.executable, "-m", "edge", *shlex.split(typed), "--store", "store"], stderr=subprocess.DEVNULL, env=here
        )
        out, err = inviting.communicate(timeout=90)
    finally:
        for process in (inviting, agent):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(20)
    line = json.loads(out)
    assert (inviting.returncode, line["claimed"]) == (0, True), err
    assert line["device"] == "phone-1"
    assert "phone-1 is here with 40 examples" in err
    entry = FleetBook(tmp_path / "fleet").get("phone-1")
    assert entry.way == "claim"
    assert entry.enrolled_at > 0
    assert entry.seen_at > 0


def test_links_made_before_are_answered_for_a_while(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Authority.create(tmp_path / "identity") as authority:
        authority.issue_server(["localhost"])
    where = f"https://localhost:{free_port()}"
    settings = ["--federation", "digits", "--broker", "mqtts://127.0.0.1:9", "--identity", "identity"]
    made = command("device", "add", "--qr", "--device", "pi-08", "--listen", where, "--no-wait", *settings, "--json")
    link = made.line["link"]
    claiming = in_thread(lambda: enrol_when_answered(link, tmp_path / "pi"))
    began = time.monotonic()
    outcome = command("device", "claims", "--listen", where, "--for", "5s", "--json")
    claiming.join(30)
    assert 4.5 < time.monotonic() - began < 30
    assert (outcome.status, outcome.line["claimed"]) == (0, ["pi-08"])
    assert "pi-08: claimed its certificate" in outcome.err
    assert link.partition("t=")[2][:30] not in outcome.err
    assert FleetBook(tmp_path / "fleet").get("pi-08").enrolled_at > 0
    wrong = command("device", "claims", "--listen", where, "--for", "soon", "--json")
    assert (wrong.status, "'soon' is not a time" in wrong.error["message"]) == (2, True)
