"""Brokers started here: who they let in, what they deliver, where they are after a restart, when they end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import paho.mqtt.client as mqtt
import psutil
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from coordinator.brokers.certificates import server_certificate
from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerAddress, BrokerProcess, open_broker
from coordinator.config.run_config import BrokerConfig, TlsFiles
from edge.contracts.envelope import MAX_MESSAGE_BYTES
from edge.contracts.errors import BrokerUnreachable, ConfigError

pytestmark = pytest.mark.broker

KINDS = [
    "embedded",
    pytest.param(
        "mosquitto", marks=pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here")
    ),
]


class Client:
    """A paho client with what it received; ``code`` is the broker's answer to CONNECT."""

    def __init__(
        self,
        address: BrokerAddress,
        name: str,
        *,
        password: str | None = None,
        user: str | None = None,
        keepalive_s: int = 60,
    ) -> None:
        parts = urlsplit(address.url)
        self.received: list[mqtt.MQTTMessage] = []
        self.code = ""
        self._answered = threading.Event()
        self._subscribed = threading.Event()
        self.paho = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=mqtt.MQTTv311)
        if user != "":
            self.paho.username_pw_set(user or address.user, address.password if password is None else password)
        if parts.scheme == "mqtts":
            self.paho.tls_set_context(ssl.create_default_context(cafile=str(address.ca_file)))
        self.paho.on_connect = self._on_connect
        self.paho.on_subscribe = lambda *_: self._subscribed.set()
        self.paho.on_message = lambda _client, _data, message: self.received.append(message)
        self.paho.connect(parts.hostname or "", parts.port or 0, keepalive=keepalive_s)
        self.paho.loop_start()
        assert self._answered.wait(10.0)

    def _on_connect(self, _client: object, _data: object, _flags: object, code: object, _properties: object) -> None:
        self.code = str(code)
        self._answered.set()

    def subscribe(self, topic: str, qos: int) -> None:
        self.paho.subscribe(topic, qos)
        assert self._subscribed.wait(10.0)

    def wait_for(self, count: int, timeout_s: float = 10.0) -> list[mqtt.MQTTMessage]:
        give_up_at = time.monotonic() + timeout_s
        while len(self.received) < count and time.monotonic() < give_up_at:
            time.sleep(0.01)
        return self.received

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()


@contextlib.contextmanager
def connected(address: BrokerAddress, *names: str) -> Iterator[list[Client]]:
    clients = [Client(address, name) for name in names]
    try:
        yield clients
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
@pytest.mark.parametrize("kind", KINDS)
def test_broker_relays_a_block_between_known_users(kind: str, tls: bool, tmp_path: Path) -> None:
    block = os.urandom(262_144)
    with BrokerProcess(kind, tmp_path, tls=tls) as process, connected(process.address, "a", "b") as (a, b):
        b.subscribe("apportion/v1/fed/dn/b/#", 1)
        a.paho.publish("apportion/v1/fed/dn/b/block", block, qos=0)
        a.paho.publish("apportion/v1/fed/dn/b/order", b"order", qos=1)
        messages = b.wait_for(2)
        assert [(m.topic.rsplit("/", 1)[1], m.qos) for m in messages] == [("block", 0), ("order", 1)]
        assert messages[0].payload == block
        assert process.address.url.startswith("mqtts://" if tls else "mqtt://")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("user", "password"), [(None, "wrong"), ("someone", None), ("", "")])
def test_stranger_is_refused(kind: str, user: str | None, password: str | None, tmp_path: Path) -> None:
    with BrokerProcess(kind, tmp_path) as process:
        stranger = Client(process.address, "x", user=user, password=password)
        assert stranger.code in ("Not authorized", "Bad user name or password")
        assert not stranger.paho.is_connected()
        stranger.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_idle_client_that_pings_stays_connected(kind: str, tmp_path: Path) -> None:
    with BrokerProcess(kind, tmp_path) as process:
        client = Client(process.address, "x", keepalive_s=1)
        ends: list[object] = []
        client.paho.on_disconnect = lambda *arguments: ends.append(arguments)
        time.sleep(3.5)
        assert client.paho.is_connected()
        assert ends == []
        client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_certificate_is_checked_against_the_given_authority(kind: str, tmp_path: Path) -> None:
    other = server_certificate(tmp_path / "other")
    with BrokerProcess(kind, tmp_path / "broker", tls=True) as process:
        port = urlsplit(process.address.url).port
        for ca in (process.address.ca_file, other.ca):
            context = ssl.create_default_context(cafile=str(ca))
            with socket.create_connection(("127.0.0.1", port), 5.0) as plain:
                if ca == other.ca:
                    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
                        context.wrap_socket(plain, server_hostname="localhost")
                else:
                    with context.wrap_socket(plain, server_hostname="localhost") as secure:
                        assert secure.version() in ("TLSv1.2", "TLSv1.3")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_restart_keeps_address_and_clients_come_back(kind: str, tmp_path: Path) -> None:
    with BrokerProcess(kind, tmp_path) as process, connected(process.address, "a") as (a,):
        before, first = process.address, process.pid
        a.paho.reconnect_delay_set(1, 1)
        process.restart()
        assert process.address == before
        assert process.pid != first
        give_up_at = time.monotonic() + 10.0
        while not a.paho.is_connected() and time.monotonic() < give_up_at:
            time.sleep(0.05)
        a.subscribe("t", 1)
        a.paho.publish("t", b"back", qos=1)
        assert [m.payload for m in a.wait_for(1)] == [b"back"]


