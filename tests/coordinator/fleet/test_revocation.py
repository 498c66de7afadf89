"""A revoked device: the next connection is refused by a real broker, wherever that is and however it was started."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.brokers.broker_files import ClientFiles, local_device_files, write_broker_folder
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.cli.device_greeting import open_greeter
from coordinator.fleet.book import FleetSettings
from coordinator.fleet.greeting import Greeter
from coordinator.fleet.revocation import revoke_device, tell_broker
from coordinator.identity.authority import Authority
from coordinator.identity.claims import create_token
from edge.contracts import topics
from edge.contracts.envelope import seal
from edge.contracts.errors import AccessDenied, DeadlineExpired, IdentityRefused
from edge.contracts.messages import Hello
from edge.transport.base import Event, Received
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport
from profiles.device import DeviceProfile
from tests.mosquitto import running_mosquitto

pytestmark = [
    pytest.mark.broker,
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here"),
]


class Site:
    """A broker that was started by hand in the folder that ``apportion ca mosquitto`` wrote."""

    def __init__(self, folder: Path, *, has_coordinator: bool = True) -> None:
        self.identity, self.folder = folder / "identity", folder / "broker"
        with Authority.create(self.identity) as authority:
            authority.issue_server(["localhost"])
            if has_coordinator:
                authority.issue_coordinator("fed")
        self._stack = contextlib.ExitStack()
        self.process, self.port = self._stack.enter_context(running_mosquitto(self._write, cwd=self.folder))

    def _write(self, port: int) -> Path:
        config = write_broker_folder(self.identity, self.folder, port=port, bind="127.0.0.1")
        if os.geteuid() == 0:
            config.write_text(config.read_text() + "user root\n")
        return Path(config.name)

    def close(self) -> None:
        """End the broker."""
        self._stack.close()

    def connects(self, files: ClientFiles) -> bool:
        transport = MqttTransport(
            parse_broker(
                f"mqtts://localhost:{self.port}",
                ca=str(files.ca),
                certificate=str(files.certificate),
                key=str(files.key),
            ),
            client_id="x",
            subscriptions=("none",),
            connect_timeout_s=5,
        )
        try:
            transport.start(lambda event: None)
        except AccessDenied:
            return False
        transport.stop()
        return True


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


@pytest.mark.slow
def test_next_connection_is_refused_once_the_broker_was_told(site: Site) -> None:
    files, other = local_device_files(site.identity, "pi-1"), local_device_files(site.identity, "pi-2")
    assert site.connects(files)
    serials = revoke_device(site.identity, "pi-1", reason="lost")
    assert len(serials) == 1
    news = tell_broker(site.identity, site.folder)
    assert (news.folder, news.pid, news.commands) == (site.folder, site.process.pid, ())
    time.sleep(0.5)
    assert not site.connects(files)
    assert site.connects(other)
    assert "user pi-1\ntopic deny #" in (site.folder / "access").read_text()
    assert revoke_device(site.identity, "pi-1", reason="lost") == []


def test_broker_whose_files_know_no_coordinator_is_given_them_before_a_device_is_waited_for(tmp_path: Path) -> None:
    site = Site(tmp_path, has_coordinator=False)
    url = f"mqtts://localhost:{site.port}"
    files = local_device_files(site.identity, "pi-1")
    device = MqttTransport(
        parse_broker(url, ca=str(files.ca), certificate=str(files.certificate), key=str(files.key)),
        client_id="pi-1",
        subscriptions=topics.device_filters("fed", "pi-1"),
    )

    def answer(event: Event) -> None:
        if isinstance(event, Received):
            profile = DeviceProfile(device="pi-1")
            hello = Hello(device="pi-1", agent_version="1", profile=profile, runtimes={}, num_examples=1)
            device.publish(topics.up("fed", "pi-1", "hello"), seal("hello", hello))

    settings = FleetSettings(federation="fed", broker=url, identity=str(site.identity), broker_folder=str(site.folder))
    try:
        device.start(answer)
        with Greeter(url, site.identity, "fed") as deaf, pytest.raises(DeadlineExpired, match="know '@fed@fleet'"):
            deaf.wait("pi-1", 0.5)
        with open_greeter(settings) as greeter:
            assert greeter.wait("pi-1", 10.0).device == "pi-1"
        assert "user @fed@fleet\n" in (site.folder / "access").read_text()
    finally:
        device.stop()
        site.close()


def test_process_is_found_by_its_pid_file_and_a_stale_one_harms_nobody(site: Site) -> None:
    innocent = subprocess.Popen(["sleep", "60"])
    try:
        (site.folder / "mosquitto.pid").write_text(f"{innocent.pid}\n")
        assert tell_broker(site.identity, site.folder).pid == site.process.pid
        own = site.folder.parent / "own.pid"
        own.write_text(f"{site.process.pid}\n")
        assert tell_broker(site.identity, site.folder, pid_file=own).pid == site.process.pid
        time.sleep(0.2)
        assert innocent.poll() is None  # SIGHUP would have ended it
    finally:
        innocent.kill()
        innocent.wait()


def test_broker_elsewhere_is_told_by_the_commands_that_are_shown(tmp_path: Path) -> None:
    identity, folder = tmp_path / "identity", tmp_path / "broker"
    with Authority.create(identity) as authority:
        authority.issue_server(["broker.local"])
        authority.issue_coordinator("fed")
    write_broker_folder(identity, folder, at=Path("/etc/mosquitto/apportion"))
    local_device_files(identity, "pi-1")
    revoke_device(identity, "pi-1", reason="lost")
    before = (folder / "crl.pem").read_bytes()
    news = tell_broker(identity, folder)
    assert (folder / "crl.pem").read_bytes() != before
    assert news.pid is None
    assert news.commands == (
        f"sudo cp -rT {folder} /etc/mosquitto/apportion",
        "sudo chown -R mosquitto: /etc/mosquitto/apportion",
        "sudo systemctl reload mosquitto",
    )
    assert tell_broker(identity, None).commands[0] == f"apportion ca mosquitto --out DIR --dir {identity}"
    write_broker_folder(identity, folder)  # read where it is, and nothing runs there
    assert tell_broker(identity, folder).commands == ("sudo systemctl reload mosquitto",)


def test_folder_of_another_identity_or_of_none_is_not_written(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with Authority.create(tmp_path / name) as authority:
            authority.issue_server(["broker.local"])
    write_broker_folder(tmp_path / "two", tmp_path / "broker")
    with pytest.raises(IdentityRefused, match="broker's folder of another identity"):
        tell_broker(tmp_path / "one", tmp_path / "broker")
    with pytest.raises(IdentityRefused, match=r"no broker's folder: it has no mosquitto\.conf"):
        tell_broker(tmp_path / "one", tmp_path)
    assert not (tmp_path / "access").exists()


def test_device_that_was_never_enrolled_loses_its_token(tmp_path: Path) -> None:
    with Authority.create(tmp_path / "identity") as authority:
        token = create_token(authority, "phone-1", 3600)
        assert authority.records.token(token.partition(".")[0]) is not None
    assert revoke_device(tmp_path / "identity", "phone-1", reason="never came") == []
    with Authority(tmp_path / "identity") as authority:
        assert authority.records.token(token.partition(".")[0]) is None
    assert revoke_device(tmp_path / "identity", "nobody", reason="") == []
