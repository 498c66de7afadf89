"""Agents started on this machine: one supervisor process each, ended with the coordinator.

They are ordinary agents: they connect over the broker, see only their own data folder, and hold to their own budget.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coordinator.broker import BrokerAddress


@dataclass(frozen=True)
class LocalDevice:
    """One device to start: its id, its folder (holding ``data`` and ``store``), its budget in bytes, its threads."""

    device: str
    folder: Path
    budget_bytes: int
    threads: int = 1


class LocalDevices:
    """The running agents of a coordinator; a context manager that stops them, by pid, within five seconds."""

    def __init__(self, devices: Sequence[LocalDevice], broker: BrokerAddress, federation: str) -> None:
        self.devices = tuple(devices)
        self._broker = broker
        self._federation = federation
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> LocalDevices:
        for device in self.devices:
            self.start(device)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, device: LocalDevice) -> None:
        """Start the agent of ``device``; its log goes to ``<folder>/agent.log``."""
        device.folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "edge",
            "agent",
            "--broker",
            self._broker.url,
            "--federation",
            self._federation,
            "--device",
            device.device,
            "--data",
            str(device.folder / "data"),
            "--store",
            str(device.folder / "store"),
            "--threads",
            str(device.threads),
            "--parent-pid",
            str(os.getpid()),
        ]
        if device.budget_bytes:
            command += ["--budget-mb", f"{device.budget_bytes / 1e6:g}"]
        if self._broker.user:
            command += ["--user", self._broker.user]
        if self._broker.ca_file:
            command += ["--ca", str(self._broker.ca_file)]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path[:1] + [os.environ.get("PYTHONPATH", "")]))
        if self._broker.password:
            environment["APPORTION_BROKER_PASSWORD"] = self._broker.password
        with (device.folder / "agent.log").open("ab") as log:
            self._processes[device.device] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    def pid(self, device: str) -> int:
        """Process id of the agent called ``device``."""
        return self._processes[device].pid

    def exited(self) -> dict[str, int]:
        """Device -> exit status of the agents that ended by themselves."""
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def stop(self, patience_s: float = 5.0) -> None:
        """Ask every agent to stop, then end those that do not within ``patience_s``."""
        running = [p for p in self._processes.values() if p.poll() is None]
        for process in running:
            process.send_signal(signal.SIGTERM)
        give_up_at = time.monotonic() + patience_s
        for process in running:
            try:
                process.wait(max(0.1, give_up_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
