"""What an owner has before the first device: an identity and a Mosquitto that goes by it, made by the command line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coordinator.brokers.mosquitto import find_mosquitto
from tests.arm.userland import ROOT
from tests.coordinator.fleet.ssh_server import free_port

FEDERATION = "small"
LISTENS_S = 10.0
PATIENCE_S = 900.0


@dataclass(frozen=True)
class Said:
    """A finished command.

    Attributes:
        values: its ``--json`` line; empty without one.
        seconds: how long it took.
    """

    status: int
    values: dict[str, Any]
    stderr: str
    seconds: float


class Site:
    """A folder in which ``apportion`` is run, and a broker that is gone with :meth:`close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.broker_log = folder / "broker.log"
        for words in (
            ["ca", "init", "identity"],
            ["ca", "issue-server", "--name", "localhost"],
            ["ca", "issue-coordinator", FEDERATION],
            ["ca", "mosquitto", "--out", "broker", "--port", str(self.port), "--bind", "127.0.0.1"],
        ):
            self.succeed(*words)
        config = folder / "broker" / "mosquitto.conf"
        own = "user root\n" if os.geteuid() == 0 else ""  # else it changes to a user who cannot read this folder
        (folder / "mosquitto.conf").write_text(f"{own}{config.read_text()}")
        (folder / "mosquitto.conf").replace(config)
        program = find_mosquitto()
        assert program is not None
        with self.broker_log.open("w") as log:
            self._broker = subprocess.Popen(
                [program, "-c", "mosquitto.conf", "-v"], cwd=config.parent, stdin=subprocess.DEVNULL, stderr=log
            )
        self._wait_for_broker()

    @property
    def url(self) -> str:
        """The broker's, as devices reach it."""
        return f"mqtts://localhost:{self.port}"

    def run(self, *words: str) -> Said:
        """``apportion`` with ``words``, in a process of its own."""
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "edge", *words],
            cwd=self.folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        last = done.stdout.strip().rpartition("\n")[2]
        values = json.loads(last) if last.startswith("{") else {}
        return Said(done.returncode, values, done.stderr, time.monotonic() - started)

    def succeed(self, *words: str) -> Said:
        """As :meth:`run`; a failure is raised with what was said."""
        said = self.run(*words)
        assert said.status == 0, f"apportion {' '.join(words)}: exit status {said.status}: {said.stderr[-3000:]}"
        return said

    def close(self) -> None:
        """Ends the broker."""
        self._broker.terminate()
        self._broker.wait(LISTENS_S)

    def _wait_for_broker(self) -> None:
        give_up_at = time.monotonic() + LISTENS_S
        while time.monotonic() < give_up_at:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.02)
        self._broker.kill()
        raise AssertionError(f"mosquitto did not start: {self.broker_log.read_text()}")
