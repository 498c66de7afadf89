"""``apportion device`` on hosts of this machine over a real sshd: several at once, again, upgraded, gone and back.

Without a runtime, which would take most of the time; with one, and with a broker: tests/arm/test_provisioned_board.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from coordinator.brokers.broker_files import write_broker_folder
from coordinator.fleet import wheelhouse
from coordinator.fleet.book import FleetBook
from coordinator.fleet.facts import HostFacts
from coordinator.identity.authority import Authority
from tests.cli.conftest import Command
from tests.coordinator.fleet.native_sshd import native_sshd
from tests.coordinator.fleet.private_namespace import Unavailable
from tests.coordinator.fleet.ssh_server import SshServer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ResourceWarning")]
LEFT_OUT = ("onnxruntime", "numpy", "protobuf")


@dataclass(frozen=True)
class Place:
    """Two hosts that take one key, and the folder that commands are given in."""

    folder: Path
    hosts: tuple[SshServer, SshServer]

    @property
    def targets(self) -> list[str]:
        """As an owner writes them."""
        return [f"pi@127.0.0.1:{host.port}" for host in self.hosts]

    @property
    def book(self) -> FleetBook:
        """The fleet book."""
        return FleetBook(self.folder / "fleet")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with Authority.create(tmp_path / "identity") as authority:
        authority.issue_server(["localhost"])
        authority.issue_coordinator("digits")
    write_broker_folder(tmp_path / "identity", tmp_path / "broker")
    fetch = wheelhouse.build_wheelhouse

    def few_wheels(folder: Path, facts: HostFacts, runtime: str) -> wheelhouse.Wheelhouse:
        try:
            whole = fetch(folder, facts, runtime)
        except wheelhouse.WheelsUnavailable as reason:
            pytest.skip(f"no wheels can be fetched: {reason}")
        left = {name: digest for name, digest in whole.digests.items() if not name.startswith(LEFT_OUT)}
        return replace(whole, digests=left)

    monkeypatch.setattr(wheelhouse, "build_wheelhouse", few_wheels)
    with contextlib.ExitStack() as stack:
        try:
            hosts = [stack.enter_context(native_sshd(tmp_path / f"sshd-{number}")) for number in (1, 2)]
        except Unavailable as reason:
            pytest.skip(str(reason))
        authorized = Path(f"{hosts[1].keys.client}.pub")
        authorized.write_text(Path(f"{hosts[0].keys.client}.pub").read_text())
        known = [f"[127.0.0.1]:{host.port} {Path(f'{host.keys.host}.pub').read_text()}" for host in hosts]
        (tmp_path / "home" / ".ssh").mkdir(parents=True)
        (tmp_path / "home" / ".ssh" / "known_hosts").write_text("".join(known))
        yield Place(tmp_path, (hosts[0], hosts[1]))


def test_two_hosts_become_devices_stay_so_and_leave(place: Place, command: Command) -> None:
    settings = ["--federation", "digits", "--broker", "mqtts://127.0.0.1:9", "--identity", "identity"]
    options = ["--key", place.hosts[0].keys.client, "--data", "~/images", "--no-wait", "--broker-folder", "broker"]
    agent = ["--budget-mb", "160", "--train-between", "22:00-06:00"]
    ids = ["--device", "pi-1", "--device", "pi-2"]
    before = [host.listing() for host in place.hosts]

    added = command("device", "add", *place.targets, *ids, *settings, *options, *agent, "--json").line
    assert [(row["device"], row["ok"], row["examples"]) for row in added["devices"]] == [
        ("pi-1", True, None),
        ("pi-2", True, None),
    ]
    assert {"wheels", "environment", "certificate", "service", "start"} <= set(added["devices"][1]["changed"])
    line = (place.hosts[1].home / ".apportion/pi-2/start-agent").read_text()
    assert "--budget-mb 160" in line
    assert "--train-between 22:00-06:00" in line

    taken = command("device", "add", place.targets[1], "--device", "pi-1", *options, "--json")
    assert (taken.status, f"'pi-1' is that of {place.targets[0]}" in taken.error["message"]) == (2, True)
    again = command("device", "add", *place.targets, "--no-wait", "--json").line  # by the key that the book has
    assert (again["changed"], [row["changed"] for row in again["devices"]]) == (False, [[], []])
    shown = command("device", "upgrade", "--all", "--no-wait")
    assert shown.out.splitlines()[-1].startswith("2 of 2 devices ready; nothing changed, ")
    assert [(e.device, e.state, e.installation["budget_mb"]) for e in place.book.devices()] == [
        ("pi-1", "enrolled", 160.0),
        ("pi-2", "enrolled", 160.0),
    ]

    place.book.change("pi-1", target="pi@its-address-of-yesterday")
    assert place.book.get("pi-1").target == "pi@its-address-of-yesterday"
    moved = command("device", "add", place.targets[0], "--device", "pi-1", *options, "--json").line["devices"][0]
    assert (moved["ok"], moved["changed"], place.book.get("pi-1").target) == (True, [], "pi@127.0.0.1")
    twice = command("device", "add", place.targets[0], "--no-wait", "--folder", "elsewhere", "--json")
    assert (twice.status, "it would run twice" in twice.error["message"]) == (2, True)

    probed = command("device", "probe", "pi-1", "--json").line
    assert (probed["fit"], probed["facts"]["owner"], probed["profile"]["device"]) == (True, "pi-1", "pi-1")
    unknown = command("device", "probe", place.targets[0], "--key", place.hosts[0].keys.client).out
    assert f"a device can be made of it: apportion device add {place.targets[0]}" in unknown
    with (place.hosts[0].home / ".apportion/pi-1/agent.log").open("a") as log:
        log.write("the second last line\nthe last line\n")
    assert command("device", "logs", "pi-1", "--lines", "1", "--json").line["lines"] == ["the last line"]

    with place.book.working_on("pi-1"):
        busy = command("device", "upgrade", "pi-1", "--no-wait", "--json")
    assert (busy.status, busy.error["code"]) == (1, "device-busy")

    place.hosts[1].process.stop()
    gone = command("device", "revoke", "pi-2", "--json").line
    assert (len(gone["revoked"]), gone["removed"]) == (1, [])
    assert f"its agent is still on {place.targets[1]}, in ~/.apportion/pi-2" in gone["left"]
    assert command("device", "revoke", "pi-1", "--json").line["removed"] == ["service", "folder"]
    assert place.hosts[0].listing() == before[0]
    access = place.folder / "broker" / "access"
    assert "user pi-1\ntopic deny #" in access.read_text()

    back = command("device", "add", place.targets[0], "--device", "pi-1", *options, "--json")
    assert back.line["devices"][0]["ok"]
    assert "'pi-1' was revoked before; the broker shuts it out until it has read its lists:" in back.err
    assert "user pi-1" not in access.read_text()  # else the new certificate would be let in and not heard
    assert place.book.get("pi-1").state == "enrolled"
    command("device", "revoke", "pi-1")  # ends its agent
