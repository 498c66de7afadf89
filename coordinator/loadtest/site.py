"""A load test from start to end: broker, light devices, coordinator; watched, bounded in time, and all ended again.

The devices are connected before the coordinator is started, so it meets a fleet that is already there, as after a
restart; its call to everyone brings their hellos. Everything is on this machine, unless a broker elsewhere is named.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from coordinator.brokers.opening import BrokerAddress, BrokerProcess
from coordinator.loadtest.device_process import DeviceProcess
from coordinator.loadtest.figures import Figures, together
from coordinator.loadtest.light_device import PREFIX
from coordinator.loadtest.population import Settings
from coordinator.loadtest.run_file import FEDERATION, PASSWORD_VARIABLE, Wanted, adapted, run_file
from coordinator.loadtest.watched_process import Sample, Watch
from edge.contracts.errors import DeadlineExpired

CONNECT_LIMIT_S = 180.0
GRACE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is tested, and for how long at most.

    Attributes:
        broker: ``embedded``, ``mosquitto``, or a URL.
        attach: the federation of a coordinator that runs already, at a broker with a URL; empty: one is started.
        tls: mutual TLS with certificates made for the test.
        config: a user's run file, for model and method; empty: the test's own.
        seconds: the whole test, connecting apart.
    """

    devices: int
    participants: int
    rounds: int
    update_mb: float
    config: str = ""
    config_folder: str = "."
    broker: str = "mosquitto"
    attach: str = ""
    user: str = ""
    password: str = ""
    ca: str = ""
    tls: bool = False
    seconds: float = 600.0
    processes: int = 2
    runtimes: dict[str, str]
    connects_per_s: float = 2000.0
    heartbeat_s: float = 25.0
    hello_spread_s: float = 5.0
    probes_per_s: float = 20.0
    cuts: int = 0
    fetches: bool = True


@dataclass(frozen=True)
class Outcome:
    """What was measured.

    Attributes:
        rounds: the ``round`` events of the coordinator's metrics.
        samples: of ``broker`` and ``coordinator``, as far as they were started here; noted with rounds done.
        status: the coordinator's exit status; None when it was not started here, or was ended at the limit.
    """

    figures: Figures
    rounds: list[dict[str, Any]]
    samples: dict[str, list[Sample]]
    wall_s: float
    status: int | None
    log_end: str


def run_load_test(plan: Plan, folder: Path) -> Outcome:
    """Run the test; broker and run leave their files in ``folder``.

    Raises:
        BrokerUnreachable: the broker does not start, or devices cannot connect.
        DeadlineExpired: not every device was connected in time.
    """
    with contextlib.ExitStack() as stack:
        pids: dict[str, int] = {}
        address = stack.enter_context(_broker(plan, folder, pids))
        certificates = ""
        names = [f"{PREFIX}{number:05d}" for number in range(plan.devices)]
        if plan.tls and address.identity is not None:
            certificates = str(device_certificates(address.identity, folder / "certificates", names))
        shares = [names[number :: plan.processes] for number in range(plan.processes)]
        devices = [
            stack.enter_context(DeviceProcess(_settings(plan, address, certificates, share)))
            for share in shares
            if share
        ]
        _wait_connected(devices)
        began = time.monotonic()
        status, log = None, folder / "coordinator.log"
        metrics = RoundEvents(folder / "run" / "metrics.jsonl")
        coordinator = None
        if not plan.attach:
            coordinator = stack.enter_context(_coordinator(plan, address, folder, log))
            pids["coordinator"] = coordinator.pid
        with Watch(pids, note=metrics.count) as watch:
            status = _wait(coordinator, devices, began + plan.seconds)
        wall_s = time.monotonic() - began
        figures = together(process.end() for process in devices)
    end = log.read_text(errors="replace")[-1500:] if log.exists() else ""
    return Outcome(figures, metrics.read(), watch.samples, wall_s, status, end)


class RoundEvents:
    """The ``round`` events in a run's ``metrics.jsonl`` as it grows; every line is read once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0
        self._events: list[dict[str, Any]] = []

    def count(self) -> float:
        """Rounds that are done."""
        return float(len(self.read()))

    def read(self) -> list[dict[str, Any]]:
        """The events so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read_to)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._read_to += len(line)
                    event = msgspec.json.decode(line)
                    if event.get("event") == "round":
                        self._events.append({key: event.get(key) for key in ("round", "at_s", "wall_s")})
        return self._events