def test_second_broker_in_a_folder_has_the_same_address(tmp_path: Path) -> None:
    with BrokerProcess("embedded", tmp_path, tls=True) as first:
        kept = first.address
    with BrokerProcess("embedded", tmp_path, tls=True) as second:
        assert second.address == kept
        assert second.address.password == kept.password


def test_files_with_secrets_are_the_owners_alone(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    with BrokerProcess("embedded", folder, tls=True) as process:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "broker.json").stat().st_mode & 0o777 == 0o600
        assert (folder / "server.key").stat().st_mode & 0o777 == 0o600
        arguments = " ".join(psutil.Process(process.pid).cmdline())
        assert process.address.password not in arguments
        assert process.address.password not in repr(process.address)


@pytest.mark.parametrize("kind", KINDS)
def test_broker_ends_with_a_killed_parent(kind: str, tmp_path: Path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom coordinator.brokers.opening import BrokerProcess\n"
        f"process = BrokerProcess({kind!r}, Path({str(tmp_path)!r}))\nprocess.start()\n"
        "print(process.pid, flush=True)\ntime.sleep(60)\n"
    )
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", script], cwd=root, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        broker = int(parent.stdout.readline())
        assert psutil.pid_exists(broker)
        parent.send_signal(signal.SIGKILL)
    give_up_at = time.monotonic() + 5.0
    while _runs(broker) and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert not _runs(broker)


def _runs(pid: int) -> bool:
    # Without an init process that reaps orphans, an ended one stays as a zombie.
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.skipif(find_mosquitto() is None, reason="mosquitto is not installed here")
def test_mosquitto_drops_what_is_over_the_limit(tmp_path: Path) -> None:
    with BrokerProcess("mosquitto", tmp_path) as process, connected(process.address, "a", "b") as (a, b):
        b.subscribe("t", 1)
        a.paho.publish("t", b"x" * MAX_MESSAGE_BYTES, qos=0)
        assert len(b.wait_for(1)) == 1
        a.paho.publish("t", b"x" * (MAX_MESSAGE_BYTES + 2048), qos=0)
        b.paho.publish("t", b"after", qos=1)
        assert [len(m.payload) for m in b.wait_for(2)] == [MAX_MESSAGE_BYTES, 5]


def test_missing_mosquitto_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coordinator.brokers.process.find_mosquitto", lambda: None)
    with pytest.raises(BrokerUnreachable, match="not on PATH") as caught:
        BrokerProcess("mosquitto", tmp_path).start()
    assert "embedded" in caught.value.hint


def test_broker_that_cannot_start_shows_its_log(tmp_path: Path) -> None:
    process = BrokerProcess("embedded", tmp_path, tls=True)
    (tmp_path / "server.pem").write_text("no certificate")
    with pytest.raises(BrokerUnreachable, match=r"did not start on port \d+: .*"):
        process.start()


def test_outside_broker_is_not_started(tmp_path: Path) -> None:
    config = BrokerConfig(url="mqtts://broker:8883", tls=TlsFiles(ca="/ca.pem"), user="me", password_env="SECRET")
    with open_broker(config, tmp_path / "none", environ={"SECRET": "pw"}) as address:
        assert (address.kind, address.url, address.user, address.password) == ("external", config.url, "me", "pw")
        assert address.ca_file == Path("/ca.pem")
    assert not (tmp_path / "none").exists()


def test_password_variable_that_is_not_set_is_a_configuration_error(tmp_path: Path) -> None:
    config = BrokerConfig(url="mqtt://broker", user="me", password_env="SECRET")
    with pytest.raises(ConfigError, match=r"\$\.broker\.password-env: the environment has no SECRET"):
        with open_broker(config, tmp_path, environ={}):
            pass


def test_given_user_and_password_are_used(tmp_path: Path) -> None:
    config = BrokerConfig(user="lab", password_env="SECRET")
    with open_broker(config, tmp_path, environ={"SECRET": "pw"}) as address, connected(address, "a") as (a,):
        assert a.code == "Success"
        assert (address.user, address.password) == ("lab", "pw")
