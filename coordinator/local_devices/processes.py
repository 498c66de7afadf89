"""Agents started on this machine: one supervisor process each, ended with the coordinator.

They are ordinary agents: they connect over the broker, see only their own data folder, and hold to their own budget.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from coordinator.brokers.opening import BrokerAddress
from coordinator.local_devices.ceilings import Ceiling, open_ceiling
from coordinator.local_devices.control_groups import UNLIMITED, CeilingReport, Limits, remove_leftovers
from edge.runtimes import DEFAULT
from edge.supervisor.trainer_link import child_environment
from edge.transport import broker_address


@dataclass(frozen=True)
class LocalDevice:
    """One device to start: its id, its folder (holding ``data`` and ``store``), and its limits; 0 means none.

    Attributes:
        runtime: what its trainer runs, as registered in ``edge/runtimes``.
        python: interpreter that runs the trainer; None: the agent's choice for the runtime.
        limits: what the kernel holds the device to.
        tags: what it says it belongs to.
    """

    device: str
    folder: Path
    budget_bytes: int
    threads: int = 0
    runtime: str = DEFAULT
    python: Path | None = None
    limits: Limits = UNLIMITED
    tags: tuple[str, ...] = ()


def url_with_user(broker: BrokerAddress) -> str:
    """The broker's URL with the user's name in it, as agents take it; the password goes through the environment."""
    scheme, _, rest = broker.url.partition("://")
    return f"{scheme}://{quote(broker.user, safe='')}@{rest}" if broker.user else broker.url


def connection_address(broker: BrokerAddress) -> broker_address.BrokerAddress:
    """The same broker as the transport takes it, with the password."""
    parsed = broker_address.parse_broker(
        url_with_user(broker),
        ca=_text(broker.ca_file),
        certificate=_text(broker.certificate_file),
        key=_text(broker.key_file),
    )
    return replace(parsed, password=broker.password or parsed.password)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


class LocalDevices:
    """The running agents of a coordinator; a context manager that stops them, by pid, within five seconds."""

    def __init__(self, devices: Sequence[LocalDevice], broker: BrokerAddress, federation: str) -> None:
        self.devices = tuple(devices)
        self._broker = broker
        self._federation = federation
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._changing = threading.Lock()  # of the table: several threads look at it, and a keeper starts agents again
        self._ceilings: dict[str, Ceiling] = {}

    def __enter__(self) -> LocalDevices:
        if any(device.limits != UNLIMITED for device in self.devices):
            remove_leftovers()
        try:
            for device in self.devices:
                self.start(device)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, device: LocalDevice) -> None:
        """Start the agent of ``device``, in place of one that died; its log goes to ``<folder>/agent.log``.

        Raises:
            ConfigError: it has limits that this machine cannot enforce.
        """
        with self._changing:
            before = self._processes.pop(device.device, None)
        if before is not None:
            before.kill()
            before.wait()
        device.folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "edge",
            "agent",
            "--broker",
            url_with_user(self._broker),
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
            "--runtime",
            device.runtime,
            "--parent-pid",
            str(os.getpid()),
        ]
        if device.python is not None:
            command += ["--trainer-python", str(device.python)]
        command += [part for tag in device.tags for part in ("--tag", tag)]
        if device.budget_bytes:
            command += ["--budget-mb", f"{device.budget_bytes / 2**20:g}"]
        if self._broker.identity is not None:
            from coordinator.brokers.broker_files import local_device_files

            own = local_device_files(self._broker.identity, device.device)
            command += ["--ca", str(own.ca), "--cert", str(own.certificate), "--key", str(own.key)]
            command += ["--trust", str(own.trust)]
        elif self._broker.ca_file:
            command += ["--ca", str(self._broker.ca_file)]
        environment = child_environment()
        if self._broker.password:
            environment["APPORTION_BROKER_PASSWORD"] = self._broker.password
        if device.limits != UNLIMITED:
            if device.device not in self._ceilings:
                self._ceilings[device.device] = open_ceiling(device.device, device.limits)
            command = self._ceilings[device.device].command(command)
        with (device.folder / "agent.log").open("ab") as log:
            started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        with self._changing:
            self._processes[device.device] = started

    def pid(self, device: str) -> int:
        """Process id of the agent called ``device``."""
        return self._processes[device].pid

    def exited(self) -> dict[str, int]:
        """Device -> exit status of the agents that ended by themselves."""
        with self._changing:
            codes = {name: process.poll() for name, process in self._processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def ceilings(self) -> dict[str, CeilingReport]:
        """Device -> what its ceiling did since its agent was first started here; of devices that have one."""
        return {name: ceiling.report() for name, ceiling in self._ceilings.items()}

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
        for ceiling in self._ceilings.values():
            ceiling.close()
        self._ceilings.clear()