@contextlib.contextmanager
def _broker(plan: Plan, folder: Path, pids: dict[str, int]) -> Iterator[BrokerAddress]:
    if plan.broker not in ("embedded", "mosquitto"):
        ca = Path(plan.ca) if plan.ca else None
        yield BrokerAddress(kind="external", url=plan.broker, user=plan.user, password=plan.password, ca_file=ca)
        return
    identity = None
    if plan.tls:
        from coordinator.brokers.broker_files import coordinator_files
        from coordinator.identity.authority import Authority

        identity = folder / "identity"
        Authority.create(identity).close()
        coordinator_files(identity, FEDERATION, issue=True)
    with BrokerProcess(plan.broker, folder / "broker", identity=identity) as process:
        pids["broker"] = process.pid
        yield process.address


def _settings(plan: Plan, address: BrokerAddress, certificates: str, names: Sequence[str]) -> Settings:
    return Settings(
        broker=address.url,
        user=address.user,
        password=address.password,
        ca="" if address.ca_file is None else str(address.ca_file),
        certificates=certificates,
        federation=plan.attach or FEDERATION,
        devices=tuple(names),
        runtimes=plan.runtimes,
        connects_per_s=plan.connects_per_s / plan.processes,
        heartbeat_s=plan.heartbeat_s,
        hello_spread_s=plan.hello_spread_s,
        probes_per_s=plan.probes_per_s / plan.processes,
        cuts=plan.cuts,
        fetches=plan.fetches,
    )


def _wait_connected(processes: Sequence[DeviceProcess]) -> None:
    give_up_at = time.monotonic() + CONNECT_LIMIT_S
    for process in processes:
        if not process.wait_connected(give_up_at - time.monotonic()):
            raise DeadlineExpired(
                f"light devices were not all connected within {CONNECT_LIMIT_S:.0f} s; fewer --devices, or see the "
                "broker's log"
            )


@contextlib.contextmanager
def _coordinator(plan: Plan, address: BrokerAddress, folder: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``apportion run`` as anybody starts it, with its own process id; ended with the context."""
    broker = {"url": address.url}
    if address.identity is not None:
        broker["identity"] = str(address.identity)
    elif address.user:
        broker |= {"user": address.user, "password-env": PASSWORD_VARIABLE}
    wanted = Wanted(plan.rounds, plan.participants, plan.update_mb, plan.seconds, plan.seconds)
    path = folder / "load.toml"
    text = (
        adapted(plan.config, Path(plan.config_folder), wanted, broker)[0] if plan.config else run_file(wanted, broker)
    )
    path.write_text(text, encoding="utf-8")
    root = str(Path(__file__).resolve().parents[2])
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])))
    environment[PASSWORD_VARIABLE] = address.password
    command = [sys.executable, "-m", "edge", "run", str(path), "--run-dir", str(folder / "run"), "--local-devices", "0"]
    parent = [sys.executable, "-m", "coordinator.brokers.parent_death", str(os.getpid())]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*parent, *command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(
    coordinator: subprocess.Popen[bytes] | None, devices: Sequence[DeviceProcess], give_up_at: float
) -> int | None:
    while time.monotonic() < give_up_at:
        if coordinator is not None and (status := coordinator.poll()) is not None:
            return status
        for process in devices:
            process.check()
        time.sleep(0.1)
    return None


VALID = datetime.timedelta(days=1)
SLACK = datetime.timedelta(hours=1)
"""A certificate is valid from so long before it is made, but not from before its root."""


def device_certificates(identity: Path, folder: Path, names: Iterable[str]) -> Path:
    """``folder`` with ``<name>.pem`` for each name, and their ``key.pem``."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    root = x509.load_pem_x509_certificate((identity / "ca.pem").read_bytes())
    root_key = serialization.load_pem_private_key((identity / "ca.key").read_bytes(), None)
    assert isinstance(root_key, ec.EllipticCurvePrivateKey)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    base = (
        x509.CertificateBuilder()
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .not_valid_before(max(now - SLACK, root.not_valid_before_utc))
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key()), critical=False)
    )
    for name in names:
        made = (
            base.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .serial_number(x509.random_serial_number())
            .sign(root_key, hashes.SHA256())
        )
        (folder / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder
