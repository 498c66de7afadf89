"""Two coordinators that share a federation's devices: each serves its own, and one that dies or sleeps is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from coordinator.brokers.mosquitto import find_mosquitto
from coordinator.brokers.opening import BrokerProcess
from coordinator.cli.assembly import join_run, resume_run, start_run
from coordinator.cli.open_run import RunOptions
from coordinator.data.datasets import load_dataset
from coordinator.identity.authority import Authority
from coordinator.ledger.coordination import Lease
from coordinator.ledger.ledger import Ledger
from coordinator.local_devices.data_folders import local_devices
from coordinator.local_devices.processes import LocalDevices
from coordinator.run_file.loading import load_config_text
from coordinator.shards.membership import shard_of
from tests import waiting
from tests.federation.small_run import FORKS, config_text
from tests.postgres_server import PostgresServer

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.runtime]

PASSWORD = "APPORTION_SHARDS_PASSWORD"
FEDERATION = "small"
DEVICES, ROUNDS, SHARDS, LEASE_S = 4, 2, 2, 4.0
PATIENCE_S = 240.0
wait_until = partial(waiting.wait_until, within_s=PATIENCE_S)
OF_FIRST, OF_SECOND = ("device-01", "device-03"), ("device-00", "device-02")
"""Devices of shard 0 and of shard 1: who comes first keeps the lower numbers."""


@dataclass
class Site:
    """What no coordinator owns: a broker, agents, a database, a folder of blobs; and the coordinators' processes."""

    text: str
    place: str
    folder: Path
    environment: dict[str, str]
    processes: list[BaseProcess] = field(default_factory=list)

    def ledger(self) -> Ledger:
        return Ledger.open(self.place, federation=FEDERATION)

    def start(self, name: str, point: str = "", how: signal.Signals | None = None) -> BaseProcess:
        """A coordinator; the first begins the run, later ones join. At ``point`` it ends or stops itself, once.

        No round is planned before the file ``go`` is there.
        """
        arguments = (self.text, self.place, str(self.folder), name, point, None if how is None else int(how))
        process = FORKS.Process(target=_coordinate, args=(*arguments, self.environment))
        process.start()
        self.processes.append(process)
        return process

    def start_both(self, first: tuple[str, signal.Signals] | None, second: tuple[str, signal.Signals] | None) -> None:
        """Two coordinators, the first of which leads and holds shard 0; the second holds shard 1."""
        self.start("first", *(first or ()))
        wait_until(lambda: self.folder.joinpath("first", "lease").is_file(), "the first coordinator's lead")
        wait_until(lambda: self.holder(0) == self.holder(1) == self.owner("first"), "its shards")
        self.start("second", *(second or ()))
        wait_until(lambda: self.joins() and self.holder(1) == self.owner("second"), "the second coordinator's shard")
        assert self.holder(0) == self.owner("first")
        # A heartbeat or a hello of each device is heard by the holder of its shard, and by nobody else.
        owners = dict.fromkeys(OF_FIRST, self.owner("first")) | dict.fromkeys(OF_SECOND, self.owner("second"))
        wait_until(lambda: self.heard_by() == owners, "devices of both")
        (self.folder / "go").touch()

    def joins(self) -> bool:
        return self.folder.joinpath("second", "shards").is_file()

    def owner(self, name: str) -> str:
        return (self.folder / name / "shards").read_text().strip()

    def lease(self, name: str) -> Lease | None:
        with self.ledger() as ledger:
            return next((lease for lease in ledger.leases.all() if lease.name == name and lease.left_s > 0), None)

    def holder(self, shard: int) -> str:
        lease = self.lease(f"shard-{shard}")
        return "" if lease is None else lease.owner

    def heard_by(self) -> dict[str, str]:
        with self.ledger() as ledger:
            return {presence.device: presence.owner for presence in ledger.presences.all()}

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def seconds_until(self, lease: str, owner: str) -> float:
        """From now until ``owner`` holds ``lease``."""
        began = time.monotonic()
        with self.ledger() as ledger:
            wait_until(
                lambda: any(x.name == lease and x.owner == owner and x.left_s > 0 for x in ledger.leases.all()), lease
            )
        return time.monotonic() - began

    def seconds_until_said(self, name: str, words: str, times: int = 1) -> float:
        began = time.monotonic()
        wait_until(lambda: self.said(name).count(words) >= times, f"'{words}' of {name}")
        return time.monotonic() - began

    def left(self, name: str) -> list[dict[str, Any]]:
        """What a coordinator told of the shards that it let go."""
        lines = (self.folder / name / "metrics.jsonl").read_text().splitlines()
        return [event for event in map(json.loads, lines) if event["event"] == "shard-left"]


