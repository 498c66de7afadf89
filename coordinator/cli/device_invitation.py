"""The command that starts a device of a run, ready to copy: what ``run`` says while it waits for devices."""

from __future__ import annotations

import shlex
from pathlib import Path

from coordinator.brokers.certificates import write_private
from coordinator.brokers.opening import BrokerAddress
from coordinator.config.run_config import RunConfig
from coordinator.local_devices.processes import url_with_user
from edge.runtimes import DEFAULT, traits_of
from edge.transport.shown_password import PASSWORD_VARIABLE

PASSWORD_FILE = "password"
ID, DATA = "device-1", "DATA"
"""What the reader puts in: DATA is a folder, a CSV file or ``package.module:function``; each device has its own id."""


def device_invitation(config: RunConfig, federation: str, address: BrokerAddress, broker_folder: Path) -> list[str]:
    """Lines for people: the command for a device that is not started by the run; none where there is none to say.

    The password of a broker that the run starts is in a file of ``broker_folder`` that its owner alone can read; the
    command reads it from there, and it is never shown.
    """
    runtimes = [name for name in config.runtime.names if not traits_of(name).is_in_browser]
    if not runtimes:
        return []
    if address.identity is not None:
        return _by_certificate(config, federation, address)
    is_here = address.kind != "external"
    broker = url_with_user(address) if is_here else address.url
    words = ["apportion", "agent", "--broker", broker, "--federation", federation, "--device", ID]
    words += ["--data", DATA, "--store", f"store-{ID}"]
    if address.ca_file is not None:
        words += ["--ca", str(address.ca_file)]
    if DEFAULT not in runtimes:
        words += ["--runtime", runtimes[0]]
    command = shlex.join(words)
    if is_here:
        write_private(broker_folder / PASSWORD_FILE, address.password.encode())
        file = shlex.quote(str((broker_folder / PASSWORD_FILE).resolve()))
        return ["to start a device on this machine:", f'{PASSWORD_VARIABLE}="$(cat {file})" {command}']
    if config.broker.password_env:
        command = f"{PASSWORD_VARIABLE}=... {command}"
    return ["to start a device, anywhere that reaches the broker:", command]


def _by_certificate(config: RunConfig, federation: str, address: BrokerAddress) -> list[str]:
    if address.kind != "external":
        return ["this broker can be reached from this machine alone: for devices elsewhere see docs/brokers.md"]
    words = ["apportion", "device", "add", "USER@HOST", "--data", DATA, "--federation", federation]
    words += ["--broker", address.url, "--identity", config.broker.identity]
    return ["to make a device of a host:", shlex.join(words)]
