"""The agent as users start it, over real brokers: restarts, SIGKILL, wrong credentials, and what it keeps in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from coordinator.brokers.opening import BrokerProcess
from edge.contracts import topics
from edge.contracts.errors import AccessDenied, BrokerUnreachable
from edge.contracts.plan import BlobRef
from edge.contracts.tensor_file import encode_tensors
from edge.supervisor.trainer_link import child_environment
from edge.transport.broker_address import parse_broker
from edge.transport.mqtt import MqttTransport
from edge.transport.shown_password import PASSWORD_VARIABLE
from tests.edge.scripted_coordinator import ScriptedCoordinator
from tests.edge.tiny_artifact import sha, tiny_job, write_data

pytestmark = pytest.mark.broker

SUPERVISOR_PEAK_BYTES = 24 << 20  # 21 to 22 MB measured on x86-64 with CPython 3.11
TLS_BYTES = 2 << 20  # the handshake's part of OpenSSL


class Process:
    """An agent process and the scripted coordinator it talks to."""

    def __init__(self, broker: BrokerProcess, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        write_data(folder / "data")
        self.coordinator = ScriptedCoordinator(transport(broker, "coordinator"))
        self.coordinator.start()
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *more: str, hello: int = 1) -> subprocess.Popen[bytes]:
        command = agent_command(self.broker.address.url, self.folder, *more)
        if self.broker.address.ca_file:
            command += ["--ca", str(self.broker.address.ca_file)]
        environment = {**child_environment(), PASSWORD_VARIABLE: self.broker.address.password}
        process = subprocess.Popen([*command, "--user", self.broker.address.user], env=environment)
        self._started.append(process)
        if hello:
            self.coordinator.wait_for("hello", count=hello)
        return process

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.coordinator.stop()


def agent_command(url: str, folder: Path, *more: str) -> list[str]:
    fixed = [
        "--federation",
        "fed",
        "--device",
        "dev-1",
        "--data",
        str(folder / "data"),
        "--store",
        str(folder / "store"),
    ]
    return [sys.executable, "-m", "edge", "agent", "--broker", url, *fixed, *more]


def transport(broker: BrokerProcess, client_id: str, *, password: str | None = None) -> MqttTransport:
    os.environ[PASSWORD_VARIABLE] = broker.address.password if password is None else password
    try:
        ca = broker.address.ca_file
        address = parse_broker(broker.address.url, user=broker.address.user, ca=None if ca is None else str(ca))
    finally:
        del os.environ[PASSWORD_VARIABLE]
    return MqttTransport(
        address, client_id=client_id, subscriptions=[topics.coordinator_filter("fed")], connect_timeout_s=5
    )


@pytest.fixture
def process(broker: BrokerProcess, tmp_path: Path) -> Iterator[Process]:
    made = Process(broker, tmp_path)
    try:
        yield made
    finally:
        made.close()


def status_bytes(pid: int, field: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


@pytest.mark.slow
def test_agent_process_broker_restarted_in_mid_transfer(process: Process) -> None:
    job = tiny_job()
    # Extra tensors make a transfer of 40 blocks, which the restart cuts.
    padding = np.random.default_rng(0).bytes(5_000_000)
    weights = encode_tensors({**job.weights, "padding": np.frombuffer(padding, np.uint8)})
    process.coordinator.blobs.update({**job.blobs, sha(weights): weights})
    order = type(job.order)(
        **{f: getattr(job.order, f) for f in job.order.__struct_fields__}
        | {"weights": BlobRef(sha(weights), len(weights), "raw", len(weights))}
    )
    served: list[int] = []

    def restart_once(get: object) -> None:
        if get.digest == order.weights.digest:  # type: ignore[attr-defined]
            served.append(get.offset)  # type: ignore[attr-defined]
            if len(served) == 12:
                process.broker.restart()

    process.coordinator.on_get = restart_once
    process.start()
    process.coordinator.order(order)
    process.coordinator.wait_for("report", timeout_s=60)
    assert process.coordinator.kinds().count("(connected)") == 2
    # Resumed, not begun again: what had arrived before the cut was asked for once.
    assert served.count(0) == 1
    assert len(served) < 2 * -(-len(weights) // 131_072)
    report = process.coordinator.reports[order.assignment_id]
    assert sha(process.coordinator.updates[order.assignment_id]) == report.update.digest


def test_agent_process_killed_after_training_does_not_train_again(process: Process) -> None:
    process.coordinator.is_acking = False
    job = tiny_job()
    process.coordinator.blobs.update(job.blobs)
    agent = process.start()
    process.coordinator.order(job.order)
    first = process.coordinator.wait_for("report")
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    gets = process.coordinator.kinds().count("get")
    process.coordinator.is_acking = True
    process.start(hello=2)
    process.coordinator.order(job.order)
    again = process.coordinator.wait_for("report", where=lambda r: process.coordinator.kinds().count("hello") == 2)
    assert again == first
    assert process.coordinator.kinds().count("get") == gets


@pytest.mark.slow
def test_agent_process_killed_in_training_starts_again_from_its_order(process: Process) -> None:
    job = tiny_job(steps=40_000)
    process.coordinator.blobs.update(job.blobs)
    agent = process.start()
    process.coordinator.order(job.order)
    process.coordinator.wait_for("get", where=lambda get: get.digest == job.order.weights.digest)
    time.sleep(0.5)  # of about two seconds of training
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    process.coordinator.wait_for("bye", where=lambda b: b.reason == "connection lost")
    process.start(hello=2)
    process.coordinator.order(job.order)
    assert process.coordinator.wait_for("report", timeout_s=60).steps == 40_000


def test_agent_process_says_goodbye_on_sigterm_and_leaves_no_child(process: Process) -> None:
    agent = process.start()
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    assert len(children) == 1
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(10) == 0
    assert process.coordinator.wait_for("bye").reason == "SIGTERM"
    assert not Path(f"/proc/{children[0]}").exists()


@pytest.mark.slow
def test_agent_process_and_its_trainer_end_with_their_parent(process: Process) -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    agent = process.start("--parent-pid", str(sleeper.pid))
    sleeper.kill()
    sleeper.wait()
    assert agent.wait(5) == 0
    assert process.coordinator.wait_for("bye").reason == "parent process ended"


def test_agent_process_killed_takes_its_trainer_along(process: Process) -> None:
    agent = process.start()
    (child,) = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    agent.send_signal(signal.SIGKILL)
    agent.wait()
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}/status").exists() and "Z (zombie)" not in Path(f"/proc/{child}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_agent_process_supervisor_is_small(process: Process) -> None:
    agent = process.start()
    job = tiny_job()
    process.coordinator.blobs.update(job.blobs)
    process.coordinator.order(job.order)
    report = process.coordinator.wait_for("report")
    assert report.supervisor_peak_bytes <= status_bytes(agent.pid, "VmHWM") <= SUPERVISOR_PEAK_BYTES
    maps = Path(f"/proc/{agent.pid}/maps").read_text()
    for library in ("numpy", "onnxruntime", "executorch", "torch"):
        assert library not in maps


def test_agent_process_wrong_password_is_exit_3(process: Process) -> None:
    command = [*agent_command(process.broker.address.url, process.folder), "--user", process.broker.address.user]
    environment = {**child_environment(), PASSWORD_VARIABLE: "wrong"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert done.returncode == 3
    assert process.broker.address.user in done.stderr
    assert "wrong" not in done.stderr
    assert "Traceback" not in done.stderr


def test_agent_process_over_tls(mosquitto_tls_broker: BrokerProcess, tmp_path: Path) -> None:
    process = Process(mosquitto_tls_broker, tmp_path)
    try:
        job = tiny_job()
        process.coordinator.blobs.update(job.blobs)
        process.start("--once")
        process.coordinator.order(job.order)
        peak = process.coordinator.wait_for("report").supervisor_peak_bytes
        assert peak <= SUPERVISOR_PEAK_BYTES + TLS_BYTES  # 23.5 MB measured
        assert process.coordinator.wait_for("bye").reason == "done"
    finally:
        process.close()


# paho leaves the socket of a failed handshake to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_mqtt_untrusted_certificate_is_denied_with_the_flag_to_use(mosquitto_tls_broker: BrokerProcess) -> None:
    address = parse_broker(mosquitto_tls_broker.address.url)
    with pytest.raises(AccessDenied, match="--ca"):
        MqttTransport(address, client_id="x", subscriptions=["a"], connect_timeout_s=3).start(lambda event: None)


@pytest.mark.slow
def test_mqtt_plain_connection_to_a_tls_port_is_unreachable(mosquitto_tls_broker: BrokerProcess) -> None:
    address = parse_broker(mosquitto_tls_broker.address.url.replace("mqtts", "mqtt"))
    with pytest.raises(BrokerUnreachable, match="TLS"):
        MqttTransport(address, client_id="x", subscriptions=["a"], connect_timeout_s=3).start(lambda event: None)