def _coordinate(
    text: str, place: str, folder: str, name: str, point: str, how: int | None, environment: dict[str, str]
) -> None:
    os.environ.update(environment)
    log = os.open(Path(folder) / f"{name}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 2)
    waits_for = point

    def on_point(passed: str) -> None:
        nonlocal waits_for
        if passed == "before-plan":
            wait_until((Path(folder) / "go").exists, "both coordinators")
        if passed == waits_for and how is not None:
            waits_for = ""
            os.kill(os.getpid(), how)

    options, run_dir = RunOptions(on_point=on_point), Path(folder) / name
    if (run_dir / "shards").is_file():
        resume_run(run_dir, options)
    elif name == "first":
        start_run(load_config_text(text), run_dir, options)
    else:
        join_run(text, place, run_dir, options)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final model of a run with one coordinator and a ledger in a file."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    text = config_text(rounds=ROUNDS, local=DEVICES, size=DEVICES)
    start_run(load_config_text(text), run_dir, RunOptions(quiet=True))
    return final_bytes(run_dir)


def final_bytes(run_dir: Path) -> bytes:
    return (run_dir / "checkpoints" / "final.safetensors").read_bytes()


@pytest.fixture
def site(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    with running_site(postgres_server, tmp_path, identity=None) as site:
        yield site


@pytest.fixture
def site_with_certificates(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    """Everybody is known by a certificate, and each shard has one of its own."""
    identity = tmp_path / "identity"
    with Authority.create(identity) as authority:
        for shard in (None, *range(SHARDS)):
            authority.issue_coordinator(FEDERATION, shard=shard)
    with running_site(postgres_server, tmp_path, identity=identity) as site:
        yield site


@contextlib.contextmanager
def running_site(server: PostgresServer, folder: Path, *, identity: Path | None) -> Iterator[Site]:
    if find_mosquitto() is None:
        pytest.skip("mosquitto is not installed here (Debian: mosquitto)")
    config = load_config_text(config_text(local=DEVICES, size=DEVICES))
    devices = local_devices(config, load_dataset("digits", None, config.federation.seed), folder / "outside", None)
    with BrokerProcess("mosquitto", folder / "broker", identity=identity) as broker:
        address = broker.address
        place = server.new_database()
        known_by = f'user = "{address.user}"\npassword-env = "{PASSWORD}"'
        if identity is not None:
            known_by = f'identity = "{identity}"'
        own = config_text(rounds=ROUNDS, local=0, size=DEVICES, broker=f'url = "{address.url}"\n{known_by}')
        store = f'ledger = "{place}"\ndir = "{folder / "blobs"}"\nlease-s = {LEASE_S}\nshards = {SHARDS}'
        with LocalDevices(devices, address, FEDERATION) as agents:
            running = Site(f"{own}\n[store]\n{store}\n", place, folder, {PASSWORD: address.password or "none"})
            try:
                yield running
                assert agents.exited() == {}
            finally:
                for process in running.processes:
                    process.kill()
                    process.join(30.0)


def assert_counted_once(site: Site) -> None:
    """Every round was committed once, at its first attempt, with one update of each device."""
    with site.ledger() as ledger:
        assert ledger.federation().state == "finished"
        assert [(r.round, r.attempt, r.state) for r in ledger.rounds.all()] == [
            (i, 0, "committed") for i in range(ROUNDS)
        ]
        for entry in ledger.rounds.all():
            devices = [u.assignment.device for u in ledger.updates.counted(entry.round, entry.attempt)]
            assert devices == sorted(set(devices)) == list(entry.participants)
            assert len(devices) == DEVICES
        assert ledger.audit.findings() == []


@pytest.mark.parametrize("kind", ["site", "site_with_certificates"])
def test_each_coordinator_serves_the_devices_of_its_own_shard(
    request: pytest.FixtureRequest, undisturbed: bytes, kind: str
) -> None:
    site: Site = request.getfixturevalue(kind)
    assert [shard_of(device, SHARDS) for device in (*OF_FIRST, *OF_SECOND)] == [0, 0, 1, 1]
    site.start_both(None, None)
    for process in site.processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    assert final_bytes(site.folder / "first") == undisturbed
    assert_counted_once(site)
    # Whoever ends last holds both shards for a moment; updates were carried by the one that held them in the rounds.
    carried = {name: {d: n for note in site.left(name) for d, n in note["carried"].items() if n} for name in NAMES}
    assert {name: tuple(sorted(of)) for name, of in carried.items()} == {"first": OF_FIRST, "second": OF_SECOND}
    update = min(size for of in carried.values() for size in of.values()) / ROUNDS
    for name in NAMES:
        for note in site.left(name):
            assert set(note["of_others"]) <= {"hello"}
            assert sum(note["of_others"].values()) < 0.5 * update
    print(f"updates carried: {carried}; of others: {[n['of_others'] for name in NAMES for n in site.left(name)]}")


NAMES = ("first", "second")


def test_device_that_is_revoked_is_shut_out_by_the_holder_of_its_shard(site_with_certificates: Site) -> None:
    site = site_with_certificates
    for key, before, after in (("min-reports", DEVICES, DEVICES - 1), ("join-timeout-s", 60.0, 5.0)):
        assert f"{key} = {before}" in site.text
        site.text = site.text.replace(f"{key} = {before}", f"{key} = {after}")
    site.start_both(None, None)
    wait_until(lambda: "4 orders published" in site.said("first"), "the first round")
    with Authority(site.folder / "identity") as authority:
        authority.revoke("device-00")
    for process in site.processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    assert "device-00 was revoked" in site.said("second")
    assert "device-00 was revoked" not in site.said("first").partition("this process serves shards 0, 1")[0]
    with site.ledger() as ledger:
        presences = {presence.device: presence for presence in ledger.presences.all()}
        assert ledger.rounds.all()[-1].participants == ("device-01", "device-02", "device-03")
        assert ledger.audit.findings() == []
    assert presences["device-00"].away_reason == "revoked"


def test_coordinator_that_is_asked_to_end_leaves_its_shard_at_once(site: Site, undisturbed: bytes) -> None:
    first = site.start("first")
    wait_until(lambda: site.folder.joinpath("first", "lease").is_file(), "the first coordinator's lead")
    command = [sys.executable, "-m", "edge", "join", site.place, "--federation", FEDERATION]
    with (site.folder / "second.log").open("wb") as said:
        second = subprocess.Popen(
            [*command, "--run-dir", str(site.folder / "second")], stderr=said, env={**os.environ, **site.environment}
        )
    try:
        site.seconds_until_said("second", "this process serves shards 1 of 2")
        second.terminate()
        freed_s = site.seconds_until("shard-1", site.owner("first"))
        assert second.wait(PATIENCE_S) == 128 + signal.SIGTERM
    finally:
        second.kill()
        second.wait(30.0)
    print(f"holder ended by SIGTERM: shard taken over after {freed_s:.2f} s")
    assert freed_s < LEASE_S / 2
    (site.folder / "go").touch()
    first.join(PATIENCE_S)
    assert first.exitcode == 0
    assert final_bytes(site.folder / "first") == undisturbed
    assert_counted_once(site)


@pytest.mark.parametrize("point", ["mid-upload", "recorded"])
def test_killed_holder_is_followed_within_its_lease_and_the_round_goes_on(
    site: Site, undisturbed: bytes, point: str
) -> None:
    site.start_both(None, (point, signal.SIGKILL))
    first, second = site.processes
    second.join(PATIENCE_S)
    assert second.exitcode == -signal.SIGKILL
    taken_s = site.seconds_until("shard-1", site.owner("first"))
    served_s = taken_s + site.seconds_until_said("first", "serves shards 0, 1 of 2", times=2)  # alone at first, too
    first.join(PATIENCE_S)
    print(f"holder killed at {point}: shard taken over after {taken_s:.2f} s, served after {served_s:.2f} s")
    assert taken_s <= LEASE_S + 1.0
    assert first.exitcode == 0
    assert final_bytes(site.folder / "first") == undisturbed
    assert_counted_once(site)


def test_killed_leader_is_followed_with_its_shard(site: Site, undisturbed: bytes) -> None:
    site.start_both(("mid-upload", signal.SIGKILL), None)
    first, second = site.processes
    first.join(PATIENCE_S)
    assert first.exitcode == -signal.SIGKILL
    taken_s = site.seconds_until("shard-0", site.owner("second"))
    wait_until(lambda: "this process leads" in site.said("second"), "the second coordinator's lead")
    second.join(PATIENCE_S)
    print(f"leader killed in an upload: its shard taken over after {taken_s:.2f} s")
    assert taken_s <= LEASE_S + 1.0
    assert second.exitcode == 0
    assert final_bytes(site.folder / "second") == undisturbed
    assert_counted_once(site)


def test_only_coordinator_is_resumed_without_waiting_for_its_leases(site: Site, undisturbed: bytes) -> None:
    (site.folder / "go").touch()
    killed = site.start("first", "mid-upload", signal.SIGKILL)
    killed.join(PATIENCE_S)
    before = site.owner("first")
    assert {lease.owner for name in ("shard-0", "shard-1") if (lease := site.lease(name))} <= {before}
    resumed = site.start("first")
    wait_until(lambda: site.owner("first") != before, "its own name")
    freed_s = site.seconds_until("shard-1", site.owner("first"))
    resumed.join(PATIENCE_S)
    assert resumed.exitcode == 0
    assert freed_s < LEASE_S / 2
    assert final_bytes(site.folder / "first") == undisturbed
    assert_counted_once(site)


def test_leader_that_stood_still_waits_for_its_next_turn(site: Site, undisturbed: bytes) -> None:
    # What it does next is to commit the round.
    site.start_both(("before-commit", signal.SIGSTOP), None)
    slept = site.processes[0].pid
    assert slept is not None
    wait_until(lambda: "this process leads" in site.said("second"), "the second coordinator's lead")
    site.seconds_until("shard-0", site.owner("second"))
    os.kill(slept, signal.SIGCONT)
    for process in site.processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    assert final_bytes(site.folder / "first") == final_bytes(site.folder / "second") == undisturbed
    assert_counted_once(site)


def test_holder_that_stood_still_records_nothing_when_it_wakes(site: Site, undisturbed: bytes) -> None:
    # What it does next is to record an update.
    site.start_both(None, ("blob-stored", signal.SIGSTOP))
    slept = site.processes[1].pid
    assert slept is not None
    wait_until(lambda: Path(f"/proc/{slept}/stat").read_text().rpartition(")")[2].split()[0] == "T", "its sleep")
    taken_s = site.seconds_until("shard-1", site.owner("first"))
    os.kill(slept, signal.SIGCONT)
    site.seconds_until_said("second", "is no longer held")
    for process in site.processes:
        process.join(PATIENCE_S)
        assert process.exitcode == 0
    print(f"holder that stood still: shard taken over after {taken_s:.2f} s")
    assert final_bytes(site.folder / "first") == undisturbed
    assert_counted_once(site)
